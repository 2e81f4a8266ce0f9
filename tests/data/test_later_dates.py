"""A split by time: the latest images are held out, whole groups and every class considered."""

import random
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.data.test_split import checked
from vitft.config import DataSpec
from vitft.data import Images, Row, joined_groups, split

START = datetime(2024, 1, 1)
BY_TIME = DataSpec(split="time")


def dated(days: dict[str, list[int | None]], groups: dict[int, str] | None = None) -> Images:
    """An inspected folder: the day of each image of each class; groups by day."""
    found = checked({name: len(own) for name, own in days.items()})
    every = [day for own in days.values() for day in own]
    rows = [
        row._replace(
            time=None if day is None else START + timedelta(days=day),
            group=(groups or {}).get(-1 if day is None else day, ""),
        )
        for row, day in zip(found.rows, every, strict=True)
    ]
    return replace(found, rows=rows)


def day_of(row: Row) -> int:
    assert row.time is not None
    return (row.time - START).days


@pytest.mark.parametrize("seed", range(20))
def test_every_validation_image_is_later_than_all_training_images(seed: int) -> None:
    draw = random.Random(seed)
    days: dict[str, list[int | None]] = {
        name: [draw.randrange(300) for _ in range(draw.randint(40, 90))] for name in "abc"
    }
    found = dated(days)

    manifest = split(found, BY_TIME)

    last, first = max(map(day_of, manifest.train)), min(map(day_of, manifest.val))
    assert last < first
    # No other day as a limit is closer to a fifth
    every = sorted(map(day_of, found.rows))
    off = abs(len(manifest.val) - len(every) / 5)
    assert off == min(abs(sum(d >= day for d in every) - len(every) / 5) for day in every)


@pytest.mark.parametrize("seed", range(20))
def test_groups_and_copies_are_where_their_latest_image_is(seed: int) -> None:
    draw = random.Random(seed)
    found = dated({name: [draw.randrange(100) for _ in range(40)] for name in "ab"})
    rows = [row._replace(group=f"g{draw.randrange(40)}") for row in found.rows]
    rows[3] = rows[3]._replace(sha256=rows[50].sha256)
    found = replace(found, rows=rows)
    groups = joined_groups(found, {rows[7].sha256: "x", rows[60].sha256: "x"})

    manifest = split(found, BY_TIME, groups=groups)

    latest: dict[str, int] = {}
    for row in manifest.rows:
        unit = groups.get(row.sha256, row.sha256)
        latest[unit] = max(day_of(row), latest.get(unit, 0))
    parts = {groups.get(row.sha256, row.sha256): row.split for row in manifest.rows}
    assert all(parts[groups.get(row.sha256, row.sha256)] == row.split for row in manifest.rows)
    train = [day for unit, day in latest.items() if parts[unit] == "train"]
    assert max(train) < min(day for unit, day in latest.items() if parts[unit] == "val")


def test_a_new_class_keeps_its_earliest_image_and_a_former_one_is_not_validated() -> None:
    early: list[int | None] = [*range(80)]
    days = {"a": early, "b": [*range(10)], "c": [78, 77, 79], "d": early}

    manifest = split(dated(days), DataSpec(split="time", val_rate=0.1))

    assert {row.label for row in manifest.train} == {0, 1, 2, 3}
    assert {row.label for row in manifest.val} == {0, 2, 3}
    assert [day_of(row) for row in manifest.train if row.label == 2] == [77]


def test_images_without_a_date_are_trained_on() -> None:
    manifest = split(dated({"a": [*range(19), None], "b": [*range(20)]}), BY_TIME)

    assert [row.split for row in manifest.rows if row.time is None] == ["train"]
    assert {day_of(row) for row in manifest.val} == {15, 16, 17, 18, 19}


def test_what_an_earlier_run_held_out_is_held_out_with_the_latest_of_the_new_images() -> None:
    before = dated({"a": [*range(20)], "b": [*range(20)]})
    former = {row.sha256: row.split for row in split(before, BY_TIME).rows}
    found = dated({"a": [*range(40)], "b": [*range(20)]})  # 20 later images of a

    manifest = split(found, BY_TIME, former=former)

    assert {row.sha256 for row in manifest.val} > {d for d, p in former.items() if p == "val"}
    new = [day_of(row) for row in manifest.val if row.sha256 not in former]
    assert sorted(new) == [36, 37, 38, 39]
