"""Contents of a run directory as one object, its settings, and the command that repeats the run.

Files that an older or interrupted run lacks are treated as empty. A damaged file raises an error.
"""

import contextlib
import csv
import dataclasses
import io
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from vitft.config.defaults import default_batch_size, default_lr, idle_augmentation, without_effect
from vitft.config.run import config_from_table, merge_settings, read_run_config, setting_words
from vitft.data.arrays import holds_arrays
from vitft.data.image_table import Images, Row, distinct_places
from vitft.data.images import jpeg_uri
from vitft.data.places import short_name
from vitft.data.table import base_folder
from vitft.features.ood import REFERENCE_FILE
from vitft.metrics.intervals import Groups, number_groups
from vitft.metrics.results import (
    AuditResults,
    Estimate,
    EvaluationResults,
    LogLine,
    Results,
    RunResults,
    read_results,
)
from vitft.models.ancestry import images_of_start
from vitft.models.card import Card, parse_card
from vitft.models.pretrained.catalog import weights_name
from vitft.predict import validation
from vitft.system import rundir
from vitft.system.errors import RunError, UsageError
from vitft.system.files import read_regular
from vitft.system.tensors import read_header
from vitft.system.text import shell_join, shell_quote, unescape_formula

_MAX_THUMBNAIL_BYTES = 40_000  # maximum size in bytes of a thumbnail written by vitft
_MAX_EMBEDDED = 2_000_000
"""Total number of characters after which no more thumbnails are added to a page, so that the page
stays below 3 MB.
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Contents of a run directory; fields that come from a missing file are empty."""

    path: Path
    config: Mapping[str, Mapping[str, Any]]
    config_text: str
    classes: tuple[str, ...]
    rows: Sequence[Row]
    split: Images  # content of split.csv; a manifest without rows if the file is missing
    predictions: tuple[validation.ValidationPrediction, ...]
    cross_validated: Mapping[str, str]  # class predicted in cross-validation by SHA-256
    measured: RunResults  # content of eval.json; empty if the file is missing
    log: tuple[LogLine, ...]  # lines of metrics.jsonl
    environment: rundir.RunEnvironment
    audit: AuditResults
    card: Card | None
    digest: str  # SHA-256 of the card and the tensors of the model
    parameters: int
    notes_unlike: bool  # whether the model flags images that are unlike the training images
    is_evaluation: bool = False  # whether the directory was written by `vitft evaluate --out`

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @cached_property
    def results(self) -> Results:
        """Numbers of the run; empty if it has none."""
        return replace(
            Results.of(self.measured or None, self.environment),
            name=self.name,
            data=self.data_name,
            weights=weights_name(str(self.setting("weights", "name") or "")),
        )

    @cached_property
    def seen(self) -> Set[str]:
        """Digests of the images that trained the run, its initial weights or its teacher."""
        weights, teacher = images_of_start(
            self.config, self.split.outputs.classes, later=(str(self.path),)
        )
        return (weights | teacher).digests | {row.sha256 for row in self.split.train}

    @property
    def accuracy(self) -> Estimate | None:
        """Fraction of validation images that are right; for several labels, exactly right."""
        known = [one for one in self.results.estimates if one.kind == "validation"]
        return known[-1] if known else None

    @property
    def several(self) -> bool:
        """Whether the run is multi-label, i.e. an image may have any number of labels."""
        return bool(self.split.labels)

    @property
    def layers(self) -> str:
        """Trained layers, in the notation of `train.layers`; empty if unknown."""
        return str(self.setting("train", "layers") or "")

    @cached_property
    def sizes(self) -> Counter[tuple[str, str]]:
        """Number of images of each class or label in each part, e.g. of `("cat", "train")`."""
        return Counter((name, row.split) for row in self.rows for name in self.split.names(row))

    @property
    def data_name(self) -> str:
        return Path(short_name(str(self.setting("data", "path") or ""))).name

    @property
    def root(self) -> Path:
        """Folder to which the image paths are relative."""
        path, root = (str(self.setting("data", key) or "") for key in ("path", "root"))
        return base_folder(Path(path), root)

    @property
    def root_uri(self) -> str:
        return folder_uri(self.root)

    def setting(self, section: str, name: str) -> Any:  # noqa: ANN401 - any TOML value
        """Return the value of a setting in config.toml, or None if the setting is missing."""
        return self.config.get(section, {}).get(name)

    def thumbnail(self, sha256: str, *, attention: bool = False) -> str:
        """Return the thumbnail of an image as a data URI, or an empty string if there is none."""
        path = self.path / validation.THUMBS / validation.thumb_name(sha256, attention=attention)
        try:
            data = read_regular(path, limit=_MAX_THUMBNAIL_BYTES)
        except (OSError, ValueError):
            return ""
        return jpeg_uri(data) if data.startswith(b"\xff\xd8\xff") else ""


