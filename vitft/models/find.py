"""Location of a trained model: run directory, file, latest run or hub repository."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from vitft.models.pretrained.fetch import fetch
from vitft.models.pretrained.locate import PICKLE_SUFFIXES, parse_hub_name
from vitft.system.errors import RunError
from vitft.system.rundir import BASE, LATEST, MODEL

ONNX_FILE = "model.onnx"
PROGRAM_FILE = "model.pt2"
FOREIGN_MODELS: Mapping[str, tuple[str, str]] = {
    ".onnx": (
        "an ONNX graph, which only predict and evaluate can run",
        "use the run directory, or an export made with --safetensors, --timm or --transformers",
    ),
    ".pt2": (
        "a torch.export program, which vitft cannot run",
        "use the run directory, or an export made with --onnx",
    ),
    **dict.fromkeys(
        PICKLE_SUFFIXES,
        (
            "a Python pickle, which does not contain class names",
            "use it as pretrained weights: vitft finetune --weights FILE --allow-pickle",
        ),
    ),
    ".npz": (
        "a NumPy archive, which does not contain class names",
        "use it as pretrained weights: vitft finetune --weights FILE",
    ),
}
"""Mapping from the suffix of a file that is not a checkpoint to what it is, and a fix."""


def find_model(run: str | None, *, graphs: bool = False) -> Path:
    """Return the path of a trained model.

    `run` is a run directory, an exported folder, a .safetensors file, or
    `hf:owner/name[@revision]`, which is downloaded and verified like pretrained weights. The
    default is the latest run. With `graphs`, it can also be an .onnx file or a folder with one.

    Raises:
        RunError: The run does not exist, or the file is of another kind.
        WeightsError: The repository is neither on the hub nor in the cache.
    """
    if run is not None and run.startswith("hf:"):
        return fetch_model(run)
    path = Path(run).expanduser() if run is not None else BASE / LATEST
    if path.is_dir():
        files = [path / name for name in (MODEL, ONNX_FILE, f"onnx/{ONNX_FILE}", PROGRAM_FILE)]
        path = next((file for file in files if file.is_file()), path)
    kind = path.suffix.lower()
    if path.is_file() and kind in FOREIGN_MODELS and not (graphs and kind == ".onnx"):
        what, fix = FOREIGN_MODELS[kind]
        raise RunError(f"{path} is {what}", fix=fix)
    if path.is_file():
        return path
    if run is None:
        raise RunError(
            f"no finished run in {BASE}/",
            fix="run `vitft finetune --data DIR --weights NAME` first, or choose a run with --run",
        )
    inner = sorted({file.parent for n in (MODEL, ONNX_FILE) for file in path.glob(f"*/{n}")})
    raise RunError(
        f"no model in {run}",
        fix=f"use one of the folders in it, e.g. --run {inner[0]}"
        if inner
        else f"use a run directory that contains {MODEL}, or the file itself",
    )


@cache  # a command may call this both before and after importing torch
def fetch_model(name: str) -> Path:
    """Return the path of a hub repository's checkpoint, downloading it if it is not cached."""
    return fetch(parse_hub_name(name)).path
