"""Public names of `vitft.study`, imported on first use."""

from .plan import FeatureSource as FeatureSource
from .plan import Plan as Plan
from .results import CurvePoint as CurvePoint
from .results import difference as difference
from .results import half_width_of_mean as half_width_of_mean
from .run import BASELINE_VIEW as BASELINE_VIEW
from .run import FewShotSplit as FewShotSplit
from .run import baseline_features as baseline_features
from .run import colour_histogram as colour_histogram
from .run import evaluate_head as evaluate_head
from .run import few_shot_split as few_shot_split
from .run import reduce_dimensions as reduce_dimensions
from .run import small_image as small_image
from .run import unique_images as unique_images
