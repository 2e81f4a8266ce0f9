"""Location of a trained model's checkpoint: run directory, file, latest run or hub repository."""

from functools import cache
from pathlib import Path

from vitft.models.pretrained.fetch import fetch
from vitft.models.pretrained.locate import parse_hub_name
from vitft.system.errors import RunError
from vitft.system.rundir import BASE, LATEST, MODEL


def find_model(run: str | None) -> Path:
    """Return the path of a run's checkpoint.

    `run` is a run directory, a .safetensors file, or `hf:owner/name[@revision]`, which is
    downloaded and verified like pretrained weights. The default is the latest run.

    Raises:
        RunError: The run does not exist.
        WeightsError: The repository is neither on the hub nor in the cache.
    """
    if run is not None and run.startswith("hf:"):
        return fetch_model(run)
    path = Path(run).expanduser() if run is not None else BASE / LATEST
    if path.is_dir():
        path = path / MODEL
    if path.is_file():
        return path
    if run is None:
        raise RunError(
            f"no finished run in {BASE}/",
            fix="run `vitft finetune --data DIR --weights NAME` first, or choose a run with --run",
        )
    raise RunError(
        f"no model in {run}", fix=f"use a run directory that contains {MODEL}, or the file itself"
    )


@cache  # a command may call this both before and after importing torch
def fetch_model(name: str) -> Path:
    """Return the path of a hub repository's checkpoint, downloading it if it is not cached."""
    return fetch(parse_hub_name(name)).path
