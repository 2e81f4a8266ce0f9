"""Public names of `vitft.serve`, imported on first use."""

__all__: list[str]

from .access import access_for as access_for
from .app import make_app as make_app
from .batching import BatchQueue as BatchQueue
from .label.answers import AnswerFile as AnswerFile
from .label.app import make_label_app as make_label_app
from .label.pictures import find_pictures as find_pictures
from .label.pool import load_pool as load_pool
from .label.session import Session as Session
from .limits import ServeLimits as ServeLimits
