"""Labels of images for evaluation, changed as the run changed those of its own images.

The run's table of class changes is applied to data with classes that the model does not know. Its
table of fixes is applied only to the run's own images, which are recognised by path and content, so
a file of other data that happens to have the same name keeps its label.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitft.config.run import Config, checked_run_config
from vitft.data.arrays import data_path
from vitft.data.fixes import open_table, read_decisions
from vitft.data.images import read_bytes
from vitft.data.labelled import LabelledImages, with_changed_classes
from vitft.data.split import Manifest
from vitft.data.table import is_table
from vitft.system.errors import DataError, ImageError
from vitft.system.rundir import RunDir
from vitft.system.text import count

log = logging.getLogger(__name__)

_MAX_COMPARED_FILES = 20
"""Maximum number of files that are read to find out whether data is that of a run."""


def as_in_run(data: LabelledImages, folder: Path, known: Sequence[str]) -> LabelledImages:
    """Return the data with the class changes and the fixes of the run in `folder`, if any.

    `known` lists the classes of the model. Multi-label data is returned unchanged, and so is all
    data if the folder contains no config.toml.

    Raises:
        RunError: The file config.toml or split.csv of the run is damaged.
        DataError: A table is invalid, or the fixes leave out all images.
    """
    if data.labels or not (folder / "config.toml").is_file():
        return data
    config = checked_run_config(folder)
    changed_classes = Path(config.data.classes)
    if not {*data.classes} <= {*known} and changed_classes.is_file():
        changed = with_changed_classes(data, changed_classes)
        if changed.images != data.images:
            log.info(f"applied the class changes of the run: {changed.notes[-1]}")
            data = changed
    if not config.data.fixes or not _is_own_data(data, config, folder):
        return data
    labels = dict(data.images) | dict.fromkeys((path for path, _ in data.bad), "")
    classes = tuple(dict.fromkeys([*known, *data.classes]))
    try:
        table, _ = open_table(Path(config.data.fixes), config.data.fixes_digest)
        found = read_decisions(table, labels, classes)
    except DataError as error:
        log.warning(f"the fixes of the run are not applied: {error.problem}")
        return data
    changes = found.changes
    images = [(path, changes.get(path, label)) for path, label in data.images]
    left = tuple((path, label) for path, label in images if label is not None)
    if not left:
        raise DataError(
            f"the fixes of the run leave out all images in {data.source}",
            fix="evaluate other images",
        )
    moved = sum(label != labels[path] for path, label in left)
    dropped = len(images) - len(left)
    log.info(
        f"applied the fixes of the run ({config.data.fixes}): {count(dropped, 'image')} left out, "
        f"{moved:,} relabelled{found.without_effect}"
    )
    return replace(
        data,
        classes=tuple(sorted({*data.classes} & {*known} | {label for _, label in left})),
        images=left,
        bad=tuple(entry for entry in data.bad if entry[0] not in changes),
    )


def _is_own_data(data: LabelledImages, config: Config, folder: Path) -> bool:
    """Return whether most of the data are images of the run under the same paths.

    The run's data may have been moved or copied, so most of a sample of the files must have a path
    and a digest recorded in split.csv. A table of labels must be the table of the run, because
    another table states labels of its own.

    Raises:
        RunError: The file split.csv is damaged.
    """
    split = RunDir(folder).split
    if not os.path.lexists(split):
        return False
    table = data_path(data.source) if isinstance(data.source, str) else data.source
    if is_table(table) and table.resolve() != data_path(config.data.path).resolve():
        return False
    digests = {row.path: row.sha256 for row in Manifest.read(split, folder).rows}
    sample = [path for path, _ in data.images[:: max(1, len(data.images) // _MAX_COMPARED_FILES)]]
    same = sum(p in digests and _has_digest(data.locate(p), digests[p]) for p in sample)
    return same > len(sample) / 2


def _has_digest(path: str, sha256: str) -> bool:
    """Return whether a file can be read and has a SHA-256 digest."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest() == sha256
    except ImageError:
        return False
