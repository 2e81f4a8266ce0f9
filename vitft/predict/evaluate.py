"""`vitft evaluate`: a trained model and labelled images in, the figures of eval.json out.

Images that trained the model are recognised by their bytes and left out: they would tell how well
it remembers, not how well it will do. Printing and writing are the door's.
"""

import contextlib
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitft.data.images import read_bytes, read_image
from vitft.data.labelled import LabelledImages
from vitft.data.loading import in_order
from vitft.data.split import Manifest
from vitft.metrics.calibration import binned, calibration_error, confidences
from vitft.metrics.classification import evaluation, fixed_probabilities
from vitft.metrics.results import EvaluatedData, EvaluationResults, FileRemark
from vitft.models.checkpoint import Card
from vitft.models.find import find_model
from vitft.predict.torch_engine import BATCH, Predictor
from vitft.predict.validation import read_json
from vitft.system import console
from vitft.system.errors import DataError, ImageError, RunError
from vitft.system.rundir import RunDir
from vitft.system.text import listing

TRAINED = "trained this model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One labelled image and what the model said, or why it was left out."""

    path: str
    label: str
    predicted: str = ""
    probability: float = 0.0
    """Of the predicted class."""
    label_probability: float = 0.0
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What an evaluation came to."""

    figures: EvaluationResults
    """Contents of eval.json."""
    answers: tuple[Answer, ...]
    """One for each image, in the order of the data."""


@dataclass(frozen=True, slots=True)
class Judged:
    """An image on its way: its bytes' digest, and its view or why there is none."""

    sha256: str
    pixels: np.ndarray[Any, np.dtype[np.uint8]] | None
    left_out: str = ""


def evaluate(data: LabelledImages, run: str | None, *, device: str = "auto") -> Evaluated:
    """Judge the model of a run folder or checkpoint file on labelled images.

    Raises:
        RunError: There is no such model, or a file beside it is not the run's.
        DataError: A class is unknown to the model, or no image is left to judge.
    """
    predictor = Predictor.from_run(run, device=device)
    names = predictor.card.classes
    check_classes(data, names)
    home = find_model(run).parent
    roles = roles_of(home, predictor.card)
    index = {name: number for number, name in enumerate(names)}
    judged: list[Judged] = []
    scores: list[Tensor] = []
    with console.Progress("judging", len(data.images)) as progress:
        for group in groups(data, predictor.card, roles):
            judged += [replace(item, pixels=None) for item in group]
            views = [item.pixels for item in group if item.pixels is not None]
            if views:
                scores.append(predictor.logits(np.stack(views)).cpu())
            progress.advance(len(group))
    kept = [not item.left_out for item in judged]
    if not any(kept):
        raise nothing_left(data, judged)
    logits = torch.cat(scores)
    if not bool(torch.isfinite(logits).all()):
        raise RunError(
            "the model's scores are not finite numbers",
            fix="train again; it diverged or is damaged",
        )
    chosen = [label for (_, label), keep in zip(data.images, kept, strict=True) if keep]
    labels = torch.tensor([index[label] for label in chosen])
    ece_before, temperature = before_temperature(home, logits, labels)
    probabilities = fixed_probabilities(
        logits.double().numpy(), labels, ece_before=ece_before, temperature=temperature
    )
    figures: EvaluationResults = {
        **evaluation(logits, labels, names),
        **probabilities,
        "data": about(data, judged, roles),
    }
    return Evaluated(
        figures=figures, answers=tuple(answers_of(data, judged, logits, labels, names))
    )


def check_classes(data: LabelledImages, known: Sequence[str]) -> None:
    """Refuse names that are not the model's; some of the model's may be missing.

    Raises:
        DataError: With both differences.
    """
    unknown = sorted({*data.classes} - {*known})
    if not unknown:
        return
    missing = sorted({*known} - {*data.classes})
    near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.75)
    raise DataError(
        f"the classes of {data.source} are not the model's: unknown to the model: "
        f"{listing(unknown, 10)}; of the model's, not in the data: "
        f"{listing(missing, 10) or 'none'}",
        fix=f"rename {unknown[0]} to {near[0]}, if that is meant"
        if near
        else "name the classes as the model does, and leave others out",
    )


