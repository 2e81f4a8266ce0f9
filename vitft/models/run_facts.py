"""Facts about the run that produced a model, which travel inside an exported file.

A run directory has these facts in files of its own (`vitft.predict.run_info`). An export contains
only the model, so they are stored in its card, in the metadata of an ONNX graph or, for files in
the format of another library, in the config.json next to the weights. For a multi-label model,
that file also contains the thresholds of the labels, which only vitft reads.
"""

from pathlib import Path
from typing import Any, TypedDict

from vitft.metrics.values import Interval
from vitft.system.files import read_regular
from vitft.system.structure import Natural, Share, parse_json, structured

MAX_CONFIG_BYTES = 2**24
RUN_KEY = "vitft_run"
"""Key of the facts in a config.json."""
SEVERAL = "multi_label_classification"
"""Value of `problem_type` with which transformers marks multi-label models in config.json."""
THRESHOLDS = "vitft_thresholds"
"""Key of the list of thresholds in config.json, which is in the order of the labels."""


class RunFacts(TypedDict, total=False):
    """Name, weights, accuracy and age of a run; unknown facts are missing."""

    name: str
    weights: str  # name of the pretrained weights
    ended: str  # time in ISO 8601
    images: Natural  # number of validation images
    groups: Natural  # number of groups (patients, videos) of these images, if they have any
    top1: Share  # accuracy on these images; for multi-label models, all labels are right
    top1_interval: Interval
    cross_validated: Share  # accuracy by cross-validation, where it tells more than `top1`
    cross_validated_interval: Interval
    cross_validated_images: Natural
    cross_validated_groups: Natural
    tested: Share  # accuracy (multi-label: mean average precision) on the test images, if any
    tested_interval: Interval
    tested_images: Natural
    tested_groups: Natural
    majority: Share  # accuracy of always predicting the largest class or label set
    mean_ap: Share  # mean average precision of a multi-label model
    mean_ap_interval: Interval
    at_chance: str  # phrase of `metrics.chance.chance_level`
    rounded: bool  # whether the weights were rounded to 8 bits after this measurement


def config_beside(path: Path) -> dict[str, Any]:
    """Return the content of the config.json next to a weight file; empty if it is unreadable."""
    try:
        config = parse_json(read_regular(path.parent / "config.json", limit=MAX_CONFIG_BYTES))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def facts_beside(path: Path) -> RunFacts:
    """Return the facts in the config.json next to a weight file, or no facts.

    Facts that are missing, damaged or of the wrong type are treated as unknown, because
    predictions do not depend on them.
    """
    return parse_facts(config_beside(path).get(RUN_KEY))


def parse_facts(value: object) -> RunFacts:
    """Return facts read from JSON, or no facts if a value is of the wrong type."""
    try:
        found: RunFacts = structured(value, RunFacts)
    except ValueError:
        return RunFacts()
    return found


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
