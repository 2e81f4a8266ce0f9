"""Public names of `vitft.data`, imported on first use."""

from .fingerprint import fingerprint_of as fingerprint_of
from .folder import File as File
from .inspection import InspectedFile as InspectedFile
from .inspection import OpenedImage as OpenedImage
from .inspection import inspect_folder as inspect_folder
from .loading import Pixels as Pixels
from .transforms import CropTransform as CropTransform
from .transforms import EvalTransform as EvalTransform
from .transforms import crop_views as crop_views
from .transforms import eval_view as eval_view
