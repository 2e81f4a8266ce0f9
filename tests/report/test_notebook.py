"""Results as HTML in notebooks."""

import base64
import html
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import draw_folder, tiny_home
from tests.support.run_files import make_run
from vitft.api import Trained, finetune, load
from vitft.metrics.verdict import verdict
from vitft.predict.prediction import Prediction
from vitft.predict.run_info import RunInfo
from vitft.report.html import TEMPLATES
from vitft.report.notebook import (
    MAX_PREDICTIONS,
    Explanation,
    Predictions,
    notebook_style,
    result_card,
    trained_card,
)
from vitft.report.palette import DARK, LIGHT, colour_classes, css_variables
from vitft.report.run_files import read_run
from vitft.training.run import Result

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Train on random noise, so that there are mistakes, with a class that is markup."""
    home = tiny_home(tmp_path_factory.mktemp("notebook"))
    noise = np.random.default_rng(0)
    for name in (HOSTILE, "red", "blue"):
        folder = home / "noise" / name
        folder.mkdir(parents=True)
        for i in range(12):
            pixels = noise.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    return finetune(
        data=home / "noise", weights=home / "w.safetensors", out=home / "run", seed=1, cache="none"
    )


@pytest.fixture(scope="module")
def model(result: Result) -> Trained:
    return load(result.run, device="cpu")


def without_style(markup: str) -> str:
    return re.sub(r"<style>.*?</style>", "", markup, count=1, flags=re.DOTALL)


def test_a_result_is_shown_with_its_interval_mistakes_charts_and_the_next_call(
    result: Result,
) -> None:
    markup = without_style(str(result._repr_html_()))

    top1 = result.figures["top1"]
    assert f"{top1:.1%}" in markup
    assert verdict(result.figures) in markup
    assert markup.count('<figure class="card') == round((1 - top1) * result.figures["images"])
    assert markup.count("<svg") >= 1
    assert "vitft.load(" in markup
    page = result.run / "report.html"
    assert f"The report: <code>{page}</code>" in markup

    page.unlink()
    assert f"The report: <code>vitft report --run {result.run}</code>" in str(result._repr_html_())


def test_a_result_whose_directory_is_gone_is_shown_as_text(tmp_path: Path) -> None:
    figures = {"top1": 0.5}
    gone = Result(run=tmp_path / "gone", figures=figures)  # type: ignore[arg-type]

    assert "top1" not in str(gone._repr_html_())
    assert repr(gone).endswith("top1=0.5)")


def test_a_damaged_run_is_shown_as_text(tmp_path: Path) -> None:
    (tmp_path / "eval.json").write_text("{")

    assert Result(run=tmp_path, figures={})._repr_html_() is None  # type: ignore[typeddict-item]


def test_names_are_escaped_and_nothing_runs_or_is_fetched(
    result: Result, model: Trained, tmp_path: Path
) -> None:
    photo = draw_folder(tmp_path, per_class=1) / "red" / "000.png"
    shown = [
        str(result._repr_html_()),
        model._repr_html_(),
        model.predict([photo, HOSTILE], top_k=3)._repr_html_(),
        model.explain(photo, about=HOSTILE)._repr_html_(),
    ]

    for markup in shown:
        assert "&lt;img src=x" in markup
        assert "<img src=x" not in markup
        assert not re.search(r"<script|<iframe|<link|style=|https?://|\son\w+=\"", markup)
        assert {*re.findall(r'src="([^,"]*)', markup)} <= {"data:image/jpeg;base64"}


def test_twelve_mistakes_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", hardness=5, per_class=60, held_back=50)

    markup = without_style(result_card(run))
    perfect = without_style(result_card(make_run(tmp_path / "perfect", hardness=0.01)))

    wrong = sum(not one.is_correct for one in read_run(run).predictions)
    assert wrong > 12
    assert markup.count('<figure class="card') == 12
    assert str(wrong) in markup
    assert '<figure class="card' not in perfect
    assert f"vitft report --run {run}" in markup


@pytest.mark.parametrize(("classes", "more"), [(21, ""), (22, " and 2 more"), (50, " and 30 more")])
def test_twenty_classes_of_a_model_are_named(classes: int, more: str) -> None:
    info = RunInfo(name="a", classes=3, top1=None, images=0, trained_at=0.0, at_chance="")

    markup = trained_card(info, [f"c{i:03}" for i in range(classes)], [("input", "16 pixels")])

    assert markup.count("c0") >= 20
    assert ("more" in without_style(markup)) == bool(more)
    assert more in without_style(markup)
    assert "16 pixels" in markup


@pytest.mark.parametrize(("number", "lines"), [(20, 20), (21, 21), (60, 21)])
def test_twenty_predictions_are_printed(number: int, lines: int) -> None:
    one = Prediction(path="1.jpg", classes=("a",), probabilities=(0.9,))

    shown = repr(Predictions([one] * number)).splitlines()

    assert len(shown) == lines
    assert number == 20 or shown[-1] == f" ... and {number - 20} more]"


def test_the_style_sheet_applies_only_inside_the_output() -> None:
    style = notebook_style()

    depth, outermost = 0, ""
    for line in re.split(r"([{}])", style):
        if line == "{" and depth == 0:
            assert all(".vitft" in selector for selector in outermost.split(",")), outermost
        depth += (line == "{") - (line == "}")
        outermost = line
    assert depth == 0
    assert "<" not in style


def test_the_style_sheet_has_the_colours_of_both_modes_before_the_rules() -> None:
    notebook_style.cache_clear()

    light, dark, inner, *rules = notebook_style().splitlines()

    assert light == f".vitft {{ {css_variables('light', LIGHT)} }}"
    dark_notebooks = (
        'body[data-jp-theme-light="false"] .vitft, body.vscode-dark .vitft, html[theme=dark] .vitft'
    )
    assert dark == f"{dark_notebooks} {{ {css_variables('dark', DARK)} }}"
    assert inner == ".vitft.vitft {"
    page, own = ((TEMPLATES / name).read_text() for name in ("page.css", "notebook.css"))
    lines = page.splitlines() + colour_classes().splitlines()
    assert rules == [*lines, "}", *own.splitlines()]


def test_a_model_is_shown_with_its_classes_and_accuracy(model: Trained, result: Result) -> None:
    markup = without_style(model._repr_html_())

    assert f"accuracy {result.figures['top1']:.1%}" in markup
    assert "16 × 16 pixels" in markup
    assert "model.predict" in markup


def test_predictions_are_a_list_with_a_short_repr_and_a_table(
    model: Trained, image_folder: Path
) -> None:
    predictions = model.predict([image_folder / "red" / "000.png", "gone.jpg"], top_k=2)

    assert isinstance(predictions, list)
    first, gone = repr(predictions).splitlines()
    assert re.match(r"\[Prediction\('.*000\.png': .+ \d+\.\d%, .+ \d+\.\d%( \(.*\))?\),$", first)
    assert gone.startswith(" Prediction('gone.jpg': error: ")
    markup = without_style(predictions._repr_html_())
    assert markup.count("<img") == 1
    assert markup.count("<svg") == 2
    assert "/<wbr>red/<wbr>000.png</th>" in markup  # broken between folders only


def test_only_the_predictions_in_the_table_keep_their_image(
    model: Trained, image_folder: Path
) -> None:
    photo = image_folder / "red" / "000.png"

    predictions = model.predict([photo] * (MAX_PREDICTIONS + 30))

    assert [one.view is not None for one in predictions] == [True] * MAX_PREDICTIONS + [False] * 30
    assert "30 more not shown" in predictions._repr_html_()
    assert repr(predictions).endswith(" ... and 34 more]")


def test_labels_of_a_prediction_are_shown() -> None:
    one = Prediction(path="1.jpg", classes=("a", "b"), probabilities=(0.9, 0.2), labels=("a",))
    found = [one, replace(one, path="2.jpg", labels=())]

    markup = Predictions(found)._repr_html_()

    assert "<strong>a</strong>" in markup
    assert "<strong>no label</strong>" in markup


def test_an_explanation_is_an_image_that_names_its_class(
    model: Trained, image_folder: Path
) -> None:
    photo = image_folder / "red" / "000.png"
    (answer,) = model.predict(photo, top_k=3)

    for about in (None, "blue"):
        explanation = model.explain(photo, about=about)

        assert isinstance(explanation, Explanation)
        assert explanation.about == (about or answer.classes[0])
        place = answer.classes.index(explanation.about)
        assert explanation.probability == pytest.approx(answer.probabilities[place], abs=1e-6)
        assert repr(explanation).startswith(f"Explanation(about={explanation.about!r}")
        assert explanation.resize((8, 8)).size == (8, 8)
        caption = f"<strong>{html.escape(explanation.about)}</strong>"
        assert caption in explanation._repr_html_()


@pytest.mark.parametrize("size", [(600, 200), (200, 600)])
def test_both_pictures_of_an_explanation_have_their_full_size(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, "red")
    shown = Explanation(
        image,
        image,
        "relevance",
        np.zeros((2, 2), np.float32),
        "red",
        0.5,
        map_name="a",
        meaning="b",
    )

    sources = re.findall(r'src="data:image/jpeg;base64,([^"]*)"', shown._repr_html_())

    pictures = [Image.open(io.BytesIO(base64.b64decode(s)), formats=["JPEG"]) for s in sources]
    assert [picture.size for picture in pictures] == [size, size]
