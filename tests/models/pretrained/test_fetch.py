"""Fetching from a loopback hub: readable errors, retries, and nothing unverified is used.

The client reads its environment once, at import, so each situation is a process of its own.
"""

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save

from tests.conftest import random_timm
from tests.models.pretrained.test_flavours import hf_folder
from tests.support.hub_server import COMMIT, HubServer, Repo
from tests.support.limits import HANG_S
from vitft.models.pretrained import fetch as fetching
from vitft.models.pretrained.catalog import CatalogEntry
from vitft.models.pretrained.fetch import (
    cached_or_downloaded,
    check_reachable,
    delete_cached,
    download_error,
    download_from_hub,
    fetch_sidecars,
    find_damage,
    retry_delay,
    sha256_of,
    with_existing_file,
)
from vitft.models.pretrained.hub import DownloadBar, http_error, short_message
from vitft.system import console
from vitft.system.errors import ResourceError, WeightsError

TOKEN = "hf_thisIsASecretThatNobodySees"
META = "facebook/dinov3-vits16-pretrain-lvd1689m"
NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
Answers = dict[str, dict[str, Any]]
CONTENT = b"not a model, but content all the same" * 100

FETCH = """
import json, sys, time
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from vitft.system.errors import VitftError
from vitft.models.pretrained.catalog import CatalogEntry
from vitft.models.pretrained import fetch as module
from vitft.models.pretrained.fetch import fetch

module.FIRST_WAIT_S = 0.05
answers = {}
for case, fields in json.loads(sys.argv[1]).items():
    start = time.perf_counter()
    try:
        got = fetch(CatalogEntry(name=case, licence="", file="model.safetensors", **fields))
        answer = {"path": str(got.path), "revision": got.revision, "sha256": got.sha256}
    except VitftError as error:
        answer = {"problem": error.problem, "fix": error.fix, "code": error.exit_code}
    answers[case] = answer | {"seconds": time.perf_counter() - start}
print(json.dumps(answers))
"""

LOAD = """
import json, sys
from huggingface_hub import constants
from vitft import load_pretrained

told = {}
for constants.HF_HUB_OFFLINE in (False, True):
    for name in json.loads(sys.argv[1]):
        _, report = load_pretrained(name, num_classes=3, image_size=32)
        told[f"{name} offline={constants.HF_HUB_OFFLINE}"] = {
            "lines": report.lines(), "provenance": report.provenance
        }
print(json.dumps(told))
"""


def in_child(code: str, argument: str, cache: Path, endpoint: str, **more: str) -> Answers:
    """What a fresh process with its own cache prints."""
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        "HF_TOKEN": "",
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", code, argument],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: Answers = json.loads(done.stdout)
    return answers


def repository(fault: str = "", times: int = 1_000_000, **more: Any) -> Repo:
    """A repository whose content is like no other's, so that no cache entry serves two cases."""
    return Repo({"model.safetensors": CONTENT + f"{fault}{times}".encode()}, fault, times, **more)


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    model = random_timm("vit_tiny_patch16_224", 32, depth=2)
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 10}
    config |= {"model_args": {"img_size": 32, "depth": 2}}
    config["pretrained_cfg"] = {"mean": [0.1] * 3, "std": [0.2] * 3, "input_size": [3, 32, 32]}
    weights = {"model.safetensors": save(model.state_dict())}
    repos = {f"timm/{NAME}": Repo(weights)}
    repos["test/foreign"] = Repo({**weights, "config.json": json.dumps(config).encode()})
    repos["test/plain"] = repository()
    repos["test/empty"] = Repo({})
    repos["test/pickle"] = Repo({"pytorch_model.bin": b"never read"})
    repos[META] = repository("gated")
    repos["test/private"] = repository("token", token=TOKEN)
    for fault in REFUSED:
        repos[f"test/{fault.replace('_', '-')}"] = repository(fault)
    for fault in MENDED:
        repos[f"test/{fault.replace('_', '-')}-once"] = repository(fault, times=1)
    with HubServer(repos) as server:
        yield server


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


