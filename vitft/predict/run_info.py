"""Facts about the run that produced a model: name, classes, accuracy and age.

The facts are read from files next to the checkpoint or, for an export, from the model file itself.
Predictions do not depend on them: if a file is missing or damaged, its facts are unknown. Damaged
files are logged. Does not import torch.
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
from vitft.metrics.estimate import (
    better_estimate,
    cross_validated_text,
    test_text,
    tested_number,
)
from vitft.metrics.results import RunResults, read_results
from vitft.metrics.values import Interval
from vitft.models.find import model_files
from vitft.models.pretrained.locate import canonical_name
from vitft.models.run_facts import RunFacts
from vitft.system.errors import RunError
from vitft.system.rundir import MODEL, RunEnvironment, read_environment, run_path
from vitft.system.text import count, days_and_hours, interval, listing, percent, scored_images

log = logging.getLogger(__name__)

Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Facts about a run."""

    name: str
    """Name of the run that produced the model; of an export, that of the exported run. If it is
    unknown, the name of the folder, checkpoint or repository (`hf:owner/name`)."""
    classes: int
    """Number of classes."""
    top1: float | None = None
    """Accuracy on the validation images; for a multi-label model, the fraction of images with
    exactly the right labels. None if unknown."""
    images: int = 0
    """Number of validation images; 0 if unknown."""
    trained_at: float
    """End of the run, in seconds since 1970; that of the file if `is_file_age` is set."""
    at_chance: str = ""
    """Phrase such as `always predicts 7` for a model at chance level (`metrics.chance`), otherwise
    an empty string."""
    top1_interval: Interval | None = None
    """95% interval of `top1`; None if unknown."""
    majority: float | None = None
    """Accuracy of always predicting the largest class or label set; None if unknown."""
    cross_validated_top1: float | None = None
    """Accuracy by cross-validation, where this tells more about the model than `top1`."""
    cross_validated_interval: Interval | None = None
    """95% interval of `cross_validated_top1`."""
    cross_validated_images: int = 0
    """Number of cross-validated images."""
    groups: int = 0
    """Number of groups of the validation images; 0 if they have none."""
    cross_validated_groups: int = 0
    """Number of groups of the cross-validated images."""
    tested_groups: int = 0
    """Number of groups of the test images."""
    tested_top1: float | None = None
    """Accuracy (multi-label: mean average precision) on the test images; None without any."""
    tested_interval: Interval | None = None
    """95% interval of `tested_top1`; None if unknown."""
    tested_images: int = 0
    """Number of test images."""
    weights: str = ""
    """Name of the pretrained weights, or the path of their file; empty if unknown."""
    mean_ap: float | None = None
    """Mean average precision of a multi-label model on the validation images; None for other
    models, or if unknown."""
    mean_ap_interval: Interval | None = None
    """95% interval of `mean_ap`; None if unknown."""
    is_export: bool = False
    """Whether the model is an export that names its run."""
    is_file_age: bool = False
    """Whether the end of the run is unknown and `trained_at` is the time of the file instead."""
    status: str = ""
    """Status of a run that has not finished, e.g. `interrupted`; otherwise empty."""
    chosen_file: str = ""
    """Text such as `model.safetensors, not model.onnx` if the folder of the model contains several
    models and the user did not name the file; otherwise empty."""
    rounded: bool = False
    """Whether the weights were rounded to 8 bits after the accuracy had been measured."""

    @classmethod
    def read(
        cls, run: str | None, checkpoint: Path, classes: int, carried: RunFacts | None = None
    ) -> Self:
        """Read the facts from the files next to a checkpoint, and from the checkpoint itself.

        Args:
            run: Name of the run as given by the user; None for the latest run.
            checkpoint: Path of the checkpoint.
            classes: Number of classes.
            carried: Facts in the model file itself, used where files do not state them.
        """
        folder = checkpoint.parent
        has_settings = (folder / "config.toml").exists()
        settings = or_warn(read_run_config, folder) if has_settings else None
        environment = environment_of(folder)
        results = or_warn(read_results, folder / "eval.json")
        facts: dict[str, Any] = {**(carried or {}), **facts_of_run(environment, results)}
        status = environment["status"] if environment else "finished"
        ended = seconds_since_1970(facts.pop("ended", ""))
        origin, weights = facts.pop("name", ""), facts.pop("weights", "")
        for name in {"cross_validated", "tested"} & facts.keys():
            facts[f"{name}_top1"] = facts.pop(name)
        others = [name for name in model_files(checkpoint.parent) if name != checkpoint.name]
        chosen = f"{checkpoint.name}, not {listing(others)}" if others else ""
        return cls(
            name=origin or run_name(run, checkpoint),
            classes=classes,
            trained_at=checkpoint.stat().st_mtime if ended is None else ended,
            weights=str((settings or {}).get("weights", {}).get("name", weights)),
            is_export=bool(origin),
            is_file_age=ended is None,
            status="" if status == "finished" else status,
            chosen_file="" if run is not None and run_path(run).is_file() else chosen,
            **facts,
        )

    @property
    def cross_validated(self) -> str:
        """Text such as `cross-validated on 202 images: 85.6% (80.2 to 89.8%)`, or ""."""
        found = {
            "top1": self.cross_validated_top1,
            "top1_interval": self.cross_validated_interval,
            "images": self.cross_validated_images,
        }
        if not all(found.values()):
            return ""
        return cross_validated_text({**found, "groups": self.cross_validated_groups})

    @property
    def tested(self) -> str:
        """Text such as `test: 88.0% (83.3 to 91.5%) on 240 images, evaluated once`, or ""."""
        if self.tested_top1 is None or not self.tested_images:
            return ""
        images = scored_images({"images": self.tested_images, "groups": self.tested_groups})
        several = self.mean_ap is not None
        return test_text(self.tested_top1, self.tested_interval, images, several=several)

    def line(self, now: float | None = None) -> str:
        """Return the facts in one line, with the age at time `now` in seconds since 1970."""
        age = max(0.0, (time.time() if now is None else now) - self.trained_at)
        accuracy, classes = "accuracy unknown", count(self.classes, "class", "classes")
        scored = {"images": self.images, "groups": self.groups}
        on = f"on {scored_images(scored, 'validation image')}"
        on += " before rounding to 8 bits" if self.rounded else ""
        if self.top1 is not None:
            bounds = interval(self.top1_interval)
            accuracy = f"accuracy {percent(self.top1)}{bounds and f' ({bounds})'} {on}"
            accuracy += f"; {self.cross_validated}" * bool(self.cross_validated)
        if self.mean_ap is not None:
            classes = count(self.classes, "label")
            bounds = interval(self.mean_ap_interval)
            accuracy = (
                f"mean average precision {percent(self.mean_ap)}{bounds and f' ({bounds})'} {on}"
            )
        accuracy = f"{self.tested}; {accuracy}" if self.tested else accuracy
        remarks = [*filter(None, ["exported" * self.is_export, self.chosen_file])]
        name = f"{self.name} ({'; '.join(remarks)})" if remarks else self.name
        old = f"{'file ' if self.is_file_age else ''}{days_and_hours(age)} old"
        chance = f"; at chance level: the model {self.at_chance}" if self.at_chance else ""
        unfinished = f"; the run has not finished (status: {self.status})" if self.status else ""
        return f"run {name}: {classes}, {accuracy}, {old}{unfinished}{chance}"


