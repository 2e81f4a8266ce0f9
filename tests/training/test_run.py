"""Whole runs: data and weights in, run directory out."""

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from vitft.config import config_from_table, read_toml
from vitft.models import load_checkpoint
from vitft.predict import Predictor
from vitft.system import DivergedError, show_log
from vitft.training import Result, run_finetuning


def run_it(data: Path, weights: Path, out: Path, /, **settings: dict[str, Any]) -> Result:
    table: dict[str, Any] = {
        "data": {"path": str(data)},
        "weights": {"name": str(weights)},
        "optim": {"solver": "adamw", "epochs": 3, "batch_size": 8},
    }
    for section, values in settings.items():
        table.setdefault(section, {}).update(values)
    return run_finetuning(config_from_table(table), out=out)


@pytest.fixture
def finished(image_folder: Path, tiny_weights: Path, tmp_path: Path) -> Result:
    return run_it(image_folder, tiny_weights, tmp_path / "runs" / "one")


def test_a_run_directory_holds_what_it_promises(finished: Result) -> None:
    names = {path.name for path in finished.run.iterdir()}

    assert names == {
        "audit.json",
        "class_indices.json",
        "config.toml",
        "environment.json",
        "eval.json",
        "metrics.jsonl",
        "model.safetensors",
        "reference.npz",
        "split.csv",
        "thumbs",
        "validation.npz",
    }
    assert json.loads((finished.run / "environment.json").read_text())["status"] == "finished"
    assert not (finished.run.parent / "latest").exists()  # only runs/ has one
    assert json.loads((finished.run / "class_indices.json").read_text()) == {
        "0": "blue",
        "1": "green",
        "2": "red",
    }


def test_the_log_has_one_line_per_epoch_and_starts_at_ln_classes(finished: Result) -> None:
    lines = [json.loads(s) for s in (finished.run / "metrics.jsonl").read_text().splitlines()]

    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[0]["first_loss"] == pytest.approx(math.log(3), abs=1e-4)


def test_predict_reproduces_the_validation_accuracy(finished: Result, image_folder: Path) -> None:
    rows = (finished.run / "split.csv").read_text().splitlines()[1:]
    held_back = [line.split(",") for line in rows if ",val," in line]
    predictor = Predictor.from_run(str(finished.run))

    answers = [
        p.classes[0] for p in predictor.stream(str(image_folder / row[0]) for row in held_back)
    ]

    right = sum(a == row[1] for a, row in zip(answers, held_back, strict=True))
    assert right / len(held_back) == finished.figures["top1"]


