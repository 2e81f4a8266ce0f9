"""The model card, and an upload to a loopback hub from which vitft and timm read again.

The client reads its environment once, at import, so each user of the hub is a process of its own.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.export.test_export import HOSTILE
from tests.models.pretrained.test_fetch import in_child
from tests.support.export_run import make_run
from tests.support.hub_server import HubServer, Repo
from vitft.export import export_run
from vitft.export.card import markdown_text, write_readme
from vitft.export.compare import ExportComparison
from vitft.export.plan import plan_export
from vitft.export.trained import load_trained, without_paths
from vitft.models.card import Provenance

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

    assert "may write to me" in pushed["0"]["err"]
    assert (tmp_path / "refused" / "model.safetensors").exists()
    assert f"pushed: {hub.endpoint}/me/flowers/commit/" in pushed["1"]["out"]
    repo = hub.repos["me/flowers"]
    assert repo.private
    assert repo.branches == {"main", "v1"}
    assert sorted(repo.files) == ["README.md", "config.json", "model.safetensors"]
    for name, content in repo.files.items():
        assert content == (tmp_path / "branch" / name).read_bytes()
    assert [read[n]["code"] for n in "012345"] == [0, 0, 5, 4, 0, 0], read
    assert read["0"]["out"] == read["1"]["out"] == read["4"]["out"] == read["5"]["out"]
    assert "the hub has no repository me/nothing" in read["3"]["err"]
    answers = json.loads(read["0"]["out"])["classes"]
    assert theirs["foreign"]["yes"]
    printed = {a["class"]: a["probability"] for a in answers}  # six digits
    assert theirs["answer"] == pytest.approx(printed, abs=1e-6)


# the card -----------------------------------------------------------------------------------------


def compared() -> ExportComparison:
    return ExportComparison(
        name="timm",
        by="timm 1.2",
        images=6,
        difference=1e-7,
        largest=3.0,
        changed=0,
        correct=(3, 3),
        size=9,
        speed=1.0,
        original_speed=1.0,
    )


def test_hostile_names_stay_text_in_the_model_card(tmp_path: Path) -> None:
    hub_weights: Provenance = {
        "name": "<script>alert(1)</script>",
        "source": "google/vit-base/model.safetensors",
        "revision": "c0ffee",
        "licence": 'x"\n---\n- evil: yes',
    }
    kept = make_run(tmp_path, classes=HOSTILE, weights=hub_weights)

    write_readme(load_trained(str(kept)), tmp_path, "me/flowers", compared())

    _, header, body = (tmp_path / "README.md").read_text().split("---\n", 2)
    fields = yaml.safe_load(header)
    assert fields["license_name"] == hub_weights["licence"]
    assert fields["base_model"] == "google/vit-base"
    assert fields["library_name"] == "timm"
    assert fields["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.5
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(body)
    cells = [t.content for t, before in zip(tokens[1:], tokens, strict=False)
             if before.type == "td_open"]  # fmt: skip
    shown = [MarkdownIt().renderInline(cell) for cell in cells]
    assert len(shown) == 4 * len(HOSTILE)
    assert shown[4] == "a|b`*_&lt;b&gt;x&lt;/b&gt;U+000A# c"
    assert not [t for t in tokens if t.type == "html_block"]
    assert "<script" not in body


@pytest.mark.parametrize(
    "name", ["www.evil.example", "http://evil.example", "![x](y)", "a@b.example", "\\", "<!--"]
)
def test_no_name_becomes_a_link_or_an_image(name: str) -> None:
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown_text(name))

    assert "<a" not in rendered
    assert "<img" not in rendered
    assert all(c.isalnum() or c in " -&#;" for c in markdown_text(name))


def test_the_card_says_how_sure_the_figure_is_and_which_classes_are_weak(tmp_path: Path) -> None:
    kept = make_run(tmp_path)

    write_readme(load_trained(str(kept)), tmp_path, "me/flowers", compared())

    card = (tmp_path / "README.md").read_text()
    assert "Accuracy 50.0 % (95 % interval 20.0 to 80.0 %) on 6 held-out validation images" in card
    assert "slightly optimistic" in card
    assert "| green | 2 | 50.0 % | – |" in card
    assert 'timm.create_model("hf-hub:me/flowers", pretrained=True)' in card
    assert "vitft predict --run hf:me/flowers photo.jpg" in card
    assert str(tmp_path) not in card


def test_a_card_without_figures_claims_none(tmp_path: Path) -> None:
    kept = make_run(tmp_path)
    (kept / "eval.json").unlink()

    write_readme(load_trained(str(kept)), tmp_path, "me/flowers", compared())

    card = (tmp_path / "README.md").read_text()
    assert "Accuracy" not in card
    assert "model-index" not in card


def test_a_published_file_does_not_tell_where_the_weights_lay(tmp_path: Path) -> None:
    kept = make_run(tmp_path)

    done = export_run(str(kept), plan_export(["safetensors"], str(tmp_path / "export")))

    card = load_trained(str(done.folder)).card
    assert card.weights["source"] == "noise.safetensors"
    assert without_paths(card) == card
