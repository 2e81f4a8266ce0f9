"""Checks of a labelled image folder: unreadable files, duplicates, imbalance and label errors.

Labels are checked only if weights are given, because the check needs features. Without weights,
torch is not imported.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.check.audit import AuditedImage, audit_images, class_imbalance
from vitft.config.run import Config, checked_run_config
from vitft.config.sections import DataSpec, ModelSpec, TrainSpec, WeightsSpec
from vitft.data.draw import joined_groups
from vitft.data.fingerprint import quality_remarks
from vitft.data.fixes import Fix
from vitft.data.folder import Folder
from vitft.data.grey_levels import GreyRange
from vitft.data.grey_range import measure_grey_range
from vitft.data.inspection import InspectedFolder
from vitft.data.label_sets import split_labels
from vitft.data.proposals import propose_fixes
from vitft.data.scan import scan
from vitft.data.split import Manifest
from vitft.data.transforms import EvalTransform, eval_view
from vitft.data.view_facts import measure_view
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.metrics.results import AuditResults, Mislabel
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.errors import DataError, RunError
from vitft.system.rundir import RunDir, run_path

if TYPE_CHECKING:  # torch is imported only if weights are given
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Findings about a folder and the proposed fixes."""

    audit: AuditResults
    fixes: Sequence[Fix]
    labels_checked: bool
    folder: Folder
    """The images that were checked, including unreadable ones."""
    grey_range: GreyRange
    """Range of grey levels of images with more than 8 bits per pixel."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the folder, such as the number of files that are not used."""
        notes = list(self.folder.notes)
        if empty := self.folder.empty.content:
            notes.append(
                f"{self.folder.empty.error(self.folder.root, empty).problem}; finetune refuses them"
            )
        if self.folder.labels:
            notes.append("no fixes are proposed for multi-label data: edit the table instead")
        return notes


def check_folder(
    data: Path,
    *,
    spec: DataSpec,
    weights: WeightsSpec,
    train: TrainSpec,
    split: Mapping[str, str] | None = None,
) -> CheckResult:
    """Check the images of a folder and, if weights are given, their labels.

    Args:
        data: The data folder or table.
        spec: Settings for reading the data, such as the columns of a table.
        weights: Weights of the model that computes the features; if their name is empty, labels are
            not checked.
        train: Settings for the device, precision, cache and seed.
        split: Subset (`train`, `val` or `test`) by image path; None for the folder's own subsets.

    Raises:
        DataError: The data contains no classes with images, or none of its images is in `split`.
        WeightsError, UsageError, RunError: The weights, the device or the cache cannot be used.
    """
    folder, max_pixels = scan_for_run(data, spec, split), spec.max_pixels
    grey_range = measure_grey_range(folder, max_pixels=max_pixels, workers=usable_cores())
    fingerprints = Fingerprints(train.cache, grey_range)
    features, transform = None, EvalTransform()
    if weights.name:
        inspected, features, transform = inspect_with_features(
            folder, fingerprints, weights=weights, train=train, max_pixels=max_pixels
        )
    else:
        inspected = inspect_files(folder, fingerprints, max_pixels=max_pixels)
    good, groups = inspected.good, fingerprints.duplicate_groups()
    mislabels: list[Mislabel] = []
    probabilities: dict[str, dict[str, float]] = {}
    if features is not None and good:
        from vitft.features.label_errors import check_labels

        together, seed = joined_groups(good, groups), train.seed
        mislabels, probabilities = check_labels(
            good, folder.classes, together, features, seed=seed, labels=folder.labels
        )
    audit = audit_images(
        images_to_audit(inspected, split),
        unused=folder.unused,
        notes=folder.notes,
        bad=inspected.bad,
        odd=odd_images(inspected, fingerprints),
        groups=groups,
        mislabels=mislabels,
        view=measure_view(transform, ((file.width, file.height) for file in good)),
    )
    found = CheckResult(
        audit=audit,
        fixes=propose_fixes(audit, probabilities),
        labels_checked=bool(probabilities),
        folder=folder,
        grey_range=grey_range,
    )
    return for_several_labels(found, inspected) if folder.labels else found


