"""Predictions, errors and access control of `vitft serve`."""

import asyncio
import io
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.support.serving import Client, form, serving
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.timm_config import TimmConfig
from vitft.models.timm_model import TimmModel
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.predict.postprocess import Postprocess, Scores
from vitft.predict.run_info import RunInfo
from vitft.predict.torch_engine import Predictor
from vitft.serve.access import access_for, is_own_page
from vitft.serve.batching import BatchQueue, PendingImage, QueueFullError
from vitft.serve.limits import ServeLimits
from vitft.system.errors import RunError

CLASSES = ("red <b>", "grün", "bl\udcffue")  # markup, two bytes, and a name that is no Unicode
CONFIG = ViTConfig(
    image_size=(16, 16), patch_size=(4, 4), width=32, depth=2, heads=2, num_classes=3
)


def make_predictor(kind: type[Predictor] = Predictor, model: Any = None) -> Predictor:
    """Return a small random model with distinct probabilities."""
    torch.manual_seed(0)
    card = Card(architecture=CONFIG, transform=EvalTransform(image_size=(16, 16)), classes=CLASSES)
    if model is None:
        model = VisionTransformer(CONFIG)
        nn.init.normal_(model.head.weight, std=0.5)
    return kind(model, card, device="cpu")


def png(seed: int, **options: Any) -> bytes:
    """Return a PNG file of coloured noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (20, 24, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return make_predictor()


@pytest.fixture(scope="module")
def client(predictor: Predictor) -> Iterator[Client]:
    """A server with small limits, shared by the tests that leave it intact."""
    limits = ServeLimits(max_bytes=300_000, queue=64)
    with serving(predictor, limits, access_for("127.0.0.1", ["flowers.example"])) as served:
        yield served


def expected(predictor: Predictor, image: bytes) -> dict[str, float]:
    """Return the probabilities of all classes of an image."""
    view = predictor.card.transform.pixels(Image.open(io.BytesIO(image), formats=["PNG"]))
    logits = torch.from_numpy(predictor.scores(view[None]).logits)
    return dict(zip(CLASSES, logits.softmax(-1)[0].tolist(), strict=True))


def found(result: dict[str, Any]) -> dict[str, float]:
    return {share["class"]: share["probability"] for share in result["classes"]}


# predictions -------------------------------------------------------------------------------------


def test_the_prediction_is_that_of_predict(client: Client, predictor: Predictor) -> None:
    answer = client.post("/predict", png(1))

    assert answer.status == 200
    assert found(answer.json["results"][0]) == pytest.approx(expected(predictor, png(1)), abs=1e-6)
    shares = [share["probability"] for share in answer.json["results"][0]["classes"]]
    assert shares == sorted(shares, reverse=True)


def test_top_k_limits_the_number_of_classes(client: Client) -> None:
    counts = [
        len(client.post(f"/predict?top_k={k}", png(1)).json["results"][0]["classes"])
        for k in (1, 2, 10)
    ]

    assert counts == [1, 2, 3]


def test_five_classes_are_predicted_unless_top_k_is_given(client: Client) -> None:
    """The schema states the default and the limits of the parameter."""
    schema = client.ask("GET", "/openapi.json").json["paths"]["/predict"]["post"]
    (top_k,) = schema["parameters"]

    assert (top_k["name"], top_k["in"], top_k["required"]) == ("top_k", "query", False)
    assert top_k["schema"]["default"] == 5
    assert (top_k["schema"]["minimum"], top_k["schema"]["maximum"]) == (1, 10_000)
    assert schema["requestBody"]["required"] is True
    assert schema["requestBody"]["content"].keys() == {"multipart/form-data", "image/*"}
    assert {"200", "408", "413", "415", "422", "503"} <= schema["responses"].keys()
    assert client.post("/predict?top_k=10000", png(1)).status == 200
    assert client.post("/predict?top_k=10001", png(1)).status == 422


def test_several_files_are_predicted_in_order_despite_an_unreadable_one(
    client: Client, predictor: Predictor
) -> None:
    files = [("a.png", png(1)), ("../x.txt", b"no image"), ('ü \\"c.png', png(2))]

    answer = client.form("/predict", *files)

    first, second, third = answer.json["results"]
    assert answer.status == 200
    assert [first["path"], second["path"], third["path"]] == ["a.png", "../x.txt", 'ü "c.png']
    assert found(first) == pytest.approx(expected(predictor, png(1)), abs=1e-6)
    assert found(third) == pytest.approx(expected(predictor, png(2)), abs=1e-6)
    assert second["error"] == "not an image (looks like text)"


def test_concurrent_clients_get_the_predictions_for_their_own_images(
    client: Client, predictor: Predictor
) -> None:
    images = [png(seed) for seed in range(60)]

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda image: client.post("/predict", image), images))

    for image, answer in zip(images, answers, strict=True):
        assert found(answer.json["results"][0]) == pytest.approx(
            expected(predictor, image), abs=1e-5
        )


class SlowPredictor(Predictor):
    """Waits for an event before each batch and records its size."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.may_go, self.batches, self.is_asked = threading.Event(), [0], threading.Event()

    def start(self, views: Any) -> Callable[[], Scores]:
        if self.batches != [0]:  # the first is the server's own, at its start
            self.is_asked.set()
            assert self.may_go.wait(20)
        self.batches.append(len(views))
        return super().start(views)


