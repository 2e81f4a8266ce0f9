"""Public names of `vitft.config`, imported on first use."""

from .run import Config as Config
from .run import checked_run_config as checked_run_config
from .run import config_from_table as config_from_table
from .run import read_toml as read_toml
from .run import to_toml as to_toml
from .sections import DataSpec as DataSpec
from .sections import OptimSpec as OptimSpec
from .sections import TrainSpec as TrainSpec
from .sections import WeightsSpec as WeightsSpec