def for_several_labels(found: CheckResult, inspected: InspectedFolder) -> CheckResult:
    """Return the findings, with the number of images per label, but without proposed fixes."""
    sets = [split_labels(text) for text in inspected.folder.classes]
    sizes = class_imbalance(name for file in inspected.good for name in sets[file.label])
    audit: AuditResults = {**found.audit, "imbalance": sizes}
    return replace(found, audit=audit, fixes=[])


def scan_for_run(data: Path, spec: DataSpec, split: Mapping[str, str] | None) -> Folder:
    """Return the scanned data, after checking that it contains images in `split`, if given."""
    folder = scan(data, spec, allow_empty=True)
    if split is not None and not any(file.path in split for file in folder.files):
        raise DataError(
            f"none of the images in {data} is in the run's split",
            fix="use the folder or table that the model was trained on",
        )
    return folder


def images_to_audit(
    inspected: InspectedFolder, split: Mapping[str, str] | None
) -> list[AuditedImage]:
    """Return the readable images with their class names and subsets."""
    return [
        AuditedImage(
            path=file.path,
            label=inspected.folder.classes[file.label],
            split=file.part if split is None else split.get(file.path, ""),
            sha256=file.sha256,
        )
        for file in inspected.good
    ]


def inspect_files(
    folder: Folder, fingerprints: Fingerprints, *, max_pixels: int
) -> InspectedFolder:
    """Inspect every image and compute its fingerprint."""
    with console.Progress("checking images", len(folder.files)) as progress:
        return fingerprint_folder(
            folder, fingerprints, max_pixels=max_pixels, progress=progress.advance
        )


def inspect_with_features(
    folder: Folder,
    fingerprints: Fingerprints,
    *,
    weights: WeightsSpec,
    train: TrainSpec,
    max_pixels: int,
) -> tuple[InspectedFolder, Callable[[Sequence[str]], "Tensor"], EvalTransform]:
    """Inspect every image, computing its fingerprint and features in the same pass.

    Returns:
        The inspected folder, a function that maps the digests of readable images to their features
        (n, D), and the transform of the model.
    """
    from vitft.features.pipeline import inspect_dataset, load_pipeline, log_cached_features

    pipeline, _ = load_pipeline(
        folder, "head", weights=weights, model=ModelSpec(), train=train, max_pixels=max_pixels
    )
    transform = replace(pipeline.transform, grey_range=fingerprints.grey_range)
    view = eval_view(transform)
    extractor = pipeline.open_extractor(train, max_pixels=max_pixels)
    assert extractor is not None
    inspected = inspect_dataset(
        folder,
        max_pixels=max_pixels,
        allow_bad=True,
        extractor=extractor,
        view=view,
        fingerprints=fingerprints,
    )
    log_cached_features(inspected, extractor.computed)
    return inspected, functools.partial(extractor.rows, view=view), transform


def odd_images(inspected: InspectedFolder, fingerprints: Fingerprints) -> list[tuple[str, str]]:
    """Return pairs (path, remark), one for each remark on the decoding or content of an image."""
    return [
        (file.path, remark)
        for file in inspected.good
        for remark in (
            *file.odd,
            *quality_remarks(fingerprints.by_digest[file.sha256], file.width, file.height),
        )
    ]


def read_run_settings(run: str) -> tuple[Config, dict[str, str]]:
    """Return a run's settings, and a mapping from image paths to subsets such as `train`.

    Raises:
        RunError: The path is not a run directory, or a file in it is damaged.
    """
    path = run_path(run)
    split = RunDir(path).split
    if not all(map(os.path.lexists, (path / "config.toml", split))):
        raise RunError(
            f"{path} is not a run directory: config.toml or split.csv is missing",
            fix="pass a directory written by `vitft finetune`, e.g. --run runs/latest",
        )
    rows = Manifest.read(split, path).rows
    return checked_run_config(path), {r.path: r.split for r in rows}