def until(client: Client, waiting: int) -> None:
    """Wait until so many images are queued."""
    while client.ask("GET", "/healthz").json["waiting"] != waiting:
        pass


def test_queued_images_are_predicted_in_one_batch() -> None:
    slow = make_predictor(SlowPredictor)
    assert isinstance(slow, SlowPredictor)

    async def ask_six() -> None:
        queue = BatchQueue(slow, Postprocess(classes=CLASSES), ServeLimits())
        work = asyncio.create_task(queue.serve())
        await asyncio.sleep(0)
        first = asyncio.create_task(queue.predict(png(0), "", 1))
        while not slow.is_asked.is_set():
            await asyncio.sleep(0)
        rest = [asyncio.create_task(queue.predict(png(i), "", 1)) for i in range(5)]
        while len(queue.pending) < 5:
            await asyncio.sleep(0)
        slow.may_go.set()
        await asyncio.gather(first, *rest)
        work.cancel()

    asyncio.run(ask_six())

    assert slow.batches == [0, 1, 1, 5]  # nothing, the server's own, the lone image, the others


def test_a_full_queue_refuses_further_images_while_the_server_stays_alive() -> None:
    slow = make_predictor(SlowPredictor)
    assert isinstance(slow, SlowPredictor)

    with serving(slow, ServeLimits(queue=2)) as client, ThreadPoolExecutor(1) as pool:
        two = pool.submit(client.form, "/predict", ("a", png(0)), ("b", png(1)))
        until(client, 2)
        away = client.post("/predict", png(2))
        alive = client.ask("GET", "/healthz")
        slow.may_go.set()

        assert two.result().status == 200
        again = client.post("/predict", png(2))

    assert (away.status, away.headers["retry-after"]) == (503, "1")
    assert away.json == {"error": "the queue is full; try again"}
    assert alive.json == {"status": "ok", "waiting": 2, "queue": 2}
    assert again.status == 200


def test_places_in_the_queue_are_reserved_and_released() -> None:
    queue = BatchQueue(make_predictor(), Postprocess(classes=CLASSES), ServeLimits(queue=3))

    with queue.admit(2):
        assert not queue.is_full
        with pytest.raises(QueueFullError), queue.admit(2):
            pass
        with queue.admit(1):
            assert queue.is_full
        assert queue.admitted == 2

    assert (queue.admitted, queue.num_admitted) == (0, 3)


