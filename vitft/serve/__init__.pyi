"""Public names of `vitft.serve`, imported on first use."""

__all__: list[str]

from .app import make_app as make_app
from .batching import BatchQueue as BatchQueue
from .batching import request_log as request_log
from .label.answers import Answer as Answer
from .label.answers import AnswerFile as AnswerFile
from .label.app import make_label_app as make_label_app
from .label.chooser import first_pictures as first_pictures
from .label.chooser import guess as guess
from .label.chooser import guess_head as guess_head
from .label.chooser import random_order as random_order
from .label.chooser import unsure_pictures as unsure_pictures
from .label.pictures import find_pictures as find_pictures
from .label.pool import PicturePool as PicturePool
from .label.pool import StandIns as StandIns
from .label.pool import load_pool as load_pool
from .label.session import MANY as MANY
from .label.session import Session as Session
from .limits import Access as Access
from .limits import ServeLimits as ServeLimits
from .limits import access_for as access_for
from .limits import is_own_page as is_own_page
from .page import build_page as build_page
from .server import TimeoutProtocol as TimeoutProtocol
from .server import listen as listen
from .server import make_server as make_server
from .uploads import MemoryBudget as MemoryBudget
from .uploads import Upload as Upload
from .uploads import read_form as read_form
from .uploads import received_body as received_body
