"""Which run answers: name, classes, accuracy and age."""

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.run_files import add_test_results, make_run
from vitft.models.run_facts import RunFacts
from vitft.predict.run_info import (
    RunInfo,
    facts_of_run,
    seconds_since_1970,
)

HOUR, DAY = 3600, 86400
ENDED = 1_700_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "flowers-3")
    os.utime(run / "model.safetensors", (ENDED, ENDED))
    return run


def read(run: Path, name: str | None = None) -> RunInfo:
    return RunInfo.read(name, run / "model.safetensors", 3)


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_one_line_names_run_classes_accuracy_and_age(run: Path) -> None:
    change(run / "eval.json", top1=0.946, top1_interval=[0.91, 0.968], images=240)
    change(run / "environment.json", ended="2026-11-22T10:15:00+00:00")

    line = read(run).line(now=1795342500 + 3 * DAY + HOUR)

    accuracy = "accuracy 94.6% (91.0 to 96.8%) on 240 validation images"
    assert line == f"run flowers-3: 3 classes, {accuracy}, 3 days old"


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(-5, "0 minutes"), (60, "1 minute"), (119 * 60, "119 minutes"), (47 * HOUR, "47 hours")],
)
def test_the_age_has_a_suitable_unit(run: Path, seconds: int, age: str) -> None:
    assert read(run).line(now=ENDED + seconds).endswith(f", file {age} old")


def test_the_age_of_a_copied_run_is_that_of_its_training(run: Path) -> None:
    os.utime(run / "model.safetensors")  # as copying does
    assert read(run).line(now=time.time() + 1).endswith(", file 0 minutes old")

    change(run / "environment.json", ended="2026-11-22T10:15:00+00:00")

    assert read(run).line(now=1795342500 + 5 * DAY).endswith(" images, 5 days old")


def test_the_line_names_the_file_if_there_are_several_models_in_the_folder(run: Path) -> None:
    (run / "model.onnx").write_bytes(b"")

    assert read(run).line().startswith("run flowers-3 (model.safetensors, not model.onnx): ")
    named = read(run, str(run / "model.safetensors"))
    assert named.line().startswith("run flowers-3: ")  # the user chose the file
    folder = run.rename(run.with_name("flowers.safetensors"))
    assert "(model.safetensors, not model.onnx): " in read(folder, str(folder)).line()
    exported = RunInfo.read(str(folder), folder / "model.onnx", 3, {"name": "roses"})
    assert exported.line().startswith("run roses (exported; model.onnx, not model.safetensors): ")


def test_the_latest_run_is_called_by_its_own_name(run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)

    assert read(tmp_path / "latest").name == "flowers-3"
    assert RunInfo.read(None, run.rename(tmp_path / "b") / "model.safetensors", 3).name == "b"
    assert read(tmp_path / "b", "hf:me/flowers").name == "hf:me/flowers"


def test_another_checkpoint_is_called_by_its_file_name(run: Path) -> None:
    (run / "model.safetensors").rename(run / "best.safetensors")

    assert RunInfo.read("best", run / "best.safetensors", 3).name == "best"


def test_a_model_at_chance_level_is_called_so(run: Path) -> None:
    change(
        run / "eval.json",
        top1=1 / 3,
        top1_interval=[0.2, 0.5],
        balanced_interval=[0.2, 0.5],
        confusion=[[0, 0, 4], [0, 0, 4], [0, 0, 4]],
    )

    assert read(run).line().endswith("; at chance level: the model always predicts rose")


@pytest.mark.parametrize(
    "content",
    [None, "", "[]", "{}", '{"top1": "high"}', '{"top1": null, "images": 3}', "[" * 100_000, "\0"],
)
def test_an_unreadable_result_leaves_the_accuracy_unknown(run: Path, content: str | None) -> None:
    (run / "eval.json").unlink()
    if content is not None:
        (run / "eval.json").write_text(content)
    (run / "environment.json").write_text('{"ended": 5}')

    assert "3 classes, accuracy unknown, file 1 minute old" in read(run).line(now=ENDED + 60)


def test_the_interval_the_baseline_and_the_weights_are_known(run: Path) -> None:
    results = json.loads((run / "eval.json").read_text())

    found = read(run)
    (run / "config.toml").unlink()
    without = read(run)

    assert found.top1_interval == tuple(results["top1_interval"])
    assert found.majority == results["majority"]
    assert (found.weights, without.weights) == ("demo", "")


def test_the_line_has_the_cross_validated_accuracy_where_it_tells_more(run: Path) -> None:
    more = {"images": 60, "of": 60, "top1": 0.75, "top1_interval": [0.6, 0.85], "curve": []}
    more |= {"gain_from_twice": None, "weak_spots": []}
    calibration = json.loads((run / "eval.json").read_text())["calibration"]
    change(run / "eval.json", cross_validation=more, best_epoch=1, images=20)
    before = read(run).line()
    change(run / "eval.json", calibration={**calibration, "cross_validated": 40})

    assert "cross-validated" not in before
    assert "on 20 validation images; cross-validated on 60 images: 75.0% (60.0 to 85.0%), " in (
        read(run).line()
    )