SIZES = [len(CONTENT + f"{fault}1000000".encode()) for fault in ("shorter", "longer")]
FIRST = "download of test/{}/model.safetensors failed: "
REFUSED = {
    "gated": "test/gated is gated: its publisher requires an account",
    "corrupt": "test/corrupt/model.safetensors is damaged: sha256",
    "wrong_etag": "test/wrong-etag/model.safetensors is damaged: sha256",
    "shorter": FIRST.format("shorter") + f"received {SIZES[0] - 10} bytes instead of {SIZES[0]}",
    "longer": FIRST.format("longer") + f"received {SIZES[1] + 10} bytes instead of {SIZES[1]}",
    "status": FIRST.format("status") + "HTTP status 503",
    "reset": FIRST.format("reset") + "[Errno 104] Connection reset",
    "html": "does not respond like a Hugging Face hub",
    "loop": "does not respond like a Hugging Face hub",
    "no_commit": "does not respond like a Hugging Face hub",
    "no_etag": "does not respond like a Hugging Face hub",
    "token": "repository test/token does not exist on the hub or is private",
}
"""What is said of a fault that stays."""
MENDED = ("corrupt", "shorter", "status", "drop", "reset", "stall", "retry_after", "busy", "xet")
"""Faults that go away, or that another way goes round."""

CASES = {
    "plain": {"repo": "test/plain"},
    "missing repository": {"repo": "test/missing"},
    "missing revision": {"repo": "test/plain", "revision": "v9"},
    "missing file": {"repo": "test/empty"},
    "wrong digest": {"repo": "test/plain", "sha256": "0" * 64},
    "hf:test/pickle": {"repo": "test/pickle"},
    "private": {"repo": "test/private"},
    "DINOv3": {"repo": META},
    **{fault: {"repo": f"test/{fault.replace('_', '-')}"} for fault in REFUSED},
    **{f"{fault} once": {"repo": f"test/{fault.replace('_', '-')}-once"} for fault in MENDED},
}


@pytest.fixture(scope="module")
def answers(hub: HubServer, cache: Path) -> Answers:
    told = in_child(FETCH, json.dumps(CASES), cache, hub.endpoint, HF_TOKEN=TOKEN)
    assert TOKEN not in json.dumps(told)
    return told


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("missing repository", "repository test/missing does not exist on the hub"),
        ("missing revision", "test/plain has no revision v9"),
        ("missing file", "test/empty has no file model.safetensors"),
        ("wrong digest", "test/plain/model.safetensors is damaged: sha256"),
        ("hf:test/pickle", "test/pickle has no model.safetensors"),
        *REFUSED.items(),
    ],
)
def test_every_refusal_of_the_hub_is_a_sentence_of_its_own(
    case: str, message: str, answers: Answers
) -> None:
    answer = answers[case]

    assert message in answer["problem"]
    assert answer["fix"]
    assert answer["code"] == 4
    assert answer["seconds"] < 20


def test_a_gated_repository_of_weights_that_the_catalogue_has_elsewhere_is_refused_with_their_name(
    answers: Answers,
) -> None:
    assert answers["DINOv3"]["problem"].startswith(f"{META} is gated")
    assert answers["DINOv3"]["fix"].startswith("accept them at http")
    assert answers["DINOv3"]["fix"].endswith(
        "or use vit_small_patch16_dinov3.lvd1689m, which requires no account"
    )
    assert "or use" not in answers["gated"]["fix"]


@pytest.mark.parametrize("fault", MENDED)
def test_a_fault_that_passes_only_costs_time(fault: str, answers: Answers) -> None:
    answer = answers[f"{fault} once"]

    assert answer.get("problem") is None
    content = CONTENT + f"{fault}1".encode()
    assert answer["sha256"] == hashlib.sha256(content).hexdigest()
    assert answer["seconds"] < 10


def test_a_fetched_file_comes_with_commit_and_digest(answers: Answers) -> None:
    assert answers["plain"]["revision"] == COMMIT
    assert len(answers["plain"]["sha256"]) == 64


def test_the_token_goes_to_the_hub_and_nowhere_else(answers: Answers, hub: HubServer) -> None:
    assert "problem" not in answers["private"]
    assert hub.tokens == {"hub": {f"Bearer {TOKEN}"}, "cdn": set()}


def test_a_token_in_a_librarys_message_is_not_repeated() -> None:
    error = ValueError(f"Illegal header value b'Bearer {TOKEN}\\n'")

    assert TOKEN not in short_message(error)
    assert "Illegal header" in short_message(error)


