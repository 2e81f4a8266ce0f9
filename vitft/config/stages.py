"""Stages of training, in the notation of train.layers."""

import math


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
