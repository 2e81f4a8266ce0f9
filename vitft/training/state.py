"""Training states on disk, used to resume a stopped run.

    resume/state-0-00000120.safetensors   everything that step 121 of stage 0 depends on
    resume/budget.json                    finished trials, chosen layers (runs with a time budget)
    resume/weights.json                   origin of the weights

Files are written atomically, and digests are verified on reading. The two newest states are kept;
an old state is deleted only after its replacement is on disk. States are ordered by stage and step,
not by time.
"""

import contextlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from vitft.data.image_table import Images
from vitft.metrics.results import BudgetResults, RunResults, SolvedHeadResults, StartTrial
from vitft.models.card import Provenance
from vitft.models.checkpoint import state_digest
from vitft.system.errors import RunError
from vitft.system.files import write_atomically, write_json, writing
from vitft.system.rundir import RunDir, read_run_json
from vitft.system.structure import Natural, Share, parse_json, structured
from vitft.system.tensors import read_header, with_sorted_metadata
from vitft.system.text import count, describe_os_error
from vitft.training.loop import RunningMetrics, Trainer
from vitft.training.runtime import full_tensor, slice_like

log = logging.getLogger(__name__)


WEIGHTS_FILE, BUDGET_FILE = "weights.json", "budget.json"


def write_for_resume(run: RunDir, name: str, content: Provenance | BudgetResults) -> None:
    """Write the origin of a new run's weights, or trials with the layers chosen, to `resume/`."""
    if run.writes:
        with writing(run.resume):
            run.resume.mkdir(exist_ok=True)
        write_json(run.resume / name, content)


class BestFacts(TypedDict):
    """The best epoch so far, without its weights."""

    epochs: Natural  # number of validated epochs of the run
    since: Natural  # how many of them came after the best one
    highest: Share  # highest validation accuracy of an epoch
    figures: RunResults | None  # None before the end of the first epoch
    extra: SolvedHeadResults | None  # of a solved head, reported for any later stage, too


class StateFacts(TypedDict):
    """Values other than tensors in a training state."""

    step: Natural
    micro_batch: Natural
    scaler: dict[str, Any]
    stage: Natural  # index of the stage in the run, counting from 0
    epochs: Natural  # number of finished and validated epochs of the stage
    tally: RunningMetrics  # running metrics of the current epoch
    best: BestFacts
    log_bytes: Natural  # size of metrics.jsonl in bytes


@dataclass(frozen=True, slots=True)
class State:
    """Training state saved for resuming."""

    tensors: Mapping[str, Tensor]  # of the trainer
    facts: StateFacts
    best: Mapping[str, Tensor]  # weights of the best epoch; empty before the end of the first


def _tensors_of(trainer: Trainer) -> dict[str, Tensor]:
    """Return the tensors of a trainer other than those of its optimiser, without copying them."""
    weights = trainer.average.trained
    buffers = trainer.model.named_buffers()
    return {
        **{f"weights/{name}": weights[name].detach() for name in trainer.parameters},
        **{f"buffers/{name}": weights.get(name, buffer) for name, buffer in buffers},
        **{f"average/{name}": mean for name, mean in trainer.average.average.items()},
        **{f"before/{name}": value for name, value in trainer.average.before.items()},
    }


