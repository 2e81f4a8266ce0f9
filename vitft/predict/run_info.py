"""Facts about the run that makes the predictions: name, classes, accuracy and age.

They are read from files beside the checkpoint. A missing or damaged file leaves a fact unknown,
because predictions do not depend on it. This module does not import torch.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self, cast

from vitft.metrics.chance import chance_level
from vitft.metrics.results import RunResults
from vitft.system.rundir import MODEL
from vitft.system.text import count, days_and_hours, percent

MAX_JSON_BYTES = 64 * 2**20
"""Size above which a file is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Facts about a run."""

    name: str
    """Name of the run directory or checkpoint, or `hf:owner/name`."""
    classes: int
    """Number of classes."""
    top1: float | None
    """Accuracy on the validation images; None if unknown."""
    images: int
    """Number of validation images; 0 if unknown."""
    trained_at: float
    """End of the run, in seconds since 1970."""
    at_chance: str
    """Clause on a model at chance level (`metrics.chance`), or an empty string."""

    @classmethod
    def read(cls, run: str | None, checkpoint: Path, classes: int) -> Self:
        """Read the facts beside a checkpoint; `run` is what the user called it."""
        folder = checkpoint.parent
        results = cast("RunResults", read_fields(folder / "eval.json"))
        try:
            top1, images = float(results["top1"]), int(results["images"])
            at_chance = chance_level(results)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            top1, images, at_chance = None, 0, ""
        return cls(
            name=run_name(run, checkpoint),
            classes=classes,
            top1=top1,
            images=images,
            trained_at=end_of_run(folder, checkpoint),
            at_chance=at_chance,
        )

    def line(self, now: float | None = None) -> str:
        """Return the facts on one line; `now` is the time in seconds since 1970."""
        age = max(0.0, (time.time() if now is None else now) - self.trained_at)
        accuracy = "accuracy unknown"
        if self.top1 is not None:
            on = count(self.images, "validation image")
            accuracy = f"accuracy {percent(self.top1)} on {on}"
        classes = count(self.classes, "class", "classes")
        chance = f"; at chance level: it {self.at_chance}" if self.at_chance else ""
        return f"run {self.name}: {classes}, {accuracy}, {days_and_hours(age)} old{chance}"


def run_name(run: str | None, checkpoint: Path) -> str:
    """Return the name of a run, without the link `runs/latest`, or that of another checkpoint."""
    if run is not None and run.startswith("hf:"):
        return run
    return checkpoint.resolve().parent.name if checkpoint.name == MODEL else checkpoint.stem


def read_fields(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file, or an empty one if it cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
            return {}
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def end_of_run(folder: Path, checkpoint: Path) -> float:
    """Return when a run ended; for older runs and other checkpoints, the file's time."""
    try:
        ended = read_fields(folder / "environment.json")["ended"]
        return datetime.fromisoformat(ended).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return checkpoint.stat().st_mtime
