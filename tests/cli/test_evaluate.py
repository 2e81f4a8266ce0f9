"""Tables of `vitft evaluate`, and where its files are written."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vitft.cli import output
from vitft.cli.evaluate import (
    evaluate_command,
    long_table,
    metric_cells,
    print_classes,
    print_confusion,
    print_tables,
    value_cells,
)
from vitft.cli.main import build_parser
from vitft.system.errors import UsageError
from vitft.system.rundir import check_outside
from vitft.system.text import TOO_FEW_TO_CALIBRATE


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe, in which every row is one line."""
    terminal = Console(width=4096, highlight=False, soft_wrap=True, emoji=False)
    monkeypatch.setattr(output, "stdout", lambda: terminal)


def one_class(images: int = 10, recall: float | None = 0.5) -> dict[str, Any]:
    bounds = None if recall is None else [0.25, 0.75]
    values = {"images": images, "recall": recall, "recall_interval": bounds}
    return values | {
        "precision": 0.4,
        "precision_interval": [0.3, 0.5],
        "f1": None,
        "f1_interval": None,
    }


def results(**more: Any) -> dict[str, Any]:
    calibration = {
        "ece": 0.05,
        "ece_interval": [0.02, 0.08],
        "ece_before": 0.2,
        "ece_before_interval": None,
        "temperature": 1.5,
    }
    found = {
        "images": 20,
        "top1": 0.9,
        "top1_interval": [0.8, 0.95],
        "top5": None,
        "top5_interval": None,
        "balanced": 0.85,
        "balanced_interval": [0.7, 0.9],
        "majority": 0.6,
        "loss": 0.4321,
        "loss_interval": [0.3, 0.5],
        "per_class": {"cat": one_class(12), "dog": one_class(8)},
        "confusion": [[11, 1], [1, 7]],
        "calibration": calibration,
    }
    return {**found, **more}


LABELS = {
    "map": 0.7,
    "map_interval": [0.6, 0.8],
    "chance_map": 0.3,
    "macro_f1": 0.65,
    "macro_f1_interval": [0.5, 0.7],
    "micro_f1": 0.66,
    "micro_f1_interval": [0.55, 0.75],
    "per_label": {"cat": {"ap": 0.75, "ap_interval": [0.6, 0.9]}},
}
KEPT = {
    "threshold": 0.8,
    "images": 15,
    "fraction": 0.75,
    "fraction_interval": [0.5, 0.9],
    "top1": 0.95,
    "top1_interval": [0.7, 0.99],
}


def lines(capsys: pytest.CaptureFixture[str], **more: Any) -> list[str]:
    """Return the printed lines with single spaces."""
    print_tables(results(**more))
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_the_metrics_of_all_images_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys)[:8] == [
        "20 images 95% interval",
        "accuracy 90.0% 80.0 to 95.0%",
        "balanced accuracy 85.0% 70.0 to 90.0%",
        "baseline (largest class) 60.0%",
        "log-loss (nats) 0.432 0.300 to 0.500",
        "calibration error 5.0% 2.0 to 8.0%",
        "before scaling 20.0% at temperature 1 instead of 1.50",
        "",
    ]


def test_names_are_on_the_left_and_numbers_on_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calibration = results()["calibration"] | {"temperature": 1.0}
    rows = {"a longer name": one_class(12), "dog": one_class(100)}
    print_tables(results(per_class=rows, calibration=calibration))

    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:5] == [
        "accuracy                  90.0%   80.0 to 95.0%",
        "balanced accuracy         85.0%   70.0 to 90.0%",
        "baseline (largest class)  60.0%",
        "log-loss (nats)           0.432  0.300 to 0.500",
    ]
    dog, cells = (line for line in lines if line.startswith("dog  "))
    assert dog.startswith("dog               100   50.0%  25.0 to 75.0%")
    assert cells.split() == ["dog", "1", "7"]
    assert cells.endswith("    7")


def test_of_several_labels_the_mean_average_precision_comes_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = lines(capsys, labels=LABELS)

    assert found[:6] == [
        "20 images 95% interval",
        "mean average precision 70.0% 60.0 to 80.0%",
        "random scores 30.0%",
        "mean F1 of the labels 65.0% 50.0 to 70.0%",
        "F1 over all decisions 66.0% 55.0 to 75.0%",
        "all labels right 90.0% 80.0 to 95.0%",
    ]
    assert not any("baseline" in line or "true \\ predicted" in line for line in found)


