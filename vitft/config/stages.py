"""Stages of training, in the notation of train.layers: their order, and misspelt ones."""

import math
import re
from difflib import get_close_matches

NAMES = ("head", "pre_logits", "lora", "all")
"""Stages without a number."""


def is_valid(layers: str) -> bool:
    """Return whether all stages are valid, and in ascending order of trained parameters."""
    ranks = [stage_rank(stage.strip()) for stage in layers.split(",")]
    return min(ranks) >= 0 and ranks == sorted({*ranks})


def stage_rank(stage: str) -> float:
    """Return a sort key: higher for stages with more trained parameters, -1 for invalid stages."""
    number = stage.removeprefix("blocks:")
    if number != stage and number.isdecimal() and int(number) > 0:
        return 2 + int(number)
    return {"head": 0, "pre_logits": 1, "lora": 1.5, "all": math.inf}.get(stage, -1)


def meant_stages(layers: str) -> str:
    """Return the value that an invalid one probably meant, e.g. `blocks:2` for `block:2`, or ""."""
    meant = []
    for stage in layers.lower().replace("none", "all").split(","):
        numbered = re.fullmatch(r"\s*([a-z]+)[\W_]*(\d+)\s*", stage)
        is_blocks = numbered and get_close_matches(numbered[1], ["blocks"], cutoff=0.7)
        near = get_close_matches(stage.strip(), NAMES, cutoff=0.7)
        meant += [f"blocks:{numbered[2]}"] if numbered and is_blocks else near[:1] or [stage]
    text = ",".join(meant)
    return text if is_valid(text) else ""
