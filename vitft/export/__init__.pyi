"""Public names of `vitft.export`, imported on first use."""

__all__: list[str]

from .formats.graph import TorchExportFormat as TorchExportFormat
from .formats.int8 import Int8Format as Int8Format
from .formats.onnx import OnnxFormat as OnnxFormat
from .formats.timm import TimmFormat as TimmFormat
from .job import Exported as Exported
from .job import export_run as export_run
from .job import export_safetensors as export_safetensors
from .plan import ExportPlan as ExportPlan
from .plan import plan_export as plan_export
from .trained import TrainedRun as TrainedRun
