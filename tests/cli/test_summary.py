"""The summary that `vitft finetune` prints."""

import hashlib
import json
import shlex
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import draw_folder
from tests.support.export_run import figures
from vitft.cli.main import build_parser, main
from vitft.cli.summary import (
    calibration_text,
    print_growth,
    print_selection,
    print_weakest,
    print_weakest_label,
    suggest_next_steps,
)
from vitft.config.run import config_from_table
from vitft.metrics.results import (
    CalibrationMetrics,
    ClassMetrics,
    CrossValidation,
    LabelResults,
    RunResults,
)
from vitft.metrics.verdict import selected_epoch


def test_the_weakest_class_names_the_images_on_which_it_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    weak = {"class": "rose", "recall": 0.75, "images": 40, "taken_for": "tulip"}
    crossed = {"images": 90, "of": 90, "top1": 0.9, "top1_interval": (0.8, 0.95)}
    crossed |= {"gain_from_twice": None, "weak_spots": [weak, {**weak, "recall": 1.0}], "curve": []}
    validated = {"rose": {"images": 8, "recall": 0.75}, "lily": {"images": 9, "recall": 1.0}}
    labels = {"per_label": {"rose": {"ap": 0.75}, "lily": {"ap": None}}}

    print_growth(cast("CrossValidation", crossed), with_weakest=True)
    print_weakest(cast("dict[str, ClassMetrics]", validated))
    print_weakest_label(cast("LabelResults", labels), 17)

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weakest")]
    found = "recall 75.0% on 40 images in cross-validation, most often predicted as tulip"
    assert lines == [
        f"weakest class: rose, {found}",
        "weakest class: rose, recall 75.0% on 8 validation images",
        "weakest label: rose, average precision 75.0% on 17 validation images",
    ]


@pytest.mark.parametrize(
    ("freeze", "best_epoch", "is_kept"),
    [("head,none", 1, True), ("head,none", 2, False), ("none", 1, False)],
)
def test_a_run_whose_further_training_brought_nothing_says_that_the_head_was_saved(
    capsys: pytest.CaptureFixture[str], freeze: str, best_epoch: int, is_kept: bool
) -> None:
    config = config_from_table({"data": {"path": "d"}, "train": {"freeze": freeze}})
    metrics = {"selected_on_validation": True, "best_epoch": best_epoch}

    print_selection(cast("RunResults", metrics), config)

    assert ("the saved model is the fitted head alone" in capsys.readouterr().err) is is_kept


@pytest.mark.parametrize(
    ("ece", "images", "text"),
    [
        (0.0001, 19, "too few images to measure the calibration error"),
        (0.0001, 20, "calibration error < 7.4% (too small to be measured on these images)"),
        (0.05, 20, "calibration error 5.0% (95% interval 0.0 to 7.4%), 9.0% before calibration"),
    ],
)
def test_a_calibration_error_of_zero_is_not_called_perfect(
    ece: float, images: int, text: str
) -> None:
    calibration: CalibrationMetrics = {
        "ece": ece,
        "ece_interval": (0.0, 0.074),
        "ece_binned": 0.05,
        "ece_before": 0.09,
        "temperature": 1.3,
        "note": None,
        "bins": [],
    }

    assert calibration_text(calibration, images) == text


@pytest.mark.parametrize(
    ("low", "text"),
    [
        (
            0.0,
            "7.9% (95% interval 0.0 to 15.0%), not measurably different before calibration",
        ),
        (0.03, "7.9% (95% interval 3.0 to 15.0%), 0.0% before calibration"),
    ],
)
def test_calibration_is_only_said_to_be_worse_if_it_measurably_is(low: float, text: str) -> None:
    calibration: CalibrationMetrics = {
        "ece": 0.079,
        "ece_interval": (low, 0.15),
        "ece_binned": 0.08,
        "ece_before": 0.0,
        "temperature": 1.3,
        "note": None,
        "bins": [],
    }

    assert calibration_text(calibration, images=100) == f"calibration error {text}"


