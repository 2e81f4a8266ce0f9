"""What vitft stores in the config.json of an export in the format of another library.

Such weights have no card. Their config.json therefore contains the numbers of the run
(`metrics.Results`) and, for a multi-label model, the thresholds of the labels. Only vitft reads
both.
"""

from pathlib import Path
from typing import Any

from vitft.system.files import read_regular
from vitft.system.structure import parse_json

_MAX_CONFIG_BYTES = 2**24
RUN_KEY = "vitft_run"
"""Key of the numbers of the run in a config.json."""
SEVERAL = "multi_label_classification"
"""Value of `problem_type` with which transformers marks multi-label models in config.json."""
THRESHOLDS = "vitft_thresholds"
"""Key of the list of thresholds in config.json, which is in the order of the labels."""


def config_beside(path: Path) -> dict[str, Any]:
    """Return the content of the config.json next to a weight file; empty if it is unreadable."""
    try:
        config = parse_json(read_regular(path.parent / "config.json", limit=_MAX_CONFIG_BYTES))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def foreign_thresholds(path: Path) -> tuple[float, ...]:
    """Return the threshold of each label of a multi-label model, or () for any other model.

    `path` is the weight file. The thresholds are read from the config.json next to it; each one is
    0.5 if the file does not state valid thresholds. Without a readable config.json, the result
    is ().
    """
    config = config_beside(path)
    labels: Any = config.get("id2label")
    stated: Any = config.get(THRESHOLDS)
    if config.get("problem_type") != SEVERAL or not isinstance(labels, dict):
        return ()
    is_list = isinstance(stated, list) and len(stated) == len(labels)
    is_right = is_list and all(isinstance(value, float) and 0 < value < 1 for value in stated)
    return tuple(stated) if is_right else (0.5,) * len(labels)
