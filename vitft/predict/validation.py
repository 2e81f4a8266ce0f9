"""What a finished run answered to each of its validation images, from its files alone.

The page (`report`), the thumbnails (`gallery`) and the comparison of runs read the same verdicts,
so they speak of the same mistakes in the same order. Nothing here imports torch or opens an image.
"""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitft.data.split import Manifest, Row
from vitft.system.errors import RunError
from vitft.system.rundir import RunDir

SCORES = "validation.npz"
THUMBS = "thumbs"
DIGITS = 16
"""Leading hexadecimal digits of an image's sha256 that name its thumbnail."""

Logits = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One validation image and what the model said of it."""

    path: str
    """Relative to the data folder, with slashes."""
    sha256: str
    label: str
    guess: str
    confidence: float
    """Probability of the guess, from 0 to 1."""
    label_probability: float

    @property
    def right(self) -> bool:
        return self.guess == self.label


def thumb_name(sha256: str, *, attention: bool = False) -> str:
    """File name of an image's thumbnail, or of the same with the attention laid over it."""
    return f"{sha256[:DIGITS]}{'-attention' if attention else ''}.jpg"


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """A JSON file of a run; None if there is none.

    Raises:
        RunError: It is not JSON or cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, reason: str) -> RunError:
    """The error of a file of a run that is not what was written."""
    return RunError(
        f"damaged run: {path} ({reason})",
        fix="copy the run again from where it came, or train again",
    )


def read_classes(run: Path) -> tuple[str, ...]:
    """Class names in the order of the model's scores; empty if the run does not say."""
    table = read_json(RunDir(run).class_indices)
    if table is None:
        return ()
    try:
        return tuple(str(table[str(i)]) for i in range(len(table)))
    except (KeyError, TypeError) as error:
        raise damaged(RunDir(run).class_indices, f"no class {error}") from error


def read_rows(run: Path, classes: Sequence[str]) -> tuple[Row, ...]:
    """The rows of split.csv with labels as places in `classes`; empty if there is no such file.

    Raises:
        DataError: The table is not as it was written.
        RunError: It names a class that the model does not know.
    """
    path = RunDir(run).split
    if not path.is_file():
        return ()
    manifest = Manifest.read(path, run)
    unknown = set(manifest.classes) - set(classes)
    if unknown:
        raise damaged(path, f"class {min(unknown)!r} is not in class_indices.json")
    place = {name: number for number, name in enumerate(classes)}
    return tuple(
        Row(row.path, place[manifest.classes[row.label]], row.split, row.sha256)
        for row in manifest.rows
    )


def read_logits(run: Path, images: int, classes: int) -> Logits | None:
    """Scores (n, C) of the validation images in the order of split.csv; None if not kept.

    Raises:
        RunError: They are damaged or belong to another split.
    """
    path = run / SCORES
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            logits = arrays["logits"].astype(np.float32)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise damaged(path, str(error)) from error
    if logits.shape != (images, classes) or not np.isfinite(logits).all():
        raise damaged(
            path, f"scores {logits.shape} for {images} validation images of {classes} classes"
        )
    return logits


def read_verdicts(run: Path) -> tuple[Verdict, ...]:
    """The verdict on each validation image, in the order of split.csv; empty if not kept.

    Raises:
        RunError: A file of the run is damaged.
        DataError: split.csv is not as it was written.
    """
    classes = read_classes(run)
    rows = tuple(row for row in read_rows(run, classes) if row.split == "val")
    return verdicts_in(run, rows, classes)


def verdicts_in(run: Path, rows: Sequence[Row], classes: Sequence[str]) -> tuple[Verdict, ...]:
    """The verdicts on rows that were read already; empty without rows or scores."""
    logits = read_logits(run, len(rows), len(classes)) if rows else None
    return () if logits is None else verdicts_of(rows, logits, classes)


def verdicts_of(rows: Sequence[Row], logits: Logits, classes: Sequence[str]) -> tuple[Verdict, ...]:
    """Rows and their scores (n, C) joined."""
    shares = softmax(logits)
    guesses = shares.argmax(axis=1)
    return tuple(
        Verdict(
            path=row.path,
            sha256=row.sha256,
            label=classes[row.label],
            guess=classes[guess],
            confidence=float(share[guess]),
            label_probability=float(share[row.label]),
        )
        for row, guess, share in zip(rows, guesses.tolist(), shares, strict=True)
    )


def softmax(logits: Logits) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Probabilities (n, C); rows sum to 1."""
    scores = logits.astype(np.float64)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def mistakes(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The wrong answers, the most confident first."""
    wrong = [verdict for verdict in verdicts if not verdict.right]
    return sorted(wrong, key=lambda v: (-v.confidence, v.path))


def unsure(verdicts: Sequence[Verdict], *, per_class: int, most: int) -> list[Verdict]:
    """The right answers nearest to being wrong, a few of each class."""
    taken: dict[str, int] = {}
    found: list[Verdict] = []
    for verdict in sorted((v for v in verdicts if v.right), key=lambda v: (v.confidence, v.path)):
        if taken.setdefault(verdict.label, 0) < per_class:
            taken[verdict.label] += 1
            found.append(verdict)
    return found[:most]