def test_kept_predictions_follow_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, kept=KEPT, top5=0.99, top5_interval=[0.9, 1.0])

    assert found[2] == "top-5 accuracy 99.0% 90.0 to 100.0%"
    assert found[5:7] == [
        "kept at threshold 80.0% 75.0% 50.0 to 90.0%",
        "accuracy of these 95.0% 70.0 to 99.0%",
    ]
    nothing = {**KEPT, "top1": None, "top1_interval": None}
    assert "accuracy of these \N{EN DASH}" in lines(capsys, kept=nothing)


@pytest.mark.parametrize(("images", "shown"), [(19, False), (20, True)])
def test_the_calibration_error_is_shown_from_20_images_on(
    capsys: pytest.CaptureFixture[str], images: int, shown: bool
) -> None:
    print_tables(results(images=images))

    printed = capsys.readouterr()
    assert ("calibration error  " in printed.out) is shown
    assert ("before scaling" in printed.out) is shown
    assert (TOO_FEW_TO_CALIBRATE in printed.err) is not shown


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"temperature": None}, "before scaling 20.0%"),
        ({"temperature": 1.0}, None),
        ({"ece_before": None}, None),
        ({"ece_before": 0.0001}, "before scaling too small to measure at temperature 1 instead of"),
        ({"ece": 0.0001}, "calibration error < 8.0% 2.0 to 8.0%"),
    ],
)
def test_the_error_before_scaling_is_shown_if_there_was_any(
    capsys: pytest.CaptureFixture[str], changed: dict[str, Any], line: str | None
) -> None:
    calibration = results()["calibration"] | changed

    found = lines(capsys, calibration=calibration)

    if line is None:
        assert not any("before scaling" in one for one in found)
    else:
        assert any(one.startswith(line) for one in found)


def test_csv_has_every_metric_with_its_bounds() -> None:
    found = [*long_table(results(kept=KEPT, labels=LABELS))]

    assert found[0] == ("figure", "class", "value", "low", "high")
    assert found[1] == ("images", "", 20, "", "")
    assert found[2:6] == [
        ("top1", "", 0.9, 0.8, 0.95),
        ("top5", "", "", "", ""),
        ("balanced", "", 0.85, 0.7, 0.9),
        ("loss", "", 0.4321, 0.3, 0.5),
    ]
    assert [row[0] for row in found[6:15]] == [
        *("map", "macro_f1", "micro_f1"),
        *("threshold", "kept_images", "kept_fraction", "kept_top1", "ece", "ece_before"),
    ]
    assert ("kept_fraction", "", 0.75, 0.5, 0.9) in found
    assert found[15:20] == [
        ("images", "cat", 12, "", ""),
        ("recall", "cat", 0.5, 0.25, 0.75),
        ("precision", "cat", 0.4, 0.3, 0.5),
        ("f1", "cat", "", "", ""),
        ("ap", "cat", 0.75, 0.6, 0.9),
    ]
    assert not any(row[:2] == ("ap", "dog") for row in found)
    plain = [row[0] for row in long_table(results())]
    assert not {"map", "threshold", "kept_images", "ap"} & {*plain}


def test_a_value_of_zero_is_not_empty() -> None:
    assert value_cells({"x": 0.0, "x_interval": (0.0, 0.5)}, "x") == (0.0, 0.0, 0.5)
    assert value_cells({"x": None}, "x") == ("", "", "")
    assert metric_cells({"x": 0.0, "x_interval": (0.0, 0.5)}, "x") == ("0.0%", "0.0 to 50.0%")
    assert metric_cells({"x": None, "x_interval": None}, "x") == ("", "")


