"""Types of values in the result files: intervals, losses and other positive numbers."""

from typing import Annotated

from vitft.system.structure import Range

Interval = Annotated[tuple[float, float], Range(ge=-1e6, le=1e6)]  # lower and upper bounds
Loss = Annotated[float, Range(ge=0, le=1e9)]
Positive = Annotated[float, Range(gt=0, le=1e30)]