def test_the_written_settings_repeat_the_run(finished: Result, tmp_path: Path) -> None:
    config = config_from_table(read_toml(finished.run / "config.toml"))

    again = run_finetuning(config, out=tmp_path / "again")

    assert again.figures | {"seconds": 0} == finished.figures | {"seconds": 0}
    first, second = (load_checkpoint(r.run / "model.safetensors")[0] for r in (finished, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_only_what_trains_has_changed(finished: Result, tiny_weights: Path) -> None:
    before, _ = load_checkpoint(tiny_weights)
    after, card = load_checkpoint(finished.run / "model.safetensors")

    assert not torch.equal(after["head.weight"], torch.zeros_like(after["head.weight"]))
    shared = before.keys() & after.keys()
    assert all(torch.equal(before[name], after[name]) for name in shared)
    assert card.classes == ("blue", "green", "red")
    assert not card.architecture.pre_logits  # dropped by default


@pytest.mark.parametrize(
    ("layers", "augment", "pre_logits", "moved"),
    [
        pytest.param("head", "crop", "drop", "head.weight", id="frozen, fresh crops"),
        pytest.param("pre_logits", "none", "keep", "pre_logits.fc.weight", id="pre_logits"),
        pytest.param("blocks:1", "none", "drop", "blocks.1.mlp.fc1.weight", id="last block"),
        pytest.param("all", "crop", "drop", "patch_embed.proj.weight", id="everything"),
    ],
)
def test_every_freeze_boundary_trains_through_the_same_loop(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    layers: str,
    augment: str,
    pre_logits: str,
    moved: str,
) -> None:
    done = run_it(
        image_folder,
        tiny_weights,
        tmp_path / "run",
        train={"layers": layers, "augment": augment},
        weights={"pre_logits": pre_logits},
        optim={"lr": 1e-3},
    )

    before, _ = load_checkpoint(tiny_weights)
    after, _ = load_checkpoint(done.run / "model.safetensors")
    assert not torch.equal(before.get(moved, torch.zeros_like(after[moved])), after[moved])
    assert ("pre_logits.fc.weight" in after) == (pre_logits == "keep")


def test_random_weights_are_a_baseline_and_not_the_pretrained_ones(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = run_it(
        image_folder, Path("x"), tmp_path / "run", weights={"name": f"random:{tiny_weights}"}
    )

    before, _ = load_checkpoint(tiny_weights)
    after, card = load_checkpoint(done.run / "model.safetensors")
    assert not torch.equal(before["pos_embed"], after["pos_embed"])
    assert card.weights["name"].startswith("random:")


def test_unreadable_images_are_named_and_left_out(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (image_folder / "red" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")

    done = run_it(image_folder, tiny_weights, tmp_path / "run")

    assert "skipped red/torn.png" in capsys.readouterr().err
    assert "torn" not in (done.run / "split.csv").read_text()


def test_identical_files_on_both_sides_of_the_split_are_reported(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(10):
        shutil.copy(image_folder / "red" / "000.png", image_folder / "red" / f"copy{i}.png")

    # The default split keeps them on one side; the reference split is not ours to change.
    run_it(image_folder, tiny_weights, tmp_path / "run", data={"split": "reference"})

    assert "identical files in both training and validation" in capsys.readouterr().err


def test_an_absurd_learning_rate_is_a_divergence_error(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    with pytest.raises(DivergedError, match="lower the learning rate"):
        run_it(
            image_folder,
            tiny_weights,
            tmp_path / "run",
            train={"layers": "all"},
            optim={"solver": "sgd", "lr": 1e30, "warmup": 0.0},
        )


def test_the_default_solves_the_head_and_cross_validates_it(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = run_it(image_folder, tiny_weights, tmp_path / "run", optim={"solver": "lbfgs"})

    more = done.figures["cross_validation"]
    assert done.figures["top1"] == 1.0
    assert done.figures["first_loss"] == pytest.approx(math.log(3), abs=1e-6)
    assert not done.figures["selected_on_validation"]
    assert more["images"] == 30
    assert [point["images"] for point in more["curve"]] == [6, 12, 24]
    lines = [json.loads(s) for s in (done.run / "metrics.jsonl").read_text().splitlines()]
    assert lines[0].keys() == {"l2", "cv_loss", "cv_top1"}


def test_equal_runs_write_equal_model_files(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    runs = [run_it(image_folder, tiny_weights, tmp_path / name).run for name in ("a", "b")]

    first, second = ((run / "model.safetensors").read_bytes() for run in runs)
    assert first == second


def test_a_head_behind_kept_pre_logits_is_solved_on_what_it_reads(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = run_it(
        image_folder,
        tiny_weights,
        tmp_path / "run",
        optim={"solver": "lbfgs"},
        weights={"pre_logits": "keep"},
    )

    assert done.figures["top1"] == done.figures["cross_validation"]["top1"] == 1.0


def test_views_are_more_rows_of_the_same_images(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = run_it(
        image_folder,
        tiny_weights,
        tmp_path / "run",
        optim={"solver": "lbfgs"},
        train={"views": 2, "cache": str(tmp_path / "cache")},
    )

    assert done.figures["images"] == 6
    # Plain views and crops, each with the last block and the block before it; facts, fingerprints.
    assert len(list((tmp_path / "cache").iterdir())) == 6


def test_a_second_run_extracts_nothing_and_has_the_same_results(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = {"cache": str(tmp_path / "cache")}
    first = run_it(image_folder, tiny_weights, tmp_path / "one", train=cache)
    capsys.readouterr()
    show_log(logging.DEBUG)
    second = run_it(image_folder, tiny_weights, tmp_path / "two", train=cache)
    show_log()

    log = capsys.readouterr().err
    assert "checking images: 30/30" in log
    assert "extracting features" not in log
    assert first.figures | {"seconds": 0} == second.figures | {"seconds": 0}


def test_the_peak_memory_of_a_run_is_logged_and_written(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="vitft")

    done = run_it(image_folder, tiny_weights, tmp_path / "run")

    peak = json.loads((done.run / "environment.json").read_text())["peak_memory_mib"]["resident"]
    assert 50 < peak < 100_000  # Python with torch alone holds more than 50
    assert f"peak memory: {peak:,} MiB resident" in caplog.text


def test_images_of_a_run_with_a_frozen_backbone_are_new_to_its_weights(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solver = {"solver": "lbfgs"}
    first = run_it(image_folder, tiny_weights, tmp_path / "one", optim=solver)

    second = run_it(image_folder, first.run, tmp_path / "two", optim=solver)

    assert "were trained on" not in capsys.readouterr().err
    assert second.figures["cross_validation"] == first.figures["cross_validation"]


@pytest.mark.parametrize("seed", [0, 1])
def test_images_that_trained_the_weights_are_not_taken_for_new_ones(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    solver, split = {"solver": "lbfgs"}, {"split": "random"}
    train = {"layers": "head,blocks:1"}
    steps = {"solver": "adamw", "epochs": 1}
    first = run_it(
        image_folder, tiny_weights, tmp_path / "one", optim=steps, data=split, train=train
    )
    honest = capsys.readouterr().err

    table: dict[str, Any] = {"optim": solver, "data": {"split": "random", "seed": seed}}
    second = run_it(image_folder, first.run, tmp_path / "two", **table)

    printed = " ".join(capsys.readouterr().err.split())
    assert "cross_validation" in first.figures
    assert "were trained on" not in honest
    assert "cross_validation" not in second.figures
    assert second.figures["calibration"] is not None
    assert not second.figures["calibration"].get("cross_validated")
    if seed:
        assert "images, " in printed
        assert "of them for validation, so the accuracy on them tells nothing about new" in printed
        assert f"; --like {first.run} holds out the images of that run" in printed
    else:
        assert (
            "were trained on 24 of these images, so cross-validation would tell nothing" in printed
        )
