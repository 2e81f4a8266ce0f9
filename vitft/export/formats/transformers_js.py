"""Export format --transformers-js: a folder for image classification with transformers.js.

In Node, transformers.js resizes images without antialiasing; in a web page, it lets the browser
resize them. The graphs therefore resize images themselves so that the predictions are the same as
in vitft, and the processor passes the pixels on unchanged. By default, web pages load the 8-bit
graph.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitft.export.formats.base import ExportFormat, OpenedModel
from vitft.export.formats.graph import describe_graph, silenced
from vitft.export.formats.int8 import quantize_graph, rounded_description
from vitft.export.formats.onnx import MAX_INLINE_BYTES, onnx_program, open_onnx, parameter_bytes
from vitft.export.formats.onnx_resize import PLANES_INPUT, add_resize, resize_obstacle
from vitft.export.trained import TrainedRun
from vitft.models.card import Card
from vitft.models.find import ONNX_FILE
from vitft.models.graph_digest import add_graph_digest
from vitft.system.errors import RunError
from vitft.system.files import write_json, writing

_GRAPHS = "onnx"
"""Folder in which transformers.js looks for graphs."""
_QUANTIZED_FILE = "model_quantized.onnx"
_PROCESSOR_SETTINGS: Mapping[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_convert_rgb": True,
    **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), False),
}


class TransformersJsFormat(ExportFormat):
    """The files config.json, preprocessor_config.json and two graphs in onnx/."""

    def obstacle(self, card: Card) -> str:
        if card.thresholds:
            return (
                "it is a multi-label model, and the image-classification pipeline of "
                "transformers.js would apply a softmax to its logits"
            )
        return resize_obstacle(card)

    def write(self, trained: TrainedRun, folder: Path) -> None:
        import onnx

        if parameter_bytes(trained) > MAX_INLINE_BYTES:
            raise RunError(
                "the model is too large for transformers.js, which reads a graph from one file of "
                "up to 2 GB",
                fix="use --onnx",
            )
        names = trained.card.classes
        config = {
            "model_type": "vit",
            "architectures": ["ViTForImageClassification"],
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": "single_label_classification",
        }
        write_json(folder / "config.json", config)
        write_json(folder / "preprocessor_config.json", dict(_PROCESSOR_SETTINGS))
        graphs = folder / _GRAPHS
        text = describe_graph(trained, takes_bytes=False, any_size=True)
        program = onnx_program(trained, True)
        with writing(folder), silenced():
            graphs.mkdir()
            path = graphs / ONNX_FILE
            program.save(path)
            add_resize(path, trained.card.transform, text, is_big=False, source=PLANES_INPUT)
            model = onnx.load(path)
            del model.graph.value_info[:]  # these shapes conflict with those of quantised nodes
            quantize_graph(model.graph)
            onnx.helper.set_model_props(model, {"vitft": rounded_description(model)})
            onnx.save(model, graphs / _QUANTIZED_FILE)
            for name in (ONNX_FILE, _QUANTIZED_FILE):
                add_graph_digest(graphs / name)

    def open(self, folder: Path) -> OpenedModel:
        return open_onnx(folder / _GRAPHS)

    def open_int8(self, folder: Path) -> OpenedModel | None:
        return open_onnx(folder / _GRAPHS, _QUANTIZED_FILE)

    def graph_sizes(self, folder: Path) -> tuple[int, int]:
        sizes = [(folder / _GRAPHS / name).stat().st_size for name in (ONNX_FILE, _QUANTIZED_FILE)]
        return sizes[0], sizes[1]
