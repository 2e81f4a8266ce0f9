"""What can be refused before torch is imported: names, folders, the place of the run."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitft.config.run import Config, config_from_table, merge_settings, read_toml
from vitft.data.arrays import data_path
from vitft.data.fixes import apply_fixes
from vitft.data.folder import scan
from vitft.models.pretrained.locate import check_weights_name
from vitft.system.errors import RunError, UsageError
from vitft.system.rundir import RunDir, plan_run
from vitft.training.trackers import check_trackers


def check_request(config: Config, out: str | None) -> Path:
    """Where the run will be written, if data, weights and that place look usable.

    Raises:
        UsageError: Data or weights are not named, or the run would stand inside the data.
        DataError: The folder does not hold classes of images.
        WeightsError: No such weights.
        RunError: The run's folder is not empty or not writable.
    """
    if not config.data.path:
        raise UsageError("no data given", fix="name an image folder: --data DIR (or --data demo)")
    if not config.weights.name:
        raise UsageError(
            "no weights given",
            fix="name pretrained weights: --weights NAME (see `vitft weights list`; or demo)",
        )
    place = data_path(config.data.path, config.data.root)
    folder = scan(place, reference=config.data.split == "reference")
    apply_fixes(folder, config.data)
    if config.data.group_duplicates and folder.layout == "split":
        raise UsageError(
            f"--group-duplicates has no effect: {config.data.path} brings its own split",
            fix="leave it out, and see with `vitft check` what lies on both sides",
        )
    if config.weights.name != "none":
        check_weights_name(
            config.weights.name.removeprefix("random:"), allow_pickle=config.weights.allow_pickle
        )
    check_trackers(config.train.trackers)
    planned = plan_run(out, config.data.path)
    if place.resolve() in planned.resolve().parents:
        raise UsageError(
            f"the run folder {planned} lies inside the data", fix="choose another --out"
        )
    return planned


MAY_CHANGE = frozenset(
    {"data.path", "train.device", "train.cache", "train.tracker", "train.timeout"}
)
"""What may be named when a run is resumed; data that moved must still be the same images."""


MAY_SHRINK = frozenset({"optim.micro_batch", "train.checkpointing"})
"""Of a run whose weights are split: nothing else helps when memory ran out. Rounding may differ."""


def check_resume(path: Path, named: Iterable[tuple[str, Any]]) -> tuple[Config | None, Path]:
    """The settings of a run that is taken up again, or None if it is finished, and its folder.

    Args:
        path: The run folder.
        named: Settings named now, by dotted keys.

    Raises:
        RunError: No run is there, or a setting would change what comes out of it.
    """
    run = RunDir(path)
    settings = path / "config.toml"
    if not settings.is_file() or not run.split.is_file():
        raise RunError(
            f"{path} is no run that could be resumed",
            fix="give the folder of a run that was stopped (it holds config.toml and split.csv)",
        )
    before = read_toml(settings)
    after = merge_settings(before, named)
    changed = {
        f"{section}.{key}": (before.get(section, {}).get(key), value)
        for section, values in after.items()
        for key, value in values.items()
        if before.get(section, {}).get(key) != value
    }
    free = MAY_CHANGE | (MAY_SHRINK if before.get("train", {}).get("shard") else set())
    grown = may_grow(before, changed)
    refused = sorted(changed.keys() - free - grown)
    if refused:
        words = ", ".join(f"{key} was {changed[key][0]}, now {changed[key][1]}" for key in refused)
        raise RunError(
            f"resuming would change the result: {words}",
            fix=f"leave them out, or start a new run; these may change: {', '.join(sorted(free))}",
        )
    try:
        status = json.loads((path / "environment.json").read_text()).get("status")
    except (OSError, ValueError, AttributeError):
        status = None
    config = config_from_table(after)
    check_trackers(config.train.trackers)
    place = data_path(config.data.path, config.data.root)
    scan(place, reference=config.data.split == "reference")
    return (None if status == "finished" and not grown else config), path


def may_grow(before: dict[str, Any], changed: dict[str, tuple[Any, Any]]) -> set[str]:
    """More epochs are no other result where the learning rate does not depend on their number."""
    optim = before.get("optim", {})
    constant = optim.get("schedule") == "constant" and not optim.get("warmup")
    was, now = changed.get("optim.epochs", (0, 0))
    grows = constant and isinstance(now, int) and isinstance(was, int) and now > was
    return {"optim.epochs"} if grows else set()
