"""`vitft check`: one look at a folder, and everything that may be wrong with it.

Without weights no feature is computed and torch is never imported: files, copies, leaks and
balance need only the pictures. With weights every label is judged as well.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.check.audit import Item, Shares, audit_of, proposals
from vitft.config.run import Config, config_from_table, read_toml
from vitft.data.fingerprint import quality_remarks
from vitft.data.fixes import Fix
from vitft.data.folder import Folder, scan
from vitft.data.inspection import InspectedFile, InspectedFolder
from vitft.data.split import Manifest
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.metrics.results import AuditResults, Mislabel
from vitft.system import console
from vitft.system.errors import DataError, RunError
from vitft.system.rundir import RunDir

if TYPE_CHECKING:  # without weights torch is never imported
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a check came to."""

    audit: AuditResults
    fixes: Sequence[Fix]
    judged: bool
    """Whether labels were judged, which needs weights."""


def check_folder(root: Path, config: Config, *, split: Mapping[str, str] | None = None) -> Outcome:
    """Look at everything in a folder.

    Args:
        root: The data folder.
        config: Its weights (none: labels are not judged), cache, device and limits are used.
        split: The part of each path in a run; default: as the folder itself has it.

    Raises:
        DataError: The folder does not hold classes of images, or not those of the run.
        WeightsError: The weights cannot be found or read.
    """
    folder = scan(root)
    if split is not None and not any(file.path in split for file in folder.files):
        raise DataError(
            f"no image of {root} is in the split of the run",
            fix="give the folder that the run was trained on",
        )
    fingerprints = Fingerprints(config.train.cache)
    if config.weights.name:
        inspected, features = inspect_with_features(folder, config, fingerprints)
    else:
        with console.Progress("checking images", len(folder.files)) as progress:
            inspected, features = (
                fingerprint_folder(
                    folder,
                    fingerprints,
                    max_pixels=config.data.max_pixels,
                    progress=progress.advance,
                ),
                None,
            )
    good, groups = inspected.good, fingerprints.duplicate_groups()
    items = [
        Item(
            path=file.path,
            label=folder.classes[file.label],
            split=file.part if split is None else split.get(file.path, ""),
            sha256=file.sha256,
        )
        for file in good
    ]
    shares: Mapping[str, Shares] = {}
    judged: list[Mislabel] = []
    if features is not None and good:
        shares, judged = judge(folder, good, groups, features, seed=config.train.seed)
    audit = audit_of(
        items,
        bad=inspected.bad,
        odd=oddities(inspected, fingerprints),
        groups=groups,
        mislabels=judged,
    )
    return Outcome(
        audit=audit, fixes=proposals(audit, shares), judged=bool(config.weights.name and good)
    )


def inspect_with_features(
    folder: Folder, config: Config, fingerprints: Fingerprints
) -> tuple[InspectedFolder, Callable[[Sequence[str]], "Tensor"]]:
    """Inspect every image in one pass that computes fingerprint and feature.

    Returns:
        The outcome, and a function from digests of readable images to their features (n, D).
    """
    from vitft.features.pipeline import inspect_images, load_pipeline
    from vitft.features.views import eval_view

    pipeline, _ = load_pipeline(config, folder, "head")
    extractor = pipeline.open_extractor(config.train, max_pixels=config.data.max_pixels)
    assert extractor is not None
    view = eval_view(pipeline.transform)
    inspected = inspect_images(
        folder,
        max_pixels=config.data.max_pixels,
        allow_bad=True,
        extractor=extractor,
        view=view,
        fingerprints=fingerprints,
    )
    return inspected, functools.partial(extractor.rows, view=view)


def oddities(inspected: InspectedFolder, fingerprints: Fingerprints) -> list[tuple[str, str]]:
    """Return paths and remarks on how an image was decoded and on what it shows."""
    return [
        (file.path, remark)
        for file in inspected.good
        for remark in (
            *file.odd,
            *quality_remarks(fingerprints.by_digest[file.sha256], file.width, file.height),
        )
    ]


def judge(
    folder: Folder,
    good: Sequence[InspectedFile],
    groups: Mapping[str, str],
    features: Callable[[Sequence[str]], "Tensor"],
    *,
    seed: int,
) -> tuple[dict[str, Shares], list[Mislabel]]:
    """How likely each class is for each path, and the labels that are probably wrong.

    A picture under two labels teaches nothing, and is no mislabel either: it is told as a copy.
    """
    import torch

    from vitft.features.label_errors import (
        find_label_errors,
        label_probabilities,
        out_of_fold_logits,
    )

    pictures = {file.sha256: file for file in reversed(good)}  # each once: the first of its files
    once = [file for file in good if pictures[file.sha256] is file]
    x = features([file.sha256 for file in once])
    y = torch.tensor([file.label for file in once])
    labels: dict[str, set[int]] = {}
    for file in good:
        labels.setdefault(file.sha256, set()).add(file.label)
    counted = torch.tensor([float(len(labels[file.sha256]) == 1) for file in once])
    numbers: dict[str, int] = {}
    alike = torch.tensor(
        [numbers.setdefault(groups.get(f.sha256, f.sha256), len(numbers)) for f in once]
    )
    logits = out_of_fold_logits(
        x, y, alike, classes=len(folder.classes), seed=seed, sample_weight=counted
    )
    likely = label_probabilities(logits, x, y, alike)
    rows = {file.sha256: row for row, file in enumerate(once)}
    table = likely.tolist()
    shares: dict[str, Shares] = {
        file.path: dict(zip(folder.classes, table[rows[file.sha256]], strict=True)) for file in good
    }
    paths: dict[str, list[str]] = {}
    for file in good:
        paths.setdefault(file.sha256, []).append(file.path)
    return shares, [
        {
            "path": path,
            "label": folder.classes[once[suspect.row].label],
            "suggested": folder.classes[suspect.suggested],
            "given_probability": suspect.given_probability,
            "suggested_probability": suspect.suggested_probability,
        }
        for suspect in find_label_errors(likely, y)
        if counted[suspect.row]
        for path in paths[once[suspect.row].sha256]
    ]


def config_of(run: str) -> tuple[Config, dict[str, str]]:
    """The settings of a run and the part of each of its images.

    Raises:
        RunError: The folder is no run.
    """
    path = Path(run).expanduser()
    if not (path / "config.toml").is_file() or not RunDir(path).split.is_file():
        raise RunError(
            f"{path} is no run folder: it holds no config.toml and split.csv",
            fix="give the folder that `vitft finetune` wrote, e.g. --run runs/latest",
        )
    manifest = Manifest.read(RunDir(path).split, path)
    return config_from_table(read_toml(path / "config.toml")), {
        r.path: r.split for r in manifest.rows
    }
