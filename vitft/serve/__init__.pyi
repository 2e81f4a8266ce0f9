"""Public names of `vitft.serve`, imported on first use."""

__all__: list[str]

from .app import make_app as make_app
from .batching import BatchQueue as BatchQueue
from .batching import request_log as request_log
from .label.answers import AnswerFile as AnswerFile
from .label.app import make_label_app as make_label_app
from .label.chooser import first_pictures as first_pictures
from .label.chooser import random_order as random_order
from .label.chooser import self_trained_head as self_trained_head
from .label.chooser import unsure_pictures as unsure_pictures
from .label.pool import PicturePool as PicturePool
from .label.pool import find_pictures as find_pictures
from .label.pool import load_pool as load_pool
from .label.session import Session as Session
from .limits import ServeLimits as ServeLimits
from .limits import access_for as access_for
from .server import listen as listen
from .server import make_server as make_server
