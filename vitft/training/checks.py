"""Checks of the data, weights, settings and run directory, made before torch is imported."""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitft.config.run import (
    Config,
    checked_run_config,
    config_from_table,
    merge_settings,
    read_run_config,
    section_from_table,
)
from vitft.config.schema import shown_value
from vitft.data.copies import prepare_data
from vitft.data.demo import DEMO_FOLDER
from vitft.data.fixes import apply_fixes
from vitft.data.image_table import Images
from vitft.data.label_table import SETTING_OF
from vitft.data.places import place_of, short_name
from vitft.data.scan import assign_parts, scan
from vitft.data.split import check_folder_classes
from vitft.data.table import TABLE_SUFFIXES, is_table
from vitft.models.card import open_checkpoint
from vitft.models.find import find_model
from vitft.models.pretrained.catalog import absolute_name, check_weights_name, default_weights
from vitft.system import rundir
from vitft.system.errors import RunError, UsageError
from vitft.system.imports import require_extra
from vitft.system.text import count, labelled, listing, shell_quote

log = logging.getLogger(__name__)

_RESUME_CHANGES = frozenset(
    f"{section}.{name}"
    for section, names in {
        "data": "path root classes allow_private_addresses like",
        "train": "device cache teacher tracker timeout",
    }.items()
    for name in names.split()
)
"""Settings that may change whenever a run is resumed; new data must contain the same images."""


def check_request(config: Config, out: str | None) -> tuple[Config, Images, Path]:
    """Check data, weights, trackers and run directory; return settings, images and run directory.

    If the settings do not name any weights, the returned settings name default weights.

    Raises:
        UsageError: The data is missing, no weights can be chosen, settings cannot be combined, the
            library of a tracker is missing, or the run directory is inside the data folder.
        DataError: The data folder, its classes or the file `data.fixes` cannot be used.
        WeightsError: The weights are unknown, or their file is missing or of an unsupported kind.
        RunError: The run directory is not empty or not writable, or `data.like` is not a run.
    """
    if not config.data.path:
        raise UsageError(
            "no data given",
            fix="choose an image folder or a table of labels with --data PATH, or use --data demo",
        )
    config, data = _prepared(config)
    named = {key: getattr(config.data, key.partition(".")[2]) for key in SETTING_OF.values()}
    useless = [f"{key}={value}" for key, value in named.items() if value]
    if useless and not (is_table(data) or config.data.group):
        raise UsageError(
            f"{useless[0]} has no effect: {config.data.path} is not a table",
            fix=f"remove it, or use a table of labels ({', '.join(TABLE_SUFFIXES)})",
        )
    scanned = scan(data, config.data)
    if config.data.val_from == "test" and {"val", "test"} <= {row.split for row in scanned.rows}:
        raise UsageError(
            f"data.val_from=test cannot be used: {config.data.path} has its own validation set",
            fix="remove --val-from: the test images are then evaluated once, after training",
        )
    folder = assign_parts(scanned, config.data.val_from)
    check_folder_classes(apply_fixes(folder, config.data, warn=True)[0])
    if os.environ.get("RANK", "0") == "0":  # before torch is imported, which takes seconds
        name = short_name(config.data.path) if folder.shown else data.name or data
        log_data(folder, str(name))
    config = _with_weights(config, images=len(folder.rows))
    config = _with_teacher(config, folder)
    draws = {"--group-duplicates": config.data.group_duplicates}
    draws[f"--split {config.data.split}"] = config.data.split in ("time", "random")
    for name in (name for name, is_set in draws.items() if is_set and folder.layout == "split"):
        raise UsageError(
            f"{name} cannot be used: {config.data.path} has its own split",
            fix="remove the option. `vitft check` lists copies on both sides of the split",
        )
    if config.data.like:
        rundir.check_is_run(config.data.like, name="like")
        before = read_run_config(rundir.run_path(config.data.like)).get("data", {}).get("split")
        if config.data.split == "time" != before:
            like = f"--like {shell_quote(config.data.like)}"
            raise UsageError(f"{like} was not split by time", fix=f"remove --split time, or {like}")
    if config.weights.name != "none":
        check_weights_name(
            config.weights.name,
            allow_pickle=config.weights.allow_pickle,
            allow_random=True,
            layers=config.train.layers,
        )
    _check_trackers(config)
    path = Path(out or "").expanduser()
    if out and rundir.is_unfinished(path):
        raise RunError(
            f"folder {path} is not empty: it contains a run that has not finished",
            fix=f"continue it with `{rundir.resume_command(path)}`, or choose a new or empty "
            "folder with --out",
        )
    planned = rundir.plan_run(out, short_name(config.data.path))
    rundir.check_outside(planned, data)
    return config, folder, planned


def _prepared(config: Config) -> tuple[Config, Path]:
    """Return the settings, without secrets in an address, and where the data are on this disk."""
    data, place = prepare_data(config.data.path, config.data), place_of(config.data.path)
    return replace(config, data=replace(config.data, path=place.text)) if place else config, data


def _check_trackers(config: Config) -> None:
    """Raise a UsageError if the library of a tracker is missing, without importing it."""
    for name in config.train.trackers:
        require_extra(name, feature=f"--tracker {name}")


def log_data(folder: Images, name: str) -> None:
    """Log how many images and classes or labels a run starts from."""
    files = count(len(folder.rows), "image")
    log.info(labelled("Data", f"{name}, {files} {folder.outputs.scope}"))


