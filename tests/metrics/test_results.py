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


LABELS: dict[str, Any] = {"map": 0.5, "map_interval": None, "chance_map": 0.5, "per_label": {}}
LABELS |= {"micro_f1": 0.5, "micro_f1_interval": None, "macro_f1": 0.5, "macro_f1_interval": None}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param({"loss": 0.0}, "", id="no loss"),
        pytest.param({"loss": -1e-9}, "loss", id="a negative loss"),
        pytest.param({"loss": 1e9}, "", id="the largest loss"),
        pytest.param({"loss": 1e9 + 0.5}, "loss", id="an implausible loss"),
        pytest.param({"l2": 1e-30}, "", id="a small number"),
        pytest.param({"l2": 0.0}, "l2", id="not above zero"),
        pytest.param({"l2": 1.0001e30}, "l2", id="an implausible number"),
        pytest.param({"loss_interval": [-1e6, 1e6]}, "", id="the widest interval"),
        pytest.param({"loss_interval": [-1e6 - 0.5, 0.0]}, "loss_interval", id="lower bound"),
        pytest.param({"loss_interval": [0.0, 1e6 + 0.5]}, "loss_interval", id="upper bound"),
        pytest.param({"confusion": [[1, 0], [0, 2]]}, "", id="a matrix"),
        pytest.param({"confusion": [], "confused_pairs": [(0, 1, 2)]}, "", id="pairs"),
        pytest.param({"confusion": [], "confused_pairs": []}, "", id="no pairs"),
        pytest.param({"confusion": [], "labels": LABELS}, "", id="several labels"),
        pytest.param({"confusion": [], "confused_pairs": [], "per_class": {}}, "", id="no classes"),
        pytest.param({"confusion": []}, "conf", id="no matrix"),
        pytest.param({"confusion": [[1, 0]]}, "conf", id="a missing row"),
        pytest.param({"confusion": [[1, 0], [2]]}, "conf", id="a short row"),
        pytest.param({"confusion": [[1, 0, 0], [0, 2, 0]]}, "conf", id="long rows"),
        pytest.param({"confusion": [[1]], "confused_pairs": [(0, 1, 2)]}, "conf", id="one row"),
        pytest.param({"confusion": [], "confused_pairs": [(2, 0, 1)]}, "conf", id="no class"),
        pytest.param({"confusion": [], "confused_pairs": [(0, 2, 1)]}, "conf", id="no prediction"),
        pytest.param({"confused_pairs": [(2, 0, 1)], "labels": LABELS}, "conf", id="of labels"),
    ],
)
def test_implausible_numbers_and_matrices_of_other_classes_are_refused(
    eval_json: Path, changes: dict[str, Any], problem: str
) -> None:
    eval_json.write_text(json.dumps({**json.loads(eval_json.read_text()), **changes}))

    if problem:
        with pytest.raises(RunError, match=rf"run/eval\.json.*{problem}"):
            read_results(eval_json)
    else:
        assert read_results(eval_json) is not None