def environment_of(folder: Path) -> RunEnvironment | None:
    """Return the content of environment.json; log a warning and return None if it is damaged."""
    return or_warn(read_environment, folder / "environment.json")


def facts_of_run(environment: RunEnvironment | None, results: RunResults | None) -> RunFacts:
    """Return the facts that the files environment.json and eval.json of a run state.

    The result is empty for a folder without these files, such as an export.
    """
    facts = RunFacts()
    if environment and seconds_since_1970(environment.get("ended", "")) is not None:
        facts["ended"] = environment["ended"]
    if results is None:
        return facts
    for key in ("images", "top1", "top1_interval", "majority"):
        facts[key] = results[key]
    scored: dict[str, Any] = {"": results, "cross_validated_": better_estimate(results)}
    scored["tested_"] = results.get("test")
    groups: Any = {f"{k}groups": v["groups"] for k, v in scored.items() if v and "groups" in v}
    facts.update(groups)
    facts["at_chance"] = chance_level(results)
    if more := better_estimate(results):
        facts["cross_validated"] = more["top1"]
        facts["cross_validated_interval"] = more["top1_interval"]
        facts["cross_validated_images"] = more["images"]
    if test := results.get("test"):
        facts["tested"], bounds = tested_number(test)
        facts["tested_images"] = test["images"]
        if bounds:
            facts["tested_interval"] = bounds
    if found := results.get("labels"):
        facts["mean_ap"] = found["map"]
        if found["map_interval"]:
            facts["mean_ap_interval"] = found["map_interval"]
    return facts


def run_name(run: str | None, checkpoint: Path) -> str:
    """Return the name of a run directory, with links such as `runs/latest` resolved.

    For a hub repository, the name is `hf:owner/name`; for any other checkpoint, it is the stem of
    its path.
    """
    if run is not None and (name := canonical_name(run)).startswith("hf:"):
        return name
    return checkpoint.resolve().parent.name if checkpoint.name == MODEL else checkpoint.stem


def or_warn(read: Callable[[Path], Fact | None], path: Path) -> Fact | None:
    """Return the result of `read` for a file, or log a warning and return None if it is damaged."""
    try:
        return read(path)
    except RunError as error:
        log.warning(error.problem)
        return None


def seconds_since_1970(time: str) -> float | None:
    """Return a time in ISO 8601 in seconds since 1970, or None if it is not such a time.

    Years up to 1970 and from 9999 on are rejected: not every time zone can represent them.
    """
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(time)
        if 1970 < moment.year < 9999:
            return moment.timestamp()
    return None
