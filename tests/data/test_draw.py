"""The draw of validation images by whole groups: which bring the numbers closer to the targets."""

import hashlib
from pathlib import Path

import pytest

from tests.data.test_split import good
from vitft.config import DataSpec
from vitft.data import Images, Row, split


def in_order(number: int) -> list[str]:
    """Names of groups in the order in which the default split of seed 0 considers them."""

    def place(name: str) -> bytes:
        digest = hashlib.sha256(f"group {name}".encode()).hexdigest()
        return hashlib.sha256(f"0 {digest}".encode()).digest()

    return sorted((f"g{i}" for i in range(number)), key=place)


def held_out(groups: list[str], **settings: object) -> set[int]:
    """Numbers of the groups held out; "aab" is a group of two images of class a and one of b."""
    names = in_order(len(groups))
    classes = tuple(sorted({*"".join(groups)}))
    rows = [
        good(Row(f"{name}/{i}-{j}.jpg", classes.index(name), group=names[i]))
        for i, group in enumerate(groups)
        for j, name in enumerate(group)
    ]
    manifest = split(Images(Path("d"), classes, rows), DataSpec(**settings))  # type: ignore[arg-type]
    return {names.index(row.group) for row in manifest.val}


OTHERS = [*"cccccccccc"]
"""Groups of another class, because a split needs two."""


@pytest.mark.parametrize(
    ("groups", "rate", "drawn"),
    [
        pytest.param(["a"] * 10, 0.3, {0, 1, 2}, id="single images in order"),
        pytest.param(["a"] * 10, 0.39, {0, 1, 2}, id="rounded down"),
        pytest.param(["a"] * 4, 0.2, {0}, id="at least one"),
        pytest.param(["aa", "a", "aaaaaa"], 0.15, {1}, id="a group that comes no closer is left"),
        pytest.param(["aaa", "aaaa", "aaa"], 0.2, {0}, id="a group that comes closer is drawn"),
        pytest.param(["ab", *"aaaabbbb"], 0.2, {0}, id="a group of two classes"),
        pytest.param(["aabbb", *"aaaabbbbbbbb"], 0.3, {0}, id="the sum over classes"),
        pytest.param(["abbb", "a", "b", *"aaaabb"], 0.2, {1, 2}, id="further from the sum"),
    ],
)
def test_groups_are_drawn_while_they_bring_the_numbers_closer(
    groups: list[str], rate: float, drawn: set[int]
) -> None:
    found = held_out([*groups, *OTHERS], val_rate=rate)

    assert {number for number in found if number < len(groups)} == drawn


def test_a_random_draw_of_groups_is_shuffled_with_the_seed() -> None:
    drawn = [
        held_out([*"a" * 40, *"b" * 40], split="random", seed=seed, val_rate=0.2)
        for seed in (0, 0, 1)
    ]

    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != held_out([*"a" * 40, *"b" * 40], val_rate=0.2)
