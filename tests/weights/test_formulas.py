"""Images drawn from formulas: determinism and distinct classes."""

import colorsys
from typing import Any

import numpy as np
import pytest
from formulas import COLOURS, FAMILIES, HUES, figure, formula_image

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
