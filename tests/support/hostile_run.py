"""Edits of a run directory, as a mistake or an attacker would make them."""

import functools
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Edit = Callable[[Path], object]

DEEP = "[" * 100_000 + "]" * 100_000
JSON_FILES = ("eval.json", "audit.json", "environment.json", "class_indices.json")
TEXTS: Mapping[str, str] = {
    "a list": "[]",
    "null": "null",
    "a number": "5",
    "text": '"x"',
    "cut": '{"images": 3, ',
    "deep": DEEP,
    "a deep value": f'{{"images": {DEEP}}}',
    "NaN": '{"images": NaN}',
    "a key twice": '{"images": 3, "images": 4}',
    "digits": '{"images": ' + "9" * 10_000 + "}",
    "an unpaired surrogate": '{"0": "\\ud800"}',
}


def pipe(path: Path) -> None:
    """Replace a file by a pipe without a writer."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path: Path) -> None:
    """Replace a file by a folder."""
    path.unlink(missing_ok=True)
    path.mkdir()


def empty(path: Path) -> None:
    """Empty a file."""
    path.write_bytes(b"")


def sparse(path: Path) -> None:
    """Extend a file to a terabyte that takes no space on disk."""
    os.truncate(path, 2**40)


def text(content: str) -> Edit:
    """Replace the content of a file by text."""
    return lambda path: path.write_text(content)


@functools.cache
def bomb_bytes() -> bytes:
    """Return a .npz file of half a megabyte whose arrays would take more than two gigabytes.

    The file is built only once, because compressing its zeros takes seconds.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("logits", "centre", "means", "within", "limit"):
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                header, {"descr": "<f4", "fortran_order": False, "shape": (2**27,)}
            )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(header.getvalue())
                for _ in range(2 if name == "logits" else 0):
                    file.write(bytes(2**28))
    return buffer.getvalue()


def bomb(path: Path) -> None:
    """Write the file of `bomb_bytes`."""
    path.write_bytes(bomb_bytes())


def objects(path: Path) -> None:
    """Write a .npz file with pickled objects."""
    np.savez(path, logits=np.array([{}], object), centre=np.array([{}], object))


def shapes(path: Path) -> None:
    """Write a .npz file whose arrays have no dimensions."""
    names = ("logits", "centre", "means", "within", "limit")
    arrays: dict[str, Any] = {name: np.float32(1) for name in names}
    np.savez(path, **arrays)


def not_numbers(path: Path) -> None:
    """Replace every number of a .npz file by NaN."""
    with np.load(path) as arrays:
        changed: dict[str, Any] = {
            name: np.full_like(arrays[name], np.nan, np.float32) for name in arrays.files
        }
    np.savez(path, **changed)


def json_value(place: str, value: object) -> Edit:
    """Replace a value in a JSON file, given its place with dots, or remove it if `...`."""

    def edit(path: Path) -> None:
        fields: Any = json.loads(path.read_text())
        *parents, last = [int(p) if p.isdigit() else p for p in place.split(".")]
        inner = fields
        for key in parents:
            inner = inner[key]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
        path.write_text(json.dumps(fields))

    return edit


def first_line(edit: Edit) -> Edit:
    """Return an edit that changes only the first of several lines."""

    def edit_line(path: Path) -> None:
        first, *others = path.read_text().splitlines(keepends=True)
        path.write_text(first)
        edit(path)
        path.write_text(path.read_text() + "\n" + "".join(others))

    return edit_line


def copied(run: Path, target: Path) -> Path:
    """Return a copy of a run directory."""
    return Path(shutil.copytree(run, target))
