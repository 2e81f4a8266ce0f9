"""The setting `data.like`: images that an earlier run held out are held out again.

Images are recognised by the digests of their bytes, and near-duplicates of held-out images by their
fingerprints. If the fingerprint of a held-out image is not known, an image with the same path is
assumed to be the same image, as in `vitft evaluate`. This module does not import torch.
"""

import logging

from vitft.config.run import read_run_config
from vitft.data.draw import FormerSplit
from vitft.data.duplicates import KnownImages
from vitft.data.folder import File, Folder
from vitft.data.inspection import InspectedFolder
from vitft.data.parts import Part
from vitft.data.split import Manifest, run_manifest
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.system.errors import DataError, RunError
from vitft.system.run_names import suggest_runs
from vitft.system.rundir import run_path
from vitft.system.text import count

log = logging.getLogger(__name__)


def like_manifest(like: str) -> Manifest:
    """Return the split of the run that `data.like` names.

    Raises:
        RunError: The path is not a run directory, or a file in it is damaged.
    """
    manifest = run_manifest(run_path(like))
    if manifest is None:
        raise RunError(
            f"{like} is not a run directory: config.toml or split.csv is missing",
            fix=suggest_runs(
                like,
                name="like",
                otherwise="pass a directory written by `vitft finetune`, e.g. --like runs/latest",
            ),
        )
    return manifest


def former_split(
    like: str,
    inspected: InspectedFolder,
    fingerprints: Fingerprints,
    *,
    max_pixels: int,
    applies_fixes: bool,
) -> FormerSplit:
    """Return an earlier run's split of the images, and log how many are held out again.

    A warning is logged if only the earlier run applies a table of fixes.

    Args:
        like: Directory of the earlier run.
        inspected: The images of the new run.
        fingerprints: Fingerprints of these images, to which those of held-out images are added.
        max_pixels: Maximum number of pixels in an image of the earlier run.
        applies_fixes: Whether the new run applies a table of fixes.

    Raises:
        RunError: The directory is not a run directory, a file in it is damaged, or the cache cannot
            be written.
        ResourceError: The cache cannot be written.
    """
    manifest = like_manifest(like)
    fixes = read_run_config(run_path(like)).get("data", {}).get("fixes", "")
    if fixes and not applies_fixes:
        log.warning(
            f"{like} was trained with the fixes of {fixes}, which this run does not apply; to "
            "apply them, add --fixes to a command with the same folder"
        )
    held = [row for row in manifest.rows if row.split != "train"]
    rows = [row for row in manifest.rows if row.split == "train"] + held  # held-out rows override
    parts: dict[str, Part] = {row.sha256: row.split for row in rows}
    # Images held out before that the new data lacks: read from their folder, if it is still there
    out = [row for row in manifest.rows if parts[row.sha256] != "train"]
    gone = tuple(
        File(row.path, row.label) for row in out if row.sha256 not in fingerprints.by_digest
    )
    folder = Folder(root=manifest.root, classes=manifest.classes, files=gone, layout="classes")
    fingerprint_folder(folder, fingerprints, max_pixels=max_pixels)
    lost = {row.path: row.sha256 for row in out if row.sha256 not in fingerprints.by_digest}
    seen = list({row.sha256 for row in out if row.sha256 in fingerprints.by_digest})
    known = KnownImages(fingerprints.table(seen))
    copies: dict[str, Part] = {}  # of held-out images, with the originals' part
    for file in inspected.good:
        if parts.get(file.sha256, "train") != "train":
            continue
        near = {parts[seen[i]] for i in known.copies_of(fingerprints.by_digest[file.sha256])}
        if file.path in lost and file.sha256 not in parts:
            near.add(parts[lost[file.path]])
        if near:
            copies[file.sha256] = "test" if "test" in near else "val"
    digests = {row.sha256 for row in held}
    again = len(digests & {file.sha256 for file in inspected.good})
    also = f", and {count(len(copies), 'copy', 'copies')} of held-out images" if copies else ""
    log.info(
        f"held out again: {again:,} of {count(len(digests), 'image')} held out by {like}{also}"
    )
    groups: dict[str, Part] = {row.group: row.split for row in rows if row.group}
    return FormerSplit(parts=parts | copies, groups=groups)


def check_matches(like: str, former: FormerSplit, inspected: InspectedFolder) -> None:
    """Raise a DataError if no image of the data was held out by the earlier run."""
    if not any(former.part_of([file]) in ("val", "test") for file in inspected.good):
        raise DataError(
            f"none of the images in {inspected.folder.source} was held out by {like}",
            fix="use data that contains the validation images of that run, or remove --like",
        )
