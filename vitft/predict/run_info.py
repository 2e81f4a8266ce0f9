"""Facts about the run that produced a model: name, classes, accuracy and age.

The facts are read from files next to the checkpoint. Predictions do not depend on these files: if
one is missing or damaged, its facts are unknown. Damaged files are logged. Does not import torch.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from vitft.config.run import read_run_config
from vitft.metrics.chance import chance_level
from vitft.metrics.results import Interval, read_results
from vitft.system.errors import RunError
from vitft.system.rundir import MODEL, read_environment
from vitft.system.text import count, days_and_hours, percent

log = logging.getLogger(__name__)

Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Facts about a run."""

    name: str
    """Name of the run directory or checkpoint, or `hf:owner/name`."""
    classes: int
    """Number of classes."""
    top1: float | None
    """Accuracy on the validation images; for a multi-label model, the fraction of images with
    exactly the right labels. None if unknown."""
    images: int
    """Number of validation images; 0 if unknown."""
    trained_at: float
    """End of the run, in seconds since 1970."""
    at_chance: str
    """Phrase such as `always predicts 7` for a model at chance level (`metrics.chance`), otherwise
    an empty string."""
    top1_interval: Interval | None = None
    """95% interval of `top1`; None if unknown."""
    majority: float | None = None
    """Accuracy of always predicting the largest class or label set; None if unknown."""
    weights: str = ""
    """Name of the pretrained weights, or the path of their file; empty if unknown."""
    mean_ap: float | None = None
    """Mean average precision of a multi-label model on the validation images; None for other
    models, or if unknown."""

    @classmethod
    def read(cls, run: str | None, checkpoint: Path, classes: int) -> Self:
        """Read the facts from the files next to a checkpoint.

        Args:
            run: Name of the run as given by the user; None for the latest run.
            checkpoint: Path of the checkpoint.
            classes: Number of classes.
        """
        folder = checkpoint.parent
        results = or_warn(read_results, folder / "eval.json")
        settings = or_warn(config_at, folder / "config.toml")
        return cls(
            name=run_name(run, checkpoint),
            classes=classes,
            top1=results["top1"] if results else None,
            images=results["images"] if results else 0,
            trained_at=end_of_run(folder, checkpoint),
            at_chance=chance_level(results) if results else "",
            top1_interval=results["top1_interval"] if results else None,
            majority=results["majority"] if results else None,
            weights=str((settings or {}).get("weights", {}).get("name", "")),
            mean_ap=results["labels"]["map"] if results and "labels" in results else None,
        )

    def line(self, now: float | None = None) -> str:
        """Return the facts in one line, with the age at time `now` in seconds since 1970."""
        age = max(0.0, (time.time() if now is None else now) - self.trained_at)
        accuracy = "accuracy unknown"
        if self.top1 is not None:
            on = count(self.images, "validation image")
            accuracy = f"accuracy {percent(self.top1)} on {on}"
        classes = count(self.classes, "class", "classes")
        if self.mean_ap is not None:
            classes, on = count(self.classes, "label"), count(self.images, "validation image")
            accuracy = f"mean average precision {percent(self.mean_ap)} on {on}"
        chance = f"; at chance level: the model {self.at_chance}" if self.at_chance else ""
        return f"run {self.name}: {classes}, {accuracy}, {days_and_hours(age)} old{chance}"


def run_name(run: str | None, checkpoint: Path) -> str:
    """Return the name of a run directory, with links such as `runs/latest` resolved.

    For a hub repository, the name is `hf:owner/name`; for any other checkpoint, it is the stem of
    its path.
    """
    if run is not None and run.startswith("hf:"):
        return run
    return checkpoint.resolve().parent.name if checkpoint.name == MODEL else checkpoint.stem


def config_at(path: Path) -> dict[str, dict[str, Any]] | None:
    """Return the settings of a run from the path of its config.toml; None if it does not exist.

    Raises:
        RunError: The file is damaged.
    """
    return read_run_config(path.parent) if path.exists() else None


def or_warn(read: Callable[[Path], Fact | None], path: Path) -> Fact | None:
    """Return the result of `read` for a file, or log a warning and return None if it is damaged."""
    try:
        return read(path)
    except RunError as error:
        log.warning(error.problem)
        return None


def end_of_run(folder: Path, checkpoint: Path) -> float:
    """Return a run's end time in seconds since 1970.

    If environment.json does not contain this time, return the modification time of the checkpoint.
    """
    environment = or_warn(read_environment, folder / "environment.json")
    with contextlib.suppress(ValueError, OverflowError):
        if environment and "ended" in environment:
            return datetime.fromisoformat(environment["ended"]).timestamp()
    return checkpoint.stat().st_mtime
