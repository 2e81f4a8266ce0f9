"""Runs of one arm of a comparison over split seeds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import cpu_seconds
from vitft.config.run import config_from_table
from vitft.training.run import run_finetuning

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Arm:
    """One run of an arm.

    Attributes:
        out: Run directory.
        figures: Content of eval.json.
        top1: Accuracy after the last epoch, so that nothing is selected on validation images.
        seconds: CPU seconds of all threads.
    """

    out: Path
    figures: Any
    top1: float
    seconds: float


def run_arm(
    name: str,
    settings: Settings,
    data: Path,
    weights: Path,
    seed: int,
    into: Path,
    *,
    image_size: int | None = None,
) -> Arm:
    """Fine-tune with the given settings and split seed, with a feature cache shared by all arms.

    The split is random, with which all published tables were made.
    """
    table = {
        **settings,
        "data": {"path": str(data), "split": "random", "seed": seed},
        "weights": {"name": str(weights)} | ({"image_size": image_size} if image_size else {}),
        "train": {"cache": str(into / "cache"), **settings.get("train", {})},
    }
    out = into / f"{data.name}-{name}-{seed}".replace(" ", "_").replace(":", "")
    before = cpu_seconds()
    result = run_finetuning(config_from_table(table), out=out)
    if result.interrupted:
        raise SystemExit(result.exit_code)
    top1 = result.figures["top1"]
    if (out / "metrics.jsonl").exists() and "epochs" in settings.get("optim", {}):
        top1 = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["val_top1"]
    return Arm(out, result.figures, top1, cpu_seconds() - before)