def trainer_state(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of a trainer before its next step, as tensors and JSON values.

    Every rank of a sharded model must call it, but only the main process receives the tensors.
    """
    tensors = _tensors_of(trainer)
    for i, slots in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{i}/{key}": torch.as_tensor(v) for key, v in slots.items()}
    if trainer.sharded:
        full = ((name, full_tensor(tensor)) for name, tensor in tensors.items())
        tensors = {name: tensor.cpu() for name, tensor in full if trainer.group.is_main}
    scaler = trainer.scaler.state_dict()
    return tensors, {"step": trainer.steps, "micro_batch": trainer.micro_batch, "scaler": scaler}


def check_shapes(found: Mapping[str, torch.Size], wanted: Mapping[str, torch.Size]) -> None:
    """Raise a RunError if saved tensors have other names or shapes than those of the model."""
    if found != wanted:
        odd = min(dict(found.items() ^ wanted.items()))
        raise RunError(
            f"the training state does not fit this model: {odd[:100]} is missing or unknown, or "
            "has the wrong shape",
            fix="start a new run in another directory with --out",
        )


@torch.no_grad()
def load_trainer_state(
    trainer: Trainer, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Restore a trainer from a state returned by `trainer_state`; a RunError if it does not fit."""
    targets = _tensors_of(trainer)
    optimized = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    wanted = {name: target.shape for name, target in targets.items()}
    for name, value in tensors.items():
        slot = re.fullmatch(r"optimizer/(\d{1,6})/\w+", name)
        if slot and int(slot[1]) < len(optimized):
            wanted[name] = optimized[int(slot[1])].shape if value.ndim else value.shape
    check_shapes({name: value.shape for name, value in tensors.items()}, wanted)
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name in targets:
            target = targets[name]
            target.copy_(slice_like(value, target) if trainer.sharded else value)
        else:
            _, i, key = name.split("/")
            own = slice_like(value, optimized[int(i)]) if trainer.sharded else value
            slots.setdefault(int(i), {})[key] = own.clone()
    state = trainer.optimizer.state_dict()
    trainer.optimizer.load_state_dict({**state, "state": slots})
    trainer.scaler.load_state_dict(facts["scaler"])
    trainer.steps, trainer.limit.images = facts["step"], facts["micro_batch"]
    if trainer.sharded and trainer.spec.micro_batch:  # may have been lowered on resuming
        trainer.limit.images = trainer.spec.micro_batch


def save_state(folder: Path, state: State) -> None:
    """Write a state with a digest of all its contents, and delete all but the two newest."""
    with writing(folder):
        folder.mkdir(exist_ok=True)
    path = folder / f"state-{state.facts['stage']}-{state.facts['step']:08}.safetensors"
    tensors = {**state.tensors, **{f"best/{name}": value for name, value in state.best.items()}}
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = _metadata(json.dumps(state.facts, default=asdict), plain)
    write_atomically(path, with_sorted_metadata(to_safetensors(plain, metadata=metadata)))
    _remove_files(list_states(folder)[2:])


def _metadata(facts: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the metadata of a state file, with a digest that detects any changed byte."""
    return {"format": "pt", "facts": facts, "sha256": state_digest(facts, tensors)}


def _remove_files(paths: Iterable[Path]) -> None:
    """Delete files; log a message for each file that cannot be deleted."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning(f"cannot remove {path}: {describe_os_error(error)}")


def read_state(path: Path) -> State | None:
    """Return the state that `save_state` wrote to a file, or None if it is damaged.

    Raises:
        RunError: The best weights are not in the state, but in a file as in earlier versions.
    """
    try:
        read_header(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = metadata.get("facts", "")
        if metadata != _metadata(facts, tensors):
            return None
        kept = [name for name in tensors if name.startswith("best/")]
        best = {name.removeprefix("best/"): tensors.pop(name) for name in kept}
        state = State(tensors, structured(parse_json(facts), StateFacts), best)
    except (SafetensorError, OSError, ValueError):
        return None
    if state.facts["best"]["epochs"] and not best:
        raise RunError(
            f"{path} was written by an earlier version of vitft, which kept the best weights in "
            "another file",
            fix="resume the run with the version that began it, or start a new run in another "
            "directory with --out",
        )
    return state


def list_states(folder: Path) -> list[Path]:
    """Return the paths of the states in a folder, latest stage and step first."""
    matches = [re.fullmatch(r"state-(\d+)-(\d+)\.safetensors", p.name) for p in folder.glob("*")]
    order = {folder / m[0]: (int(m[1]), int(m[2])) for m in matches if m}
    return sorted(order, key=lambda path: order[path], reverse=True)


def newest_state(folder: Path) -> State | None:
    """Return the newest intact state, or None if there are no states.

    Damaged states are renamed to `*.damaged` and logged.

    Raises:
        RunError: The folder contains states, but all of them are damaged.
    """
    found = list_states(folder)
    for path in found:
        if (state := read_state(path)) is not None:
            return state
        log.warning(f"{path} is damaged: falling back to the previous state")
        with writing(path), contextlib.suppress(FileNotFoundError):
            path.replace(path.with_name(f"{path.name}.damaged"))
    if found:
        raise RunError(
            f"all training states in {folder} are damaged",
            fix="start a new run in another directory with --out. The damaged files are kept as "
            "*.damaged",
        )
    return None


def untried(seconds: float, starts: Mapping[str, StartTrial]) -> BudgetResults:
    """Return the results of a time budget before any layers are tried, given those of starts."""
    found = {"seconds": seconds, "used": 0.0, "trials": [], "skipped": []}
    return cast("BudgetResults", {**found, "chosen": None, "epochs": 0, **starts})


def read_budget(folder: Path) -> BudgetResults | None:
    """Return the recorded trials and chosen layers, or None if there are none."""
    budget = read_run_json(folder / BUDGET_FILE, BudgetResults)
    for trial in budget["trials"] if budget else ():
        trial.setdefault("folds", 1)
    return budget


def remove_temporary_files(folder: Path) -> None:
    """Remove the unfinished files that a killed process left; no other process may be writing."""
    names = re.compile(r"\..+\.[0-9a-f]{12}")  # names from `files.temporary_file`
    _remove_files(p for p in folder.glob(".*") if names.fullmatch(p.name) and p.is_file())


def remove_states(folder: Path) -> None:
    """Delete the states of a finished run, but keep damaged files."""
    remove_temporary_files(folder)
    _remove_files([*folder.glob("*.safetensors"), folder / BUDGET_FILE, folder / WEIGHTS_FILE])
    with contextlib.suppress(OSError):  # not empty (damaged files), or missing
        folder.rmdir()


def check_same_images(run: RunDir, manifest: Images) -> None:
    """Raise a RunError if the images, the classes or the split of a resumed run have changed."""
    before = Images.from_csv(run.split, manifest.root)
    if before.digest == manifest.digest:
        return
    old, new = (
        {(r.path, r.sha256, r.split, m.classes[r.label], r.group) for r in m.rows}
        for m in (before, manifest)
    )
    changed = sorted({path for path, *_ in old ^ new})
    what = count(len(changed), "image has", "images have")
    raise RunError(
        f"{what} changed since the start of {run.path}, e.g. {changed[0]}"
        if changed
        else f"the classes have changed since the start of {run.path}",
        fix="restore the original images and classes, or start a new run",
    )
