"""Run directories read into one object, with thumbnails of the validation images.

Files missing from an older or interrupted run are read as empty. A damaged file raises an error.
"""

import base64
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from vitft.config.run import read_toml
from vitft.data.split import Row
from vitft.features.ood import REFERENCE_FILE
from vitft.metrics.results import AuditResults, RunResults
from vitft.predict.validation import (
    THUMBS,
    ValidationPrediction,
    damaged_file,
    read_classes,
    read_json,
    read_rows,
    thumb_name,
    validation_predictions,
)
from vitft.system.errors import RunError, UsageError
from vitft.system.rundir import BASE, LATEST, RunDir

JsonObject = Mapping[str, Any]
NO_FINDINGS: JsonObject = {"unused": [], "bad": [], "odd": [], "duplicates": [], "mislabels": []}

MAX_HEADER_BYTES, MAX_THUMBNAIL_BYTES = 64 * 2**20, 40_000
"""Maximum sizes in bytes of a safetensors header and of a thumbnail written by vitft."""
MAX_EMBEDDED = 2_000_000
"""Maximum number of characters of thumbnails in a page, which keeps it below 3 MB."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Contents of a run directory; empty for files that are missing."""

    path: Path
    config: Mapping[str, JsonObject]
    config_text: str
    classes: tuple[str, ...]
    rows: tuple[Row, ...]
    predictions: tuple[ValidationPrediction, ...]
    results: RunResults
    """Content of eval.json; some keys may be missing in an older run."""
    log: tuple[JsonObject, ...]
    """Lines of metrics.jsonl."""
    environment: JsonObject
    audit: AuditResults
    card: JsonObject
    digest: str
    """SHA-256 of the card and the tensors of the model."""
    parameters: int
    notes_unlike: bool
    """Whether predictions note images unlike the training images."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def data_name(self) -> str:
        return Path(str(self.setting("data", "path") or "")).name

    def setting(self, section: str, name: str) -> Any:  # noqa: ANN401 - any TOML value
        """Return a setting of config.toml, or None if it is missing."""
        return self.config.get(section, {}).get(name)

    @cached_property
    def by_path(self) -> Mapping[str, Row]:
        return {row.path: row for row in self.rows}

    def thumbnail(self, sha256: str, *, attention: bool = False) -> str:
        """Return a thumbnail as a data URI, or an empty string if there is none."""
        try:
            data = (self.path / THUMBS / thumb_name(sha256, attention=attention)).read_bytes()
        except (OSError, ValueError):
            return ""
        if not data.startswith(b"\xff\xd8\xff") or len(data) > MAX_THUMBNAIL_BYTES:
            return ""
        return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


class Thumbnails:
    """Thumbnails saved by the runs, as data URIs, up to the size limit of a page."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.budget = MAX_EMBEDDED

    def get(self, sha256: str, *, attention: bool = False) -> str:
        """Return a thumbnail from the first run that has one; empty beyond the limit."""
        if self.budget <= 0:
            return ""
        found = (run.thumbnail(sha256, attention=attention) for run in self.runs)
        uri = next((uri for uri in found if uri), "")
        self.budget -= len(uri)
        return uri

    def of_path(self, path: str) -> str:
        """Return the thumbnail of an image, given by its path in the first run's split."""
        row = self.runs[0].by_path.get(path)
        return self.get(row.sha256) if row else ""


def find_run(run: str | None) -> Path:
    """Return the folder of a run, given by its path or that of a file in it (default: the latest).

    Raises:
        RunError: The run does not exist.
    """
    path = Path(run).expanduser() if run is not None else BASE / LATEST
    folder = path.parent if path.is_file() else path
    if any((folder / name).is_file() for name in ("eval.json", "environment.json", "split.csv")):
        return folder
    if run is None:
        raise RunError(
            f"there is no finished run in {BASE}/",
            fix="run `vitft finetune --data DIR --weights NAME`, or choose a run with --run DIR",
        )
    fix = "pass a directory written by `vitft finetune`, e.g. runs/latest"
    raise RunError(f"{run} is not a run directory", fix=fix)


def read_run(path: Path) -> Run:
    """Read the files of a run.

    Raises:
        RunError: A file is damaged.
        DataError: The file split.csv is damaged.
    """
    config_text, config = read_config(path / "config.toml")
    classes = read_classes(path)
    rows = read_rows(path, classes)
    validation = [row for row in rows if row.split == "val"]
    card, digest, parameters = read_model_facts(RunDir(path).model)
    audit = read_object(path / "audit.json")
    return Run(
        path=path,
        config=config,
        config_text=config_text,
        classes=classes,
        rows=rows,
        predictions=validation_predictions(path, validation, classes),
        results=cast("RunResults", read_object(path / "eval.json")),
        log=read_log(path / "metrics.jsonl"),
        environment=read_object(path / "environment.json"),
        audit=cast("AuditResults", {**NO_FINDINGS, **audit} if audit else {}),
        card=card,
        digest=digest,
        parameters=parameters,
        notes_unlike=(path / REFERENCE_FILE).is_file(),
    )


def read_object(path: Path) -> JsonObject:
    """Return the JSON object in a file, or an empty one if the file is missing."""
    content = read_json(path)
    if content is not None and not isinstance(content, dict):
        raise damaged_file(path, "not a JSON object")
    return content or {}


def read_config(path: Path) -> tuple[str, Mapping[str, JsonObject]]:
    """Return the text of config.toml and its parsed sections."""
    if not path.is_file():
        return "", {}
    try:
        return path.read_text(encoding="utf-8"), read_toml(path)
    except (UsageError, OSError, ValueError) as error:
        raise damaged_file(path, str(error).partition("\n")[0]) from error


def read_log(path: Path) -> tuple[JsonObject, ...]:
    """Return the lines of metrics.jsonl, except a last line cut off by a crash."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # the rest is incomplete
        objects = [json.loads(line) for line in lines if line.strip()]
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise damaged_file(path, str(error)) from error
    if not all(isinstance(one, dict) for one in objects):
        raise damaged_file(path, "a line is not a JSON object")
    return tuple(objects)


def read_model_facts(path: Path) -> tuple[JsonObject, str, int]:
    """Return the card, digest and parameter count of a checkpoint without reading its tensors.

    The digest is not verified here, but by `vitft predict` whenever it loads the file.
    """
    if not path.is_file():
        return {}, "", 0
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise damaged_file(path, "its header is too long")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        parameters = sum(math.prod(tensor["shape"]) for tensor in header.values())
        card = json.loads(metadata.get("vitft.card", "{}"))
        return card, metadata.get("vitft.sha256", ""), parameters
    except (OSError, ValueError, struct.error, AttributeError, KeyError, TypeError) as error:
        raise damaged_file(path, str(error)) from error
