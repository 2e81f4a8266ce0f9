"""Images on which weights were trained, if the weights are those of a run on this machine.

The model has seen them, so accuracies on them tell nothing about new images.
"""

from collections.abc import Set as AbstractSet
from pathlib import Path

from vitft.data.split import run_manifest
from vitft.system.errors import RunError


def run_of_weights(weights: str) -> Path:
    """Return the folder that is the run if the weights are those of a run: a folder or a file."""
    path = Path(weights).expanduser()
    return path.parent if path.is_file() else path


def images_of_weights(weights: str) -> AbstractSet[str]:
    """Return the digests of the training images of a run; empty if the weights are not a run's.

    The result is also empty if the split of the run cannot be read.
    """
    try:
        manifest = run_manifest(run_of_weights(weights)) if weights else None
    except RunError:
        return frozenset()
    return frozenset() if manifest is None else {row.sha256 for row in manifest.train}
