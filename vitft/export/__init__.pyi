"""Public names of `vitft.export`, imported on first use."""

__all__: list[str]

from .card import markdown_text as markdown_text
from .card import write_readme as write_readme
from .compare import ExportComparison as ExportComparison
from .compare import PredictionLog as PredictionLog
from .compare import check_comparison as check_comparison
from .compare import comparison_row as comparison_row
from .formats.base import NumericArray as NumericArray
from .formats.html import Bits as Bits
from .formats.html import engine as engine
from .formats.html import engine_input as engine_input
from .formats.html import exported_page as exported_page
from .formats.html import read_page as read_page
from .formats.html import read_tensors as read_tensors
from .formats.html import scores as scores
from .formats.html import store_model as store_model
from .formats.onnx import OPSET as OPSET
from .formats.onnx import Int8Format as Int8Format
from .formats.onnx import OnnxFormat as OnnxFormat
from .formats.onnx import TorchExportFormat as TorchExportFormat
from .formats.onnx import quantize_graph as quantize_graph
from .formats.onnx import to_grey as to_grey
from .formats.onnx_resize import resize_graph as resize_graph
from .formats.preprocessing import Vector as Vector
from .formats.preprocessing import constants_of as constants_of
from .formats.preprocessing import drawn as drawn
from .formats.preprocessing import write_vector as write_vector
from .formats.timm import TimmFormat as TimmFormat
from .formats.timm import has_other_names as has_other_names
from .formats.timm import timm_obstacle as timm_obstacle
from .formats.transformers import TransformersFormat as TransformersFormat
from .formats.transformers import hf_tensors as hf_tensors
from .job import Exported as Exported
from .job import export_run as export_run
from .job import export_safetensors as export_safetensors
from .plan import EXPORT_FORMATS as EXPORT_FORMATS
from .plan import ExportPlan as ExportPlan
from .plan import plan_export as plan_export
from .trained import TrainedRun as TrainedRun
from .trained import load_trained as load_trained
