"""Public names of `vitft.predict`, imported on first use."""

__all__: list[str]

from .engine import Engine as Engine
from .engine import NumpyEngine as NumpyEngine
from .engine import OnnxEngine as OnnxEngine
from .evaluation import evaluate as evaluate
from .postprocess import Postprocess as Postprocess
from .postprocess import Scores as Scores
from .request import Marks as Marks
from .rows import Prediction as Prediction
from .rows import RowFormat as RowFormat
from .rows import text_lines as text_lines
from .threshold import Answers as Answers
from .threshold import SetLimits as SetLimits
from .threshold import certain_cover as certain_cover
from .threshold import choose_label_thresholds as choose_label_thresholds
from .threshold import choose_threshold as choose_threshold
from .threshold import level_covers as level_covers
from .threshold import marking as marking
from .threshold import needed_images as needed_images
from .threshold import smallest_cover as smallest_cover
from .torch_engine import Predictor as Predictor
from .torch_engine import gap_change as gap_change
from .torch_engine import open_engine as open_engine
from .tree import ClassTree as ClassTree
from .validation import HeldOut as HeldOut
from .validation import read_split as read_split
from .validation import thumb_name as thumb_name
