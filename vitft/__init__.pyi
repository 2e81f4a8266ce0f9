"""Public names of `vitft`, imported on first use."""

__all__: list[str]

from .api import Trained as Trained
from .api import embed as embed
from .api import finetune as finetune
from .api import load as load
from .api import zeroshot as zeroshot
from .data.transforms import EvalTransform as EvalTransform
from .metrics.results import Estimate as Estimate
from .metrics.results import Results as Results
from .models.pretrained.load import LoadReport as LoadReport
from .models.pretrained.load import load_pretrained as load_pretrained
from .models.registry import create_model as create_model
from .models.vit import VisionTransformer as VisionTransformer
from .predict.embeddings import Embeddings as Embeddings
from .predict.rows import Prediction as Prediction
from .report.notebook import Explanation as Explanation
from .report.notebook import Predictions as Predictions
from .system.errors import VitftError as VitftError
from .training.run import Result as Result
