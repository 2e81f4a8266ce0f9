"""Checks of the numbers and confusion matrices in result files."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.run_files import make_run
from vitft.metrics import Interval, Loss, Positive, RunResults, check_confusion, read_results
from vitft.system import RunError, StructureError, structured

PATH = Path("run/eval.json")


@pytest.mark.parametrize(
    ("kind", "value", "is_accepted"),
    [
        pytest.param(Loss, 0.0, True, id="no loss"),
        pytest.param(Loss, -1e-9, False, id="a negative loss"),
        pytest.param(Loss, 1e9, True, id="the largest loss"),
        pytest.param(Loss, 1e9 + 0.5, False, id="an implausible loss"),
        pytest.param(Positive, 1e-30, True, id="a small number"),
        pytest.param(Positive, 0.0, False, id="not above zero"),
        pytest.param(Positive, 1.0001e30, False, id="an implausible number"),
        pytest.param(Interval, [-1e6, 1e6], True, id="the widest interval"),
        pytest.param(Interval, [-1e6 - 0.5, 0.0], False, id="an implausible lower bound"),
        pytest.param(Interval, [0.0, 1e6 + 0.5], False, id="an implausible upper bound"),
    ],
)
def test_implausible_numbers_in_results_are_refused(
    kind: Any, value: Any, is_accepted: bool
) -> None:
    if is_accepted:
        assert structured(value, kind) == (tuple(value) if isinstance(value, list) else value)
    else:
        with pytest.raises(StructureError):
            structured(value, kind)


def two_classes(confusion: list[list[int]], **more: Any) -> RunResults:
    """Return results of the classes a and b with a confusion matrix."""
    found = {"per_class": {"a": {}, "b": {}}, "confusion": confusion, **more}
    return cast("RunResults", found)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(two_classes([[1, 0], [0, 2]]), id="a matrix"),
        pytest.param(two_classes([], confused_pairs=[(0, 1, 2)]), id="pairs"),
        pytest.param(two_classes([], confused_pairs=[]), id="no pairs"),
        pytest.param(two_classes([], labels={}), id="several labels"),
        pytest.param(two_classes([], confused_pairs=[], per_class={"a": {}}), id="one class"),
        pytest.param(two_classes([], confused_pairs=[], per_class={}), id="no classes"),
    ],
)
def test_a_confusion_matrix_of_the_classes_is_accepted(found: RunResults) -> None:
    check_confusion(PATH, found)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(two_classes([]), id="no matrix"),
        pytest.param(two_classes([[1, 0]]), id="a missing row"),
        pytest.param(two_classes([[1, 0], [2]]), id="a short row"),
        pytest.param(two_classes([[1, 0, 0], [0, 2, 0]]), id="long rows"),
        pytest.param(two_classes([[1]], confused_pairs=[(0, 1, 2)]), id="a small matrix"),
        pytest.param(two_classes([], confused_pairs=[(0, 1, 2), (2, 0, 1)]), id="no such class"),
        pytest.param(two_classes([], confused_pairs=[(0, 2, 1)]), id="no such prediction"),
        pytest.param(two_classes([], confused_pairs=[(2, 0, 1)], labels={}), id="of labels"),
    ],
)
def test_a_confusion_matrix_of_other_classes_is_refused(found: RunResults) -> None:
    with pytest.raises(RunError, match=r"run/eval\.json"):
        check_confusion(PATH, found)


def test_results_are_read_with_their_checks(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run") / "eval.json"
    content = json.loads(path.read_text())

    found = read_results(path)
    missing = read_results(tmp_path / "nowhere" / "eval.json")

    assert found is not None
    assert found["confusion"] == content["confusion"]
    assert missing is None
    path.write_text(json.dumps({**content, "confusion": content["confusion"][:-1]}))
    with pytest.raises(RunError, match="one row and column per class"):
        read_results(path)
