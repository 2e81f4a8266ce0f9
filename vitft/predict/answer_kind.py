"""Detection of multi-label models from their files, without importing torch."""

from vitft.models.checkpoint_file import lacks_card, open_checkpoint
from vitft.models.config_json import foreign_thresholds
from vitft.models.find import find_model
from vitft.predict.onnx_engine import OnnxEngine


def gives_several(run: str | None) -> bool:
    """Return whether a model is multi-label, i.e. may assign an image several labels or none.

    Raises:
        RunError: The model does not exist, or its card or graph is damaged.
        WeightsError: The repository `hf:owner/name` cannot be found.
        UsageError: The model is an ONNX graph, and onnxruntime is not installed.
    """
    path = find_model(run, graphs=True)
    if path.suffix.lower() == ".onnx":
        return bool(OnnxEngine(path).thresholds)
    if lacks_card(path):
        return bool(foreign_thresholds(path))
    return bool(open_checkpoint(path).card.thresholds)
