"""Public names of `vitft.system`, imported on first use."""

from .errors import DataError as DataError
from .errors import DivergedError as DivergedError
from .errors import ImageError as ImageError
from .errors import LockedError as LockedError
from .errors import ResourceError as ResourceError
from .errors import RunError as RunError
from .errors import Stopped as Stopped
from .errors import UsageError as UsageError
from .files import atomic_folder as atomic_folder
from .files import write_atomically as write_atomically
from .files import write_json as write_json
from .rundir import RunDir as RunDir
from .rundir import locked as locked
from .text import percent as percent
