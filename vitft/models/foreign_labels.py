"""Multi-label models without a vitft card, described by the config.json next to the weights.

transformers marks these models with `problem_type: multi_label_classification`. vitft's exports
also contain the thresholds of the labels, which only vitft reads.
"""

from pathlib import Path

from vitft.system.files import read_regular
from vitft.system.structure import parse_json

MAX_BYTES = 2**24
SEVERAL = "multi_label_classification"
THRESHOLDS = "vitft_thresholds"
"""Key of the list of thresholds in config.json, which is in the order of the labels."""


def foreign_thresholds(path: Path) -> tuple[float, ...]:
    """Return the threshold of each label of a multi-label model, or () for any other model.

    `path` is the weight file. The thresholds are read from the config.json next to it; each one is
    0.5 if the file does not state valid thresholds. Without a readable config.json, the result
    is ().
    """
    try:
        facts = parse_json(read_regular(path.parent / "config.json", limit=MAX_BYTES))
    except (OSError, ValueError):
        return ()
    if not isinstance(facts, dict) or facts.get("problem_type") != SEVERAL:
        return ()
    labels = facts.get("id2label")
    if not isinstance(labels, dict):
        return ()
    stated = facts.get(THRESHOLDS)
    if not isinstance(stated, list) or len(stated) != len(labels):
        return (0.5,) * len(labels)
    is_right = all(isinstance(value, float) and 0 < value < 1 for value in stated)
    return tuple(stated) if is_right else (0.5,) * len(labels)
