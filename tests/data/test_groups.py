"""Groups of images (patients, videos, cameras): never on both sides of the split."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.test_folder import touch
from tests.data.test_split import DRAWN, Mode, good
from vitft.config import DataSpec
from vitft.data import Images, Row, joined_groups, scan, split


def inspected(groups: dict[str, list[str]]) -> Images:
    """An inspected folder; `groups` maps each class to the groups of its images, in order."""
    files = [
        Row(f"{name}/{i:03}.jpg", label, group=group)
        for label, (name, members) in enumerate(groups.items())
        for i, group in enumerate(members)
    ]
    return Images(Path("data"), tuple(groups), [*map(good, files)])


def split_it(found: Images, seed: int = 0, rate: float = 0.2, mode: Mode = "content") -> Images:
    spec = DataSpec(split=mode, seed=seed, val_rate=rate)
    return split(found, spec)


def sides(found: Images, manifest: Images) -> dict[str, set[str]]:
    """The sides on which each group is."""
    group_of = {file.path: file.group for file in found.rows}
    result: dict[str, set[str]] = {}
    for row in manifest.rows:
        result.setdefault(group_of[row.path], set()).add(row.split)
    return result


@pytest.mark.parametrize("mode", DRAWN)
@pytest.mark.parametrize("seed", range(20))
def test_no_group_is_ever_on_both_sides(seed: int, mode: Mode) -> None:
    draw = random.Random(seed)
    sizes = {name: draw.randint(20, 60) for name in ("a", "b", "c")}
    found = inspected(
        {name: [f"g{draw.randrange(15)}" for _ in range(n)] for name, n in sizes.items()}
    )

    manifest = split_it(found, seed, mode=mode)

    assert all(len(parts) == 1 for parts in sides(found, manifest).values())
    for label in range(3):
        assert {row.split for row in manifest.rows if row.label == label} == {"train", "val"}


@pytest.mark.parametrize("mode", DRAWN)
@pytest.mark.parametrize("seed", range(10))
def test_the_fraction_held_out_is_within_half_a_group(seed: int, mode: Mode) -> None:
    # 10 patients with 5 images of each of two classes: 2 patients are a fifth
    found = inspected({name: [f"p{i // 5}" for i in range(50)] for name in ("a", "b")})

    manifest = split_it(found, seed, mode=mode)

    assert len(manifest.val) == 20
    assert len(set(map(tuple, sides(found, manifest).values()))) == 2


@pytest.mark.parametrize("seed", range(10))
def test_copies_and_groups_are_joined(seed: int) -> None:
    groups = [f"g{i // 2}" for i in range(12)]
    found = inspected({"a": groups, "b": ["", *groups[1:]]})
    rows = [*found.rows]
    rows[12] = rows[12]._replace(sha256=rows[0].sha256)  # without a group, a copy of one in g0
    copies = {rows[2].sha256: "x", rows[17].sha256: "x"}  # near-duplicates in g1 and g2

    images = replace(found, rows=rows)
    manifest = split(images, DataSpec(seed=seed), groups=joined_groups(images, copies))

    parts = [row.split for row in manifest.rows]
    assert parts[12] == parts[0] == parts[1]
    assert len({parts[i] for i in (2, 3, 4, 5, 14, 15, 16, 17)}) == 1


def folder_of_videos(root: Path, *parts: str) -> Path:
    for part in parts or ("",):
        touch(root, *(f"{part}/{c}/v{v}_{i}.png".lstrip("/")
                      for c in ("cat", "dog") for v in range(3) for i in range(2)))  # fmt: skip
    return root


def test_a_pattern_finds_the_groups_in_paths(tmp_path: Path) -> None:
    data = folder_of_videos(tmp_path / "d")
    touch(data, "cat/other.png")

    found = scan(data, DataSpec(group_by=r"(v\d+)_"))

    assert {file.group for file in found.rows} == {"v0", "v1", "v2", ""}
    assert "3 groups of images found in the paths, 1 image without a group" in found.notes
