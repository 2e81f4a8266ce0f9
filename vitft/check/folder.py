"""Checks of a labelled image folder: unreadable files, duplicates, imbalance and label errors.

Labels are checked only if weights are given, because the check needs features. Without weights,
torch is not imported.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitft.config.run import Config, checked_run_config
from vitft.config.sections import DataSpec
from vitft.data.duplicates import quality_remarks
from vitft.data.fixes import Fix, apply_fixes, merge_fixes, propose_fixes, read_fixes
from vitft.data.image_table import Images, Row, files_of
from vitft.data.images import (
    GreyRange,
    describe_counts,
    jpeg_uri,
    measure_grey_range,
    open_image,
    thumbnail_jpeg,
)
from vitft.data.parts import Part
from vitft.data.scan import empty_classes_error, scan
from vitft.data.split import check_folder_classes, joined_groups
from vitft.data.transforms import EvalTransform, measure_view
from vitft.data.walk import unused_files, unused_notes
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.metrics.results import (
    AuditResults,
    CopyGroup,
    CopyMember,
    FileRemark,
    Mislabel,
    ViewFacts,
)
from vitft.report.decisions import (
    DOWNLOADED,
    MAX_FINDINGS,
    MAX_MEMBERS,
    OTHER_PATH,
    make_decisions,
    shown_groups,
)
from vitft.report.html import render
from vitft.report.run_files import folder_uri
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.errors import DataError, ImageError
from vitft.system.files import write_atomically, writing
from vitft.system.imports import heavy_imports
from vitft.system.rundir import RunDir, check_is_run, run_path
from vitft.system.text import count, listing

if TYPE_CHECKING:  # torch is imported only if weights are given
    from torch import Tensor

_Features = Callable[[Sequence[str]], "Tensor"]
"""Function from the digests of readable images to their features (n, D)."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Findings about a folder and the proposed fixes."""

    audit: AuditResults
    proposed: Sequence[Fix]
    fixes: Sequence[Fix]  # rows of the new table: the earlier fixes and the proposals, if any
    former: Sequence[Fix]  # applied before the check; the findings are those that remain
    labels_checked: bool
    folder: Images  # the images that were checked, including unreadable ones
    grey_range: GreyRange

    @property
    def counts(self) -> str:
        """Number of readable images, and how it follows from the number of files."""
        exact = (len(g["members"]) - 1 for g in self.audit["duplicates"] if g["kind"] == "exact")
        good = self.audit["images"]
        return describe_counts(len(self.audit["bad"]), good, different=good - sum(exact))

    @property
    def groups_help(self) -> bool:
        """Whether `--group-duplicates` has an effect: near-duplicates, and a split to be drawn."""
        near = any(group["kind"] == "near" for group in self.audit["duplicates"])
        return near and not any(file.split == "val" for file in self.folder.rows)

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the folder, such as the number of files that are not used."""
        notes = [*self.folder.warnings, *self.folder.notes]
        if empty := self.folder.empty:
            refused = empty_classes_error(self.folder, empty)
            notes.append(f"{refused.problem}, which finetune rejects: {refused.fix}")
        with contextlib.suppress(DataError):
            notes += filter(None, [check_folder_classes(self.folder)])
        if self.folder.labels:
            notes.append("no fixes are proposed for multi-label data: edit the table instead")
        return notes


def check_folder(
    data: Path,
    config: Config,
    *,
    split: Mapping[str, Part] | None = None,
    needs_fixes: bool = True,
) -> CheckResult:
    """Check the images of a folder and, if the weights of `config` have a name, their labels.

    The fixes in its data settings are applied first: images that they drop are not checked, and
    those that they move are checked with their new labels. If `needs_fixes`, it is an error instead
    of a warning that they cannot be applied. `split` maps image paths to subsets (`train`, `val` or
    `test`); None means the folder's own subsets.
    """
    spec, train = config.data, config.train
    folder, max_pixels = scan(data, spec, allow_empty=True), spec.max_pixels
    if split is not None and not any(file.path in split for file in folder.rows):
        raise DataError(
            f"none of the images in {data} is in the run's split",
            fix="use the folder or table that the model was trained on",
        )
    folder, former = _apply_former_fixes(folder, spec, needed=needs_fixes)
    grey_range = measure_grey_range(folder, max_pixels=max_pixels, workers=usable_cores())
    fingerprints = Fingerprints(train.cache, grey_range)
    features, transform = None, EvalTransform()
    if config.weights.name:
        inspected, features, transform = _inspect_with_features(folder, fingerprints, config)
    else:
        with console.Progress("checking images", len(folder.rows)) as progress:
            inspected = fingerprint_folder(
                folder, fingerprints, max_pixels=max_pixels, progress=progress.advance
            )
    good, groups = inspected.rows, fingerprints.duplicate_groups()
    mislabels, probabilities = list[Mislabel](), dict[str, dict[str, float]]()
    if features is not None:
        mislabels, probabilities = _score_labels(inspected, groups, features, train.seed)

    def remarks_on(file: Row) -> tuple[str, ...]:
        found = fingerprints.by_digest[file.sha256]
        return (*file.odd, *quality_remarks(found, file.width, file.height))

    if split is not None:
        parts = [split.get(path, "") for path in inspected.column("path")]
        inspected = inspected.with_column("split", parts)
    audit = audit_images(
        inspected,
        remarks=remarks_on,
        groups=groups,
        mislabels=mislabels,
        probabilities=probabilities,
        view=measure_view(transform, ((file.width, file.height) for file in good)),
    )
    fixes, proposed = merge_fixes(former, [] if folder.labels else propose_fixes(audit))
    return CheckResult(
        audit=audit,
        proposed=proposed,
        fixes=fixes if proposed else (),
        former=former,
        labels_checked=features is not None and bool(good),
        folder=folder,
        grey_range=grey_range,
    )


def _score_labels(
    inspected: Images, groups: Mapping[str, str], features: "_Features", seed: int
) -> tuple[list[Mislabel], dict[str, dict[str, float]]]:
    """Return the probable label errors, and the class probabilities by path."""
    from vitft.features.label_errors import check_labels

    good, classes = inspected.rows, inspected.classes
    together = joined_groups(inspected, groups)
    distinct = Counter(label for label, _ in {(file.label, file.sha256) for file in good})
    used = sorted(label for label, images in distinct.items() if images > 1)
    if not inspected.labels and len(used) < len(classes):  # a class of one image is never right
        number = {label: i for i, label in enumerate(used)}
        some = (file for file in good if file.label in number)
        good = [file._replace(label=number[file.label]) for file in some]
        classes = tuple(classes[label] for label in used)
    if not good:
        return [], {}
    return check_labels(good, classes, together, features, seed=seed, labels=inspected.labels)


def _apply_former_fixes(
    folder: Images, spec: DataSpec, *, needed: bool
) -> tuple[Images, Sequence[Fix]]:
    """Return the folder with the fixes of `spec` applied, and these fixes (see `check_folder`)."""
    if not spec.fixes:
        return folder, ()
    folder.outputs.require_one_class("--fixes")
    try:
        fixed, applied = apply_fixes(folder, spec, warn=True)
        return fixed, read_fixes(Path(applied.fixes), applied.fixes_digest)
    except DataError as error:
        if needed:
            raise
        log.warning(f"the fixes of the run are not applied: {error.problem}")
        return folder, ()


def _inspect_with_features(
    folder: Images, fingerprints: Fingerprints, config: Config
) -> tuple[Images, _Features, EvalTransform]:
    """Inspect every image, computing its fingerprint and features in the same pass."""
    with heavy_imports():
        from vitft.features.extract import inspect_with, load_pipeline

    pipeline, _ = load_pipeline(folder, "head", config)
    transform = replace(pipeline.transform, grey_range=fingerprints.grey_range)
    pipeline = replace(pipeline, transform=transform)
    inspected, features = inspect_with(
        pipeline,
        folder,
        allow_bad=True,
        fingerprints=fingerprints,
        label="checking images and labels",
    )
    return inspected, features, transform


def read_run_settings(run: str) -> tuple[Config, dict[str, Part]]:
    """Return a run's settings, and a mapping from image paths to subsets such as `train`."""
    check_is_run(run, name="run")
    path, split = run_path(run), RunDir(run_path(run)).split
    return checked_run_config(path), {r.path: r.split for r in Images.from_csv(split, path).rows}


