"""Checks of the numbers and confusion matrices in result files."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_files import make_run
from vitft.metrics import read_results
from vitft.system import RunError


@pytest.fixture
def eval_json(tmp_path: Path) -> Path:
    """Results of the classes a and b."""
    return make_run(tmp_path / "run", ["a", "b"]) / "eval.json"


@pytest.mark.parametrize(
    ("changes", "is_accepted"),
    [
        pytest.param({"loss": 0.0}, True, id="no loss"),
        pytest.param({"loss": -1e-9}, False, id="a negative loss"),
        pytest.param({"loss": 1e9}, True, id="the largest loss"),
        pytest.param({"loss": 1e9 + 0.5}, False, id="an implausible loss"),
        pytest.param({"l2": 1e-30}, True, id="a small number"),
        pytest.param({"l2": 0.0}, False, id="not above zero"),
        pytest.param({"l2": 1.0001e30}, False, id="an implausible number"),
        pytest.param({"loss_interval": [-1e6, 1e6]}, True, id="the widest interval"),
        pytest.param({"loss_interval": [-1e6 - 0.5, 0.0]}, False, id="an implausible lower bound"),
        pytest.param({"loss_interval": [0.0, 1e6 + 0.5]}, False, id="an implausible upper bound"),
    ],
)
def test_implausible_numbers_in_results_are_refused(
    eval_json: Path, changes: dict[str, Any], is_accepted: bool
) -> None:
    eval_json.write_text(json.dumps({**json.loads(eval_json.read_text()), **changes}))

    if is_accepted:
        assert read_results(eval_json) is not None
    else:
        with pytest.raises(RunError, match=next(iter(changes))):
            read_results(eval_json)


LABELS: dict[str, Any] = {
    "map": 0.5,
    "map_interval": None,
    "chance_map": 0.5,
    "micro_f1": 0.5,
    "per_label": {},
}
LABELS |= {"micro_f1_interval": None, "macro_f1": 0.5, "macro_f1_interval": None}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"confusion": [[1, 0], [0, 2]]}, id="a matrix"),
        pytest.param({"confusion": [], "confused_pairs": [(0, 1, 2)]}, id="pairs"),
        pytest.param({"confusion": [], "confused_pairs": []}, id="no pairs"),
        pytest.param({"confusion": [], "labels": LABELS}, id="several labels"),
        pytest.param({"confusion": [], "confused_pairs": [], "per_class": {}}, id="no classes"),
    ],
)
def test_a_confusion_matrix_of_the_classes_is_accepted(
    eval_json: Path, changes: dict[str, Any]
) -> None:
    eval_json.write_text(json.dumps({**json.loads(eval_json.read_text()), **changes}))

    assert read_results(eval_json) is not None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"confusion": []}, id="no matrix"),
        pytest.param({"confusion": [[1, 0]]}, id="a missing row"),
        pytest.param({"confusion": [[1, 0], [2]]}, id="a short row"),
        pytest.param({"confusion": [[1, 0, 0], [0, 2, 0]]}, id="long rows"),
        pytest.param({"confusion": [[1]], "confused_pairs": [(0, 1, 2)]}, id="a small matrix"),
        pytest.param({"confusion": [], "confused_pairs": [(0, 1, 2), (2, 0, 1)]}, id="no class"),
        pytest.param({"confusion": [], "confused_pairs": [(0, 2, 1)]}, id="no prediction"),
        pytest.param({"confused_pairs": [(2, 0, 1)], "labels": LABELS}, id="of labels"),
    ],
)
def test_a_confusion_matrix_of_other_classes_is_refused(
    eval_json: Path, changes: dict[str, Any]
) -> None:
    eval_json.write_text(json.dumps({**json.loads(eval_json.read_text()), **changes}))

    with pytest.raises(RunError, match=r"run/eval\.json"):
        read_results(eval_json)
