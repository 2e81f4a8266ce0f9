"""--safetensors: vitft's own checkpoint, with a config.json by which timm can open it."""

from pathlib import Path

from vitft.export.formats.base import ExportFormat, OpenedModel, open_module
from vitft.export.formats.timm import write_checkpoint
from vitft.export.trained import TrainedRun
from vitft.models.checkpoint import build_model, load_checkpoint
from vitft.system.rundir import MODEL


class SafetensorsFormat(ExportFormat):
    """model.safetensors with its card, and config.json if timm can build the model."""

    def write(self, trained: TrainedRun, folder: Path) -> None:
        write_checkpoint(trained, folder)

    def open(self, folder: Path) -> OpenedModel:
        state, card = load_checkpoint(folder / MODEL)
        return open_module(build_model(state, card.architecture), card, by="vitft")
