"""Fetching from a loopback hub: readable errors, retries, and nothing unverified is used.

The client reads its environment once, at import, so each situation is a process of its own.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save

from tests.conftest import random_timm
from tests.support.children import python
from tests.support.hub_server import COMMIT, HubServer, Repo

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
        entry = CatalogEntry(name=case, licence="", file="model.safetensors", **fields)
        path, origin = fetch(entry)
        answer = {"path": str(path), **origin}
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
    done = python(code, argument, env=environment)
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
    assert answer["seconds"] < 12  # huggingface_hub alone takes 24


def test_an_unreachable_hub_does_not_matter_to_what_is_in_the_cache(
    hub: HubServer, tmp_path: Path
) -> None:
    cases = json.dumps({"a model": {"repo": "test/plain"}})

    online = in_child(FETCH, cases, tmp_path, hub.endpoint)["a model"]
    unplugged = in_child(FETCH, cases, tmp_path, "http://127.0.0.1:9")["a model"]

    assert unplugged["path"] == online["path"]
    assert unplugged["revision"] == COMMIT
