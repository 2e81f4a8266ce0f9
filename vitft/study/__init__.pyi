"""Public names of `vitft.study`, imported on first use."""

from .run import accuracy as accuracy
from .run import baseline_features as baseline_features
from .run import difference as difference
from .run import evaluate_head as evaluate_head
from .run import few_shot_split as few_shot_split