# findings about images, as written to audit.json, from the rows of the table ---------------------


def audit_images(
    images: Images,
    *,
    remarks: Callable[[Row], Iterable[str]],
    groups: Mapping[str, str],
    mislabels: Sequence[Mislabel],
    probabilities: Mapping[str, Mapping[str, float]],
    view: ViewFacts | None,
    own_split: bool = False,
) -> AuditResults:
    """Return the findings about the images of a folder, without harmless `remarks` on an image.

    `groups` maps digests to groups of near-duplicates, and `probabilities` paths to those of the
    classes, also of files with copies of other labels. `view` says how much of the images the model
    sees, and `own_split` whether the folder or the table divides them into subsets.
    """
    names, known_notes = images.classes, unused_notes(images.unused)
    _, file = files_of(images.column("sha256"))
    copied = images.where(np.bincount(file)[file] > 1)
    found: AuditResults = {
        "images": len(images.rows),
        "unused": unused_files(images.unused),
        "notes": [n for n in (*images.warnings, *images.notes) if n not in known_notes],
        "bad": [{"path": path, "reason": reason} for path, reason in images.bad],
        "odd": [
            FileRemark(path=row.path, reason=reason, label=names[row.label])
            for row in images.rows
            for reason in remarks(row)
            if not reason.startswith(("converted from", "rotated by EXIF"))  # harmless
        ],
        "duplicates": [
            *_copy_groups(copied, "exact", lambda row: row.sha256),
            *_copy_groups(images, "near", lambda row: groups.get(row.sha256, "")),
        ],
        "mislabels": list(mislabels),
        "imbalance": {"largest": None, "smallest": None, "ratio": None},
    }
    counts = Counter(name for row in images.rows for name in images.names(row))
    if ranked := sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        ratio = ranked[0][1] / ranked[-1][1]
        found["imbalance"] = {"largest": ranked[0], "smallest": ranked[-1], "ratio": ratio}
    for group in found["duplicates"]:
        known = probabilities.get(group["members"][0]["path"])
        if known and group["labels_differ"] and group["kind"] == "exact":
            shown = {member["label"] for member in group["members"]}
            shown.add(max(known, key=lambda name: known[name]))
            group["probabilities"] = {n: known[n] for n in sorted(shown) if n in known}
    if view is not None:
        found["view"] = view
    if own_split:
        found["own_split"] = True
    return found