def _with_weights(config: Config, *, images: int) -> Config:
    """Return the settings, with weights chosen by the number of images if none are named."""
    if config.weights.name:
        return config
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            "no weights given", fix="choose weights with --weights NAME (see `vitft weights list`)"
        )
    if config.data.path == str(DEMO_FOLDER):
        name, why = "demo", "demo, trained on drawn images"
    else:
        name, why = default_weights(images, device=config.train.device)
    log.info(labelled("Weights", f"{why} (choose others with --weights)"))
    return replace(config, weights=replace(config.weights, name=name))


def _with_teacher(config: Config, folder: Images) -> Config:
    """Return the settings with the path and digest of the teacher, if any, after checking it."""
    train = config.train
    if not train.teacher:
        return config
    images = apply_fixes(folder, config.data)[0]
    images.outputs.require_one_class(f"train.teacher={train.teacher}")
    try:
        opened = open_checkpoint(find_model(train.teacher))
    except RunError as error:
        raise RunError(error.problem, fix=error.fix.replace("--run", "--teacher")) from error
    opened.check_digest(digest := opened.digest())
    if train.teacher_digest not in ("", digest):
        raise RunError(
            f"the teacher {train.teacher} has changed since the start of the run (sha256 was "
            f"{train.teacher_digest[:12]} and is now {digest[:12]})",
            fix="restore the original file, or start a new run",
        )
    known, wanted = {*opened.card.classes}, {*images.classes}
    differences = {"lacks": wanted - known, "also has": known - wanted}
    if known != wanted or opened.card.several:
        found = [f"{verb} {listing(sorted(names))}" for verb, names in differences.items() if names]
        raise RunError(
            f"the teacher {train.teacher} does not have the classes of the data: it "
            f"{' and '.join(found) or 'has several labels per image'}",
            fix="use a model of the same classes, or change the classes of the data with --classes",
        )
    path = str(opened.path.resolve())
    return replace(config, train=replace(train, teacher=path, teacher_digest=digest))


def check_resume(
    path: Path, named: Iterable[tuple[str, Any]], typed: Mapping[str, str] | None = None
) -> tuple[Config | None, Images | None, Path]:
    """Return the settings and images of a run to resume (None if it has finished), and its path.

    `named` maps the dotted names of the settings given on resuming to their values, and `typed`
    to what the user typed for them, such as `--lr` (default: the dotted name).

    Raises:
        RunError: The run does not exist or is damaged, or a changed setting would alter the
            results.
        UsageError: A setting is invalid, or the library of a tracker is missing.
        DataError: The data folder cannot be used.
    """
    rundir.check_is_run(path, name="resume")
    former, environment = (
        checked_run_config(path),
        rundir.read_environment(path / "environment.json"),
    )
    is_finished = environment is not None and environment["status"] == "finished"
    before, given = read_run_config(path), dict(named)
    after = merge_settings(before, given.items())
    changed = _changed_settings(before, after, given)
    allowed = set(_RESUME_CHANGES)
    if before.get("train", {}).get("shard"):  # sharded runs do not reduce memory use automatically
        allowed |= {"optim.micro_batch", "train.checkpointing"}  # rounding may differ
    was, now = changed.get("optim.epochs", (0, 0))
    grows = isinstance(now, int) and isinstance(was, int) and now > was
    constant = former.optim.schedule == "constant" and not former.optim.warmup
    steps = [stage for stage in former.train.stages if not former.solves(stage)]
    if grows and constant and len(steps) == 1 and not is_finished:
        allowed.add("optim.epochs")
    if refused := {k: v for k, v in changed.items() if k not in allowed}:
        by_option = {(typed or {}).get(key, key): values for key, values in refused.items()}
        shown = {
            name: ["not set" if value in (None, "") else shown_value(value) for value in values]
            for name, values in by_option.items()
        }
        words = [f"{name} was {old} and is now {new}" for name, (old, new) in shown.items()]
        only = (
            " (more epochs need an unfinished run of one stage, with optim.schedule=constant and "
            "optim.warmup=0)"
        )
        raise RunError(
            f"cannot resume {path} with settings that would change the results: {', '.join(words)}",
            fix=f"remove {listing(by_option)}, or start a new run without --resume"
            f"{only * ('optim.epochs' in refused)}",
        )
    if is_finished:
        return None, None, path
    config = config_from_table(after)
    if not config.data.path:  # an empty path would mean the current folder
        raise rundir.damaged_file(path / "config.toml", "data.path is missing")
    _check_trackers(config)
    config, data = _prepared(config)
    folder = assign_parts(scan(data, config.data), config.data.val_from)
    if config.data.like:
        rundir.check_is_run(config.data.like, name="like")
    return _with_teacher(config, folder), folder, path


def _changed_settings(
    before: Mapping[str, Any], after: Mapping[str, Any], names: Iterable[str]
) -> dict[str, tuple[Any, Any]]:
    """Return the values before and after of those named settings whose value changes."""
    changed: dict[str, tuple[Any, Any]] = {}
    for key in names:
        section, _, name = key.partition(".")
        old, new = (
            getattr(section_from_table(section, table.get(section, {})), name)
            for table in (before, after)
        )  # parsed, so that a size of 32 is not another than [32, 32]
        if key == "data.fixes" and new:
            new = str(Path(new).resolve())  # as the run writes it
        if key == "weights.name":
            old, new = absolute_name(old), absolute_name(new)
        if old != new:
            changed[key] = (old, new)
    return changed
