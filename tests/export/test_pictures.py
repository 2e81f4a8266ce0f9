"""Pictures of a hub page: colours and names of the confusion matrix, and the grid of examples."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFont

from tests.support.export_run import make_run
from vitft.export import pictures
from vitft.export.pictures import confusion_png, example_images, shown_name
from vitft.export.trained import LabelledImage, load_trained

GREEN, ORANGE = np.array([11, 110, 79]), np.array([190, 60, 30])


def matrix_of(numbers: Any, names: Any = "abcdefgh", **results: Any) -> Any:
    """Return the pixels of the picture of a confusion matrix, or None."""
    found: Any = {"confusion": numbers, **results}
    data = confusion_png(names[: len(numbers)], found)
    if data is None:
        return None
    with Image.open(io.BytesIO(data), formats=["PNG"]) as opened:
        return np.asarray(opened.convert("RGB")).astype(int)


def test_cells_are_darker_the_larger_their_fraction_of_the_row() -> None:
    pixels = matrix_of([[16, 0, 0], [1, 12, 3], [0, 9, 0]])

    def shade(row: int, column: int) -> Any:
        return pixels[150 + 44 * row + 4, 150 + 44 * column + 4]

    white = np.array([255, 255, 255])
    expected = {
        (0, 0): GREEN,
        (0, 1): white,
        (1, 0): white + (ORANGE - 255) / 4,  # the root of 1/16
        (1, 1): white + (GREEN - 255) * np.sqrt(12 / 16),
        (1, 2): white + (ORANGE - 255) * np.sqrt(3 / 16),
        (2, 1): ORANGE,
        (2, 2): white,  # of no images that are right
    }
    for place, colour in expected.items():
        np.testing.assert_allclose(shade(*place), colour, atol=0.6, err_msg=str(place))


@pytest.mark.parametrize(
    ("right", "is_light"), [(4, True), (31, False), (30, True), (90, False)], ids=lambda n: str(n)
)
def test_numbers_are_light_on_dark_cells_and_dark_on_light_ones(right: int, is_light: bool) -> None:
    pixels = matrix_of([[right, 100 - right], [0, 1]])

    inside = pixels[150 + 6 : 150 + 38, 150 + 6 : 150 + 38].reshape(-1, 3)
    background = inside[0]
    ink = inside[np.abs(inside - background).sum(axis=1).argmax()]

    assert (ink.sum() > background.sum()) == (not is_light)
    zero = pixels[150 + 44 + 6 : 150 + 44 + 38, 150 + 6 : 150 + 38]
    assert (zero == 255).all()  # nothing is written into an empty cell


@pytest.mark.parametrize(
    ("size", "side"), [(3, 150 + 3 * 44 + 1), (40, 150 + 40 * 44 + 1), (41, 41 * 19 + 1),
                       (500, 500 * 2 + 1)]
)  # fmt: skip
def test_up_to_forty_classes_have_names_and_more_have_smaller_cells(size: int, side: int) -> None:
    pixels = matrix_of(np.eye(size, dtype=int).tolist(), ["n"] * size)

    assert pixels.shape == (side, side, 3)


def test_matrices_of_many_classes_or_labels_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_DRAWN", 3)

    assert matrix_of(np.eye(3, dtype=int).tolist()) is not None
    assert matrix_of(np.eye(4, dtype=int).tolist()) is None
    assert matrix_of(np.eye(2, dtype=int).tolist(), labels={}) is None


def test_names_stand_beside_their_rows_and_above_their_columns() -> None:
    pixels = matrix_of([[1, 0], [0, 1]], ["", "wwwwww"])

    dark = (pixels[:, :150] < 128).all(axis=2)
    rows, columns = np.nonzero(dark)
    assert rows.min() >= 150 + 44
    assert rows.max() < 150 + 88
    assert abs((rows.min() + rows.max()) / 2 - (150 + 66)) < 6  # in the middle of the second row
    assert 130 < columns.max() <= 142  # next to the matrix
    above = (pixels[:150] < 128).all(axis=2)
    rows, columns = np.nonzero(above)
    assert columns.min() >= 150 + 44
    assert columns.max() < 150 + 88
    assert 130 < rows.max() <= 142  # it reads upwards, beginning at the matrix


def test_names_are_centred_beside_their_cells() -> None:
    pixels = matrix_of([[3, 1], [0, 4]], names=["HHHH", "HHHH"])
    ink = pixels.min(axis=-1) < 200

    for i in range(2):
        row = ink[150 + 44 * i : 150 + 44 * (i + 1), :140]
        column = ink[:140, 150 + 44 * i : 150 + 44 * (i + 1)]
        for found in (row.any(axis=1), column.any(axis=0)):
            assert np.flatnonzero(found).mean() == pytest.approx(22, abs=2)


@pytest.mark.parametrize(
    ("name", "text"), [("rose", "rose"), ("grün", "class 7"), ("a\tb", "class 7")]
)
def test_names_that_the_font_lacks_are_numbers(name: str, text: str) -> None:
    assert shown_name(name, 7, ImageFont.load_default(14)) == text


@pytest.mark.parametrize("name", ["a very long name of a class of flowers", "il" * 40, "W" * 15])
def test_a_long_name_is_cut_to_the_longest_beginning_that_fits(name: str) -> None:
    font = ImageFont.load_default(14)

    short = shown_name(name, 0, font)

    beginning = short.removesuffix("...")
    assert short.endswith("...")
    assert name.startswith(beginning)
    assert font.getlength(short) <= 138 < font.getlength(name[: len(beginning) + 1] + "...")


def tinted(label: int, size: tuple[int, int] = (40, 30)) -> LabelledImage:
    """Return an image whose red tells its label."""
    return LabelledImage(Image.new("RGB", size, (10 * label, 0, 0)), label)


@pytest.mark.parametrize(
    ("labels", "classes", "size", "order"),
    [
        ([2, 0, 1, 0], 3, (3, 1), [0, 1, 2]),
        ([0, 0], 3, (1, 1), [0]),
        ([*range(7)], 7, (6, 2), [*range(7)]),
        ([*range(24)], 25, (6, 4), [*range(24)]),
        ([*range(25)], 25, (6, 4), [*range(24)]),
    ],
)
def test_examples_show_an_image_per_class_in_rows_of_six(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    labels: list[int],
    classes: int,
    size: tuple[int, int],
    order: list[int],
) -> None:
    trained = load_trained(str(make_run(tmp_path)))
    names = tuple(f"c{i}" for i in range(classes))
    trained = replace(trained, card=replace(trained.card, classes=names))
    asked: list[int] = []

    def images(_: Any, __: Any, count: int) -> Any:
        asked.append(count)
        return map(tinted, labels)

    monkeypatch.setattr(pictures, "unchanged_images", images)

    found = example_images(trained)

    assert found is not None
    assert asked == [20 * classes]
    assert found[1] == [f"c{i}" for i in order]
    with Image.open(io.BytesIO(found[0]), formats=["JPEG"]) as sheet:
        assert sheet.size == (160 * size[0], 160 * size[1])
        pixels = np.asarray(sheet).astype(int)
    for i, label in enumerate(order):
        tile = pixels[160 * (i // 6) + 80, 160 * (i % 6) + 80]
        assert abs(tile[0] - 10 * label) <= 4


def test_there_are_no_examples_without_images_or_for_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = load_trained(str(make_run(tmp_path)))
    several = replace(trained, card=replace(trained.card, thresholds=(0.5, 0.5, 0.5)))

    assert example_images(several) is None
    monkeypatch.setattr(pictures, "unchanged_images", lambda *_: iter(()))
    assert example_images(trained) is None