def _copy_groups(images: Images, kind: str, key: Callable[[Row], str]) -> list[CopyGroup]:
    """Return the groups of two or more images with the same key, ignoring empty keys."""
    groups: dict[str, list[CopyMember]] = {}
    for row in images.rows:
        if name := key(row):
            member = CopyMember(path=row.path, label=images.classes[row.label], split=row.split)
            groups.setdefault(name, []).append(member)
    return [
        CopyGroup(
            kind=kind,
            members=group,
            across_split=len({member["split"] for member in group} - {""}) > 1,
            labels_differ=len({member["label"] for member in group}) > 1,
        )
        for group in groups.values()
        if len(group) > 1
    ]


def audit_summary(audit: AuditResults, kept: Collection[str] = ()) -> str:
    """Return a one-line summary of findings that affect training, or an empty string.

    Probable label errors in `kept`, the paths that fixes keep, are mentioned only alongside others.
    """
    across = sum(group["across_split"] for group in audit["duplicates"])
    relabelled = sum(group["labels_differ"] for group in audit["duplicates"])
    looked_at = sum(item["path"] in kept for item in audit["mislabels"])
    some = f" (besides {looked_at:,} already decided)" * (looked_at > 0)
    findings = (
        (len(audit["mislabels"]) - looked_at, "probable label error", some),
        (across, "group", " of duplicates across splits"),
        (relabelled, "group", " of duplicates with different labels"),
    )
    return ", ".join(count(number, what) + more for number, what, more in findings if number)


# HTML page of `vitft check`: the findings with pictures, and controls for choosing fixes ----------

_MAX_THUMBNAILS = 200  # maximum number of images on the page, to limit its size to about 3 MB


def write_check_page(
    result: CheckResult, out: Path, *, name: str, command: str, max_pixels: int
) -> Path | None:
    """Write a page of the findings about a dataset; return its path, or None if there are none.

    `command` is the training command, to which the path of the saved table is appended.
    """
    folder, audit = result.folder, result.audit
    shown = [item["path"] for item in audit["mislabels"][:MAX_FINDINGS]]
    for group in shown_groups(audit["duplicates"]):
        shown += [member["path"] for member in group["members"][:MAX_MEMBERS]]
    shown += [item["path"] for item in audit["odd"][:MAX_FINDINGS]]
    paths = list(dict.fromkeys(shown))[:_MAX_THUMBNAILS]

    def thumbnail(path: str) -> str:
        source = f"{folder.root}/{path}"
        try:
            image = open_image(source, max_pixels=max_pixels, grey_range=result.grey_range)
        except ImageError:  # it can no longer be read
            return ""
        return jpeg_uri(thumbnail_jpeg(image))

    with ThreadPoolExecutor(usable_cores()) as pool:
        thumbnails = dict(zip(paths, pool.map(thumbnail, paths), strict=True))
    empty = listing(folder.empty)
    refused = f"Remove the empty class folders ({empty}), or add --classes. " if empty else ""
    decisions = make_decisions(
        audit,
        result.proposed,
        former=result.former,
        classes=folder.classes,
        images=folder,
        thumbnail=lambda path: thumbnails.get(path, ""),
        several=folder.outputs.several,
        steps=[(f"{refused}Train with the table. {OTHER_PATH}", f"{command} --fixes {DOWNLOADED}")],
    )
    if decisions is None:
        return None
    view = {
        "title": f"{name}: images and labels checked",
        "name": name,
        "root": folder_uri(Path(folder.root).absolute()),
        "audit": audit,
        "counts": result.counts,
        "has_counts": result.counts != count(audit["images"], "readable image"),
        "decisions": decisions,
        "labels_checked": result.labels_checked,
        "num_classes": len(folder.labels or {file.label for file in folder.rows}),
        "several": folder.outputs.several,
    }
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, render("check.html.j2", view))
    return out
