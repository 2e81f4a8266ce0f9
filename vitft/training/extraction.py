"""Passes over the image files of a run, divided among its processes.

Each file is read by one process. The results are gathered, so every process has the inspection
results and the features of all images.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitft.config.sections import DataSpec
from vitft.data.folder import File, Folder
from vitft.data.grey_levels import GreyRange
from vitft.data.grey_range import measure_grey_range
from vitft.data.inspection import InspectedFolder, merge_inspections
from vitft.data.split import Manifest, Row
from vitft.data.transforms import View
from vitft.features.cache import key_of
from vitft.features.extract import Extractor, vanished_error
from vitft.features.fingerprints import Fingerprints
from vitft.features.pipeline import inspect_dataset, log_cached_features
from vitft.system import console
from vitft.system.cores import usable_cores
from vitft.system.errors import ImageError
from vitft.training.distributed import ProcessGroup

log = logging.getLogger(__name__)

_UNIT = 16
"""Number of consecutive files assigned to the same process. It is a multiple of the batch sizes on
CPUs, so the batches, which can affect the last bits of features, do not depend on the number of
processes.
"""
_MESSAGE_BYTES = 2**26
"""Approximate maximum size in bytes of a message that sends feature rows to other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Results of the inspection of all files by the processes of a run."""

    inspected: InspectedFolder
    duplicates: Mapping[str, str]
    """Mapping from the digests of images that have near-duplicates to the names of their groups;
    empty if `data.group_duplicates` is not set."""
    fingerprints: Fingerprints | None
    """Fingerprints of the readable images, if they were computed."""
    computed: int
    """Number of images whose features were computed, summed over all processes."""


def shared_grey_range(folder: Folder, group: ProcessGroup, *, max_pixels: int) -> GreyRange:
    """Return the grey range of the images (see `measure_grey_range`)."""
    return measure_grey_range(
        folder,
        max_pixels=max_pixels,
        workers=usable_cores(),
        own=group.shard(folder.files, _UNIT),
        gather=lambda own: [item for items in group.gather(own) for item in items],
    )


def inspect_shards(
    folder: Folder,
    group: ProcessGroup,
    *,
    data: DataSpec,
    view: View,
    extractor: Extractor | None,
    fingerprints: Fingerprints | None,
) -> Inspection:
    """Inspect all files, and cache features and fingerprints if requested.

    Raises:
        DataError: Too many files are unreadable (see `inspect_folder`).
        DivergedError: The features are not finite or are too large to compute with.
        RunError, ResourceError: A cache cannot be written, or a process was lost.
    """
    own = inspect_dataset(
        replace(folder, files=tuple(group.shard(folder.files, _UNIT)), bad=()),
        max_pixels=data.max_pixels,
        allow_bad=True,  # all processes together are checked below
        extractor=extractor,
        view=view,
        fingerprints=fingerprints,
        claim=group.claims(),
    )
    own = replace(own, folder=replace(folder, files=()))
    shards = group.gather(own)
    inspected = merge_inspections(folder, shards, allow_bad=data.allow_bad)
    duplicates: Mapping[str, str] = {}
    if fingerprints is not None:
        fingerprints.merge(inspected.good, group.gather(fingerprints.by_digest))
        if data.group_duplicates:
            duplicates = group.main_only(fingerprints.duplicate_groups)
    computed = 0
    if extractor is not None:
        _share_rows(extractor, [file.sha256 for file in inspected.good], view, group)
        computed = sum(group.gather(extractor.computed))
        log_cached_features(inspected, computed)
    return Inspection(
        inspected=inspected, duplicates=duplicates, fingerprints=fingerprints, computed=computed
    )


def compute_views(
    extractor: Extractor,
    manifest: Manifest,
    rows: Sequence[Row],
    views: Sequence[View],
    what: str,
    group: ProcessGroup,
) -> None:
    """Compute and cache the features of the given views; `what` labels the progress bar.

    Raises:
        DataError: A file has been deleted or replaced since the start of the run.
        DivergedError: Features are not finite, or too large to compute with.
        RunError, ResourceError: The cache cannot be written, or a process was lost.
    """
    files = group.shard([File(row.path, row.label) for row in rows], _UNIT)
    before, total = extractor.computed, len(files) * len(views)
    with console.Progress(what, total) as progress:
        for view in views:
            try:
                extractor.compute(
                    str(manifest.root), files, view, claim=group.claims(), progress=progress.advance
                )
            except ImageError as error:
                raise vanished_error(error) from error
        if computed := extractor.computed - before:
            progress.skip(total - computed)
        else:
            progress.label = "reading cached features"
    for view in views:
        _share_rows(extractor, [row.sha256 for row in rows], view, group)


def _share_rows(
    extractor: Extractor, digests: Sequence[str], view: View, group: ProcessGroup
) -> None:
    """Make the cached rows of images available to every process.

    Processes that use the same cache folder find each other's rows there. Otherwise, e.g. without a
    cache or on machines without a common folder, each row is sent by one process that has it.
    """
    if group.size == 1:
        return
    group.barrier()  # all rows have been written
    extractor.refresh()
    store = extractor.store(view)
    keys = list(dict.fromkeys(key_of(digest, view.name) for digest in digests))
    known = np.array([key in store for key in keys], dtype=bool)
    if not group.all_reduce_max(int(not known.all())):
        return
    table = np.stack(group.gather(known))  # (ranks, n)
    senders = np.where(table.all(axis=0) | ~table.any(axis=0), -1, table.argmax(axis=0))
    size = max(1, _MESSAGE_BYTES // (4 * int(np.prod(extractor.prefix.shape))))
    for rank in range(group.size):
        sent = np.flatnonzero(senders == rank).tolist()
        for start in range(0, len(sent), size):
            chosen = [keys[i] for i in sent[start : start + size]]
            rows = group.broadcast([store.get(key) for key in chosen], source=rank)
            received = {
                key: row
                for key, row in zip(chosen, rows, strict=True)
                if row is not None and key not in store
            }
            store.add(received)
    store.flush()
