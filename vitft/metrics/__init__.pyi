"""Public names of `vitft.metrics`, imported on first use."""

from .intervals import Flags as Flags
from .intervals import wilson_interval as wilson_interval
from .results import LAST_BLOCK as LAST_BLOCK
from .results import MIXTURE as MIXTURE
from .results import OodResults as OodResults
from .results import SEVERAL_BLOCKS as SEVERAL_BLOCKS