def test_nothing_damaged_stays_in_the_cache(answers: Answers, cache: Path) -> None:
    blobs = [path for path in cache.glob("hub/models--*/blobs/*") if len(path.name) == 64]

    assert blobs
    for blob in blobs:
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    assert not list(cache.glob("hub/models--*/blobs/*.incomplete"))


@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_a_blob_that_rotted_in_the_cache_is_fetched_again_once(
    damage: str, hub: HubServer, tmp_path: Path
) -> None:
    cases = json.dumps({"a model": {"repo": "test/plain"}})
    first = in_child(FETCH, cases, tmp_path, hub.endpoint)["a model"]
    blob = Path(first["path"]).resolve()
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + (b"" if damage == "truncated" else b"?"))
    asked = len([r for r in hub.requests if r == "GET /test/plain/model.safetensors"])

    again = in_child(FETCH, cases, tmp_path, hub.endpoint)["a model"]

    assert again["sha256"] == hashlib.sha256(content).hexdigest()
    assert blob.read_bytes() == content
    gets = [r for r in hub.requests if r == "GET /test/plain/model.safetensors"]
    assert len(gets) == asked + 1


def test_progress_is_counted_in_megabytes(capsys: pytest.CaptureFixture[str]) -> None:
    console.stderr.cache_clear()

    with DownloadBar(desc="model.safetensors", total=2_500_000) as bar:
        bar.update(1_000_000)
        bar.update(1_500_000)

    assert "fetching model.safetensors: 2/2" in capsys.readouterr().err  # 2.5 rounds to even
    console.stderr.cache_clear()


