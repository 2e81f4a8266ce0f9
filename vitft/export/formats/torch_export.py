"""--torch-export: a program for `torch.export.load`, for any batch size."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from vitft.export.formats.base import ExportFormat, OpenedModel, module_logits
from vitft.export.formats.graph import (
    describe_graph,
    example_of,
    export_error,
    open_graph,
    silenced,
)
from vitft.export.trained import TrainedRun
from vitft.system.files import write_atomically

PROGRAM_FILE = "model.pt2"
DESCRIPTION_FILE = "vitft.json"
"""File inside the .pt2 archive that describes the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchExportFormat(ExportFormat):
    """model.pt2, which `torch.export.load` opens without vitft."""

    takes_bytes: bool = False
    """Whether the program takes bytes and normalises them itself."""

    def write(self, trained: TrainedRun, folder: Path) -> None:
        model, example = example_of(trained, takes_bytes=self.takes_bytes)
        batch = torch.export.Dim.DYNAMIC
        try:
            with silenced():
                program = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
        except RuntimeError as error:
            raise export_error("torch.export", error) from error
        for module in program.graph_module.modules():
            if isinstance(module, torch.fx.GraphModule):
                for node in module.graph.nodes:
                    node.meta.pop("stack_trace", None)  # contains paths of this machine
        text = describe_graph(trained, takes_bytes=self.takes_bytes)
        content = io.BytesIO()  # torch's own writer does not report a full disk as such
        with silenced():
            torch.export.save(program, content, extra_files={DESCRIPTION_FILE: text})
        write_atomically(folder / PROGRAM_FILE, content.getvalue())

    def open(self, folder: Path) -> OpenedModel:
        files = {DESCRIPTION_FILE: ""}
        module = torch.export.load(folder / PROGRAM_FILE, extra_files=files).module()
        return open_graph(
            json.loads(files[DESCRIPTION_FILE]),
            lambda inputs: module_logits(module, inputs),
            by=f"torch {torch.__version__}",
        )
