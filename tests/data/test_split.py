"""The split: the reference script's draw, the default, and the manifest."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from vitft.config import DataSpec
from vitft.data import Images, Row, split, stratify

Mode = Literal["content", "random", "reference"]
DRAWN: tuple[Mode, ...] = ("content", "random")
FLOWERS = {"daisy": 633, "dandelion": 898, "roses": 641, "sunflowers": 699, "tulips": 799}


def checked(
    counts: dict[str, int], *, reference: bool = False, bad: frozenset[str] = frozenset()
) -> Images:
    """A checked folder with `counts` files per class, named 000.jpg and so on."""
    files = [
        Row(f"{name}/{i:03}.jpg", label)
        for label, (name, count) in enumerate(counts.items())
        for i in range(count)
    ]
    return Images(
        Path("data"),
        tuple(counts),
        [good(file) for file in files if file.path not in bad],
        reference=reference,
        bad=tuple((path, "empty file") for path in sorted(bad)),
    )


def good(file: Row) -> Row:
    digest = hashlib.sha256(file.path.encode("utf-8", "surrogateescape")).hexdigest()
    return file._replace(sha256=digest, width=4, height=4)


def held_back(manifest: Images) -> list[int]:
    return [sum(row.label == i for row in manifest.val) for i in range(len(manifest.classes))]


@pytest.mark.parametrize(
    ("index", "head", "total", "digest"),
    [
        (0, "1,14,16,27,33,39", 40821, "811e902b8c3b80bd"),
        (1, "0,1,2,3,12,13", 78256, "a59add492c086194"),
        (2, "8,9,19,22,28,36", 39993, "b577fd90509059ab"),
        (3, "0,9,15,20,33,34", 50308, "0331375a403951d3"),
        (4, "3,7,8,10,21,25", 58626, "6e641bfa326e22e8"),
    ],
    ids=FLOWERS,
)
def test_the_reference_draw_is_met_exactly(index: int, head: str, total: int, digest: str) -> None:
    manifest = split(checked(FLOWERS, reference=True), DataSpec(split="reference"))

    drawn = [int(row.path[-7:-4]) for row in manifest.val if row.label == index]
    listed = ",".join(map(str, drawn))
    assert listed.startswith(f"{head},")
    assert sum(drawn) == total
    assert hashlib.sha256(listed.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("mode", ["reference", "random"])
def test_a_split_of_the_flowers_has_the_reference_counts_and_files(mode: Mode) -> None:
    found = checked(FLOWERS, reference=mode == "reference")

    manifest = split(found, DataSpec(split=mode))

    assert (len(manifest.train), len(manifest.val)) == (2939, 731)
    assert held_back(manifest) == [126, 179, 128, 139, 159]
    assert [row.path for row in manifest.val[:3]] == [
        "daisy/001.jpg", "daisy/014.jpg", "daisy/016.jpg"
    ]  # fmt: skip


def test_the_default_split_draws_from_the_readable_images() -> None:
    bad = frozenset(f"a/{i:03}.jpg" for i in range(5))

    manifest = split(checked({"a": 15, "b": 10}, bad=bad), DataSpec())

    assert held_back(manifest) == [2, 2]
    assert len(manifest.rows) == 20


def test_the_digest_is_that_of_the_file_and_moves_with_any_row(tmp_path: Path) -> None:
    manifest = split(checked({"cat": 5, "dog": 5}), DataSpec())
    manifest.write(tmp_path / "split.csv")
    other = split(checked({"cat": 5, "dog": 5}), DataSpec(seed=1))

    assert manifest.digest == hashlib.sha256((tmp_path / "split.csv").read_bytes()).hexdigest()
    assert manifest.digest != other.digest


def with_copies(counts: dict[str, int], *groups: tuple[str, ...]) -> Images:
    """A checked folder in which the named files have the same bytes."""
    plain = checked(counts)
    same = {path: group[0] for group in groups for path in group}
    files = tuple(
        file._replace(sha256=hashlib.sha256(same[file.path].encode()).hexdigest())
        if file.path in same
        else file
        for file in plain.rows
    )
    return replace(plain, rows=files)


COPIES = (
    ("a/000.jpg", "a/001.jpg", "a/002.jpg"),
    ("a/010.jpg", "b/010.jpg"),
    ("b/020.jpg", "b/021.jpg"),
    ("b/030.jpg", "b/031.jpg", "b/032.jpg", "b/033.jpg"),
)


def sides_of_copies(manifest: Images) -> set[int]:
    """Return the numbers of sides on which identical files are."""
    sides: dict[str, set[str]] = {}
    for row in manifest.rows:
        sides.setdefault(row.sha256, set()).add(row.split)
    return {len(found) for found in sides.values()}


@pytest.mark.parametrize("mode", DRAWN)
@pytest.mark.parametrize("seed", range(20))
def test_identical_files_are_on_one_side_of_the_split(seed: int, mode: Mode) -> None:
    copies = with_copies({"a": 50, "b": 50}, *COPIES)

    manifest = split(copies, DataSpec(split=mode, seed=seed))

    assert sides_of_copies(manifest) == {1}
    assert all(8 <= count <= 13 for count in held_back(manifest))  # a fifth, give or take a group


@pytest.mark.parametrize("mode", DRAWN)
def test_a_class_of_copies_and_one_more_still_has_both_sides(mode: Mode) -> None:
    folder = with_copies({"a": 4, "b": 10}, ("a/000.jpg", "a/001.jpg", "a/002.jpg"))

    for seed in range(10):
        manifest = split(folder, DataSpec(split=mode, seed=seed))

        assert {row.split for row in manifest.rows if row.label == 0} == {"train", "val"}
        assert sides_of_copies(manifest) == {1}


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


def test_units_that_are_assigned_already_count() -> None:
    counts, fixed = np.ones((6, 1), np.int64), np.array([0, -1, -1, 0, -1, 1])

    part = stratify(counts, np.ones(6, np.int64), (0.5, 0.5), seed=None, fixed=fixed)

    assert part[fixed >= 0].tolist() == [0, 0, 1]
    assert part.sum() == 3
    full = np.array([0, 0, 0, 0, -1, -1])
    assert stratify(counts, np.ones(6, np.int64), (0.5, 0.5), seed=None, fixed=full).tolist() == [
        0, 0, 0, 0, 1, 1,
    ]  # fmt: skip
