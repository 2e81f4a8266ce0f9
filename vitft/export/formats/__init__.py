"""Export formats, which are subclasses of `base.ExportFormat`."""

from vitft.export.formats.base import ExportFormat
from vitft.export.formats.html import HtmlFormat
from vitft.export.formats.onnx import Int8Format, OnnxFormat, TorchExportFormat
from vitft.export.formats.preprocessing import PreprocessingFormat
from vitft.export.formats.timm import SafetensorsFormat, TimmFormat
from vitft.export.formats.transformers import TransformersFormat, TransformersJsFormat
from vitft.export.plan import ExportPlan
from vitft.export.trained import TrainedRun


def formats_of(plan: ExportPlan, trained: TrainedRun) -> dict[str, ExportFormat]:
    """Return the formats of a plan by name, configured with its options and the run."""
    takes_bytes = plan.with_preprocessing
    known: dict[str, ExportFormat] = {
        "safetensors": SafetensorsFormat(),
        "timm": TimmFormat(),
        "transformers": TransformersFormat(),
        "transformers-js": TransformersJsFormat(),
        "html": HtmlFormat(plan.images, plan.licence),
        "onnx": OnnxFormat(takes_bytes=takes_bytes, any_size=plan.with_resize),
        "torch-export": TorchExportFormat(takes_bytes=takes_bytes),
        "int8": Int8Format(takes_bytes=takes_bytes),
        "preprocessing": PreprocessingFormat(trained=trained),
    }
    return {name: known[name] for name in plan.formats}
