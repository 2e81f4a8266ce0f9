"""The plan of a study: names, numbers and folders."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from vitft.study.plan import (
    Plan,
    check_study,
    fitting_shots,
    most_shots,
)


@pytest.fixture
def colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    draw_folder(tmp_path / "colours", per_class=10)
    return "colours"


def planned(data: str, **more: Any) -> Plan:
    options: dict[str, Any] = {"shots": [2], "seeds": 2, "out": None, **more}
    return check_study(data, ["histogram"], options.pop("shots"), **options)


@pytest.mark.parametrize(
    ("count", "has_tests", "most"),
    [
        (1, False, 0),
        (2, False, 1),
        (7, False, 6),
        (8, False, 6),
        (10, False, 8),
        (100, False, 80),
        (10, True, 10),
    ],
)
def test_a_fifth_of_the_smallest_class_is_kept_for_testing(
    count: int, has_tests: bool, most: int
) -> None:
    assert most_shots([count, 150], has_tests=has_tests) == most
    fitting, left = fitting_shots(range(1, 200), most)

    assert (max(fitting, default=0), min(left)) == (most, most + 1)


def test_numbers_are_sorted_and_those_that_do_not_fit_are_left_out(colours: str) -> None:
    found = planned(colours, shots=[9, 8, 2, 8])

    assert (found.shots, found.left_out, found.most) == ((2, 8), (9,), 8)
    assert found.out == Path("study-colours")
    assert planned(colours, out="own").out == Path("own")
