"""Public names of `vitft.config`, imported on first use."""

from .defaults import default_batch_size as default_batch_size
from .defaults import default_lr as default_lr
from .run import SETTINGS as SETTINGS
from .run import Config as Config
from .run import config_from_table as config_from_table
from .run import merge_settings as merge_settings
from .run import read_recipe as read_recipe
from .run import read_toml as read_toml
from .run import to_toml as to_toml
from .sections import DataSpec as DataSpec
from .sections import OptimSpec as OptimSpec
from .sections import TrainSpec as TrainSpec