class Thumbnails:
    """Thumbnails saved by one or more runs, as data URIs; empty once the page is full."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.budget = runs, _MAX_EMBEDDED

    def get(self, sha256: str, *, attention: bool = False) -> str:
        """Return the thumbnail of an image from the first run that has one, or ""."""
        if self.budget <= 0:
            return ""
        found = (run.thumbnail(sha256, attention=attention) for run in self.runs)
        uri = next(filter(None, found), "")
        self.budget -= len(uri)
        return uri

    def of_path(self, path: str) -> str:
        """Return the thumbnail of the image that has this path in the split of the first run."""
        row = self.runs[0].split.find(path)
        return self.get(row.sha256) if row else ""


def folder_uri(folder: Path) -> str:
    """Return the URI of a folder of image files, or "" if its path is relative or not a folder.

    Images in array files have no files of their own, so their pages must not link to files.
    """
    with contextlib.suppress(OSError):  # a folder of another user
        if folder.is_absolute() and folder.is_dir() and not holds_arrays(folder):
            return folder.as_uri()
    return ""


def find_run(run: str | None) -> Path:
    """Return the directory of a run (default: the latest), given its path or that of a file in it.

    Raises:
        RunError: The path does not belong to a run, or there is no run yet.
    """
    path = rundir.run_path(run)
    folder = path.parent if path.is_file() else path
    if any((folder / name).is_file() for name in ("eval.json", "environment.json", "split.csv")):
        return folder
    if run is None:
        raise RunError(
            f"there is no finished run in {rundir.BASE}/",
            fix="run `vitft finetune --data DIR --weights NAME`, or choose a run with --run DIR",
        )
    otherwise = "pass a directory written by `vitft finetune`, e.g. runs/latest"
    fix = rundir.suggest_runs(run, name="", otherwise=otherwise)
    raise RunError(f"{run} is not a run directory", fix=fix)


def find_runs(runs: Sequence[str]) -> list[Path]:
    """Return the directories of runs to compare, each once and under its own name.

    Raises:
        UsageError: Fewer than two different runs remain.
    """
    chosen: dict[Path, Path] = {}
    for path in map(find_run, runs):
        target = path.resolve()
        if target not in chosen or chosen[target].name == rundir.LATEST:  # both are in runs/*
            chosen[target] = path
    if len(chosen) < 2:
        only, times = next(iter(chosen.values())), len(runs)
        again = f": {only} is given {times} times" if times > 1 else ""
        raise UsageError(
            f"only one run to compare{again}",
            fix="pass two or more run directories: vitft compare RUN RUN ...",
        )
    return list(chosen.values())


def _with_evaluation(run: Run) -> Run:
    """Return the output of `vitft evaluate --out` as a run with evaluated validation images."""
    path = run.path
    content = rundir.read_run_bytes(path / "predictions.csv") or b""
    lines = csv.DictReader(io.StringIO(content.decode("utf-8", "surrogateescape"), newline=""))
    if "sha256" not in (lines.fieldnames or ()):
        raise RunError(
            f"cannot compare {path}: its predictions.csv has no column sha256, by which images are "
            "matched",
            fix="evaluate again with `vitft evaluate`, and leave this column in the table",
        )
    results = rundir.read_run_json(path / "eval.json", EvaluationResults)
    try:
        assert results is not None
        classes = tuple(results["per_class"])
        # Scored images; several labels may be none of them
        cells = (
            {key: unescape_formula(cell or "") for key, cell in row.items() if key} for row in lines
        )
        table = [(row["sha256"], row) for row in cells if row["probability"]]
        predictions = [
            validation.ValidationPrediction(
                path=row["path"],
                sha256=key,
                label=row["label"],
                predicted=row["class"],
                probability=float(row["probability"]),
                label_probability=float(row["label_probability"] or "nan"),
            )
            for key, row in table
        ]
        several = "labels" in results
        names = tuple(sorted({row["label"] for _, row in table})) if several else classes
        rows = [
            Row(row["path"], names.index(row["label"]), "val", key, group=row.get("group") or "")
            for key, row in table
        ]
        counted = distinct_places(rows).tolist()  # copies count once, as in a run
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        problem = f"{error} is missing or invalid"
        raise rundir.damaged_file(path / "predictions.csv", problem) from error
    return replace(
        run,
        classes=classes,
        rows=[rows[place] for place in counted],
        split=Images(path, names, (), classes if several else ()),
        predictions=tuple(predictions[place] for place in counted),
        measured=cast("RunResults", results),
        is_evaluation=True,
    )


def groups_of(digests: Sequence[str], runs: Sequence[Run]) -> Groups | None:
    """Return the numbers (n,) of the groups of images, or None if the runs have none."""
    names = {row.sha256: row.unit for run in runs for row in run.rows if row.unit}
    return number_groups([names.get(digest, "") for digest in digests], digests)


def read_run(path: Path) -> Run:
    """Read the files of a run; a damaged one raises `RunError`."""
    evaluated = (path / "predictions.csv").is_file() and not (path / "split.csv").exists()
    config_text = (rundir.read_run_bytes(path / "config.toml") or b"").decode("utf-8", "replace")
    held_out = validation.HeldOut.read(path)
    split, classes = held_out.split, held_out.split.outputs.classes
    results = None if evaluated else read_results(rundir.RunDir(path).eval)
    if results is not None and (*results["per_class"],) != tuple(classes):
        problem = "its classes differ from those in class_indices.json"
        raise rundir.damaged_file(rundir.RunDir(path).eval, problem)
    model, card, digest, parameters = rundir.RunDir(path).model, None, "", 0
    if os.path.lexists(model):  # `vitft predict` verifies the digest, not this function
        try:
            header = read_header(model)
            card = parse_card(header.metadata.get("vitft.card", ""))
        except (OSError, ValueError) as error:
            raise rundir.damaged_file(model, str(error)) from error
        digest = header.metadata.get("vitft.sha256", "")
        parameters = sum(math.prod(facts.shape) for facts in header.tensors.values())
    audit = rundir.read_run_json(path / "audit.json", AuditResults)
    run = Run(
        path=path,
        config=read_run_config(path) if config_text else {},
        config_text=config_text,
        classes=classes,
        rows=split.rows,
        split=split,
        predictions=held_out.validation,
        cross_validated={} if split.labels else held_out.cross_validated,
        measured=results or cast("RunResults", {}),
        log=rundir.read_run_lines(path / "metrics.jsonl", LogLine),
        environment=rundir.read_environment(path / "environment.json")
        or cast("rundir.RunEnvironment", {}),
        audit=audit or cast("AuditResults", {}),
        card=card,
        digest=digest,
        parameters=parameters,
        notes_unlike=(path / REFERENCE_FILE).is_file(),
    )
    return _with_evaluation(run) if evaluated else run


# settings of a run: the command that repeats it, those that differ between runs, and digests ------

_DECISIVE = ("train.layers", "train.augment", "optim.solver")  # other defaults depend on them
_DIGESTS = {"data.fixes_digest": "data.fixes", "weights.sha256": "weights.name"}
"""Mapping from digests of files to the settings that name the files."""
_DIMENSIONS = (
    "patch_size", "width", "depth", "heads", "mlp_ratio", "norm", "pool", "convs", "registers"
)  # fmt: skip
_SHAPE_FIELDS = {"weights.image_size": "image_size", "model.channels": "in_channels"}
_SHAPE_FIELDS |= {f"model.{name}": name for name in _DIMENSIONS}
"""Mapping from settings to the fields of an architecture that contain their values."""


def command_of(config: Mapping[str, Any]) -> str:
    """Return the command that repeats a run, or an empty string if its settings are invalid.

    Apart from the data and the weights, the command includes only settings that have an effect and
    differ from their defaults.
    """
    try:
        config_from_table(dict(config))
        settings = effective_settings(config)
        given = {key: settings[key] for key in ("data.path", "weights.name") if settings.get(key)}
        parts = [f"--{key.partition('.')[0]} {shell_quote(str(v))}" for key, v in given.items()]
        for key in _DECISIVE:
            if key in settings and settings[key] != _defaults_with(given).get(key):
                given[key] = settings[key]
                parts.append(shell_join(setting_words(key, settings[key])))
        usual = _defaults_with(given)
        parts += [
            shell_join(setting_words(key, value))
            for key, value in settings.items()
            if key not in given and usual.get(key) != value
        ]
        return "vitft finetune " + " ".join(parts)
    except (UsageError, AttributeError, TypeError):
        return ""


def effective_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that have an effect, by dotted name.

    The settings of the training loop, such as the epochs, have none if L-BFGS fits the head.
    """
    settings = _dotted(config)
    if not {"optim.solver", "train.layers"} <= settings.keys():
        return settings
    stages = str(settings["train.layers"]).split(",")
    unused = without_effect(str(settings["optim.solver"]), len(stages))
    unused |= idle_augmentation(settings.get("train.augment", ""), settings.get("train.views", 0))
    return {key: value for key, value in settings.items() if key not in unused}


