"""Public names of `vitft.system`, imported on first use."""

from .errors import DataError as DataError
from .errors import DivergedError as DivergedError
from .errors import ImageError as ImageError
from .errors import RunError as RunError
from .errors import UsageError as UsageError
