"""Accuracies, differences and texts of a study."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitft.data.folder import Folder
from vitft.metrics.intervals import wilson_interval
from vitft.study.plan import FeatureSource, Plan
from vitft.study.results import (
    CurvePoint,
    FewShotCurve,
    StudyResults,
    difference,
    half_width_of_mean,
    heading,
    lead_sentences,
    mean_of,
    short_rows,
    to_json,
    to_markdown,
    write_results,
)


def at_shots(shots: int, *rows: Sequence[int]) -> CurvePoint:
    return CurvePoint(shots=shots, correct=tuple(np.array(row, dtype=bool) for row in rows))


def curve(name: str, *points: CurvePoint) -> FewShotCurve:
    return FewShotCurve(name=name, weights=name, features=32, points=points)


GOOD, POOR = [1] * 80 + [0] * 20, [1] * 40 + [0] * 60


def finished(*curves: FewShotCurve, **more: Any) -> StudyResults:
    layout = more.pop("layout", "classes")
    folder = Folder(root=Path("flowers"), classes=("a", "b"), files=(), layout=layout)
    plan = Plan(
        folder=folder,
        sources=tuple(FeatureSource(name=c.name, weights=c.weights) for c in curves),
        shots=tuple(point.shots for point in curves[0].points),
        left_out=more.pop("left_out", ()),
        most=20,
        seeds=more.pop("seeds", 2),
        out=more.pop("out", Path("o")),
    )
    facts = {"images": 1300, "test_images": 100, "majority": 0.525, "device": "cpu"}
    return StudyResults(plan=plan, curves=curves, precision="fp32", **{**facts, **more})


STUDY = finished(
    curve("vit", at_shots(1, POOR, POOR), at_shots(5, GOOD, GOOD)),
    curve("pixels", at_shots(1, GOOD, GOOD), at_shots(5, GOOD, GOOD)),
)


def test_the_interval_over_seeds_is_that_of_student() -> None:
    values = [0.5, 0.6, 0.7]

    assert half_width_of_mean(values) == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-5)
    assert half_width_of_mean([0.5, 0.7]) == pytest.approx(
        12.706205 * math.sqrt(0.02) / math.sqrt(2), rel=1e-5
    )
    assert half_width_of_mean([0.5]) == 0.0
    assert half_width_of_mean([]) == 0.0


def test_the_accuracy_is_the_mean_over_the_seeds_and_its_interval_that_of_one() -> None:
    point = at_shots(5, [1, 1, 1, 0] * 25, [1, 1, 1, 0] * 25, [1, 1, 1, 0] * 25)

    assert point.accuracies == [0.75, 0.75, 0.75]
    assert point.top1 == 0.75
    assert point.interval == wilson_interval(75, 100)  # not of 300 images


def test_the_wider_of_both_intervals_counts_on_each_side() -> None:
    apart = at_shots(5, [1] * 60 + [0] * 40, [1] * 70 + [0] * 30)
    half = half_width_of_mean([0.6, 0.7])

    assert apart.interval == pytest.approx((0.65 - half, 1.0))
    near = at_shots(5, [1] * 64 + [0] * 36, [1] * 65 + [0] * 35)
    low, high = wilson_interval(64, 100)  # 64.5 is rounded to the even number
    assert near.interval == (min(low, near.top1 - half_width_of_mean([0.64, 0.65])), high)


def test_a_difference_has_the_wider_interval_of_seeds_and_images() -> None:
    first = at_shots(5, [1] * 50 + [0] * 50, [1] * 60 + [0] * 40)
    second = at_shots(5, [1] * 40 + [0] * 60, [1] * 40 + [0] * 60)

    mean, (low, high) = difference(first, second)

    half = half_width_of_mean([0.1, 0.2])
    assert mean == pytest.approx(0.15)
    assert (low, high) == pytest.approx((0.15 - half, 0.15 + half))
    same = at_shots(5, [1] * 50 + [0] * 50, [1] * 50 + [0] * 50)
    mean, (low, high) = difference(same, second)  # seeds agree: the images decide
    images = 1.959963984540054 * math.sqrt(0.1 - 0.01) / 10
    assert (mean, low, high) == pytest.approx((0.1, 0.1 - images, 0.1 + images))


def test_the_first_curve_is_compared_with_every_other_at_each_number() -> None:
    leads = STUDY.leads()

    assert [*leads] == ["pixels"]
    assert [round(lead.mean, 6) for lead in leads["pixels"]] == [-0.4, 0.0]


def test_json_has_every_point_and_difference() -> None:
    found: Any = to_json(replace(STUDY), STUDY.leads())

    assert (found["data"], found["classes"], found["images"]) == ("flowers", ["a", "b"], 1300)
    assert (found["test_images"], found["always_the_largest_class"]) == (100, 0.525)
    assert (found["shots"], found["left_out"], found["seeds"]) == ([1, 5], [], [0, 1])
    assert found["own_test_images"] is False
    assert to_json(finished(*STUDY.curves, layout="split"), {})["own_test_images"] is True
    assert [c["name"] for c in found["curves"]] == ["vit", "pixels"]
    assert found["curves"][0]["points"][0] == {
        "shots": 1,
        "top1": pytest.approx(0.4),
        "interval": list(STUDY.curves[0].points[0].interval),
        "each_seed": [0.4, 0.4],
    }
    assert [(d["over"], d["shots"]) for d in found["lead_of_the_first"]] == [
        ("pixels", 1),
        ("pixels", 5),
    ]
    json.dumps(found, allow_nan=False)


def test_the_heading_names_seeds_test_images_and_baseline() -> None:
    text = "accuracy in % by number of training images per class, {}, with 95% intervals; {}; "

    assert heading(STUDY) == (
        text.format("mean of 2 seeds", "100 test images (all images that train no head)")
        + "baseline (largest class): 52.5%"
    )
    own = finished(*STUDY.curves, layout="split", seeds=1, test_images=1)
    assert heading(own).startswith(
        text.format("1 seed", "1 test image (the folder's validation or test set)")
    )
    assert (mean_of(1), mean_of(3)) == ("1 seed", "mean of 3 seeds")


def test_short_rows_have_the_longer_side_of_the_interval() -> None:
    low, high = wilson_interval(40, 100)
    side = 100 * max(high - 0.4, 0.4 - low)

    assert short_rows(STUDY)[0][:2] == ("vit", f"40.0 \N{PLUS-MINUS SIGN}{side:.1f}")
    low, high = wilson_interval(80, 100)
    side = 100 * max(high - 0.8, 0.8 - low)
    assert short_rows(STUDY)[1][2] == f"80.0 \N{PLUS-MINUS SIGN}{side:.1f}"


def test_sentences_name_the_numbers_at_which_another_is_better_or_equal() -> None:
    assert lead_sentences(STUDY) == [
        "vit compared with pixels at 5 images per class: +0.0 points (95% interval +0.0 to +0.0)",
        "  images per class at which pixels is significantly better: 1",
        "  images per class without a significant difference: 5",
    ]
    ahead = finished(
        curve("vit", at_shots(1, GOOD, GOOD)), curve("pixels", at_shots(1, POOR, POOR))
    )
    (only,) = lead_sentences(ahead)
    half = 100 * 1.959963984540054 * math.sqrt(0.4 - 0.16) / 10
    assert only == (
        "vit compared with pixels at 1 image per class: +40.0 points (95% interval "
        f"{40 - half:+.1f} to {40 + half:+.1f})"
    )


@pytest.mark.parametrize(("seeds", "text"), [(1, "Seed 0;"), (3, "Seeds 0 to 2;")])
def test_the_report_has_the_command_and_both_tables(seeds: int, text: str) -> None:
    found = to_markdown(
        finished(*STUDY.curves, seeds=seeds, images=1), STUDY.leads(), "vitft study --x"
    )

    lines = found.splitlines()
    assert lines[0] == "# flowers: accuracy by number of training images per class"
    assert lines[2] == "    vitft study --x"
    assert lines[4].startswith("1 distinct image of 2 classes; accuracy in %")
    assert f"{text} device cpu, precision fp32." in lines[4]
    assert lines[6:8] == ["| images per class | 1 | 5 |", "|---|---:|---:|"]
    assert lines[8].startswith("| vit | 40.0 (")
    assert "Every head reads the last block only; " in found
    assert "## vit compared with the others" in lines
    assert any(line.startswith("| pixels | -40.0 (") for line in lines)
    assert lines[-1] == "![Accuracy curves](study.png)"
    assert found.endswith("\n")


def test_numbers_that_were_left_out_are_stated_last() -> None:
    found = to_markdown(finished(*STUDY.curves, left_out=(25, 50)), STUDY.leads(), "x")

    assert found.endswith(
        "\n\nLeft out because the smallest class is too small: 25, 50 training images per class; "
        "at most 20 are possible.\n"
    )


def test_all_files_are_written_together(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    write_results(finished(*STUDY.curves, out=tmp_path / "o"), "vitft study")

    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [
        *("study.json", "study.md", "study.png"),
    ]
    assert (tmp_path / "o" / "study.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "o" / "study.json").read_text()
    assert text.endswith("}\n")
    assert text.startswith('{\n  "vitft"')


def test_files_of_a_study_state_which_weights_were_trained_on_its_images() -> None:
    own = replace(STUDY.curves[0], name="runs/a_b", known_images=7)
    study = finished(own, STUDY.curves[1])

    found = to_markdown(study, study.leads(), "x")

    note = (
        r"**Note:** runs/a\_b was trained on 7 of these 1,300 images, so its accuracies here tell "
        "nothing about new images."
    )
    assert f"\n\n{note}\n\n## " in found
    assert "\n| runs/a\\_b | 40.0 (" in found
    assert "**Note:**" not in to_markdown(STUDY, STUDY.leads(), "x")
    curves: Any = to_json(study, study.leads())["curves"]
    assert [one["trained_on_images"] for one in curves] == [7, 0]
