"""Reads the files of a run into one object; what an older or interrupted run lacks is empty.

A missing file is normal, a damaged one is an error that names it. Nothing is computed here.
"""

import base64
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitft.config.run import read_toml
from vitft.data.split import Row
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

Table = Mapping[str, Any]

LARGEST_HEADER = 64 * 2**20
"""Bytes; a safetensors header beyond this is not ours."""
LARGEST_THUMB = 40_000
"""Bytes; a picture beyond this was not made by `gallery` and is left out."""
JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known of a run from its directory."""

    path: Path
    config: Table
    """The tables of config.toml; empty if it is gone."""
    config_text: str
    classes: tuple[str, ...]
    rows: tuple[Row, ...]
    verdicts: tuple[ValidationPrediction, ...]
    """On the validation images; empty in runs that did not keep their scores."""
    figures: Table
    """eval.json; empty if nothing was measured."""
    log: tuple[Table, ...]
    environment: Table
    audit: Table
    card: Table
    """Of model.safetensors; empty if there is none."""
    digest: str
    """sha256 over the model's card and tensors."""
    parameters: int
    """Numbers in the model; 0 if there is none."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def data_name(self) -> str:
        """The last part of the data folder's path."""
        return Path(str(self.config.get("data", {}).get("path", ""))).name

    @cached_property
    def by_path(self) -> Mapping[str, Row]:
        return {row.path: row for row in self.rows}

    def thumb(self, sha256: str, *, attention: bool = False) -> str:
        """A thumbnail as a data URI; empty if there is none."""
        if not sha256:
            return ""
        try:
            data = (self.path / THUMBS / thumb_name(sha256, attention=attention)).read_bytes()
        except (OSError, ValueError):
            return ""
        if not data.startswith(JPEG) or len(data) > LARGEST_THUMB:
            return ""
        return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def find_run(run: str | None) -> Path:
    """The folder of a run: the folder itself, a file in it, or by default the latest run.

    Raises:
        RunError: There is none.
    """
    path = Path(run).expanduser() if run is not None else BASE / LATEST
    folder = path.parent if path.is_file() else path
    if any((folder / name).is_file() for name in ("eval.json", "environment.json", "split.csv")):
        return folder
    if run is None:
        raise RunError(
            f"no finished run in {BASE}/",
            fix="run `vitft finetune --data DIR --weights NAME` first, or name a run folder",
        )
    raise RunError(f"no run in {run}", fix="give a run folder (it holds eval.json and split.csv)")


def read_run(path: Path) -> Run:
    """Everything a page needs of a run.

    Raises:
        RunError: A file is damaged.
        DataError: split.csv is not as it was written.
    """
    config_text, config = read_config(path / "config.toml")
    classes = read_classes(path)
    rows = read_rows(path, classes)
    held_back = [row for row in rows if row.split == "val"]
    card, digest, parameters = read_card(RunDir(path).model)
    return Run(
        path=path,
        config=config,
        config_text=config_text,
        classes=classes,
        rows=rows,
        verdicts=validation_predictions(path, held_back, classes),
        figures=read_table(path / "eval.json"),
        log=read_log(path / "metrics.jsonl"),
        environment=read_table(path / "environment.json"),
        audit=read_table(path / "audit.json"),
        card=card,
        digest=digest,
        parameters=parameters,
    )


def read_table(path: Path) -> Table:
    """A JSON object; empty if there is no such file."""
    table = read_json(path)
    if table is not None and not isinstance(table, dict):
        raise damaged_file(path, "not a JSON object")
    return table or {}


def read_config(path: Path) -> tuple[str, Table]:
    """config.toml as text and as tables."""
    if not path.is_file():
        return "", {}
    try:
        return path.read_text(encoding="utf-8"), read_toml(path)
    except (UsageError, OSError, ValueError) as error:
        raise damaged_file(path, str(error).partition("\n")[0]) from error


def read_log(path: Path) -> tuple[Table, ...]:
    """The lines of metrics.jsonl; a last line cut off by a crash is left out."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise damaged_file(path, str(error)) from error
    whole = lines[:-1]  # what follows the last line break was never finished
    try:
        tables = [json.loads(line) for line in whole if line.strip()]
    except ValueError as error:
        raise damaged_file(path, str(error)) from error
    if not all(isinstance(table, dict) for table in tables):
        raise damaged_file(path, "a line is not a JSON object")
    return tuple(tables)


def read_card(path: Path) -> tuple[Table, str, int]:
    """Card, digest and count of parameters from a checkpoint's header, without its tensors.

    The digest is shown as recorded: `vitft predict` verifies it whenever it loads the file.
    """
    if not path.is_file():
        return {}, "", 0
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > LARGEST_HEADER:
                raise damaged_file(path, "its header is too long")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        parameters = sum(math.prod(tensor["shape"]) for tensor in header.values())
        card = json.loads(metadata.get("vitft.card", "{}"))
        return card, metadata.get("vitft.sha256", ""), parameters
    except (OSError, ValueError, struct.error, AttributeError, KeyError, TypeError) as error:
        raise damaged_file(path, str(error)) from error
