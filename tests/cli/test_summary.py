"""The summary that `vitft finetune` prints."""

from typing import cast

import pytest

from vitft.cli.finetune import (
    calibration_text,
    print_cross_validation,
    print_weakest,
    print_weakest_label,
)
from vitft.metrics.results import CalibrationMetrics, ClassMetrics, CrossValidation, LabelResults


def test_the_weakest_class_names_the_images_on_which_it_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    weak = {"class": "rose", "recall": 0.75, "images": 40, "taken_for": "tulip"}
    crossed = {"images": 90, "of": 90, "top1": 0.9, "top1_interval": (0.8, 0.95)}
    crossed |= {"gain_from_twice": None, "weak_spots": [weak, {**weak, "recall": 1.0}], "curve": []}
    validated = {"rose": {"images": 8, "recall": 0.75}, "lily": {"images": 9, "recall": 1.0}}
    labels = {"per_label": {"rose": {"ap": 0.75}, "lily": {"ap": None}}}

    print_cross_validation(cast("CrossValidation", crossed), knn_top1=0.8, with_weakest=True)
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
    ("ece", "text"),
    [
        (0.0001, "calibration error < 7.4% (too small to be measured on these images)"),
        (0.05, "calibration error 5.0% (95% interval 0.0 to 7.4%), 9.0% before calibration"),
    ],
)
def test_a_calibration_error_of_zero_is_not_called_perfect(ece: float, text: str) -> None:
    calibration: CalibrationMetrics = {
        "ece": ece,
        "ece_interval": (0.0, 0.074),
        "ece_binned": 0.05,
        "ece_before": 0.09,
        "temperature": 1.3,
        "note": None,
        "bins": [],
    }

    assert calibration_text(calibration) == text
