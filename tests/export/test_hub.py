"""An upload to a loopback hub, from which vitft and timm read again.

The client reads its environment once, at import, so each user of the hub is a process of its own.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.export.test_export import HOSTILE
from tests.models.pretrained.test_fetch import in_child
from tests.support.export_run import make_run
from tests.support.hub_server import HubServer, Repo

pytestmark = pytest.mark.long

WRITER = "hf_mayWrite"

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
