"""Images on which weights were trained, if the weights come from a run on this machine.

Accuracies on them say nothing about new images. Only the backbone counts, because a run's weights
are always used with a new head.
"""

from collections.abc import Set as AbstractSet
from pathlib import Path

from vitft.config.run import read_run_config
from vitft.data.split import run_manifest
from vitft.system.errors import RunError


def run_of_weights(weights: str) -> Path:
    """Return the folder of the run from which the weights (a folder or a file) come, if any."""
    path = Path(weights).expanduser()
    return path.parent if path.is_file() else path


def images_of_weights(weights: str) -> AbstractSet[str]:
    """Return the digests of the images on which the backbone of a run was trained.

    The images of the run from whose weights it started are included. The result is empty if the
    weights are not a run's, or if the split of the run cannot be read.
    """
    found: set[str] = set()
    visited: set[Path] = set()
    while weights and (run := run_of_weights(weights)) not in visited:
        visited.add(run)
        try:
            manifest = run_manifest(run)
            if manifest is None:
                break
            config = read_run_config(run)  # after --budget, it has the settings that were chosen
        except RunError:
            break
        if config.get("train", {}).get("layers", "head") != "head":
            found |= {row.sha256 for row in manifest.train}
        name = config.get("weights", {}).get("name")
        weights = name if isinstance(name, str) else ""
    return found
