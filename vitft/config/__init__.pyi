"""Public names of `vitft.config`, imported on first use."""

from .sections import TrainSpec as TrainSpec
