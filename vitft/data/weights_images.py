"""Images on which weights were trained, if the weights are those of a run on this machine.

The model has seen them, so accuracies on them tell nothing about new images.
"""

from collections.abc import Set as AbstractSet
from pathlib import Path

from vitft.data.split import run_manifest
from vitft.system.errors import RunError


def images_of_weights(weights: str) -> AbstractSet[str]:
    """Return the digests of the training images of a run, given its folder or a file in it.

    The result is empty if the weights are not those of a run, or its split cannot be read.
    """
    path = Path(weights).expanduser() if weights else Path("none")
    folder = path.parent if path.is_file() else path
    if not folder.is_dir():
        return frozenset()
    try:
        manifest = run_manifest(folder)
    except RunError:
        return frozenset()
    return frozenset() if manifest is None else {row.sha256 for row in manifest.train}
