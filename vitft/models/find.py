"""Search for a trained model in a run directory, an exported folder, a file or a hub repository."""

import os
from functools import cache
from pathlib import Path

from vitft.data.mistaken import mistaken_data
from vitft.models.pretrained.catalog import CatalogEntry, canonical_name, entries_by_name, locate
from vitft.models.pretrained.fetch import fetch
from vitft.system.errors import RunError
from vitft.system.files import PICKLE_SUFFIXES, weight_format
from vitft.system.rundir import (
    BASE,
    MODEL,
    has_settings,
    resume_command,
    run_path,
    suggest_runs,
    unfinished_run,
)
from vitft.system.suggest import near_path
from vitft.system.text import listing, shell_quote

ONNX_FILE = "model.onnx"
PROGRAM_FILE = "model.pt2"
PAGE_FILE = "index.html"
SPECIFICATION_FILE = "preprocessing.json"
_USE_RUN = "use the run directory, or an export made with --safetensors, --timm or --transformers"


def find_model(run: str | None, *, graphs: bool = False) -> Path:
    """Return the path of a trained model's file.

    Args:
        run: A run directory, an exported folder, a .safetensors file, or a model on the hub,
            `hf:owner/name[@revision]`, to be downloaded and verified (default: the latest run).
        graphs: Whether the file may also be an .onnx file.

    Raises:
        RunError: The run has no model or several, or the file is of an unsupported kind.
        WeightsError: The repository's name is invalid, or its file is damaged or not available.
        ResourceError: The disk is full.
    """
    if run is not None and (name := canonical_name(run)).startswith("hf:"):
        return _fetch_model(name)
    path = run_path(run)
    if path.is_dir():
        graphs_inside = (ONNX_FILE, f"onnx/{ONNX_FILE}")
        names = (MODEL, *graphs_inside, PROGRAM_FILE, PAGE_FILE, SPECIFICATION_FILE)
        found = next((path / name for name in names if (path / name).is_file()), path)
        if found.parent != path / "onnx" or len(_inner_models(path, graphs=True)) == 1:
            path = found  # else a folder of several exports
    if run is not None and path.is_file() and (data := mistaken_data(path)):
        raise _no_model_but_data(run, data)
    if path.is_file():
        _check_format(path, graphs=graphs)
        return path
    if run is None:
        stopped = unfinished_run()
        raise RunError(
            f"no finished run in {BASE}/",
            fix=f"finish the run that was stopped with `{resume_command(stopped)}`"
            if stopped
            else "run `vitft finetune --data DIR --weights NAME` first, or choose a run with --run",
        )
    if has_settings(path):
        raise RunError(
            f"no model in {run}: the run has not finished",
            fix=f"finish it with `{resume_command(path)}`",
        )
    raise _missing_model(run, path, graphs=graphs)


def _check_format(path: Path, *, graphs: bool) -> None:
    """Raise a RunError unless a file is a checkpoint or, with `graphs`, an ONNX graph."""
    suffix, quoted = path.suffix.lower(), shell_quote(str(path))
    if suffix == ".onnx" and not graphs:
        which = "only `vitft predict`, `evaluate` and `serve` can run"
        raise RunError(f"{path} is an ONNX graph, which {which}", fix=_USE_RUN)
    if suffix in (".npz", *PICKLE_SUFFIXES):
        option = " --allow-pickle" * (suffix != ".npz")
        raise RunError(
            f"{path} is a file of weights that contains no class names",
            fix=f"fine-tune them: vitft finetune --data DIR --weights {quoted}{option}",
        )
    if suffix not in (".safetensors", ".onnx") and weight_format(path) != "safetensors":
        fix = f"use a run directory, or the file {MODEL} in it"
        raise RunError(f"{path} is not a checkpoint", fix=fix)


def _missing_model(run: str, path: Path, *, graphs: bool) -> RunError:
    """Return the error for `run` if `path`, which it denotes, is not a file and has no model."""
    entry, is_timm = entries_by_name().get(run), run.startswith("timm:") and not path.exists()
    has_repository = entry is not None and entry.num_classes and entry.repo
    if is_timm or has_repository:
        fix = f"fine-tune them first: vitft finetune --data DIR --weights {shell_quote(run)}"
        if entry is not None and has_repository:
            fix = f"use them as they are with --run hf:{entry.repo}, or fine-tune them first"
        return RunError(f"no model in {run}, which is the name of pretrained weights", fix=fix)
    inner = _inner_models(path, graphs=graphs)
    if not inner and (data := mistaken_data(path)):
        return _no_model_but_data(run, data)
    near = None if path.exists() else near_path(path, os.DirEntry.is_dir)
    if inner:
        folders = listing((f"--run {shell_quote(str(folder))}" for folder in inner), 9)
        fix = f"use one of the folders in it: {folders}"
    elif near and model_files(near):
        fix = f"did you mean --run {shell_quote(str(near))}?"
    else:
        other = f"use a run directory that contains {MODEL}, or the file itself"
        fix = suggest_runs(run, otherwise=other)
    return RunError(f"no model in {run}", fix=fix)


def _no_model_but_data(run: str, data: tuple[str, str]) -> RunError:
    near, (what, use) = suggest_runs(run, otherwise=""), data
    fix = "; ".join(filter(None, (near, use)))
    return RunError(f"{run} is {what}, not a trained model", fix=fix)


def _inner_models(path: Path, *, graphs: bool) -> list[Path]:
    """Return the folders in a folder that contain a model, with `graphs` also only a graph."""
    names = [f"*/{MODEL}", *[f"*/{ONNX_FILE}", f"*/onnx/{ONNX_FILE}"] * graphs]
    return sorted({path / file.relative_to(path).parts[0] for n in names for file in path.glob(n)})


def model_files(folder: Path) -> list[str]:
    """Return the names of the models for vitft in a folder; `find_model` uses the first one."""
    return [name for name in (MODEL, ONNX_FILE) if (folder / name).is_file()]


@cache  # a command may call this both before and after importing torch
def _fetch_model(name: str) -> Path:
    entry = locate(name)
    assert isinstance(entry, CatalogEntry)
    return fetch(entry)[0]
