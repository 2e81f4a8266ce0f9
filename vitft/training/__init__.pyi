"""Public names of `vitft.training`, imported on first use."""

from .batches import Dataset as Dataset
from .batches import StageInputs as StageInputs
from .batches import epoch_order as epoch_order
from .batches import training_batches as training_batches
from .budget import best_trial as best_trial
from .budget import pooled as pooled
from .budget import undecided as undecided
from .loop import Batch as Batch
from .loop import StepResult as StepResult
from .loop import Trainer as Trainer
from .loop import WeightAverage as WeightAverage
from .loop import lr_at as lr_at
from .loop import parameter_groups as parameter_groups
from .loop import seed_everything as seed_everything
from .record import BestWeights as BestWeights
from .record import State as State
from .record import newest_state as newest_state
from .record import remove_states as remove_states
from .record import save_state as save_state
from .run import Result as Result
from .run import run_finetuning as run_finetuning
from .runtime import ProcessGroup as ProcessGroup
from .runtime import process_group as process_group
from .runtime import rendezvous_store as rendezvous_store
from .runtime import report_lost_process as report_lost_process
from .stages import StepStage as StepStage
