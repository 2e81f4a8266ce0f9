"""Public names of `vitft.config`, imported on first use."""

from .defaults import default_batch_size as default_batch_size
from .defaults import default_lr as default_lr
from .options import FINETUNE_OPTIONS as FINETUNE_OPTIONS
from .options import SETTINGS as SETTINGS
from .options import find_setting as find_setting
from .run import Config as Config
from .run import checked_run_config as checked_run_config
from .run import config_from_table as config_from_table
from .run import flat_settings as flat_settings
from .run import merge_settings as merge_settings
from .run import parse_setting as parse_setting
from .run import read_recipe as read_recipe
from .run import read_run_config as read_run_config
from .run import read_toml as read_toml
from .run import requested_config as requested_config
from .run import to_toml as to_toml
from .schema import shown_value as shown_value
from .sections import DataSpec as DataSpec
from .sections import OptimSpec as OptimSpec
from .sections import TrainSpec as TrainSpec
from .sections import WeightsSpec as WeightsSpec
