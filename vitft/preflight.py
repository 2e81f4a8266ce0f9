"""What can be refused before torch is imported: names, folders, the place of the run."""

from pathlib import Path

from vitft.config import Config
from vitft.data.folder import scan
from vitft.errors import UsageError
from vitft.pretrained.locate import check_weights_name
from vitft.rundir import plan_run


def check_request(config: Config, out: str | None) -> Path:
    """Where the run will be written, if data, weights and that place look usable.

    Raises:
        UsageError: Data or weights are not named, or the run would stand inside the data.
        DataError: The folder does not hold classes of images.
        WeightsError: No such weights.
        RunError: The run's folder is not empty or not writable.
    """
    if not config.data.path:
        raise UsageError("no data given", fix="name an image folder: --data DIR (or --data demo)")
    if not config.weights.name:
        raise UsageError(
            "no weights given",
            fix="name pretrained weights: --weights NAME (see `vitft weights list`; or demo)",
        )
    scan(Path(config.data.path).expanduser(), reference=config.data.split == "reference")
    check_weights_name(
        config.weights.name.removeprefix("random:"), allow_pickle=config.weights.allow_pickle
    )
    planned = plan_run(out, config.data.path)
    if Path(config.data.path).expanduser().resolve() in planned.resolve().parents:
        raise UsageError(
            f"the run folder {planned} lies inside the data", fix="choose another --out"
        )
    return planned
