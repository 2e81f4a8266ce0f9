"""Fine-tune a Vision Transformer on a folder of images.

The package logs to the logger `vitft` and prints nothing. To see its messages, call
`logging.basicConfig(level=logging.INFO)`.

The names below are imported on first use, so that `import vitft` does not import torch.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitft.api import Trained as Trained
    from vitft.api import finetune as finetune
    from vitft.api import load as load
    from vitft.data.transforms import EvalTransform as EvalTransform
    from vitft.models.pretrained.load import load_pretrained as load_pretrained
    from vitft.models.pretrained.report import LoadReport as LoadReport
    from vitft.models.registry import create_model as create_model
    from vitft.models.vit import VisionTransformer as VisionTransformer
    from vitft.predict.prediction import Prediction as Prediction
    from vitft.predict.run_info import RunInfo as RunInfo
    from vitft.report.notebook import Explanation as Explanation
    from vitft.report.notebook import Predictions as Predictions
    from vitft.system.errors import VitftError as VitftError
    from vitft.training.run import Result as Result

logging.getLogger(__name__).addHandler(logging.NullHandler())

MODULES = {
    "EvalTransform": "vitft.data.transforms",
    "Explanation": "vitft.report.notebook",
    "LoadReport": "vitft.models.pretrained.report",
    "Prediction": "vitft.predict.prediction",
    "Predictions": "vitft.report.notebook",
    "Result": "vitft.training.run",
    "RunInfo": "vitft.predict.run_info",
    "Trained": "vitft.api",
    "VisionTransformer": "vitft.models.vit",
    "VitftError": "vitft.system.errors",
    "create_model": "vitft.models.registry",
    "finetune": "vitft.api",
    "load": "vitft.api",
    "load_pretrained": "vitft.models.pretrained.load",
}

__all__ = [*MODULES]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in MODULES:
        raise AttributeError(f"module 'vitft' has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
