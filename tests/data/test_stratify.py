"""Iterative stratification of images with several labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from vitft.config.sections import DataSpec
from vitft.data.folder import File, Folder
from vitft.data.inspection import InspectedFile, inspected_file
from vitft.data.stratify import draw_by_labels, stratify


def draw(images: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Labels of images: frequent, rare and correlated ones, and images without labels."""
    random = np.random.default_rng(seed)
    first = random.random((images, 4)) < (0.5, 0.2, 0.05, 0.02)
    return np.concatenate([first, first[:, :1] & first[:, 1:2]], axis=1).astype(np.int64)


@pytest.mark.parametrize("seed", range(5))
def test_each_part_gets_its_fraction_of_every_label(seed: int) -> None:
    counts = draw(1000, seed)

    part = stratify(counts, np.ones(1000, np.int64), (0.2, 0.8), seed=seed)

    wanted = 0.2 * counts.sum(axis=0)
    assert np.abs(counts[part == 0].sum(axis=0) - wanted).max() <= 2.5
    assert abs((part == 0).sum() - 200) <= 2


def test_a_label_of_two_images_is_on_both_sides() -> None:
    counts = np.zeros((50, 2), np.int64)
    counts[:25, 0], counts[[3, 40], 1] = 1, 1

    part = stratify(counts, np.ones(50, np.int64), (0.2, 0.8), seed=0, at_least=1)

    assert sorted(part[[3, 40]]) == [0, 1]


def test_the_seed_determines_the_parts_and_groups_stay_whole() -> None:
    counts, sizes = np.array([[3, 0], [0, 2], [1, 1], [2, 0], [0, 3]]), np.array([3, 2, 1, 2, 3])

    first = stratify(counts, sizes, (0.5, 0.5), seed=1)

    assert first.tolist() == stratify(counts, sizes, (0.5, 0.5), seed=1).tolist()
    assert {*first.tolist()} == {0, 1}


@pytest.mark.parametrize(
    ("counts", "fractions", "part"),
    [
        pytest.param([[1], [3], [2]], (0.5, 0.5), [1, 0, 1], id="large units first"),
        pytest.param([[1, 1], [1, 0], [1, 1], [1, 0]], (0.5, 0.5), [0, 0, 1, 1],
                     id="the rarest label first"),
        pytest.param([[0]] * 4, (0.25, 0.75), [1, 1, 0, 1], id="units without labels"),
        pytest.param([[1], [1], [1], [0]], (0.25, 0.75), [1, 1, 0, 1],
                     id="the part that lacks most"),
        pytest.param([[0], [0], [1], [0]], (0.25, 0.75), [1, 0, 1, 1], id="a single label first"),
        pytest.param([[1]] * 4, (0.1, 0.9), [1, 1, 1, 1], id="none is lacking"),
    ],
)  # fmt: skip
def test_units_go_to_the_part_that_lacks_most(
    counts: list[list[int]], fractions: tuple[float, float], part: list[int]
) -> None:
    sizes = np.maximum(1, np.array(counts).max(axis=1))

    assert stratify(np.array(counts), sizes, fractions, seed=None).tolist() == part


def test_units_that_are_assigned_already_count() -> None:
    counts, fixed = np.ones((6, 1), np.int64), np.array([0, -1, -1, 0, -1, 1])

    part = stratify(counts, np.ones(6, np.int64), (0.5, 0.5), seed=None, fixed=fixed)

    assert part[fixed >= 0].tolist() == [0, 0, 1]
    assert part.sum() == 3
    full = np.array([0, 0, 0, 0, -1, -1])
    assert stratify(counts, np.ones(6, np.int64), (0.5, 0.5), seed=None, fixed=full).tolist() == [
        0, 0, 0, 0, 1, 1,
    ]  # fmt: skip


def test_the_parts_of_a_seed_are_those_of_earlier_versions() -> None:
    part = stratify(draw(40), np.ones(40, np.int64), (0.2, 0.8), seed=3, at_least=1)

    assert np.flatnonzero(part == 0).tolist() == [0, 5, 7, 9, 13, 14, 26, 27]


def labelled(
    *sets: str, parts: dict[int, Literal["train", "val"]] | None = None
) -> tuple[Folder, list[list[InspectedFile]]]:
    """A folder of images with label sets, each image a group of its own."""
    classes = tuple(sorted({*sets}))
    files = tuple(File(f"{i}.png", classes.index(text)) for i, text in enumerate(sets))
    labels = tuple(sorted({name for text in sets for name in text.split("|") if name}))
    folder = Folder(root=Path("d"), classes=classes, files=files, layout="classes", labels=labels)
    images = [inspected_file(file, f"{i:064}", (4, 4), ()) for i, file in enumerate(files)]
    return folder, [[replace(one, part=(parts or {}).get(i, ""))] for i, one in enumerate(images)]


def test_a_fifth_of_the_images_with_each_label_is_drawn() -> None:
    folder, members = labelled(*["a"] * 10, *["a|b"] * 5, *[""] * 5)

    drawn = draw_by_labels(folder, members, DataSpec(split="content"))

    numbers = sorted(int(path[:-4]) for path in drawn)
    assert [sum(n in part for n in numbers) for part in (range(10), range(10, 15), range(15, 20))
            ] == [2, 1, 1]  # fmt: skip
    assert draw_by_labels(folder, members, DataSpec(split="content", seed=1)) == drawn
    others = [draw_by_labels(folder, members, DataSpec(split="random", seed=i)) for i in (0, 0, 1)]
    assert others[0] == others[1] != others[2]


def test_images_that_are_assigned_already_keep_their_part() -> None:
    folder, members = labelled(*["a"] * 10, parts={0: "train", 1: "train", 5: "val"})

    drawn = draw_by_labels(folder, members, DataSpec(split="content", val_rate=0.2))

    assert drawn == {"5.png", "8.png"}  # the larger part is filled until both lack one
