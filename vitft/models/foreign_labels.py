"""Multi-label models without a vitft card, described by the config.json next to the weights.

transformers marks these models with `problem_type: multi_label_classification`. vitft's exports
also contain the thresholds of the labels, which only vitft reads.
"""

from pathlib import Path
from typing import Any

from vitft.models.run_facts import config_beside

SEVERAL = "multi_label_classification"
THRESHOLDS = "vitft_thresholds"
"""Key of the list of thresholds in config.json, which is in the order of the labels."""


def foreign_thresholds(path: Path) -> tuple[float, ...]:
    """Return the threshold of each label of a multi-label model, or () for any other model.

    `path` is the weight file. The thresholds are read from the config.json next to it; each one is
    0.5 if the file does not state valid thresholds. Without a readable config.json, the result
    is ().
    """
    facts = config_beside(path)
    labels: Any = facts.get("id2label")
    stated: Any = facts.get(THRESHOLDS)
    if facts.get("problem_type") != SEVERAL or not isinstance(labels, dict):
        return ()
    is_list = isinstance(stated, list) and len(stated) == len(labels)
    is_right = is_list and all(isinstance(value, float) and 0 < value < 1 for value in stated)
    return tuple(stated) if is_right else (0.5,) * len(labels)
