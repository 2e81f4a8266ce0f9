"""The model card: README.md of an exported folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from PIL import Image

from tests.contract.built.runs import several
from tests.export.test_export import HOSTILE
from tests.support.export_run import make_run
from vitft.export import ExportComparison, ExportPlan, load_trained, markdown_text, write_readme
from vitft.metrics import RunResults, read_results
from vitft.models import Provenance

HUB_WEIGHTS: Provenance = {
    "name": "<script>alert(1)</script>",
    "source": "google/vit-base/model.safetensors",
    "revision": "c0ffee",
    "licence": 'x"\n---\n- evil: yes',
}


def compared(**fields: Any) -> ExportComparison:
    usual: dict[str, Any] = {"name": "timm", "by": "timm 1.2", "images": 6, "difference": 1e-7}
    usual |= {"largest": 3.0, "changed": 0, "correct": (3, 3), "size": 9}
    return ExportComparison(**{**usual, "speed": 1.0, "original_speed": 1.0, **fields})


def plan(**fields: Any) -> ExportPlan:
    return ExportPlan(formats=("timm",), out=Path("out"), **fields)


def header(folder: Path) -> dict[str, Any]:
    """The metadata of a README."""
    return dict(yaml.safe_load((folder / "README.md").read_text().split("---\n", 2)[1]))


def test_hostile_names_stay_text_in_the_model_card(tmp_path: Path) -> None:
    kept = make_run(tmp_path, classes=HOSTILE, weights=HUB_WEIGHTS)

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan(repo="me/flowers"))

    _, _, body = (tmp_path / "README.md").read_text().split("---\n", 2)
    fields = header(tmp_path)
    assert (fields["library_name"], fields["base_model"]) == ("timm", "google/vit-base")
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


CC, DINO = {"licence": "cc-by-nc-4.0"}, {"licence": "dinov3-license"}
TINY = "vit_tiny_patch16_224.augreg_in21k"
LICENCES: list[Any] = [
    pytest.param(CC, "", ("cc-by-nc-4.0", None), id="of the weights"),
    pytest.param(CC, "MIT", ("mit", None), id="chosen"),
    pytest.param(DINO, "", ("other", "dinov3-license"), id="DINOv3's licence"),
    pytest.param(DINO, "MIT", ("mit", None), id="DINOv3's, MIT chosen"),
    pytest.param({}, "", ("unknown", None), id="unknown"),
    pytest.param({}, "unknown", ("unknown", None), id="unknown, chosen"),
    pytest.param(CC, "unknown", ("unknown", None), id="unknown, of known weights"),
    pytest.param({}, "all rights reserved", ("other", "all rights reserved"), id="by its name"),
    pytest.param({"name": TINY}, "", ("unknown", None), id="unknown, of a file's name"),
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
        assert "Not stated. The author can state it with vitft export --licence NAME." in text


# the page of a hub repository -------------------------------------------------------------------


def page(run: Path, folder: Path, **fields: Any) -> str:
    plan = ExportPlan(formats=("timm",), out=folder, repo="me/flowers", **fields)
    write_readme(load_trained(str(run)), folder, compared(), plan)
    return (folder / "README.md").read_text()


def results_of_run(run: Path, **changed: Any) -> RunResults:
    (run / "eval.json").write_text(
        json.dumps(json.loads((run / "eval.json").read_text()) | changed)
    )
    results = read_results(run / "eval.json")
    assert results is not None
    return results


def test_several_labels_have_no_matrix_of_confusion(tmp_path: Path) -> None:
    several(tmp_path)

    assert "confusion" not in page(tmp_path / "M", tmp_path)


def test_the_hub_library_reads_the_metadata_without_complaint(tmp_path: Path) -> None:
    run = make_run(tmp_path, classes=HOSTILE, weights=HUB_WEIGHTS)
    results_of_run(run, top5=0.9, top5_interval=(0.7, 0.95))

    card: Any = ModelCard(page(run, tmp_path))  # raises an error for invalid evaluation results

    assert card.data.license == "other"
    assert card.data.license_name == HUB_WEIGHTS["licence"]
    assert (card.data.base_model, card.data.base_model_relation) == ("google/vit-base", "finetune")
    assert card.data.model_name == "me/flowers"
    found = {one.metric_type: (one.metric_value, one.metric_name) for one in card.data.eval_results}
    assert found == {
        "accuracy": (0.5, "accuracy on 6 validation images, 95% CI 18.8 to 81.2%"),
        "balanced_accuracy": (*(0.5, "mean recall on 6 validation images, 95% CI 18.8 to 81.2%"),),
        "top5_accuracy": (*(0.9, "top-5 accuracy on 6 validation images, 95% CI 70.0 to 95.0%"),),
    }
    assert {one.dataset_split for one in card.data.eval_results} == {"validation"}
    own: Any = results_of_run(run)
    results_of_run(run, test={**own, "images": 9, "top1": 0.4, "left_out": 0})
    tested: Any = ModelCard(page(run, tmp_path))
    first = tested.data.eval_results[0]
    assert (first.dataset_split, first.metric_value) == ("test", 0.4)
    assert first.metric_name.startswith("accuracy on 9 test images")


def test_images_are_shown_only_with_a_licence_and_credit(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    text = page(run, tmp_path, image_licence="cc-by-4.0", image_credit="A. <b>Nother")

    assert "](examples.jpg)" in text
    assert "Row by row: blue, green, red. Images: cc-by-4.0, A&#46; &#60;b&#62;Nother." in text
    with Image.open(tmp_path / "examples.jpg", formats=("JPEG",)) as picture:
        assert picture.size == (3 * 160, 160)
        assert not picture.getexif()
