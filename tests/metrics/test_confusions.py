"""The most frequent wrong prediction."""

import pytest

from vitft.metrics import most_frequent


@pytest.mark.parametrize(
    ("counts", "name"),
    [
        pytest.param({"rose": 1, "tulip": 3, "daisy": 2}, "tulip", id="the highest count"),
        pytest.param({"rose": 3, "tulip": 3, "daisy": 2}, "rose or tulip", id="two with as many"),
        pytest.param({"rose": 1, "tulip": 1, "daisy": 1}, None, id="more than two"),
        pytest.param({"rose": 0, "tulip": 0}, None, id="no mistakes"),
        pytest.param({}, None, id="no classes"),
    ],
)
def test_the_most_frequent_name_is_one_or_two(counts: dict[str, int], name: str | None) -> None:
    assert most_frequent(counts) == name
