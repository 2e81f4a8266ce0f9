"""An upload to a loopback hub, from which vitft and timm read again.

The client reads its environment once, at import, so each user of the hub is a process of its own.
"""

import importlib
import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import huggingface_hub
import pytest

from tests.export.test_export import HOSTILE
from tests.models.pretrained.test_fetch import in_child
from tests.support.export_run import make_run
from tests.support.hub_server import HubServer, Repo
from vitft.export import export_run
from vitft.export.hub import hidden_progress_bars, push, push_error
from vitft.export.job import Exported
from vitft.export.plan import ExportPlan, plan_export
from vitft.export.trained import load_trained, without_paths
from vitft.system.errors import WeightsError

WRITER = "hf_mayWrite"
bars: Any = importlib.import_module("huggingface_hub.utils")

# argv[1] is a list of commands; a first word with = sets a variable for the rest.
COMMANDS = """
import contextlib, io, json, os, sys
from huggingface_hub import constants
from vitft.cli.main import main

answers = {}
for number, words in enumerate(json.loads(sys.argv[1])):
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        os.environ[name] = value
        constants.HF_HUB_OFFLINE = os.environ.get("HF_HUB_OFFLINE") == "1"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    answers[str(number)] = {"code": code, "out": out.getvalue(), "err": err.getvalue()}
print(json.dumps(answers))
"""

