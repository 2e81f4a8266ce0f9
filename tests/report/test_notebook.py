"""Results as HTML in notebooks."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import draw_folder, tiny_home
from tests.support.run_files import make_run
from vitft import Trained, finetune, load
from vitft.report import read_run, result_card
from vitft.training import Result

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


def test_of_many_predictions_twenty_are_shown_as_text(model: Trained, tmp_path: Path) -> None:
    photo = draw_folder(tmp_path, per_class=1) / "red" / "000.png"

    text = repr(model.predict([photo] * 22))

    assert text.count("Prediction(") == 20
    assert text.endswith("... and 2 more]")
