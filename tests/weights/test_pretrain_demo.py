"""The script that trains the bundled backbone, from drawing to a file that loads."""

import colorsys
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formulas import COLOURS, FAMILIES, HUES, figure, formula_image

from vitft.models import load_checkpoint

SCRIPT = Path(__file__).parents[2] / "weights" / "pretrain_demo.py"


def pretrain(out: Path) -> str:
    """What a training of nine steps on a few images prints at its end."""
    few = ("--classes", "4", "--images", "20", "--steps", "1", "--batch", "4")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", out, *few], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1].removeprefix(str(out))


@pytest.mark.long
def test_the_same_command_twice_gives_the_same_file_and_says_how_it_was_made(
    tmp_path: Path,
) -> None:
    first, again = (pretrain(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    _, card = load_checkpoint(tmp_path / "a.safetensors")

    assert first == again
    assert "sha256" in first
    assert card.weights["training"].startswith("9 steps of 4 images")
    assert card.weights["data"].startswith("4 classes")
    assert card.architecture.num_classes == 0


def test_the_target_tells_form_and_colour_and_no_form_has_its_own_colour() -> None:
    spec = importlib.util.spec_from_file_location("pretrain_demo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    side = script.ARCHITECTURE.image_size[0] + script.MARGIN
    drawn = torch.zeros(5, 40, side, side, 3, dtype=torch.uint8)

    seen = torch.cat([b.labels for b in script.batches(drawn, 8, steps=30, seed=0)])

    forms, colours = seen[:, : script.CLASSES], seen[:, script.CLASSES :]
    assert forms.sum(dim=1) == pytest.approx(script.FORM)
    assert colours.sum(dim=1) == pytest.approx(1 - script.FORM)
    pairs = set(zip(forms.argmax(dim=1).tolist(), colours.argmax(dim=1).tolist(), strict=True))
    assert pairs == {(form, colour) for form in range(5) for colour in range(script.COLOURS)}
    whole = script.draw_class((3, 2, 0))
    kind = script.colour_of(3, 1)
    assert np.array_equal(whole[1], formula_image(3, 1, size=side, wild=1.0, colour=kind))


RNG_SEED = 5


def tame(label: int, instance: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """A picture without ground, turn or clutter, dark to bright, from 0 to 1."""
    grey = formula_image(label, instance, size=48, wild=0.0).astype(float).mean(axis=2)
    spread = np.ptp(grey)
    return (grey - grey.min()) / spread


@pytest.mark.parametrize("label", range(len(FAMILIES)))
def test_an_image_is_decided_by_its_numbers(label: int) -> None:
    image = formula_image(label, 7, size=40)

    assert image.shape == (40, 40, 3)
    assert image.dtype == np.uint8
    assert np.array_equal(image, formula_image(label, 7, size=40))


def test_every_number_makes_another_image() -> None:
    usual = formula_image(0, 0, size=40)

    assert not np.array_equal(usual, formula_image(1, 0, size=40))
    assert not np.array_equal(usual, formula_image(0, 1, size=40))
    assert not np.array_equal(usual, formula_image(0, 0, size=40, seed=1))
    assert not np.array_equal(usual, formula_image(0, 0, size=40, wild=0.0))


def test_hundreds_of_classes_have_figures_of_their_own() -> None:
    figures = [figure(label, np.random.default_rng(RNG_SEED)) for label in range(300)]

    assert len({stroke[0].points.tobytes() for stroke in figures}) == 300


def test_a_figure_fills_its_square_and_stays_inside() -> None:
    for label in range(60):
        points = np.concatenate([s.points for s in figure(label, np.random.default_rng(RNG_SEED))])

        reach = np.abs(points).max()
        assert reach == pytest.approx(1.0), f"class {label}"


@pytest.mark.parametrize("family", range(len(FAMILIES)))
def test_tame_images_of_a_class_look_more_alike_than_those_of_another(family: int) -> None:
    labels = [family + len(FAMILIES) * k for k in range(6)]
    first = np.stack([tame(label, 0) for label in labels])
    second = np.stack([tame(label, 1) for label in labels])

    distance = np.abs(first[:, None] - second[None]).mean(axis=(2, 3))  # (labels, labels)
    own, other = np.diag(distance).mean(), distance[~np.eye(6, dtype=bool)].mean()
    assert own < other


def test_a_wild_image_stands_out_from_its_ground() -> None:
    for instance in range(10):
        image = formula_image(4, instance, size=48).astype(float)

        assert image.std(axis=(0, 1)).max() > 10  # of 255: more than noise and light alone


@pytest.mark.parametrize("kind", range(COLOURS))
def test_a_figure_has_the_kind_of_colour_that_is_asked_for(kind: int) -> None:
    wanted = 255 * np.array(colorsys.hsv_to_rgb(kind / HUES, 0.7 if kind < HUES else 0, 0.8))
    drawn = [formula_image(8, i, size=40, wild=0.0, colour=kind).astype(float) for i in range(10)]
    others = [
        formula_image(8, i, size=40, wild=0.0, colour=(kind + 3) % HUES).astype(float)
        for i in range(10)
    ]

    def distance(images: list[Any]) -> float:
        """From the colour, of the tenth of the pixels that is nearest to it."""
        gaps = [np.sort(np.linalg.norm(image - wanted, axis=2).ravel())[:160] for image in images]
        return float(np.mean(gaps))

    assert distance(drawn) < 0.7 * distance(others)