def roles_of(home: Path, card: Card) -> Mapping[str, str] | None:
    """Which image (sha256) trained or validated the model; None without split.csv beside it.

    Raises:
        RunError: The table beside the model belongs to another one.
    """
    path = RunDir(home).split
    if not path.is_file():
        return None
    manifest = Manifest.read(path, home)
    if hashlib.sha256(path.read_bytes()).hexdigest() != card.split:
        raise RunError(
            f"{path} is not the split that the model beside it was trained with",
            fix="restore the file; or copy the model elsewhere, and what trained it is not known",
        )
    roles = {row.sha256: row.split for row in manifest.val}
    return roles | {row.sha256: row.split for row in manifest.train}  # in both: it trained


def groups(
    data: LabelledImages, card: Card, roles: Mapping[str, str] | None
) -> Iterator[list[Judged]]:
    """Every image read once, hashed, and viewed unless it trained the model."""

    def look(path: str) -> Judged:
        digest = ""
        try:
            content = read_bytes(data.locate(path))
            digest = hashlib.sha256(content).hexdigest()
            if roles and roles.get(digest) == "train":
                return Judged(digest, None, TRAINED)
            return Judged(digest, card.transform.pixels(read_image(content, path)))
        except ImageError as error:
            return Judged(digest, None, error.reason)

    results = in_order(look, (path for path, _ in data.images), workers=torch.get_num_threads())
    with contextlib.closing(results):
        while group := list(islice(results, BATCH)):
            yield group


def nothing_left(data: LabelledImages, judged: Sequence[Judged]) -> DataError:
    """The error of data without a single image to judge."""
    trained = sum(item.left_out == TRAINED for item in judged)
    if trained:
        unread = len(judged) - trained
        more = f", {unread} are unreadable" if unread else ""
        return DataError(
            f"{trained} of {len(judged)} images of {data.source} trained this model{more}: "
            "none is left to judge it by",
            fix="give images that it has not seen",
        )
    examples = "; ".join(
        f"{path}: {item.left_out}" for (path, _), item in zip(data.images[:3], judged, strict=False)
    )
    return DataError(
        f"none of {len(judged)} images of {data.source} can be read ({examples})",
        fix="check the paths: those of a table are relative to its folder",
    )


def before_temperature(
    home: Path, logits: Tensor, labels: Tensor
) -> tuple[float | None, float | None]:
    """Calibration error without the temperature that the run folded into the head, and that."""
    kept = read_json(RunDir(home).eval)
    calibration = kept.get("calibration") if isinstance(kept, dict) else None
    temperature = calibration.get("temperature") if isinstance(calibration, dict) else None
    if not isinstance(temperature, float | int) or not temperature > 0:
        return None, None
    raw = logits.double().numpy() * temperature
    return calibration_error(binned(*confidences(raw, labels.numpy())))[0], float(temperature)


def about(
    data: LabelledImages, judged: Sequence[Judged], roles: Mapping[str, str] | None
) -> EvaluatedData:
    """Where the images came from, and which of them are not among those counted."""
    counted = [item.sha256 for item in judged if not item.left_out]
    unreadable: list[FileRemark] = [
        {"path": path, "reason": item.left_out}
        for (path, _), item in zip(data.images, judged, strict=True)
        if item.left_out not in ("", TRAINED)
    ]
    unreadable += [{"path": path, "reason": reason} for path, reason in data.bad]
    return {
        "path": str(data.source),
        "unreadable": unreadable,
        "trained": None if roles is None else sum(item.left_out == TRAINED for item in judged),
        "validated": None
        if roles is None
        else sum(roles.get(digest) == "val" for digest in counted),
        "copies": sum(number - 1 for number in Counter(counted).values()),
    }


def answers_of(
    data: LabelledImages,
    judged: Sequence[Judged],
    logits: Tensor,
    labels: Tensor,
    names: Sequence[str],
) -> Iterator[Answer]:
    """The answers in the order of the data, those left out among them."""
    shares = logits.double().softmax(dim=-1)
    best = shares.max(dim=-1)
    rows = zip(
        best.indices.tolist(),
        best.values.tolist(),
        shares.gather(1, labels[:, None])[:, 0].tolist(),
        strict=True,
    )
    for (path, label), item in zip(data.images, judged, strict=True):
        if item.left_out:
            yield Answer(path=path, label=label, left_out=item.left_out)
            continue
        index, share, label_share = next(rows)
        yield Answer(
            path=path,
            label=label,
            predicted=names[index],
            probability=share,
            label_probability=label_share,
        )
    for path, reason in data.bad:
        yield Answer(path=path, label="", left_out=reason)
