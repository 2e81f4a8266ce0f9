"""Public names of `vitft.metrics`, imported on first use."""

from .budget_results import StartTrial as StartTrial
from .budget_results import TrialResults as TrialResults
from .calibration import ScoredSet as ScoredSet
from .classification import classification_metrics as classification_metrics
from .classification import probability_metrics as probability_metrics
from .intervals import Flags as Flags
from .intervals import score_interval as score_interval
from .intervals import wilson_interval as wilson_interval
from .results import AuditResults as AuditResults
from .results import EvaluatedData as EvaluatedData
from .results import FinalTestResults as FinalTestResults
from .results import LAST_BLOCK as LAST_BLOCK
from .results import MIXTURE as MIXTURE
from .results import Metrics as Metrics
from .results import OodResults as OodResults
from .results import SEVERAL_BLOCKS as SEVERAL_BLOCKS
from .targets import TrainingLoss as TrainingLoss
