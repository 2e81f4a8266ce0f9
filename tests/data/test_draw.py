"""The draw of validation images: whole groups, and the split of an earlier run."""

from collections.abc import Mapping

import pytest

from tests.data.test_split import good
from vitft.config import DataSpec
from vitft.data import Part, Row, draw_groups

Members = list[list[Row]]


def groups_of(*names: str, parts: Mapping[int, Part] | None = None) -> Members:
    """Groups of images; "aab" is a group of two images of class a and one of class b.

    `parts` are the subsets to which groups are assigned already.
    """
    return [
        [
            good(Row(f"{name}/{i}-{j}.jpg", "abc".index(name), (parts or {}).get(i, "")))
            for j, name in enumerate(group)
        ]
        for i, group in enumerate(names)
    ]


def numbers(paths: set[str]) -> set[int]:
    """The numbers of the groups to which images belong."""
    return {int(path.split("/")[1].split("-")[0]) for path in paths}


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
    spec = DataSpec(split="content", val_rate=rate)

    assert numbers(draw_groups(groups_of(*groups), spec)) == drawn


def test_a_random_draw_of_groups_is_shuffled_with_the_seed() -> None:
    members = groups_of(*"a" * 40)

    drawn = [
        numbers(draw_groups(members, DataSpec(split="random", seed=seed, val_rate=0.2)))
        for seed in (0, 0, 1)
    ]

    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != numbers(draw_groups(members, DataSpec(val_rate=0.2)))
