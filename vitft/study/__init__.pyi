"""Public names of `vitft.study`, imported on first use."""

from .plan import FeatureSource as FeatureSource
from .plan import Plan as Plan
from .run import BASELINE_VIEW as BASELINE_VIEW
from .run import CurvePoint as CurvePoint
from .run import FewShotSplit as FewShotSplit
from .run import baseline_features as baseline_features
from .run import colour_histogram as colour_histogram
from .run import difference as difference
from .run import evaluate_head as evaluate_head
from .run import few_shot_split as few_shot_split
from .run import half_width_of_mean as half_width_of_mean
from .run import reduce_dimensions as reduce_dimensions
from .run import small_image as small_image
from .run import unique_images as unique_images
