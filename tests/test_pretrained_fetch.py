"""The hub's answers become sentences, and nothing unverified is used: against a hub on loopback.

The client reads its environment once, at import, so each situation is a process of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save

from tests.conftest import random_timm
from tests.hub_server import COMMIT, HubServer, Repo

NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
Answers = dict[str, dict[str, Any]]
CONTENT = b"not a model, but content all the same" * 100

FETCH = """
import json, sys, time
from vitft.errors import VitftError
from vitft.pretrained.catalog import Entry
from vitft.pretrained.fetch import fetch

answers = {}
for case, fields in json.loads(sys.argv[1]).items():
    start = time.perf_counter()
    try:
        got = fetch(Entry(name=case, licence="", file="model.safetensors", **fields))
        answer = {"path": str(got.path), "revision": got.revision, "sha256": got.sha256}
    except VitftError as error:
        answer = {"problem": error.problem, "fix": error.fix, "code": error.exit_code}
    answers[case] = answer | {"seconds": time.perf_counter() - start}
print(json.dumps(answers))
"""

LOAD = """
import json, sys
from vitft import load_pretrained
model, report = load_pretrained(sys.argv[1], num_classes=3, image_size=32)
print(json.dumps({"lines": report.lines(), "provenance": report.provenance}))
"""


def in_child(code: str, argument: str, cache: Path, endpoint: str, **more: str) -> Answers:
    """What a fresh process with its own cache prints."""
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
        **more,
    }
    environment.pop("HF_TOKEN", None)
    done = subprocess.run(
        [sys.executable, "-c", code, argument],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: Answers = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    model = random_timm("vit_tiny_patch16_224", 32, depth=2)
    repos = {f"timm/{NAME}": Repo({"model.safetensors": save(model.state_dict())})}
    repos["test/plain"] = Repo({"model.safetensors": CONTENT})
    for fault in ("gated", "flip", "short", "503", "login page"):
        content = CONTENT + fault.encode()
        repos[f"test/{fault.replace(' ', '-')}"] = Repo({"model.safetensors": content}, fault)
    repos["test/empty"] = Repo({})
    with HubServer(repos) as server:
        yield server


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


CASES = {
    "plain": {"repo": "test/plain"},
    "missing repository": {"repo": "test/missing"},
    "missing revision": {"repo": "test/plain", "revision": "v9"},
    "missing file": {"repo": "test/empty"},
    "gated": {"repo": "test/gated"},
    "flipped bit": {"repo": "test/flip"},
    "short body": {"repo": "test/short"},
    "503 on the download": {"repo": "test/503"},
    "login page": {"repo": "test/login-page"},
    "wrong digest": {"repo": "test/plain", "sha256": "0" * 64},
}


@pytest.fixture(scope="module")
def answers(hub: HubServer, cache: Path) -> Answers:
    return in_child(FETCH, json.dumps(CASES), cache, hub.endpoint)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("missing repository", "the hub has no repository test/missing"),
        ("missing revision", "test/plain has no revision v9"),
        ("missing file", "test/empty has no file model.safetensors"),
        ("gated", "the publisher of test/gated asks for consent"),
        ("flipped bit", "test/flip/model.safetensors is damaged: sha256"),
        ("short body", "download of test/short/model.safetensors failed"),
        ("503 on the download", "download of test/503/model.safetensors failed"),
        ("login page", "does not answer like a hub"),
        ("wrong digest", "test/plain/model.safetensors is damaged: sha256"),
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


def test_a_fetched_file_comes_with_commit_and_digest(answers: Answers) -> None:
    assert answers["plain"]["revision"] == COMMIT
    assert len(answers["plain"]["sha256"]) == 64


def test_nothing_damaged_stays_in_the_cache(answers: Answers, cache: Path) -> None:
    left = {path.parents[1].name for path in cache.glob("hub/models--*/blobs/*")}

    assert "models--test--flip" not in left
    assert "models--test--short" not in left


def test_a_catalogue_name_is_loaded_from_the_hub_and_then_without_it(
    hub: HubServer, tmp_path: Path
) -> None:
    online = in_child(LOAD, NAME, tmp_path, hub.endpoint)
    asked = len(hub.requests)
    offline = in_child(LOAD, NAME, tmp_path, hub.endpoint, HF_HUB_OFFLINE="1")

    assert online == offline
    assert len(hub.requests) == asked
    assert online["provenance"]["revision"] == COMMIT
    assert online["provenance"]["source"] == f"timm/{NAME}/model.safetensors"
    assert any("from the catalogue" in line for line in online["lines"])


@pytest.mark.parametrize(
    ("why", "environment"),
    [
        pytest.param("HF_HUB_OFFLINE is set", {"HF_HUB_OFFLINE": "1"}, id="told to be offline"),
        pytest.param("cannot be reached", {}, id="nobody listens"),
    ],
)
def test_offline_is_said_as_such_within_two_seconds(
    why: str, environment: dict[str, str], tmp_path: Path
) -> None:
    cases = json.dumps({"a model": {"repo": "test/plain"}})

    answer = in_child(FETCH, cases, tmp_path, "http://127.0.0.1:9", **environment)["a model"]

    assert answer["problem"].startswith("offline and not in the cache: a model (test/plain)")
    assert why in answer["problem"]
    assert answer["seconds"] < 2


def test_an_unreachable_hub_does_not_matter_to_what_is_in_the_cache(
    hub: HubServer, tmp_path: Path
) -> None:
    cases = json.dumps({"a model": {"repo": "test/plain"}})

    online = in_child(FETCH, cases, tmp_path, hub.endpoint)["a model"]
    unplugged = in_child(FETCH, cases, tmp_path, "http://127.0.0.1:9")["a model"]

    assert unplugged["path"] == online["path"]
    assert unplugged["revision"] == COMMIT
