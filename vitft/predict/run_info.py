"""The numbers of the run that produced a model, from its files or from the model file itself.

Predictions do not depend on them: if a file is missing or damaged, they are unknown. Damaged files
are logged. Does not import torch.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from vitft.config.run import read_run_config
from vitft.data.remote.places import short_name
from vitft.metrics.results import RunResults, read_results
from vitft.metrics.summary import Results
from vitft.models.find import model_files
from vitft.models.pretrained.catalog import canonical_name, weights_name
from vitft.system.errors import RunError
from vitft.system.rundir import BASE, LATEST, MODEL, read_environment, run_path
from vitft.system.text import listing

log = logging.getLogger(__name__)

_Content = TypeVar("_Content")


def run_results(folder: Path, found: RunResults | None, carried: Results | None = None) -> Results:
    """Return the numbers of the run in the folder of a run or an export.

    `found` is the content of its eval.json. The numbers `carried` by the model file are used where
    no file of a run states them.
    """
    environment = _or_warn(read_environment, folder / "environment.json")
    has_settings = (folder / "config.toml").exists()
    settings = (_or_warn(read_run_config, folder) if has_settings else None) or {}
    results = Results.of(found, environment)
    if carried and found is None and environment is None:
        results = carried
    data, weights = (
        str(settings.get(section, {}).get(key) or "")
        for section, key in (("data", "path"), ("weights", "name"))
    )
    return replace(
        results,
        data=Path(short_name(data)).name or results.data,
        weights=weights_name(weights) or results.weights,
    )


def results_of_model(run: str | None, checkpoint: Path, carried: Results | None) -> Results:
    """Return the numbers of the run that produced a model, with those `carried` by its file.

    `run` is its name as given by the user; None for the latest run. Without a run, the name is that
    of the folder, checkpoint or repository (`hf:owner/name`).
    """
    found = _or_warn(read_results, checkpoint.parent / "eval.json")
    results = run_results(checkpoint.parent, found, carried)
    if results.name:
        return results
    name = checkpoint.resolve().parent.name if checkpoint.name == MODEL else checkpoint.stem
    is_remote = run is not None and canonical_name(run).startswith("hf:")
    return replace(results, name=canonical_name(run) if run and is_remote else name)


def place_of_model(run: str | None, checkpoint: Path) -> str:
    """Return where a model was found, in the user's words, e.g. `runs/latest`.

    If a folder contains several models and the user named none of them, it is followed by the one
    that was chosen.
    """
    place = run or f"{BASE}/{LATEST}"
    others = [name for name in model_files(checkpoint.parent) if name != checkpoint.name]
    if others and not (run and run_path(run).is_file()):
        place += f" (file {checkpoint.name}, not {listing(others)})"
    return place


def _or_warn(read: Callable[[Path], _Content | None], path: Path) -> _Content | None:
    """Return the result of `read` for a file, or log a warning and return None if it is damaged."""
    try:
        return read(path)
    except RunError as error:
        log.warning(error.problem)
        return None
