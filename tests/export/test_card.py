"""The model card: README.md of an exported folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.export.test_export import HOSTILE
from tests.support.export_run import make_run
from vitft.cli.main import main
from vitft.export.card import markdown_text, write_readme
from vitft.export.compare import ExportComparison
from vitft.export.plan import ExportPlan, plan_export
from vitft.export.trained import load_trained
from vitft.models.card import Provenance
from vitft.system.errors import UsageError


def compared(**fields: Any) -> ExportComparison:
    usual: dict[str, Any] = {
        "name": "timm",
        "by": "timm 1.2",
        "images": 6,
        "difference": 1e-7,
        "largest": 3.0,
        "changed": 0,
        "correct": (3, 3),
        "size": 9,
        "speed": 1.0,
        "original_speed": 1.0,
    }
    return ExportComparison(**{**usual, **fields})


def plan(**fields: Any) -> ExportPlan:
    return ExportPlan(formats=("timm",), out=Path("out"), **fields)


def header(folder: Path) -> dict[str, Any]:
    """The metadata of a README."""
    return dict(yaml.safe_load((folder / "README.md").read_text().split("---\n", 2)[1]))


def test_hostile_names_stay_text_in_the_model_card(tmp_path: Path) -> None:
    hub_weights: Provenance = {
        "name": "<script>alert(1)</script>",
        "source": "google/vit-base/model.safetensors",
        "revision": "c0ffee",
        "licence": 'x"\n---\n- evil: yes',
    }
    kept = make_run(tmp_path, classes=HOSTILE, weights=hub_weights)

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan(repo="me/flowers"))

    _, _, body = (tmp_path / "README.md").read_text().split("---\n", 2)
    fields = header(tmp_path)
    assert fields["license_name"] == hub_weights["licence"]
    assert fields["base_model"] == "google/vit-base"
    assert fields["library_name"] == "timm"
    assert fields["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.5
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(body)
    cells = [t.content for t, before in zip(tokens[1:], tokens, strict=False)
             if before.type == "td_open"]  # fmt: skip
    shown = [MarkdownIt().renderInline(cell) for cell in cells]
    assert len(shown) == 5 * len(HOSTILE)
    assert shown[5] == "a|b`*_&lt;b&gt;x&lt;/b&gt;U+000A# c"
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("apache-2.0", "apache-2.0", id="a licence"),
        pytest.param("vit_tiny_224.augreg_in1k", "vit_tiny_224.augreg_in1k", id="weights"),
        pytest.param("_a_ b__c", "&#95;a&#95; b&#95;&#95;c", id="emphasis"),
        pytest.param("1. rose", "1&#46; rose", id="a list"),
        pytest.param("www.1.evil", "www&#46;1.evil", id="a link"),
    ],
)
def test_versions_and_names_stay_readable_in_the_file_itself(name: str, text: str) -> None:
    markdown = MarkdownIt("gfm-like", {"linkify": False})

    assert markdown_text(name) == text
    assert markdown.render(markdown_text(name)) == f"<p>{name}</p>\n"


def test_the_card_says_how_sure_the_figure_is_and_which_classes_are_weak(tmp_path: Path) -> None:
    kept = make_run(tmp_path)

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan(repo="me/flowers"))

    card = (tmp_path / "README.md").read_text()
    assert "Accuracy 50.0% (95% interval 20.0 to 80.0%) on 6 held-out validation images" in card
    assert "slightly optimistic" in card
    assert "| green | 1 | 2 | 50.0% | – |" in card
    assert "photos: 3 images for training and 6 for validation" in card
    assert 'timm.create_model("hf-hub:me/flowers", pretrained=True)' in card
    assert "vitft predict --run hf:me/flowers photo.jpg" in card
    assert str(tmp_path) not in card


def test_the_card_of_8_bit_weights_states_the_accuracy_measured_with_them(tmp_path: Path) -> None:
    kept = make_run(tmp_path)
    small = compared(name="int8", images=40, changed=3, correct=(36, 34))

    write_readme(load_trained(str(kept)), tmp_path, small, plan())

    (metric,) = header(tmp_path)["model-index"][0]["results"][0]["metrics"]
    assert metric["value"] == 0.85  # 34 of 40; the float32 model: 0.5 of 6 in eval.json
    assert metric["name"].startswith("accuracy with 8-bit weights on 40 validation images")
    body = (tmp_path / "README.md").read_text().split("---\n", 2)[2]
    assert "The graph model.onnx has 8-bit weights" in body
    assert "Its accuracy is 85.0% (95% interval " in body
    assert "on 40 validation images, compared with 90.0% for the original float32 model" in body
    assert body.index("85.0%") < body.index("## Use")
    assert "The original float32 model: Accuracy 50.0%" in body
    assert "were measured with the original float32 model" in body


def test_8_bit_weights_have_an_accuracy_even_if_the_run_has_no_results(tmp_path: Path) -> None:
    kept = make_run(tmp_path)
    (kept / "eval.json").unlink()

    small = compared(name="int8", correct=(6, 5), several_labels=True)
    write_readme(load_trained(str(kept)), tmp_path, small, plan())

    (metric,) = header(tmp_path)["model-index"][0]["results"][0]["metrics"]
    assert metric["value"] == pytest.approx(5 / 6, abs=1e-6)
    assert "all labels right" in metric["name"]
    assert "(images whose labels are all right) is 83.3%" in (tmp_path / "README.md").read_text()


def test_a_second_graph_of_8_bits_has_its_own_accuracy_in_the_card(tmp_path: Path) -> None:
    kept = make_run(tmp_path)
    row, small = (
        compared(name=f"transformers-js{kind}", correct=(6, right))
        for kind, right in (("", 6), (", int8", 5))
    )

    write_readme(load_trained(str(kept)), tmp_path, row, plan(), second=small)

    card = (tmp_path / "README.md").read_text()
    assert "onnx/model_quantized.onnx, which web pages load by default, has 8-bit weights" in card
    assert "Its accuracy is 83.3%" in card
    metrics = header(tmp_path)["model-index"][0]["results"][0]["metrics"]
    assert metrics[0]["value"] == 0.5  # the float32 graph is the model of the folder


CONFUSIONS: list[Any] = [
    pytest.param([[2, 0], [2, 0]], 0.5, (0.1, 0.9), "always predicts a*b", id="one class"),
    pytest.param([[1, 1], [1, 1]], 0.5, (0.1, 0.9), "is not measurably better than", id="no skill"),
    pytest.param([[2, 0], [0, 2]], 1.0, (0.6, 1.0), "", id="skill"),
]


@pytest.mark.parametrize(("confusion", "top1", "bounds", "clause"), CONFUSIONS)
def test_the_card_states_that_a_model_is_at_chance_level(
    tmp_path: Path,
    confusion: list[list[int]],
    top1: float,
    bounds: tuple[float, float],
    clause: str,
) -> None:
    kept = make_run(tmp_path, classes=("a*b", "c"))
    results = json.loads((kept / "eval.json").read_text())
    results |= {"confusion": confusion, "top1": top1, "top1_interval": bounds}
    results["balanced_interval"] = bounds
    (kept / "eval.json").write_text(json.dumps(results))

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan())

    body = (tmp_path / "README.md").read_text().split("---\n", 2)[2]
    shown = MarkdownIt().render(body)
    if clause:
        assert f"<strong>This model is at chance level:</strong> it {clause}" in shown
        assert body.index("chance level") < body.index("## Use")
    else:
        assert "chance level" not in shown


def test_a_card_without_figures_claims_none(tmp_path: Path) -> None:
    kept = make_run(tmp_path)
    (kept / "eval.json").unlink()

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan(repo="me/flowers"))

    card = (tmp_path / "README.md").read_text()
    assert "Accuracy" not in card
    assert "model-index" not in card


def test_a_card_without_a_split_lists_the_classes_all_the_same(tmp_path: Path) -> None:
    kept = make_run(tmp_path)
    (kept / "split.csv").unlink()

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan())

    card = (tmp_path / "README.md").read_text()
    assert "| green | – | – | 50.0% | – |" in card
    assert "for training" not in card


def test_images_kept_for_a_test_are_counted_apart(tmp_path: Path) -> None:
    kept = make_run(tmp_path)
    rows = (kept / "split.csv").read_text()
    (kept / "split.csv").write_text(rows.replace(",val,", ",test,", 2))

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan())

    text = (tmp_path / "README.md").read_text()
    assert "3 images for training and 4 for validation, plus 2 for testing" in text


LICENCES: list[Any] = [
    pytest.param({"licence": "cc-by-nc-4.0"}, "", ("cc-by-nc-4.0", None), id="of the weights"),
    pytest.param({"licence": "cc-by-nc-4.0"}, "MIT", ("mit", None), id="chosen"),
    pytest.param(
        {"licence": "dinov3-license"}, "", ("other", "dinov3-license"), id="DINOv3's licence"
    ),
    pytest.param({"licence": "dinov3-license"}, "MIT", ("mit", None), id="DINOv3's, MIT chosen"),
    pytest.param({}, "", ("unknown", None), id="unknown"),
    pytest.param({}, "unknown", ("unknown", None), id="unknown, chosen"),
    pytest.param(
        {"licence": "cc-by-nc-4.0"}, "unknown", ("unknown", None), id="unknown, of known weights"
    ),
    pytest.param({}, "all rights reserved", ("other", "all rights reserved"), id="by its name"),
    pytest.param(
        {"name": "vit_tiny_patch16_224.augreg_in21k"}, "", ("apache-2.0", None), id="of a name"
    ),
    pytest.param(
        {"name": "model", "from": "vit_tiny_patch16_224.augreg_in21k"},
        "",
        ("apache-2.0", None),
        id="of an ancestor",
    ),
]


@pytest.mark.parametrize(("weights", "chosen", "expected"), LICENCES)
def test_the_licence_is_the_chosen_one_or_that_of_the_pretrained_weights(
    tmp_path: Path, weights: Provenance, chosen: str, expected: tuple[str, str | None]
) -> None:
    kept = make_run(tmp_path, weights={"name": "noise", **weights})

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan(licence=chosen))

    fields = header(tmp_path)
    assert (fields["license"], fields.get("license_name")) == expected
    text = (tmp_path / "README.md").read_text()
    licence = weights.get("licence", "")
    if licence:
        assert f"pretrained weights: {licence}" in text
        assert "The terms of the pretrained weights also apply to this model" in text
    assert ("forbid commercial use" in text) is (licence == "cc-by-nc-4.0")
    assert ("include the text of their licence" in text) is (licence == "dinov3-license")
    if not chosen and not weights:
        assert "Not stated; the author can state it with vitft export --licence NAME." in text


def test_an_unknown_licence_can_be_stated_on_the_command_line(tmp_path: Path) -> None:
    kept = make_run(tmp_path, weights={"name": "noise", "licence": "cc-by-nc-4.0"})
    words = ["export", "--safetensors", "--run", str(kept), "--out", str(tmp_path / "out")]

    assert main([*words, "--licence", "unknown"]) == 0

    assert header(tmp_path / "out")["license"] == "unknown"
    text = (tmp_path / "out" / "README.md").read_text()
    assert "unknown (pretrained weights: cc-by-nc-4.0). The terms of the pretrained" in text


@pytest.mark.parametrize("licence", ["a\nb", "x" * 101], ids=["two lines", "long"])
def test_a_licence_that_is_no_name_is_refused(licence: str) -> None:
    with pytest.raises(UsageError, match="invalid --licence"):
        plan_export(["timm"], None, licence=licence)


def test_the_base_model_is_the_repository_of_the_catalogue(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224.augreg_in21k"
    kept = make_run(tmp_path, weights={"name": "model", "from": name})

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan())

    assert header(tmp_path)["base_model"] == f"timm/{name}"


def test_a_model_from_random_weights_is_not_called_fine_tuned(tmp_path: Path) -> None:
    kept = make_run(tmp_path, weights={"name": "none"})

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan())

    text = (tmp_path / "README.md").read_text()
    assert "trained from random weights with vitft" in text
    assert "fine-tuned" not in text