TIMM = """
import json, sys
import timm, torch
from PIL import Image
from timm.data import create_transform, resolve_data_config

repo, image = json.loads(sys.argv[1])
model = timm.create_model(f"hf-hub:{repo}", pretrained=True).eval()
view = create_transform(**resolve_data_config(model.pretrained_cfg))
with torch.inference_mode():
    shares = model(view(Image.open(image).convert("RGB"))[None]).softmax(dim=-1)[0].tolist()
labels = model.pretrained_cfg["label_names"]
print(json.dumps({"answer": dict(zip(labels, shares, strict=True)),
                  "foreign": {"yes": "vitft" not in sys.modules}}))
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "made", classes=HOSTILE)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer({}, writer=WRITER) as server:
        yield server


def test_a_pushed_model_is_predicted_with_and_opened_by_timm(
    run: Path, hub: HubServer, tmp_path: Path
) -> None:
    hub.repos["test/foreign"] = Repo({"model.safetensors": b"not ours"})
    image = str(next((run.parent / "photos").rglob("*.png")))
    push = ["export", "--safetensors", "--run", str(run), "--push-to-hub", "me/flowers"]
    ask = ["predict", image, "--format", "jsonl", "--top-k", "3", "--run"]
    asked = ["hf:me/flowers", "hf:me/flowers@v1", "hf:test/foreign", "hf:me/nothing"]

    pushed = in_child(
        COMMANDS,
        json.dumps(
            [
                ["HF_TOKEN=hf_wrong", *push, "--out", str(tmp_path / "refused")],
                [f"HF_TOKEN={WRITER}", *push, "--out", str(tmp_path / "out"), "--private"],
                [*push, "--out", str(tmp_path / "branch"), "--revision", "v1"],
            ]
        ),
        tmp_path / "one",
        hub.endpoint,
    )
    assert [pushed[n]["code"] for n in "012"] == [4, 0, 0], pushed
    read = in_child(
        COMMANDS,
        json.dumps(
            [
                *([*ask, name] for name in asked),
                ["HF_HUB_OFFLINE=1", *ask, asked[0]],
                ["predict", image, "--format", "jsonl", "--top-k", "3", "--run", str(run)],
            ]
        ),
        tmp_path / "two",
        hub.endpoint,
    )
    theirs = in_child(TIMM, json.dumps(["me/flowers", image]), tmp_path / "three", hub.endpoint)

    assert "with write access to me" in pushed["0"]["err"]
    assert (tmp_path / "refused" / "model.safetensors").exists()
    assert f"pushed: {hub.endpoint}/me/flowers/commit/" in pushed["1"]["out"]
    repo = hub.repos["me/flowers"]
    assert repo.private
    assert repo.branches == {"main", "v1"}
    assert sorted(repo.files) == [
        *("README.md", "config.json", "confusion.png", "model.safetensors")
    ]
    for name, content in repo.files.items():
        assert content == (tmp_path / "branch" / name).read_bytes()
    assert [read[n]["code"] for n in "012345"] == [0, 0, 5, 4, 0, 0], read
    rows = [json.loads(read[n]["out"]) for n in "0145"]
    assert [rows[0]["classes"]] * 4 == [row["classes"] for row in rows]
    assert "repository me/nothing does not exist on the hub" in read["3"]["err"]
    answers = rows[0]["classes"]
    assert theirs["foreign"]["yes"]
    printed = {a["class"]: a["probability"] for a in answers}  # six digits
    assert theirs["answer"] == pytest.approx(printed, abs=1e-6)


def test_a_published_file_does_not_tell_where_the_weights_lay(tmp_path: Path) -> None:
    kept = make_run(tmp_path)

    done = export_run(str(kept), plan_export(["safetensors"], str(tmp_path / "export")))

    card = load_trained(str(done.folder)).card
    assert card.weights["source"] == "noise.safetensors"
    assert without_paths(card) == card


class AnsweredError(OSError):
    """An error that a response of a hub has caused."""

    def __init__(self, status: int) -> None:
        super().__init__("the library's own words")
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    ("error", "cause", "reason", "fix"),
    [
        (AnsweredError(401), OSError("refused"), "HTTP status 401", "set HF_TOKEN to a token"),
        (AnsweredError(403), OSError("refused"), "HTTP status 403", "set HF_TOKEN to a token"),
        (AnsweredError(402), OSError("refused"), "HTTP status 402", "upload it later: hf upload"),
        (AnsweredError(404), OSError("refused"), "HTTP status 404", "upload it later: hf upload"),
        (AnsweredError(500), OSError("refused"), "HTTP status 500", "upload it later: hf upload"),
        (RuntimeError("wrapped"), OSError("refused"), "refused", "upload it later: hf upload"),
        (RuntimeError("alone"), None, "alone", "upload it later: hf upload"),
    ],
)
def test_a_failed_upload_is_reported_by_its_status_or_its_cause(
    error: Exception, cause: Exception | None, reason: str, fix: str
) -> None:
    error.__cause__ = cause
    done = cast("Exported", SimpleNamespace(folder=Path("export")))
    plan = cast("ExportPlan", SimpleNamespace(repo="me/flowers"))

    found = push_error(done, plan, error)

    assert found.problem == (f"the upload to me/flowers failed: {reason}; the export is in export")
    assert (found.fix or "").startswith(fix)


class RecordedHub:
    """A client of the hub that records the requests and answers with the address of a commit."""

    failure: Exception | None = None

    def __init__(self) -> None:
        self.requests: list[tuple[str, tuple[object, ...], dict[str, object]]] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        def request(*words: object, **options: object) -> object:
            self.requests.append((name, words, options))
            self.is_silent = bars.are_progress_bars_disabled()
            if self.failure:
                raise self.failure
            return SimpleNamespace(commit_url="https://hub.example/commit/1")

        return request


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> RecordedHub:
    found = RecordedHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: found)
    return found


@pytest.mark.parametrize(("private", "revision"), [(False, ""), (True, ""), (False, "v1")])
def test_an_upload_is_one_commit_on_the_branch_that_is_asked_for(
    recorded: RecordedHub, revision: str, *, private: bool
) -> None:
    done = cast("Exported", SimpleNamespace(folder=Path("export")))
    plan = ExportPlan(
        formats=("timm",), out=Path("export"), repo="me/flowers", private=private,
        revision=revision,
    )  # fmt: skip

    assert push(done, plan) == "https://hub.example/commit/1"

    branch = ("create_branch", ("me/flowers",), {"branch": "v1", "exist_ok": True})
    upload = {
        "repo_id": "me/flowers",
        "folder_path": Path("export"),
        "revision": revision or None,
        "commit_message": f"Upload by vitft {version('vitft')}",
    }
    assert recorded.requests == [
        ("create_repo", ("me/flowers",), {"private": private or None, "exist_ok": True}),
        *([branch] if revision else []),
        ("upload_folder", (), upload),
    ]
    assert recorded.is_silent
    assert not bars.are_progress_bars_disabled()


def test_an_upload_that_fails_keeps_the_folder_and_states_the_command(
    recorded: RecordedHub, tmp_path: Path
) -> None:
    recorded.failure = RuntimeError("no route")
    folder = tmp_path / "my export"
    done = cast("Exported", SimpleNamespace(folder=folder))

    with pytest.raises(WeightsError, match="the upload to me/flowers failed: no route") as found:
        push(done, ExportPlan(formats=("timm",), out=folder, repo="me/flowers"))

    assert found.value.fix == f"upload it later: hf upload me/flowers '{folder}'"
    assert [name for name, *_ in recorded.requests] == ["create_repo"]
    assert not bars.are_progress_bars_disabled()


def test_progress_bars_are_hidden_for_a_while_and_stay_hidden_if_they_were() -> None:
    with hidden_progress_bars():
        assert bars.are_progress_bars_disabled()
    assert not bars.are_progress_bars_disabled()
    with pytest.raises(ZeroDivisionError), hidden_progress_bars():
        raise ZeroDivisionError
    assert not bars.are_progress_bars_disabled()

    bars.disable_progress_bars()
    try:
        with hidden_progress_bars():
            assert bars.are_progress_bars_disabled()
        assert bars.are_progress_bars_disabled()
    finally:
        bars.enable_progress_bars()