@pytest.mark.parametrize(
    ("best", "freeze", "planned", "words"),
    [
        pytest.param(5, "none", 20, "epoch 5 of 20", id="interrupted"),
        pytest.param(2, "head,none", 1, "epoch 1 of 1 after fitting the head", id="head first"),
        pytest.param(1, "head,none", 1, "the fitted head", id="the head is the best"),
        pytest.param(13, "blocks:1,none", 10, "epoch 13 of 20", id="two stages of epochs"),
        pytest.param(3, "head", 0, "epoch 3", id="an unknown number of epochs"),
    ],
)
def test_epochs_are_numbered_as_in_the_table(
    best: int, freeze: str, planned: int, words: str
) -> None:
    results = cast("RunResults", {"best_epoch": best, "epochs": best})

    assert selected_epoch(results, freeze, planned) == words


def test_the_proposed_training_of_all_layers_repeats_the_settings_of_the_run(
    tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "data", per_class=6)
    command = ["--data", str(data), "--weights", str(tiny_weights), "--image-size", "24"]

    main(["finetune", *command, "--seed", "1", "--out", str(tmp_path / "run"), "--cache", "none"])

    printed = capsys.readouterr().err
    model = next(line for line in printed.splitlines() if line.startswith("model:"))
    assert model.endswith(", positions 4x4 -> 6x6, bicubic")
    (hint,) = (line for line in printed.splitlines() if "training all layers" in line)
    words = shlex.split(hint.partition("vitft finetune ")[2])
    assert {"data.seed=1", "train.seed=1"} <= {*words}
    assert words[words.index("--image-size") + 1] == "24"
    assert words[-2:] == ["--freeze", "head,none"]
    build_parser("finetune").parse_args(["finetune", *words])


@pytest.mark.parametrize(
    ("kept", "first"),
    [
        pytest.param(0, "decide on 2 probable label errors and 2 groups of duplicates in {page}"),
        pytest.param(1, "decide on 1 probable label error and 1 group of duplicates in {page}"),
        pytest.param(10, "vitft predict IMAGE ..."),
    ],
)
def test_undecided_findings_are_the_first_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int, first: str
) -> None:
    suspect: dict[str, object] = {"label": "a", "suggested": "b"}
    suspect |= {"given_probability": 0.1, "suggested_probability": 0.9}
    member = {"label": "a", "split": "train"}
    near = {"kind": "near", "across_split": False, "labels_differ": False}
    groups = [
        {**near, "kind": "exact", "members": [{"path": p, **member} for p in ("a/0", "a/9")]},
        {**near, "members": [{"path": p, **member} for p in ("a/7", "a/8")]},
    ]
    audit = {
        "images": 9,
        "bad": [],
        "odd": [],
        "duplicates": groups,
        "mislabels": [{"path": f"a/{i}", **suspect} for i in range(2)],
        "imbalance": {"largest": None, "smallest": None, "ratio": None},
    }
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    fixes = tmp_path / "fixes.csv"
    fixes.write_text("".join(["path,action\n", *(f"a/{i},keep\n" for i in range(kept))]))
    digest = hashlib.sha256(fixes.read_bytes()).hexdigest()
    data = {"path": "d", "fixes": str(fixes), "fixes_digest": digest}
    config = config_from_table({"data": data, "weights": {"name": "demo"}})

    suggest_next_steps(tmp_path, config, which="")

    printed = capsys.readouterr().err.replace("\n", " ").replace("  ", " ")
    assert printed.startswith(f"next: {first.format(page=tmp_path / 'report.html')} ")
    assert "vitft export --safetensors" in printed


def test_the_next_steps_name_the_export_that_keeps_a_head_on_several_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = {"blocks": 4, "reads": "mixture", "candidates": [], "last_block_top1": 0.25}
    (tmp_path / "eval.json").write_text(json.dumps({**figures(["a", "b"]), "head": head}))
    config = config_from_table({"data": {"path": "d"}, "weights": {"name": "demo"}})

    suggest_next_steps(tmp_path, config, which=" --run runs/one")

    step = "vitft export --safetensors --run runs/one  # --onnx keeps the head on 4 blocks"
    assert step in capsys.readouterr().err.splitlines()[-1]
