"""The setup of a run: estimates, paths and counts before and after its images are read."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from vitft.config import DataSpec, config_from_table
from vitft.data import File, Folder
from vitft.training import (
    ProcessGroup,
    dry_run,
    expected_training_labels,
    extract_and_split,
    load_data_and_model,
    next_inputs,
)


def folder_of(parts: list[tuple[int, Any]], layout: Any = "classes", **more: Any) -> Folder:
    files = tuple(File(str(i), label, part) for i, (label, part) in enumerate(parts))
    return Folder(root=Path("x"), classes=("a", "b"), files=files, layout=layout, **more)


def test_the_expected_split_is_that_of_the_folder_or_of_the_rate() -> None:
    given = [(0, "train"), (1, "train"), (1, "val"), (1, "test")]
    drawn = [(0, "")] * 10 + [(1, "")] * 5 + [(1, "test")] * 7

    assert expected_training_labels(folder_of(given, "split"), DataSpec()) == [0, 1]
    assert expected_training_labels(folder_of(drawn), DataSpec(val_rate=0.2)) == [0] * 8 + [1] * 4
    assert expected_training_labels(folder_of(drawn), DataSpec(val_rate=0.1)) == [0] * 9 + [1] * 4


def settings_of(data: Path, weights: Path, **table: Any) -> Any:
    known = {"data": {"path": str(data)}, "weights": {"name": str(weights)}}
    return config_from_table(known | table)


def test_the_next_stage_trains_more_layers_on_what_the_frozen_ones_compute(
    image_folder: Path, tiny_weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = {"layers": "head,blocks:1", "precision": "fp32", "cache": "none"}
    config = settings_of(image_folder, tiny_weights, train=train)

    with caplog.at_level("DEBUG", "vitft"):
        setup = load_data_and_model(config, ProcessGroup())
        start = extract_and_split(setup, ProcessGroup())
    model = setup.pipeline.model
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    with caplog.at_level("INFO", "vitft"):
        inputs = next_inputs(model, start.inputs, setup.config, "blocks:1", precision="fp32")
    later = {name for name, p in model.named_parameters() if p.requires_grad}

    assert "Training   a classifier on cpu" in caplog.text
    total = sum(p.numel() for p in model.parameters())
    assert f"Trained    99 of {total:,} parameters" in caplog.text
    assert "next stage: --train blocks:1" in caplog.text
    assert caplog.text.count("caching the tokens of the frozen blocks in ") == 1
    assert trained == {"head.weight", "head.bias"}
    assert start.inputs.cut.pooled
    assert start.inputs.features(start.inputs.data.manifest.rows).shape[0] == 30
    assert start.inspection.computed == 30
    assert start.extraction_s > 0
    assert {name.split(".")[1] for name in later if name.startswith("blocks.")} == {"1"}
    assert not inputs.cut.pooled
    assert inputs.features(inputs.data.manifest.rows).shape == (30, 17, 32)
    assert setup.config.optim.batch_size == 8


def test_a_dry_run_counts_the_images_parameters_and_steps_of_each_stage(
    tmp_path: Path, tiny_weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = tmp_path / "parts"
    for part, each in (("train", 4), ("val", 2), ("test", 1)):
        draw_folder(parts / part, per_class=each)
    train = {"layers": "head,lora", "sampling": "balanced", "lora_rank": 2}
    config = settings_of(parts, tiny_weights, train=train)

    with caplog.at_level("INFO", "vitft"):
        texts: list[str] = []
        before: list[str] = []

        def show(text: str) -> None:
            texts.append(text)
            before.extend(caplog.messages)

        dry_run(config, tmp_path / "run", data="parts", show=show)

    assert not any("trainable" in line or "images" in line for line in before)
    counted = "21 images in 3 classes, not opened yet: about 12 for training and 6 for validation"
    assert f"{counted}, and 3 for the final test" in caplog.messages
    assert any(line.startswith("balanced sampling: each epoch") for line in caplog.messages)
    lines = [line for line in caplog.messages if line.startswith("--train")]
    assert lines[0] == (
        "--train head: 99 trainable parameters, fitted by L-BFGS without a training loop"
    )
    adapters = 2 * 2 * (32 + 96 + 32 + 32 + 2 * (32 + 128))  # two blocks, rank 2
    assert lines[1] == (
        f"--train lora: {99 + adapters:,} trainable parameters, adamw with learning rate 0.001: "
        "10 epochs, 2 steps per epoch, 8 images per step"
    )
    assert caplog.messages[-1].endswith(f"the run would be written to {tmp_path / 'run'}")
    (text,) = texts
    written = tomllib.loads(text)
    assert written["data"]["path"] == "parts"
    assert written["optim"]["batch_size"] == 8
    assert not (tmp_path / "run").exists()