def _dotted(config: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{k}": v for name, section in config.items() for k, v in section.items()}


def different_settings(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """Return each setting that differs between runs, in alphabetical order, with its values.

    The value is None in a run where the setting is unset or had no effect. The digests of the fixes
    and of the weights are left out if the runs name different tables of fixes, or other weights.
    """
    tables = [_settings_of(run) for run in runs]
    rows = []
    for key in sorted({key for table in tables for key in table}):
        values = [table.get(key) for table in tables]
        if any(value != values[0] for value in values):
            rows.append((key, values))
    names = {key for key, _ in rows}
    return [row for row in rows if _DIGESTS.get(row[0]) not in names]


def _settings_of(run: Run) -> dict[str, Any]:
    """Return the settings of a run that have an effect, and the digest of its weights, if known."""
    digest = run.card.weights.get("sha256") if run.card else None
    return effective_settings(run.config) | ({"weights.sha256": digest} if digest else {})


def shown_settings(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """Return the settings that differ between runs, for a table.

    It lacks settings without effect in some runs and with the same default in all others. If the
    input size or a dimension of the model is not set in a run, because it comes from the pretrained
    weights or the images, the values come from the trained models.
    """
    rows = []
    tables = [(_settings_of(run), _own_defaults(run)) for run in runs]
    for key, values in different_settings(runs):
        own = [(table[key], usual.get(key)) for table, usual in tables if key in table]
        if len(own) < len(runs) and all(value == usual == own[0][0] for value, usual in own):
            continue
        built = [_value_of_model(run, key) for run in runs]
        if None not in values or None in built:
            rows.append((key, values))
        elif any(value != built[0] for value in built):
            rows.append((key, built))
    return rows


def _value_of_model(run: Run, key: str) -> Any:  # noqa: ANN401 - any TOML value
    """Return the input size or a dimension of a run's model as in config.toml, None for others."""
    if run.card is None or key not in _SHAPE_FIELDS:
        return None
    value = getattr(run.card.architecture, _SHAPE_FIELDS[key], None)
    if key == "model.patch_size" and value and len({*value}) == 1:
        return value[0]
    return list(value) if isinstance(value, tuple) else value


def _own_defaults(run: Run) -> dict[str, Any]:
    """Return the defaults of all settings for the solver and the layers of a run, by dotted name.

    They are empty if this version does not know the solver or the layers. For timm models, they
    lack the learning rate and the batch size, which depend on the layers.
    """
    settings = _dotted(run.config)
    named = [key for key in ("weights.name", *_DECISIVE) if key in settings]
    found: dict[str, Any] = {}
    with contextlib.suppress(UsageError):
        found = _defaults_with({key: settings[key] for key in named})
    shape = run.card and run.card.architecture
    if not found or not shape or shape.timm:
        return found
    layers, images = found["train.layers"], sum(row.split == "train" for row in run.rows)
    batch_size = default_batch_size(layers, images, batch_norm=False)
    return {
        "optim.lr": default_lr(layers, shape.width),
        **found,
        "optim.batch_size": found.get("optim.batch_size") or batch_size,
    }


def _defaults_with(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings and the defaults of all others, without those that are None."""
    config = config_from_table(merge_settings({}, list(given.items())))
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in _dotted(dataclasses.asdict(config)).items()
        if value is not None
    }
