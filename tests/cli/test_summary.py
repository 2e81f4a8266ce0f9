"""The summary that `vitft finetune` prints."""

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import draw_folder
from tests.support.export_run import figures
from vitft.cli.main import build_parser, main
from vitft.cli.summary import (
    calibration_text,
    cross_validation_text,
    print_budget,
    print_growth,
    print_label_metrics,
    print_selection,
    print_summary,
    print_test,
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


def crossed(**more: Any) -> CrossValidation:
    facts = {"images": 60, "of": 90, "top1": 0.9, "top1_interval": (0.8, 0.95)}
    facts |= {"gain_from_twice": None, "weak_spots": [], "curve": []}
    return cast("CrossValidation", facts | more)


def test_cross_validation_names_its_images_and_the_nearest_neighbours() -> None:
    text = "cross-validated accuracy on {} images: 90.0% (80.0 to 95.0%); nearest neighbours on the"

    some = cross_validation_text(crossed(), knn_top1=0.7)
    every = cross_validation_text(crossed(images=1200, of=1200), knn_top1=0.7)

    assert some == f"{text.format('60 of 90')} validation images: 70.0%"
    assert every == f"{text.format('all 1,200')} validation images: 70.0%"


@pytest.mark.parametrize(
    ("gain", "bounds", "line"),
    [
        (0.021, (0.011, 0.03), "about +2.1 points (1.1 to 3.0, extrapolated)"),
        (0.021, None, "about +2.1 points (extrapolated)"),
        (None, None, ""),
    ],
)
def test_the_expected_gain_is_in_points(
    capsys: pytest.CaptureFixture[str],
    gain: float | None,
    bounds: tuple[float, float] | None,
    line: str,
) -> None:
    print_growth(crossed(gain_from_twice=gain, gain_interval=bounds), with_weakest=False)

    assert capsys.readouterr().out == f"with twice as many images: {line}\n" * bool(line)


def test_the_two_weakest_classes_are_named_unless_they_are_perfect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spot = {"class": "rose", "recall": 0.75, "images": 1, "taken_for": ""}
    spots = [spot, {**spot, "class": "lily", "taken_for": "rose"}, {**spot, "class": "poppy"}]

    print_growth(crossed(weak_spots=spots), with_weakest=True)
    printed = capsys.readouterr().out.splitlines()
    print_growth(crossed(weak_spots=spots), with_weakest=False)

    assert printed == [
        "weakest class: rose, recall 75.0% on 1 image in cross-validation",
        "second-weakest class: lily, recall 75.0% on 1 image in cross-validation, most often "
        "predicted as rose",
    ]
    assert capsys.readouterr().out == ""


def test_classes_without_images_and_perfect_ones_are_not_the_weakest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = {"images": 0, "recall": None}

    for rows in ({}, {"a": empty}, {"a": {"images": 3, "recall": 1.0}}):
        print_weakest(cast("dict[str, ClassMetrics]", rows))
    assert capsys.readouterr().out == ""
    rows = {"a": empty, "b": {"images": 3, "recall": 0.5}, "c": {"images": 1, "recall": 0.0}}
    print_weakest(cast("dict[str, ClassMetrics]", rows))

    assert capsys.readouterr().out == "weakest class: c, recall 0.0% on 1 validation image\n"


LABELLED: dict[str, Any] = {
    "map": 0.7,
    "map_interval": (0.6, 0.8),
    "chance_map": 0.3,
    "macro_f1": 0.65,
    "macro_f1_interval": (0.5, 0.75),
    "per_label": {"sea": {"ap": 0.5}, "cat": {"ap": 0.9}},
}


def test_metrics_of_several_labels_are_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    metrics: Any = {"images": 1, "top1": 0.4}

    print_label_metrics(cast("LabelResults", LABELLED), metrics, "test image")

    assert capsys.readouterr().out.splitlines() == [
        "mean average precision 70.0% (95% interval 60.0 to 80.0%) on 1 test image; random "
        "scores: 30.0%",
        "mean F1 of the labels 65.0% (95% interval 50.0 to 75.0%); all labels are right for "
        "40.0% of the images",
    ]


@pytest.mark.parametrize("left_out", [0, 1])
def test_test_images_are_evaluated_once(capsys: pytest.CaptureFixture[str], left_out: int) -> None:
    test = {"top1": 0.8, "top1_interval": (0.7, 0.9), "images": 1200, "left_out": left_out}

    print_test(cast("RunResults", {}))
    assert capsys.readouterr() == ("", "")
    print_test(cast("RunResults", {"test": test}))

    printed = capsys.readouterr()
    assert printed.out == (
        "test accuracy 80.0% (95% interval 70.0 to 90.0%) on 1,200 test images, evaluated once\n"
    )
    assert printed.err == (
        "excluded from the test set: 1 image identical to a training or validation image\n"
        * left_out
    )
    print_test(cast("RunResults", {"test": {**test, "labels": LABELLED}}))
    assert "on 1,200 test images; random scores: 30.0%" in capsys.readouterr().out


@pytest.mark.parametrize(("selected", "labels"), [(True, False), (True, True), (False, False)])
def test_results_of_a_selected_epoch_are_called_optimistic(
    capsys: pytest.CaptureFixture[str], selected: bool, labels: bool
) -> None:
    config = config_from_table({"data": {"path": "d"}, "train": {"freeze": "none"}})
    metrics = {"selected_on_validation": selected, "best_epoch": 2, "epochs": 3}

    print_selection(cast("RunResults", metrics | ({"labels": {}} if labels else {})), config)

    text = "the validation results are" if labels else "the validation accuracy is"
    printed = capsys.readouterr().err
    assert printed.startswith(f"{text} slightly optimistic: epoch 2") is selected
    assert bool(printed) is selected


def trial(**more: Any) -> dict[str, Any]:
    facts = {"layers": "none", "epochs": 1, "top1": 0.9, "head_top1": 0.8, "held_out": 1200}
    return facts | {"loss": 0.25, "head_loss": 0.5, "interpolation": 1.0, "fraction": 1.0} | more


@pytest.mark.parametrize(
    ("trials", "chosen", "line"),
    [
        ([], "head", "only the head was trained"),
        ([trial()], "head", "only the head was trained: no trial was clearly better than the head"),
        ([], "none", "after fitting the head, the run trained all layers for 3 epochs"),
        ([], "", None),
    ],
)
def test_a_run_with_a_time_budget_says_what_it_trained(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    trials: list[dict[str, Any]],
    chosen: str,
    line: str | None,
) -> None:
    monkeypatch.setattr("vitft.cli.summary.start_trials", lambda _: [])
    monkeypatch.setattr("vitft.cli.summary.describe_interpolation", lambda _: "")
    budget: Any = {"trials": trials, "chosen": chosen, "epochs": 3, "skipped": []}

    print_budget(budget)

    lines = capsys.readouterr().out.splitlines()
    assert lines[len(trials) :] == ([] if line is None else [line])
    if trials:
        assert lines[0] == (
            "trial: after training all layers for 1 epoch, 90.0% of 1,200 held-out training "
            "images are classified correctly (with the head alone: 80.0%), mean loss 0.250 (0.500)"
        )


def test_parts_of_a_budget_are_described_in_their_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = [{"name": "one"}, {"name": "two", "seconds_needed": 9}]
    monkeypatch.setattr("vitft.cli.summary.start_trials", lambda _: starts)
    monkeypatch.setattr("vitft.cli.summary.describe_start", lambda start: start["name"])
    monkeypatch.setattr("vitft.cli.summary.describe_interpolation", lambda _: "half of it")
    monkeypatch.setattr("vitft.cli.summary.describe_skipped", lambda skipped: f"no {skipped}")
    budget: Any = {"trials": [trial(epochs=2)], "chosen": "none", "epochs": 1, "skipped": ["lora"]}

    print_budget(budget)

    printed = capsys.readouterr()
    first, second, third = printed.out.splitlines()
    assert first == "one"
    assert second.startswith("trial: after training all layers for 2 epochs and half of it, 90.0%")
    assert third == "after fitting the head, the run trained all layers for 1 epoch, half of it"
    assert printed.err.splitlines() == ["two", "no lora"]


def summarised(
    folder: Path, *, status: str = "finished", is_latest: bool = True, like: str = "", **more: Any
) -> None:
    metrics = {**figures(["a", "b"]), "knn_top1": 0.6, "selected_on_validation": False} | more
    config = config_from_table({"data": {"path": "d", "like": like}, "weights": {"name": "demo"}})
    print_summary(folder, cast("RunResults", metrics), config, status=status, is_latest=is_latest)


def test_a_summary_begins_with_the_accuracy_and_ends_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summarised(tmp_path)

    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "accuracy 50.0% (95% interval 20.0 to 80.0%) on 4 validation images"
    assert lines[2] == "baseline (largest class): 50.0%"
    assert lines[-1] == f"run: {tmp_path}"
    assert not any("calibration" in line or "cross-validated" in line for line in lines)
    assert printed.err.splitlines() == [
        "next:  vitft predict IMAGE ...",
        "       vitft export --safetensors",
    ]
    summarised(tmp_path, is_latest=False)
    assert f"next:  vitft predict --run {tmp_path} IMAGE ..." in capsys.readouterr().err
    summarised(tmp_path, like="runs/my first")
    assert capsys.readouterr().err.splitlines() == [
        f"next:  vitft compare 'runs/my first' {tmp_path}",
        "       vitft predict IMAGE ...",
        "       vitft export --safetensors",
    ]


def test_an_interrupted_run_is_told_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summarised(tmp_path, status="interrupted")

    printed = capsys.readouterr()
    command = f"vitft finetune --resume {tmp_path}"
    assert f"warning: interrupted; resume with: {command}" in " ".join(printed.err.split())
    assert printed.out.startswith("accuracy 50.0%")
    assert "next:" not in printed.err
    config = config_from_table({"data": {"path": "d"}})
    print_summary(tmp_path, None, config, status="interrupted", is_latest=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "resume with" in printed.err


@pytest.mark.parametrize(("temperature", "shown"), [(1, False), (1.3, True), (None, True)])
def test_calibration_is_stated_where_it_changed_the_probabilities(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    temperature: float | None,
    shown: bool,
) -> None:
    calibration = {"ece": 0.05, "ece_interval": (0, 0.1), "ece_before": 0.1}

    summarised(tmp_path, images=40, calibration=calibration | {"temperature": temperature})

    assert ("calibration error 5.0%" in capsys.readouterr().out) is shown


def test_several_labels_are_summarised_by_their_own_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summarised(tmp_path, labels=LABELLED)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mean average precision 70.0%")
    assert lines[2:] == [
        "weakest label: sea, average precision 50.0% on 4 validation images",
        f"run: {tmp_path}",
    ]


def test_the_accuracy_of_the_head_alone_is_named_where_more_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summarised(tmp_path, cross_validation=crossed())

    lines = capsys.readouterr().out.splitlines()
    text = cross_validation_text(crossed(), knn_top1=0.6)
    assert f"the head alone, before further training: {text}" in lines