def test_the_line_has_the_accuracy_on_the_test_images(run: Path) -> None:
    before = read(run)
    add_test_results(run)

    found = read(run)

    assert "test:" not in before.line()
    assert (before.tested, before.tested_top1, before.tested_images) == ("", None, 0)
    assert found.tested == "test: 88.0% (83.0 to 92.0%) on 240 images, evaluated once"
    assert f"3 classes, {found.tested}; accuracy " in found.line()
    assert (found.tested_top1, found.tested_interval, found.tested_images) == (
        0.88,
        (0.83, 0.92),
        240,
    )


def test_the_line_says_that_a_run_has_not_finished(run: Path) -> None:
    assert "not finished" not in read(run).line()

    change(run / "environment.json", status="interrupted")

    assert "; the run has not finished (status: interrupted)" in read(run).line()


def test_a_damaged_file_is_reported_once(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "environment.json").write_text("{")

    read(run)

    assert [r.getMessage().startswith("damaged run: ") for r in caplog.records] == [True]


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("1970-12-31T00:00:00+00:00", None),
        ("1971-01-02T00:00:00+00:00", 366 * DAY),
        ("9998-01-01T00:00:00+00:00", 253339228800),
        ("9999-01-01T00:00:00+00:00", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_only_times_that_every_time_zone_can_represent_are_read(
    time: str, seconds: float | None
) -> None:
    assert seconds_since_1970(time) == seconds


def test_an_export_has_the_facts_in_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "export" / "model.safetensors"
    path.parent.mkdir()
    path.touch()
    os.utime(path, (ENDED, ENDED))
    facts = RunFacts(
        name="flowers", weights="demo", images=40, top1=0.9, top1_interval=(0.8, 0.95),
        majority=0.5, rounded=True, at_chance="always predicts rose",
        cross_validated=0.85, cross_validated_interval=(0.8, 0.9), cross_validated_images=200,
    )  # fmt: skip

    found = RunInfo.read(None, path, 3, facts)

    assert found.line(now=ENDED + HOUR) == (
        "run flowers (exported): 3 classes, accuracy 90.0% (80.0 to 95.0%) on 40 validation images "
        "before rounding to 8 bits; cross-validated on 200 images: 85.0% (80.0 to 90.0%), file 60 "
        "minutes old; at chance level: the model always predicts rose"
    )
    assert (found.is_export, found.is_file_age, found.rounded) == (True, True, True)
    assert (found.majority, found.weights, found.status) == (0.5, "demo", "")
    assert found.cross_validated_images == 200
    assert found.cross_validated_top1 == 0.85
    ended = RunInfo.read(None, path, 3, {**facts, "ended": "2026-11-22T10:15:00+00:00"})
    assert (ended.trained_at, ended.is_file_age) == (1795342500, False)
    bare = RunInfo.read(None, path, 1)
    assert (bare.name, bare.images, bare.top1, bare.is_export) == ("export", 0, None, False)
    assert bare.line(now=ENDED + 3 * HOUR) == (
        "run export: 1 class, accuracy unknown, file 3 hours old"
    )


def test_a_multi_label_model_is_described_by_its_mean_average_precision(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").touch()
    facts = RunFacts(images=1, top1=0.4, top1_interval=(0.2, 0.6), mean_ap=0.75)

    line = RunInfo.read(None, tmp_path / "m.safetensors", 3, facts).line()
    facts["mean_ap_interval"] = (0.7, 0.8)
    sure = RunInfo.read(None, tmp_path / "m.safetensors", 3, facts).line()

    assert "run m: 3 labels, mean average precision 75.0% on 1 validation image, " in line
    assert "mean average precision 75.0% (70.0 to 80.0%) on 1 validation image, " in sure


def test_facts_of_a_run_precede_those_in_its_model_file(run: Path) -> None:
    results = json.loads((run / "eval.json").read_text())
    carried = RunFacts(top1=0.1, images=7, weights="other", at_chance="x")

    found = RunInfo.read(None, run / "model.safetensors", 3, carried)

    assert (found.top1, found.images, found.weights) == (results["top1"], 12, "demo")
    assert found.at_chance == ""


def test_cross_validation_is_stated_only_with_all_its_facts(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").touch()
    facts = RunFacts(
        cross_validated=0.5, cross_validated_interval=(0.4, 0.6), cross_validated_images=9
    )

    def stated(facts: RunFacts) -> str:
        return RunInfo.read(None, tmp_path / "m.safetensors", 3, facts).cross_validated

    assert stated(facts) == "cross-validated on 9 images: 50.0% (40.0 to 60.0%)"
    for key in [*facts]:
        missing = {name: value for name, value in facts.items() if name != key}
        assert stated(cast("RunFacts", missing)) == ""


@pytest.mark.parametrize("interval", [(0.6, 0.8), None])
def test_the_mean_average_precision_of_a_run_is_known(
    run: Path, interval: tuple[float, float] | None
) -> None:
    results: Any = json.loads((run / "eval.json").read_text())
    results["labels"] = {"map": 0.7, "map_interval": interval, "chance_map": 0.3}

    facts = facts_of_run(None, results)

    assert facts["mean_ap"] == 0.7
    assert facts.get("mean_ap_interval") == interval
    assert ("mean_ap_interval" in facts) is (interval is not None)
    assert facts["images"] == 12
    assert facts_of_run(None, None) == {}