def test_a_batch_has_the_queued_images_in_order_without_cancelled_ones() -> None:
    queue = BatchQueue(make_predictor(), Postprocess(classes=CLASSES), ServeLimits())
    view = np.zeros((16, 16, 3), np.uint8)

    async def batches() -> list[tuple[list[str], bool]]:
        loop = asyncio.get_running_loop()
        queue.pending.extend(PendingImage(str(i), view, loop.create_future()) for i in range(5))
        queue.pending[1].prediction.cancel()
        queue.has_pending.set()
        queue.max_batch = 3
        found = []
        while queue.pending:
            names = [one.name for one in queue.next_batch()]
            found.append((names, queue.has_pending.is_set()))
        return found

    assert asyncio.run(batches()) == [(["0", "2", "3"], True), (["4"], False)]


@pytest.mark.parametrize(("batch", "most"), [(1, 1), (31, 31), (32, 32), (64, 32)])
def test_a_batch_has_at_most_32_images_and_no_more_than_the_engine_takes(
    batch: int, most: int
) -> None:
    engine = make_predictor()
    engine.batch = batch

    queue = BatchQueue(engine, Postprocess(classes=CLASSES), ServeLimits())

    assert queue.max_batch == most


@pytest.mark.parametrize(("cores", "threads"), [(None, 1), (1, 1), (2, 1), (4, 3), (8, 4)])
def test_up_to_four_threads_decode_and_leave_one_core_free(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, threads: int
) -> None:
    monkeypatch.setattr("vitft.serve.batching.os.cpu_count", lambda: cores)
    queue = BatchQueue(make_predictor(), Postprocess(classes=CLASSES), ServeLimits())

    async def started() -> tuple[int, int]:
        work = asyncio.create_task(queue.serve())
        await asyncio.sleep(0)
        work.cancel()
        return len(queue.decoders.threads), len(queue.model_thread.threads)

    assert asyncio.run(started()) == (threads, 1)


def test_an_engine_that_takes_single_images_predicts_each_alone() -> None:
    engine = make_predictor()
    engine.batch = 1

    with serving(engine) as client:
        answer = client.form("/predict", ("a", png(1)), ("b", b"text"), ("c", png(2)))
        metrics = client.ask("GET", "/metrics").body.decode()

    first, second, third = answer.json["results"]
    assert found(first) == pytest.approx(expected(engine, png(1)), abs=1e-6)
    assert second["error"] == "not an image (looks like text)"
    assert found(third) == pytest.approx(expected(engine, png(2)), abs=1e-6)
    assert "vitft_batches_total 2\n" in metrics
    assert "vitft_images_total 2\n" in metrics


def test_memory_is_returned_after_requests_and_once_more_when_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    returned: list[int] = []
    monkeypatch.setattr("vitft.serve.batching.TIDY_SECONDS", 0.005)
    queue = BatchQueue(make_predictor(), Postprocess(classes=CLASSES), ServeLimits())
    monkeypatch.setattr(
        "vitft.serve.batching.return_memory", lambda: returned.append(queue.admitted)
    )

    async def use() -> list[int]:
        tidying = asyncio.create_task(queue.return_memory())
        await asyncio.sleep(0.05)
        counts = [len(returned)]
        with queue.admit(1):
            while len(returned) < 3:
                await asyncio.sleep(0.005)
        while returned[-1]:
            await asyncio.sleep(0.005)
        counts.append(returned.count(0))
        await asyncio.sleep(0.05)
        counts.append(returned.count(0))
        tidying.cancel()
        return counts

    assert asyncio.run(use()) == [0, 1, 1]


def test_a_request_that_takes_too_long_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = "app.ANSWER_SECONDS"
    monkeypatch.setattr(f"vitft.serve.{seconds}", 0.1)
    slow = make_predictor(SlowPredictor)
    assert isinstance(slow, SlowPredictor)

    with serving(slow) as client:
        answer = client.post("/predict", png(0))
        slow.may_go.set()
        monkeypatch.setattr(f"vitft.serve.{seconds}", 20)
        again = client.post("/predict", png(0))

    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert answer.json == {"error": "the request timed out; try again"}
    assert again.status == 200


