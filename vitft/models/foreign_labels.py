"""Several labels per image in models without a vitft card, stated in the config.json beside them.

transformers calls this `problem_type: multi_label_classification`; vitft's export adds the
thresholds of the labels, which only vitft reads.
"""

from pathlib import Path

from vitft.system.files import read_regular
from vitft.system.structure import parse_json

MAX_BYTES = 2**24
SEVERAL = "multi_label_classification"
THRESHOLDS = "vitft_thresholds"
"""Key of the thresholds, in the order of the labels."""


def foreign_thresholds(path: Path) -> tuple[float, ...]:
    """Return the threshold of each label of a model; empty if each image has exactly one class.

    A model that does not state its thresholds gives a label from probability 0.5 on. `path` is the
    weight file; the result is also empty if there is no config.json that can be read beside it.
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
