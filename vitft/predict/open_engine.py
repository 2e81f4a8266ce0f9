"""Opening of a trained model, whatever its format, for `evaluate`, `serve` and `vitft.load`.

`vitft predict` chooses its engine by the size of the job (`predict.jobs`).
"""

from vitft.models.find import find_model
from vitft.predict.onnx_engine import OnnxEngine
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import UsageError
from vitft.system.suggest import Spelling, option


def open_engine(
    run: str | None, device: str = "auto", *, spell: Spelling = option
) -> Predictor | OnnxEngine:
    """Return the engine that computes the scores: onnxruntime for ONNX graphs, otherwise torch.

    `spell` spells the option `--run` in errors.

    Raises:
        RunError: The model does not exist or is damaged.
        WeightsError: The repository `hf:owner/name` cannot be found.
        UsageError: The device cannot be used, or onnxruntime is not installed.
    """
    path = find_model(run, graphs=True, spell=spell)
    if path.suffix.lower() != ".onnx":
        return Predictor.from_run(run, device=device)
    if device not in ("auto", "cpu"):
        raise UsageError(
            f"device {device} cannot be used with the ONNX graph {path}, which onnxruntime runs on "
            "the CPU",
            fix="use device auto or cpu, or the run directory in place of the graph",
        )
    return OnnxEngine(path)
