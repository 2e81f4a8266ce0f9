"""The model card: README.md of an exported folder."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.export.test_export import HOSTILE
from tests.support.export_run import make_run
from vitft.export import ExportComparison, ExportPlan, load_trained, markdown_text, write_readme
from vitft.models import Provenance


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


def test_the_base_model_is_the_repository_of_the_catalogue(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224.augreg_in21k"
    kept = make_run(tmp_path, weights={"name": "model", "from": name})

    write_readme(load_trained(str(kept)), tmp_path, compared(), plan())

    assert header(tmp_path)["base_model"] == f"timm/{name}"