class BrokenPredictor(SlowPredictor):
    """Fails for every second batch."""

    def start(self, views: Any) -> Callable[[], Scores]:
        self.batches.append(len(views))
        if len(self.batches) % 2:
            raise RuntimeError("/secret/path/of/the/model.py went wrong")
        return Predictor.start(self, views)


def test_an_internal_error_hides_its_details_and_leaves_later_requests_intact(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(make_predictor(BrokenPredictor)) as client:
        broken, fine = client.post("/predict", png(0)), client.post("/predict", png(0))

    assert broken.status == 500
    assert broken.json == {"error": "internal server error; see the server log"}
    assert "/secret/path" in caplog.text
    assert fine.status == 200


def test_a_model_with_nan_logits_is_not_served() -> None:
    broken = make_predictor()
    nn.init.constant_(broken.model.head.bias, float("nan"))  # type: ignore[arg-type]

    with pytest.raises(RunError, match="are not finite"):
        BatchQueue(broken, Postprocess(classes=CLASSES), ServeLimits())


# explaining --------------------------------------------------------------------------------------


def test_without_a_class_the_most_probable_one_is_explained(client: Client) -> None:
    for seed in range(3):
        best = client.post("/predict", png(seed)).json["results"][0]["classes"][0]["class"]
        overlays = {
            name: client.ask(
                "POST", f"/explain?class={quote(name)}", png(seed), content_type="image/png"
            ).body
            for name in CLASSES[:2]
        }

        body = client.post("/explain", png(seed)).body

        assert (body == overlays.get(best, body)) is True
        assert all(body != overlay for name, overlay in overlays.items() if name != best)


def test_explain_draws_the_view_and_differs_by_class(client: Client) -> None:
    best, red, green = (
        client.post(f"/explain{query}", png(3)).body
        for query in ("", "?class=red%20%3Cb%3E", "?class=gr%C3%BCn")
    )

    assert Image.open(io.BytesIO(best), formats=["PNG"]).size == (16, 16)
    assert best in (red, green) or red != green
    assert red != green


def test_an_overlay_has_no_exif_data_of_the_photo(client: Client) -> None:
    exif = Image.Exif()
    exif[0x010E] = "taken at 48.137, 11.575"

    answer = client.post("/explain", png(3, exif=exif))

    assert b"48.137" in png(3, exif=exif)
    assert answer.status == 200
    assert b"48.137" not in answer.body


class Plain(nn.Module):
    """A model without attention, with the interface of `Model`."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.head, self.feature_size = CONFIG, nn.Linear(3 * 16 * 16, 3), 3 * 16 * 16

    def features(self, x: torch.Tensor, _: int = 0) -> torch.Tensor:
        return x.flatten(1)

    def classify(self, features: torch.Tensor) -> Any:
        return self.head(features)

    def forward(self, x: torch.Tensor) -> Any:
        return self.classify(self.features(x))


def test_a_timm_model_is_served_with_overlays() -> None:
    config = TimmConfig(timm="test_resnet", image_size=(16, 16), num_classes=3)
    model = TimmModel(config).eval()
    nn.init.normal_(model.head.get_parameter("weight"))

    with serving(make_predictor(model=model)) as client:
        answer = client.post("/explain", png(0))

    assert answer.status == 200
    assert Image.open(io.BytesIO(answer.body), formats=["PNG"]).size == (16, 16)


def test_a_model_that_cannot_be_explained_is_served_without_overlays() -> None:
    plain = make_predictor(model=Plain())

    with serving(plain) as client:
        predicted, explained = (client.post(path, png(0)) for path in ("/predict", "/explain"))
        labels = client.ask("GET", "/labels").json
        page = client.ask("GET", "/").body

    assert (predicted.status, explained.status) == (200, 404)
    assert "cannot be explained" in explained.json["error"]
    assert labels["explains"] is False
    assert b'data-explains="false"' in page


# invalid requests --------------------------------------------------------------------------------

FORM = "multipart/form-data"
FILE = b'--x\r\nContent-Disposition: form-data; filename="a"\r\n\r\n\r\n'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"


@pytest.mark.parametrize(
    ("path", "kind", "body", "status", "error"),
    [
        pytest.param("", "image/png", b"", 422, "empty file", id="nothing"),
        pytest.param("", "image/png", b"hello", 422, "looks like text", id="text"),
        pytest.param("", "image/png", EPS, 422, "EPS", id="EPS"),
        pytest.param("", "image/png", png(0)[:200], 422, "truncated", id="half an image"),
        pytest.param("", "image/jpeg", b"\xff\xd8" + b"\xff\xda" * 101, 422, "scans", id="scans"),
        pytest.param(
            "",
            "image/jpeg",
            b"\xff\xd8" + b"\xff\xda" * 100,
            422,
            "truncated",
            id="as many scans as are allowed",
        ),
        pytest.param("", "text/plain", png(0), 415, "Content-Type", id="wrong type"),
        pytest.param("", "application/x-www-form-urlencoded", b"a=b", 415, "send", id="simple"),
        pytest.param("", FORM, b"--x--", 400, "no boundary", id="no boundary"),
        pytest.param("", f"{FORM}; boundary=", b"--x--", 400, "no boundary", id="empty boundary"),
        pytest.param("", f"{FORM}; boundary=x", b"", 400, "the form is empty", id="empty form"),
        pytest.param("", f"{FORM}; boundary=x", b"--x--", 400, "contains no files", id="no files"),
        pytest.param("", f"{FORM}; boundary=x", b"--x\r\n" * 50_000, 400, "headers", id="marks"),
        pytest.param("", f"{FORM}; boundary=x", b"text" * 50_000, 400, "not begin", id="no form"),
        pytest.param(
            "", f"{FORM}; boundary=x", FILE + b"x", 400, "form is incomplete", id="no end"
        ),
        pytest.param("", f"{FORM}; boundary=x", FILE * 5000, 400, "more", id="parts"),
        pytest.param(
            "",
            f"{FORM}; boundary=x",
            b"--x\r\n" + b"a: b\r\n" * 40_000 + b"\r\nz\r\n--x--",
            400,
            "headers",
            id="headers",
        ),
        pytest.param(
            "",
            f"{FORM}; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="top_k"\r\n\r\n3\r\n--x--',
            400,
            "not a file",
            id="a field",
        ),
        pytest.param(
            "?top_k=0",
            "image/png",
            png(0),
            422,
            "'0': use an integer of 1 or more",
            id="no classes",
        ),
        pytest.param(
            "?top_k=many", "image/png", png(0), 422, "invalid top_k 'many': use an", id="no number"
        ),
        pytest.param(
            "?top_k=%00%ff", "image/png", png(0), 422, "\\ufffd': use an integer", id="no text"
        ),
        pytest.param("?top_k=99999", "image/png", png(0), 422, "of at most 10,000", id="too many"),
        pytest.param("?topk=1", "image/png", png(0), 422, "did you mean top_k?", id="misspelled"),
        pytest.param("?TOP-K=1", "image/png", png(0), 422, "mean top_k?", id="another spelling"),
        pytest.param("?classes=1", "image/png", png(0), 422, "route takes top_k", id="unknown"),
        pytest.param("?%ff%00=1", "image/png", png(0), 422, "route takes top_k", id="no name"),
        pytest.param("?top_k=1&top_k=2", "image/png", png(0), 422, "more than once", id="twice"),
    ],
)
def test_an_invalid_request_gets_an_error(
    client: Client, path: str, kind: str, body: bytes, status: int, error: str
) -> None:
    answer = client.ask("POST", f"/predict{path}", body, content_type=kind)

    assert answer.status == status
    assert error in answer.json["error"]
    assert "Traceback" not in answer.json["error"]
    assert "/" not in answer.json["error"].replace("multipart/form-data", "")


def test_the_way_out_of_a_refused_request_works(client: Client) -> None:
    """It is stated for forms without a boundary, with parameters as fields, and for JSON."""
    image, base64 = form(("a.png", png(0))), b'{"image": "iVBORw0KGgo="}'
    field = b'--x\r\nContent-Disposition: form-data; name="top_k"\r\n\r\n2\r\n--x--'

    no_boundary = client.ask("POST", "/predict", image, content_type=FORM)
    as_field = client.ask("POST", "/predict", field, content_type=f"{FORM}; boundary=x")
    elsewhere = client.ask("POST", "/explain", field, content_type=f"{FORM}; boundary=x")
    as_json = client.ask("POST", "/predict", base64, content_type="application/json")
    as_text = client.post("/predict", b"iVBORw0KGgoAAAANSUhEUg==")
    foreign = client.ask("POST", "/predict", image, content_type=FORM, origin="http://x.example")
    unknown = client.ask("GET", "/healthz", host="x.example")

    assert "leave Content-Type out, and the client sets the boundary" in no_boundary.json["error"]
    query = re.search(r"use (\?\S+) in the address", as_field.json["error"])
    assert query is not None
    assert len(client.post(f"/predict{query[1]}", png(0)).json["results"][0]["classes"]) == 2
    assert "?top_k" not in elsewhere.json["error"]  # that route does not take it
    assert "the bytes of an image" in as_json.json["error"]
    assert "base64 must be decoded" in as_json.json["error"]
    assert "looks like base64, which must be decoded" in as_text.json["error"]
    assert "under one host name, e.g. with a proxy" in foreign.json["error"]
    assert unknown.json["error"].endswith("--allow-host x.example")


def test_a_misspelled_class_parameter_is_refused(client: Client) -> None:
    assert client.post("/explain?klass=red", png(0)).json == {
        "error": "unknown query parameter 'klass': did you mean class?"
    }


def test_other_routes_ignore_parameters_as_health_checks_send_them(client: Client) -> None:
    assert client.ask("GET", "/healthz?now=1").status == 200


def test_a_decompression_bomb_is_refused_by_its_header(client: Client) -> None:
    bomb = bytearray(png(0))
    bomb[16:24] = (20_000).to_bytes(4, "big") * 2  # width and height
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")

    answer = client.post("/predict", bytes(bomb))

    assert answer.status == 422
    assert "image too large: 20000x20000 = 400 Mpx, limit 50 Mpx" in answer.json["error"]


def test_an_unknown_class_cannot_be_explained(client: Client) -> None:
    assert client.post("/explain?class=%3Cscript%3E", png(0)).json == {
        "error": "unknown class; GET /labels lists the classes of the model"
    }


def test_only_one_image_at_a_time_is_explained(client: Client) -> None:
    assert client.form("/explain", ("a", png(0)), ("b", png(1))).status == 422


def test_a_form_of_bad_files_is_an_error_with_a_row_for_each(client: Client) -> None:
    answer = client.form("/predict", ("a", b"text"), ("b", b""))

    assert answer.status == 422
    assert answer.json["error"] == "none of the files is a usable image"
    assert [row["path"] for row in answer.json["results"]] == ["a", "b"]


TRAVERSALS = [
    *(
        "/../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%5c..%5cboot.ini",
    ),
    *("/static/../../etc/passwd", "//etc/passwd", "///", "/./labels", "/labels/..", "/labels/"),
    *("/%00", "/labels%00", "/labels%00.png", "/\\..\\..\\boot.ini", "/labels;a=b", "/..;/labels"),
    *("/%c0%ae%c0%ae/etc", "/%252e%252e/etc", "/file:///etc/passwd", "/~root", "/.git/config"),
    *("/.env", "/docs", "/redoc", "/page.js", "/static/page.css", "/model.safetensors", "/runs/"),
    *("/" + "a" * 8000, "/favicon.ico", "/PREDICT", "/%ff%fe", "/index.html", "/etc/passwd"),
]


@pytest.mark.parametrize("path", TRAVERSALS, ids=lambda p: p[:24])
def test_no_path_leads_to_a_file(client: Client, path: str) -> None:
    for method in ("GET", "POST"):
        answer = client.send_raw(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            "Content-Length: 0\r\n\r\n".encode()
        )

        assert answer.startswith(b"HTTP/1.1 404 ")
        assert answer.endswith(b'{"error": "not found"}')


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("HEAD", "/", 200, None),
        ("HEAD", "/healthz", 200, None),
        ("OPTIONS", "/", 204, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/predict", 204, "POST, OPTIONS"),
        ("GET", "/predict", 405, "POST, OPTIONS"),
        ("HEAD", "/explain", 405, "POST, OPTIONS"),
        ("DELETE", "/labels", 405, "GET, HEAD, OPTIONS"),
        ("BREW", "/", 405, "GET, HEAD, OPTIONS"),
    ],
)
def test_every_route_lists_its_methods(
    client: Client, method: str, path: str, status: int, allow: str | None
) -> None:
    answer = client.ask(method, path)

    assert (answer.status, answer.headers.get("allow")) == (status, allow)
    assert method not in ("HEAD", "OPTIONS") or answer.body == b""


# hosts and origins -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("LOCALHOST.", 200),
        ("flowers.example", 200),
        ("flowers.example:443", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.nip.io", 421),
        ("192.168.0.7", 421),
        ("localhost@evil.example", 421),
        ("localhost:80:80", 421),
        ("localhost, evil.example", 421),
        ("loc\xe4lhost", 421),
    ],
)
def test_an_unknown_host_name_is_refused(client: Client, host: str, status: int) -> None:
    answers = [
        client.ask(method, path, Host=host)
        for method, path in (("GET", "/labels"), ("OPTIONS", "/"), ("GET", "/nothing"))
    ]

    assert [a.status for a in answers] == ([200, 204, 404] if status == 200 else [status] * 3)


def test_a_request_without_a_host_is_refused(client: Client) -> None:
    assert client.send_raw(b"GET /labels HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://localhost:8000"}, 200),
        ({"Origin": "HTTP://LocalHost:8000", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "http://localhost:none"}, 403),
        ({"Origin": "ftp://localhost:8000"}, 403),
        ({"Origin": "http://localhost"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:8000.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://localhost:8000", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_a_page_of_another_site_cannot_send_images(
    client: Client, headers: dict[str, str], status: int
) -> None:
    answer = client.post("/predict", png(0), Host="localhost:8000", **headers)

    assert answer.status == status
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_page_behind_a_proxy_may_send_images(client: Client) -> None:
    answer = client.post(
        "/predict", png(0), Host="flowers.example", Origin="https://flowers.example"
    )

    assert answer.status == 200


@pytest.mark.parametrize(
    ("host", "origin", "is_own"),
    [
        ("localhost", "http://localhost:80", True),
        ("localhost:80", "http://localhost", True),
        ("localhost", "http://localhost:81", False),
        ("localhost:443", "https://localhost", True),
        ("localhost", "https://localhost:443", True),
        ("localhost:443", "http://localhost", False),
        ("localhost:80", "https://localhost", False),
        ("localhost:x", "http://localhost", False),
        ("[::1]:8000", "http://[::1]:8000", True),
    ],
)
def test_an_origin_without_a_port_has_the_standard_one(
    host: str, origin: str, is_own: bool
) -> None:
    assert is_own_page(host, origin=origin, site=None) is is_own


@pytest.mark.parametrize(
    ("origin", "site", "is_own"),
    [
        (None, None, True),
        (None, "none", True),
        ("http://a", "same-origin", True),
        ("http://b", "same-origin", False),
        ("http://a", "same-site", False),
        (None, "", False),
        ("null", None, False),
        ("a", None, False),
    ],
)
def test_only_requests_of_the_own_page_or_of_no_browser_change_anything(
    origin: str | None, site: str | None, is_own: bool
) -> None:
    assert is_own_page("a", origin=origin, site=site) is is_own


@pytest.mark.parametrize(
    ("bound", "host", "allowed"),
    [
        ("127.0.0.1", "127.0.0.2", False),
        ("127.0.0.2", "127.0.0.2", True),
        ("127.0.0.2", "10.0.0.7", False),
        ("localhost", "10.0.0.7", False),
        ("::1", "10.0.0.7", False),
        ("0.0.0.0", "10.0.0.7", True),
        ("::", "10.0.0.7", True),
        ("", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", True),
        ("10.0.0.7", "other.example", False),
        ("Box.Example", "box.example", True),
        ("[fe80::1]", "[fe80::1]:80", True),
        ("127.0.0.1", "[::1]", True),
        ("127.0.0.1", "", False),
    ],
)
def test_addresses_are_allowed_unless_the_server_is_on_loopback(
    bound: str, host: str, allowed: bool
) -> None:
    assert access_for(bound, []).allows(host) is allowed


def test_an_allowed_address_may_have_brackets() -> None:
    access = access_for("127.0.0.1", ["[2001:DB8::1]", "Flowers.Example"])

    assert access.allows("[2001:db8::1]:8000")
    assert access.allows("flowers.example.")
    assert not access.allows("[2001:db8::2]")


def test_every_response_has_security_headers(client: Client) -> None:
    for path in ("/", "/labels", "/nothing"):
        headers = client.ask("GET", path).headers

        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "server" not in headers


# names and schema --------------------------------------------------------------------------------


def test_class_names_of_any_kind_are_unchanged(client: Client) -> None:
    assert client.ask("GET", "/labels").json["classes"] == list(CLASSES)


def test_labels_state_the_facts_of_the_run(predictor: Predictor) -> None:
    run = RunInfo(
        name="flowers",
        classes=3,
        top1=0.75,
        images=40,
        trained_at=datetime(2026, 3, 14, 12).timestamp(),
        at_chance="",
        top1_interval=(0.6, 0.86),
        majority=0.4,
        weights="random:demo",
    )
    postprocess = Postprocess(classes=CLASSES, run=run, threshold=0.7)

    with serving(predictor, ServeLimits(max_bytes=5000, queue=9), postprocess=postprocess) as one:
        known = one.ask("GET", "/labels").json
    with serving(predictor) as other:
        unknown = other.ask("GET", "/labels").json

    assert (known["run"], known["top1"], known["images"]) == ("flowers", 0.75, 40)
    assert known["top1_interval"] == [0.6, 0.86]
    assert (known["majority"], known["trained"]) == (0.4, "2026-03-14")
    assert (known["threshold"], known["notes_unlike"], known["rounded"]) == (0.7, False, False)
    assert known["image_size"] == [16, 16]
    assert (known["max_bytes"], known["max_images"], known["explains"]) == (5000, 9, True)
    assert "thresholds" not in known
    assert (unknown["run"], unknown["trained"], unknown["threshold"]) == (None, None, None)
    assert (unknown["weights"], unknown["status"], unknown["at_chance"]) == ("", "", "")
    assert (unknown["max_bytes"], unknown["max_images"]) == (20_000_000, 32)


def test_the_schema_lists_every_route_and_loads_nothing(client: Client) -> None:
    answer = client.ask("GET", "/openapi.json")

    assert set(answer.json["paths"]) == {"/healthz", "/labels", "/predict", "/explain"}
    schemas = answer.json["components"]["schemas"]
    probability = schemas["ClassProbabilitySchema"]["properties"]["probability"]
    assert (probability["minimum"], probability["maximum"]) == (0, 1)
    assert schemas["LabelsSchema"]["properties"]["rounded"]["default"] is False
    assert not re.search(rb"https?://", answer.body)
