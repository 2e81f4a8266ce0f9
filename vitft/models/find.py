"""Where a trained model lies: a run directory, a file, the latest run or a hub repository."""

from functools import cache
from pathlib import Path

from vitft.system.errors import RunError
from vitft.system.rundir import BASE, LATEST, MODEL


def find_model(run: str | None) -> Path:
    """The checkpoint of a run: a run folder, a .safetensors file, or by default the latest run.

    `hf:owner/name` and `hf:owner/name@revision` name one on the hub, which is downloaded and
    verified like pretrained weights.

    Raises:
        RunError: There is none.
        WeightsError: The hub has none, or cannot be reached and the cache has none.
    """
    if run is not None and run.startswith("hf:"):
        return fetched_model(run)
    path = Path(run).expanduser() if run is not None else BASE / LATEST
    if path.is_dir():
        path = path / MODEL
    if path.is_file():
        return path
    if run is None:
        raise RunError(
            f"no finished run in {BASE}/",
            fix="run `vitft finetune --data DIR --weights NAME` first, or name one with --run",
        )
    raise RunError(
        f"no model in {run}", fix="give a run folder (it holds model.safetensors) or such a file"
    )


@cache  # a command may ask twice: before torch is imported and when it is
def fetched_model(name: str) -> Path:
    """The model of a repository of the hub, from the cache or downloaded."""
    from vitft.models.pretrained.fetch import fetch
    from vitft.models.pretrained.locate import on_the_hub

    return fetch(on_the_hub(name)).path