@pytest.fixture(scope="module")
def loaded(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    names = json.dumps([NAME, f"hf:test/foreign@{COMMIT}"])
    return in_child(LOAD, names, tmp_path_factory.mktemp("loaded"), hub.endpoint)


@pytest.mark.parametrize(
    ("name", "source", "statistics"),
    [
        pytest.param(NAME, f"timm/{NAME}", "from the catalogue", id="catalogue"),
        pytest.param(
            f"hf:test/foreign@{COMMIT}", "test/foreign", "mean 0.1, std 0.2: from", id="any other"
        ),
    ],
)
def test_a_name_is_loaded_from_the_hub_and_then_without_it(
    name: str, source: str, statistics: str, loaded: Answers
) -> None:
    online, offline = (loaded[f"{name} offline={is_offline}"] for is_offline in (False, True))

    assert online == offline
    assert online["provenance"]["revision"] == COMMIT
    assert online["provenance"]["source"] == f"{source}/model.safetensors"
    assert any(statistics in line for line in online["lines"])


@pytest.mark.parametrize(
    ("why", "environment"),
    [
        pytest.param("HF_HUB_OFFLINE is set", {"HF_HUB_OFFLINE": "1"}, id="told to be offline"),
        pytest.param("cannot be reached", {}, id="nobody listens"),
    ],
)
def test_offline_is_said_as_such_without_a_retry(
    why: str, environment: dict[str, str], tmp_path: Path
) -> None:
    cases = json.dumps({"a model": {"repo": "test/plain"}})

    answer = in_child(FETCH, cases, tmp_path, "http://127.0.0.1:9", **environment)["a model"]

    assert answer["problem"].startswith("a model (test/plain) is not in the cache, and ")
    assert why in answer["problem"]
    assert answer["code"] == 4
    assert answer["seconds"] < 2  # huggingface_hub alone takes 24


def test_an_unreachable_hub_does_not_matter_to_what_is_in_the_cache(
    hub: HubServer, tmp_path: Path
) -> None:
    cases = json.dumps({"a model": {"repo": "test/plain"}})

    online = in_child(FETCH, cases, tmp_path, hub.endpoint)["a model"]
    unplugged = in_child(FETCH, cases, tmp_path, "http://127.0.0.1:9")["a model"]

    assert unplugged["path"] == online["path"]
    assert unplugged["revision"] == COMMIT


CLIENTS = """
import json, timm, torch
from huggingface_hub import hf_hub_download, snapshot_download
from pathlib import Path
from transformers import ViTForImageClassification
from vitft import load_pretrained

x = torch.randn(1, 3, 32, 32)
alone = Path(hf_hub_download("test/timm", "model.safetensors"))
told = {"huggingface_hub": alone.samefile(snapshot_download("test/timm") + "/model.safetensors")}
theirs = timm.create_model("hf-hub:test/timm", pretrained=True).eval()
ours, _ = load_pretrained("hf:test/timm")
told["timm"] = torch.allclose(theirs(x), ours(x), atol=1e-5)
theirs = ViTForImageClassification.from_pretrained("test/transformers").eval()
ours, _ = load_pretrained("hf:test/transformers")
told["transformers"] = torch.allclose(theirs(x).logits, ours(x), atol=1e-5)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("clients")
    hf_folder(folder / "saved", "ViTForImageClassification")
    saved = {path.name: path.read_bytes() for path in (folder / "saved").iterdir()}
    model = random_timm("vit_tiny_patch16_224", 32, depth=2)
    config: dict[str, Any] = {"architecture": "vit_tiny_patch16_224", "num_classes": 10}
    config |= {"model_args": {"img_size": 32, "depth": 2}, "pretrained_cfg": {}}
    files = {"model.safetensors": save(model.state_dict())}
    files["config.json"] = json.dumps(config).encode()
    with HubServer({"test/timm": Repo(files), "test/transformers": Repo(saved)}) as server:
        return in_child(CLIENTS, "", folder / "cache", server.endpoint)


@pytest.mark.parametrize("client", ["huggingface_hub", "timm", "transformers"])
def test_real_clients_take_the_loopback_hub_for_a_real_one(client: str, clients: Answers) -> None:
    assert clients[client]


# rules without a hub ------------------------------------------------------------------------------


ENTRY = CatalogEntry(name="hf:a/b", licence="", repo="a/b", file="model.safetensors")


class Answered(Exception):
    """An error with the response of a server."""

    def __init__(self, status: int | None, **headers: str) -> None:
        self.response = SimpleNamespace(status_code=status, headers=headers)


class TooManyRedirects(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "attempt", "seconds"),
    [
        (OSError(), 1, 0.5),
        (OSError(), 2, 1.0),
        (OSError(), 3, 2.0),
        (Answered(500), 1, 0.5),
        (Answered(503), 2, 1.0),
        (Answered(429), 1, 0.5),
        (Answered(408), 1, 0.5),
        (Answered(499), 1, None),
        (Answered(404), 1, None),
        (Answered(400), 1, None),
        (TooManyRedirects(), 1, None),
        (Answered(429, **{"Retry-After": "7"}), 3, 7.1),
        (Answered(503, **{"Retry-After": "9999"}), 1, 9999.1),
        (Answered(503, **{"Retry-After": "10000"}), 1, 0.5),
        (Answered(503, **{"Retry-After": "soon"}), 1, 0.5),
    ],
)
def test_a_request_is_repeated_only_where_that_may_help(
    error: Exception, attempt: int, seconds: float | None
) -> None:
    assert retry_delay(error, attempt) == (None if seconds is None else pytest.approx(seconds))


def test_redirects_without_end_and_a_bare_404_do_not_come_from_a_hub() -> None:
    for error in (TooManyRedirects(), Answered(404)):
        assert "does not respond like a Hugging Face hub" in download_error(ENTRY, error).problem
    failed = "download of a/b/model.safetensors failed: "
    assert download_error(ENTRY, Answered(500)).problem.startswith(f"{failed}HTTP status 500;")
    assert download_error(ENTRY, None).problem.startswith(failed)


def failure(name: str, status: int | None = None, *, retry_after: str = "") -> Exception:
    """Return an error of huggingface_hub's HTTP client, with the response of a server if any."""
    headers = {"Retry-After": retry_after} if retry_after else {}
    error: Exception = type(name, (http_error(),), {"__init__": lambda _: None})()
    if status is not None:
        error.response = SimpleNamespace(status_code=status, headers=headers)  # type: ignore[attr-defined]
    return error


class Script:
    """Answers or errors, one for each call, with the seconds that are slept between the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: object) -> None:
        self.answers, self.calls = list(answers), list[Any]()
        self.slept, self.clock = list[float](), 100.0
        clock = SimpleNamespace(monotonic=lambda: self.clock, sleep=self.sleep, time=time.time)
        monkeypatch.setattr(fetching, "time", clock)

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.clock += seconds

    def __call__(self, *given: object, **named: object) -> Any:
        self.calls.append((*given, named))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


METADATA = SimpleNamespace(commit_hash="c", etag="e")
NOT_A_HUB = "does not respond like a Hugging Face hub"


@pytest.mark.parametrize(
    ("answers", "result", "slept"),
    [
        pytest.param([METADATA], "", [], id="reachable"),
        pytest.param([failure("ConnectError")], "offline", [], id="no connection"),
        pytest.param([failure("ConnectTimeout")], "offline", [], id="no connection in time"),
        pytest.param(
            [failure("ReadTimeout"), failure("ReadTimeout"), METADATA],
            "",
            [0.5, 1.0],
            id="silent twice",
        ),
        pytest.param(
            [failure("ReadTimeout") for _ in range(3)], "failed: ", [0.5, 1.0], id="silent"
        ),
        pytest.param(
            [*(failure("E", 503) for _ in range(4)), METADATA], "", [0.5, 1, 2, 4], id="busy"
        ),
        pytest.param(
            [failure("E", 503) for _ in range(7)],
            "HTTP status 503",
            [0.5, 1, 2, 4, 8, 16],
            id="busy a minute",
        ),
        pytest.param(
            [failure("E", 429, retry_after="59") for _ in range(2)],
            "HTTP status 429",
            [59.1],
            id="asks for patience",
        ),
        pytest.param(
            [failure("E", 429, retry_after="60")], "HTTP status 429", [], id="too patient"
        ),
        pytest.param([failure("E", 404)], NOT_A_HUB, [], id="a bare 404"),
        pytest.param([failure("E", 400)], "HTTP status 400", [], id="refused"),
        pytest.param(
            [failure("E", 503, retry_after="0") for _ in range(9)],
            NOT_A_HUB,
            [0.1] * 9,
            id="nine times",
        ),
        pytest.param([SimpleNamespace(commit_hash=None, etag="e")], NOT_A_HUB, [], id="no commit"),
        pytest.param([SimpleNamespace(commit_hash="c", etag=None)], NOT_A_HUB, [], id="no ETag"),
    ],
)
def test_a_hub_is_asked_for_the_file_for_up_to_a_minute(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], result: str, slept: list[float]
) -> None:
    script = Script(monkeypatch, *answers)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", script)
    monkeypatch.setattr("vitft.models.pretrained.hub.short_message", lambda _: "offline")
    entry = replace(ENTRY, revision="r")

    if result in ("", "offline"):
        assert check_reachable(entry) == result
    else:
        with pytest.raises(WeightsError, match=result):
            check_reachable(entry)

    assert script.slept == slept
    assert script.answers == []
    url, options = script.calls[0]
    assert url.endswith("/a/b/resolve/r/model.safetensors")
    assert options == {"timeout": (1.5, 5.0, 5.0, 5.0)}


@pytest.mark.parametrize(
    ("answers", "result", "slept"),
    [
        pytest.param(["/x"], "", [], id="at once"),
        pytest.param([failure("ReadError"), "/x"], "", [0.5], id="interrupted once"),
        pytest.param([OSError(errno.EIO, "failed"), "/x"], "", [0.5], id="wrong length"),
        pytest.param([failure("E", 503), failure("E", 503), "/x"], "", [0.5, 1.0], id="busy twice"),
        pytest.param(
            [failure("E", 503) for _ in range(3)], "HTTP status 503", [0.5, 1.0], id="busy"
        ),
        pytest.param([failure("ReadTimeout")], "failed: ", [], id="retried by huggingface_hub"),
        pytest.param([failure("E", 403)], "HTTP status 403", [], id="refused"),
        pytest.param([failure("E", 404)], NOT_A_HUB, [], id="a bare 404"),
        pytest.param([failure("E", 503, retry_after="9999"), "/x"], "", [20.0], id="long wait"),
        pytest.param([OSError(errno.EACCES, "failed")], "is not writable", [], id="cache"),
    ],
)
def test_an_interrupted_download_is_tried_three_times(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], result: str, slept: list[float]
) -> None:
    script = Script(monkeypatch, *answers)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", script)

    if result:
        with pytest.raises(WeightsError, match=result):
            download_from_hub(replace(ENTRY, revision="r"))
    else:
        assert download_from_hub(replace(ENTRY, revision="r")) == Path("/x")

    assert script.slept == slept
    assert script.answers == []
    options = {"revision": "r", "etag_timeout": 5.0, "tqdm_class": DownloadBar}
    assert script.calls[0] == ("a/b", "model.safetensors", options)


def test_a_full_disk_ends_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, OSError(errno.ENOSPC, "failed"))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", script)

    with pytest.raises(ResourceError, match="the disk is full"):
        download_from_hub(ENTRY)


@pytest.mark.parametrize(
    ("revision", "is_offline", "is_cached", "reason", "source"),
    [
        pytest.param("main", False, True, "", "hub", id="a branch may have moved"),
        pytest.param("0" * 40, False, True, "", "cache", id="a commit never changes"),
        pytest.param("0" * 40, False, False, "", "hub", id="an unknown commit"),
        pytest.param("0" * 39, False, True, "", "hub", id="a short digest is a name"),
        pytest.param("main", True, True, "", "cache", id="offline"),
        pytest.param("main", True, False, "", "HF_HUB_OFFLINE is set", id="offline, unknown"),
        pytest.param("main", False, True, "no route", "cache", id="unreachable"),
        pytest.param(
            "main", False, False, "no route", r"cannot be reached \(no route\)", id="nowhere"
        ),
    ],
)
def test_the_cache_is_used_for_commits_and_without_a_network(
    monkeypatch: pytest.MonkeyPatch,
    revision: str,
    is_offline: bool,
    is_cached: bool,
    reason: str,
    source: str,
) -> None:
    def local(repo: str, file: str, *, revision: str, local_files_only: bool) -> str:
        assert (repo, file, local_files_only) == ("a/b", "model.safetensors", True)
        if not is_cached:
            raise LocalEntryNotFoundError(f"no {revision}")
        return "cache"

    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: is_offline)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", local)
    monkeypatch.setattr(fetching, "check_reachable", lambda _: reason)
    monkeypatch.setattr(fetching, "download_from_hub", lambda _: Path("hub"))

    if source in ("cache", "hub"):
        assert cached_or_downloaded(replace(ENTRY, revision=revision)) == Path(source)
    else:
        with pytest.raises(WeightsError, match=rf"hf:a/b \(a/b\) is not in the cache, .*{source}"):
            cached_or_downloaded(replace(ENTRY, revision=revision))


def cached(folder: Path, name: str, content: bytes) -> Path:
    """Write a file as huggingface_hub caches it: a link to content that is named after its ETag."""
    blob, link = folder / "blobs" / name, folder / "snapshots" / "model.safetensors"
    for path in (blob, link):
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
    blob.write_bytes(content)
    link.symlink_to(blob)
    return link


def test_a_cached_file_is_compared_with_every_digest_that_is_known(tmp_path: Path) -> None:
    content = b"weights"
    sha256 = hashlib.sha256(content).hexdigest()
    git = hashlib.sha1(b"blob 7\0weights", usedforsecurity=False).hexdigest()

    for name in (sha256, git, "an-etag", sha256[:39], sha256 + "0"):
        path = cached(tmp_path, name, content)
        assert sha256_of(path) == sha256
        assert find_damage(path, sha256, "") == find_damage(path, sha256, sha256) == ""
        assert "but the publisher states 0" in find_damage(path, sha256, "0" * 64)
    for name in ("0" * 64, "0" * 40):
        assert f"but the hub states {name}" in find_damage(
            cached(tmp_path, name, content), sha256, ""
        )


def test_a_cached_file_is_deleted_with_its_content(tmp_path: Path) -> None:
    link = cached(tmp_path, "x", b"weights")

    delete_cached(link)
    delete_cached(link)

    assert not [path for path in tmp_path.rglob("*") if not path.is_dir()]


@pytest.mark.parametrize(
    ("problem", "is_allowed", "result"),
    [
        ("", False, "model.safetensors"),
        ("a/b has no file model.safetensors", True, "pytorch_model.bin"),
        ("a/b has no file model.safetensors", False, "a/b has no model.safetensors"),
        ("the hub is busy", True, "the hub is busy"),
    ],
)
def test_a_pickle_is_used_only_where_there_is_nothing_else_and_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch, problem: str, is_allowed: bool, result: str
) -> None:
    def fetched(_: CatalogEntry) -> Path:
        if problem:
            raise WeightsError(problem, fix="x")
        return Path("x")

    monkeypatch.setattr(fetching, "cached_or_downloaded", fetched)
    try:
        found = with_existing_file(ENTRY, allow_pickle=is_allowed).file
    except WeightsError as error:
        found = error.problem

    assert found == result


def test_files_beside_the_weights_are_fetched_and_damaged_ones_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, str]] = []

    def fetched(entry: CatalogEntry) -> Path:
        asked.append((entry.file, entry.revision))
        if len(asked) == 1:
            raise WeightsError("missing", fix="x")
        return cached(tmp_path, "0" * 64, b"damaged")

    monkeypatch.setattr(fetching, "cached_or_downloaded", fetched)

    fetch_sidecars(ENTRY, revision="r")

    assert asked == [("config.json", "r"), ("preprocessor_config.json", "r")]
    assert not [*tmp_path.glob("blobs/*"), *tmp_path.glob("snapshots/*")]


@pytest.mark.parametrize(("age", "is_old"), [(590, False), (660, True)])
def test_partial_downloads_older_than_ten_minutes_are_mentioned(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    age: float,
    is_old: bool,
) -> None:
    path = cached(tmp_path, "x", b"weights")
    monkeypatch.setattr(fetching, "cached_or_downloaded", lambda _: path)
    for i in range(3):
        part = tmp_path / "blobs" / f"{i}.incomplete"
        part.write_bytes(b"x" * 500_000)
        os.utime(part, (time.time() - age,) * 2)

    fetching.fetch(replace(ENTRY, name="vit"))

    shown = " ".join(capsys.readouterr().err.split())
    assert ("partial downloads that can be deleted (3 files, 2 MB)" in shown) == is_old


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_damaged_copy_is_deleted_and_fetched_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: int
) -> None:
    copies = iter([b"damaged"] * bad + [b"weights"])
    sha256 = hashlib.sha256(b"weights").hexdigest()
    entry = replace(ENTRY, name="vit", sha256=sha256)
    monkeypatch.setattr(
        fetching, "cached_or_downloaded", lambda _: cached(tmp_path, "etag", next(copies))
    )

    if bad < 2:
        found = fetching.fetch(entry)
        assert (found.sha256, found.revision) == (sha256, "snapshots")
        assert found.path.read_bytes() == b"weights"
    else:
        with pytest.raises(WeightsError, match=r"a/b/model.safetensors is damaged: sha256 is"):
            fetching.fetch(entry)
        assert not [*tmp_path.glob("snapshots/*")]


def test_a_copy_that_cannot_be_fetched_again_is_said_to_be_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copies = iter([b"damaged"])

    def fetched(_: CatalogEntry) -> Path:
        for content in copies:
            return cached(tmp_path, "0" * 64, content)
        raise WeightsError("the hub is away", fix="wait")

    monkeypatch.setattr(fetching, "cached_or_downloaded", fetched)
    entry = replace(ENTRY, name="vit")

    with pytest.raises(WeightsError, match=r"cached copy was damaged .* deleted; the hub is away"):
        fetching.fetch(entry)
    with pytest.raises(WeightsError, match=r"^the hub is away"):
        fetching.fetch(entry)


@pytest.mark.parametrize(("licence", "warns"), [("cc-by-nc-4.0", True), ("mit", False)])
def test_weights_for_non_commercial_use_are_fetched_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    licence: str,
    warns: bool,
) -> None:
    monkeypatch.setattr(fetching, "cached_or_downloaded", lambda _: cached(tmp_path, "x", b"w"))

    fetching.fetch(replace(ENTRY, name="vit", licence=licence))

    assert ("licensed for non-commercial use only" in capsys.readouterr().err) == warns


@pytest.mark.parametrize(
    ("present", "way"),
    [
        ("vit_x/model.safetensors", "use ./vit_x for the folder here"),
        ("vit_x.tag", "use ./vit_x.tag for the file here"),
        ("other", "pass the path of a weight file"),
    ],
)
def test_local_weights_of_the_name_are_suggested_where_the_hub_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(present).parent.mkdir(exist_ok=True)
    Path(present).touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    with pytest.raises(WeightsError, match="is not in the cache") as caught:
        fetching.from_cache(replace(ENTRY, name="vit_x.tag"), why="the hub is away")

    assert f"while online, {way}, or use --weights demo" in caught.value.fix