@pytest.mark.parametrize("number", [30, 31])
def test_up_to_thirty_classes_are_listed_in_their_order_else_the_weakest(
    capsys: pytest.CaptureFixture[str], number: int
) -> None:
    rows = {f"c{i:02}": one_class(5, 1 - i / 100) for i in range(number)}
    rows["empty"] = one_class(0, None)

    print_classes(rows)

    printed = capsys.readouterr()
    names = [line.split()[0] for line in printed.out.splitlines()[1:]]
    order = range(30) if number == 30 else range(30, 0, -1)
    assert names == [f"c{i:02}" for i in order]
    assert ("only the 30 classes with the lowest recall are listed" in printed.err) == (
        number == 31
    )


def test_the_metrics_of_a_class_have_their_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    print_classes({"cat": one_class(12)})

    head, row = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert head == "class images recall 95% interval precision 95% interval F1 95% interval"
    assert row == "cat 12 50.0% 25.0 to 75.0% 40.0% 30.0 to 50.0%"


@pytest.mark.parametrize(("width", "intervals"), [(100, 3), (79, 2), (64, 1), (49, 0)])
def test_on_a_narrow_terminal_the_intervals_of_classes_are_left_out_from_the_right(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    intervals: int,
) -> None:
    narrow = Console(width=width, highlight=False, soft_wrap=True, emoji=False)
    monkeypatch.setattr(output, "stdout", lambda: narrow)

    print_classes({"cat": one_class(12)})

    head = capsys.readouterr().out.splitlines()[0]
    shown = ("recall", "precision", "F1")
    assert head.split() == [
        "class",
        "images",
        *(w for i, m in enumerate(shown) for w in (m, *["95%", "interval"] * (i < intervals))),
    ]


@pytest.mark.parametrize("number", [12, 13])
def test_up_to_twelve_classes_have_a_confusion_matrix(
    capsys: pytest.CaptureFixture[str], number: int
) -> None:
    names = [f"c{i:02}" for i in range(number)]
    counts = {(i, i): 5 for i in range(number)} | {(0, 1): 3, (2, 0): 4, (1, 0): 3}

    print_confusion(counts, names)

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    if number == 12:
        assert rows[0] == ["true", "\\", "predicted", *names]
        assert rows[1] == ["c00", "5", "3", *["0"] * 10]
        assert rows[3] == ["c02", "4", "0", "5", *["0"] * 9]
    else:
        assert rows == [
            ["class", "predicted", "as", "images"],
            ["c02", "c00", "4"],
            ["c00", "c01", "3"],
            ["c01", "c00", "3"],
        ]


def test_of_many_confusions_the_ten_most_frequent_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = {(0, i): i for i in range(1, 13)}

    print_confusion(counts, [f"c{i:02}" for i in range(13)])

    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines]
    assert lines[1].index("c12") == lines[0].index("predicted as")
    assert {len(line) for line in lines} == {len(lines[0])}
    assert [row[2] for row in rows[1:]] == [str(i) for i in range(12, 2, -1)]


def test_columns_that_do_not_fit_are_numbered_like_the_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = Console(width=60, highlight=False, soft_wrap=True, emoji=False)
    monkeypatch.setattr(output, "stdout", lambda: narrow)

    print_confusion({(0, 1): 3}, [f"class {i}{'x' * 12}" for i in range(4)])

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["true", "\\", "predicted", "1", "2", "3", "4"]
    assert rows[1] == ["1", "class", f"0{'x' * 12}", "0", "3", "0", "0"]
    assert rows[4][0] == "4"


def test_the_output_is_outside_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "cat").mkdir(parents=True)

    check_outside(Path("out"), tmp_path / "data")
    check_outside(Path("out"), tmp_path / "table.csv")
    for inside in ("data", "data/out", "data/cat/out"):
        with pytest.raises(UsageError, match=f"--out {inside} is inside the data directory"):
            check_outside(Path(inside), tmp_path / "data")


def test_only_the_data_is_required() -> None:
    args = build_parser("evaluate").parse_args(["evaluate", "--data", "d"])

    assert vars(args) == {
        "data": "d",
        "set": [],
        "subset": None,
        "run": None,
        "format": "table",
        "out": None,
        "device": "auto",
        "threshold": None,
        "precision": None,
        "command": evaluate_command,
    }
    with pytest.raises(UsageError, match="required: --data"):
        build_parser("evaluate").parse_args(["evaluate"])
    assert isinstance(args, argparse.Namespace)
