"""Public names of `vitft.export`, imported on first use."""

__all__: list[str]

from .card import markdown_text as markdown_text
from .card import write_readme as write_readme
from .formats.base import ExportComparison as ExportComparison
from .formats.html import html_page as html_page
from .formats.html import read_page as read_page
from .formats.onnx import Int8Format as Int8Format
from .formats.onnx import OnnxFormat as OnnxFormat
from .formats.onnx import TorchExportFormat as TorchExportFormat
from .formats.onnx import quantize_graph as quantize_graph
from .formats.onnx import resize_graph as resize_graph
from .formats.preprocessing import Vector as Vector
from .formats.timm import TimmFormat as TimmFormat
from .formats.timm import unsupported_part as unsupported_part
from .job import Exported as Exported
from .job import export_run as export_run
from .plan import EXPORT_FORMATS as EXPORT_FORMATS
from .plan import ExportPlan as ExportPlan
from .plan import plan_export as plan_export
from .trained import TrainedRun as TrainedRun
from .trained import load_trained as load_trained
