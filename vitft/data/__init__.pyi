"""Public names of `vitft.data`, imported on first use."""

from .augment import Shifts as Shifts
from .augment import draw_shifts as draw_shifts
from .augment import shift_and_flip as shift_and_flip
from .fingerprint import fingerprint_of as fingerprint_of
from .fixes import Fix as Fix
from .fixes import write_fixes as write_fixes
from .folder import File as File
from .folder import Folder as Folder
from .images import open_image as open_image
from .inspection import InspectedFile as InspectedFile
from .inspection import InspectedFolder as InspectedFolder
from .inspection import OpenedImage as OpenedImage
from .inspection import inspect_folder as inspect_folder
from .loading import Pixels as Pixels
from .sampling import repeat_counts as repeat_counts
from .split import Manifest as Manifest
from .split import Row as Row
from .split import run_manifest as run_manifest
from .split import write_class_indices as write_class_indices
from .thumbnail import THUMBNAIL_SIDE as THUMBNAIL_SIDE
from .transforms import CropTransform as CropTransform
from .transforms import EvalTransform as EvalTransform
from .transforms import Fit as Fit
from .transforms import crop_views as crop_views
from .transforms import eval_view as eval_view
