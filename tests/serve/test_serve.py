"""Predictions, errors and access control of `vitft serve`."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.conftest import tiny
from tests.support.serving import TIMEOUT_S, Client, serving
from vitft.data import EvalTransform
from vitft.metrics import Outputs
from vitft.models import Card, VisionTransformer
from vitft.predict import Postprocess, Predictor, Scores
from vitft.serve import BatchQueue, ServeLimits, access_for

CLASSES = ("red <b>", "grün", "bl\udcffue")  # markup, two bytes, and a name that is no Unicode
CONFIG = tiny(3)


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
    with serving(predictor, limits, hosts=["flowers.example"]) as served:
        yield served


def expected(predictor: Predictor, image: bytes) -> dict[str, float]:
    """Return the probabilities of all classes of an image."""
    view = predictor.card.transform.pixels(Image.open(io.BytesIO(image), formats=["PNG"]))
    logits = torch.from_numpy(predictor.scores(view[None]).logits)
    return dict(zip(CLASSES, logits.softmax(-1)[0].tolist(), strict=True))


def found(result: dict[str, Any]) -> dict[str, float]:
    return {share["class"]: share["probability"] for share in result["classes"]}


def test_the_prediction_is_that_of_predict(client: Client, predictor: Predictor) -> None:
    answer = client.post("/predict", png(1))

    assert answer.status == 200
    assert found(answer.json["results"][0]) == pytest.approx(expected(predictor, png(1)), abs=1e-6)
    shares = [share["probability"] for share in answer.json["results"][0]["classes"]]
    assert shares == sorted(shares, reverse=True)


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
        queue = BatchQueue(slow, Postprocess(outputs=Outputs.of(CLASSES)), ServeLimits())
        work = asyncio.create_task(queue.serve())
        await asyncio.sleep(0)
        first = asyncio.create_task(queue.predict(png(0), "", 1))
        while not slow.is_asked.is_set():
            await asyncio.sleep(0)
        rest = [asyncio.create_task(queue.predict(png(i), "", 1)) for i in range(5)]
        while queue.pending.qsize() < 5:
            await asyncio.sleep(0)
        first.cancel()  # its batch is being predicted
        rest.pop().cancel()
        slow.may_go.set()
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*rest)
        work.cancel()

    asyncio.run(ask_six())

    assert slow.batches == [0, 1, 1, 4]  # nothing, the server's own, the lone image, the others


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
    assert away.json == {"error": "the queue is full: try again"}
    assert alive.json == {"status": "ok", "waiting": 2, "queue": 2}
    assert again.status == 200


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
    assert broken.json == {"error": "internal server error: see the server log"}
    assert "/secret/path" in caplog.text
    assert fine.status == 200


def test_an_overlay_has_no_exif_data_of_the_photo(client: Client) -> None:
    exif = Image.Exif()
    exif[0x010E] = "taken at 48.137, 11.575"

    answer = client.post("/explain", png(3, exif=exif))

    assert b"48.137" in png(3, exif=exif)
    assert answer.status == 200
    assert b"48.137" not in answer.body


TRAVERSALS = [
    *("/../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd"),
    "/..%5c..%5cboot.ini",
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
    ("bound", "host", "allowed"),
    [
        ("127.0.0.1", "127.0.0.2", False), ("127.0.0.2", "127.0.0.2", True),
        ("127.0.0.2", "10.0.0.7", False), ("localhost", "10.0.0.7", False),
        ("::1", "10.0.0.7", False), ("0.0.0.0", "10.0.0.7", True), ("::", "10.0.0.7", True),
        ("", "10.0.0.7", True), ("10.0.0.7", "10.0.0.8", True),
        ("10.0.0.7", "other.example", False), ("Box.Example", "box.example", True),
        ("[fe80::1]", "[fe80::1]:80", True), ("127.0.0.1", "[::1]", True),
        ("127.0.0.1", "", False),
    ],
)  # fmt: skip
def test_addresses_are_allowed_unless_the_server_is_on_loopback(
    bound: str, host: str, allowed: bool
) -> None:
    assert (access_for(bound, [])("GET", {"host": host}) is None) is allowed
