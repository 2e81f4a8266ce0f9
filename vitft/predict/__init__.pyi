"""Public names of `vitft.predict`, imported on first use."""

from .answer_kind import gives_several as gives_several
from .numpy_engine import NumpyEngine as NumpyEngine
from .output import ProcessShard as ProcessShard
from .output import ResumePoint as ResumePoint
from .output import find_resume_point as find_resume_point
from .output import open_rows as open_rows
from .prediction import Prediction as Prediction
from .torch_engine import Predictor as Predictor
from .validation import ValidationPrediction as ValidationPrediction
from .validation import least_confident as least_confident
from .validation import mistakes as mistakes
from .validation import read_validation_predictions as read_validation_predictions
from .validation import thumb_name as thumb_name
