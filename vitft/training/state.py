"""Training states on disk, used to resume a stopped run.

    resume/state-0-00000120.safetensors   everything that step 121 of stage 0 depends on
    resume/best-0-00000100.safetensors    the best weights so far
    resume/budget.json                    finished trials, chosen layers (runs with a time budget)
    resume/weights.json                   origin of the weights (`training.same_weights`)

Each state contains the name of the file with the best weights up to that step. Files are written
atomically, and digests are verified on reading. The two newest states are kept; an old state is
deleted only after its replacement is on disk. States are ordered by stage and step, not by time.
"""

import contextlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from vitft.config.sections import WeightsSpec
from vitft.data.image_table import Images
from vitft.metrics.results import BudgetResults, StartTrial
from vitft.models.card import Provenance
from vitft.models.checkpoint import state_digest
from vitft.models.pretrained.catalog import canonical_name
from vitft.models.pretrained.load import LoadReport
from vitft.system.errors import RunError
from vitft.system.files import write_atomically, write_json, writing
from vitft.system.rundir import RunDir, read_run_json
from vitft.system.safetensors_file import read_header, with_sorted_metadata
from vitft.system.structure import Natural, parse_json, structured
from vitft.system.text import count, describe_os_error
from vitft.training.best import BestFacts, RunningMetrics
from vitft.training.distributed import full_tensor, slice_like
from vitft.training.loop import Trainer

log = logging.getLogger(__name__)


# the pretrained weights of an unfinished run: recorded at its start, the same when it is ----------

WEIGHTS_FILE = "weights.json"


def write_for_resume(run: RunDir, name: str, content: Provenance | BudgetResults) -> None:
    """Write the origin of a new run's weights, or trials with the layers chosen, to `resume/`."""
    if run.writes:
        with writing(run.resume):
            run.resume.mkdir(exist_ok=True)
        write_json(run.resume / name, content)


def recorded_weights(folder: Path) -> Provenance:
    """Return the recorded origin of a run's weights; it is empty if there is no such file."""
    return read_run_json(folder / WEIGHTS_FILE, Provenance) or {}


def at_recorded_commit(spec: WeightsSpec, recorded: Provenance) -> WeightsSpec:
    """Return the settings, with the commit of a hub repository that the run began with."""
    name, commit = canonical_name(spec.name), recorded.get("revision", "")
    if not (name.startswith("hf:") and commit):
        return spec
    return replace(spec, name=f"{name.partition('@')[0]}@{commit}")


def checked_report(report: LoadReport, name: str, recorded: Provenance) -> LoadReport:
    """Return the report on the loaded weights, which must be the weights the run started with."""
    before, now = recorded.get("sha256", ""), report.provenance.get("sha256", "")
    if before and now != before:
        raise RunError(
            f"the weights {name} have changed since the start of the run (sha256 was "
            f"{before[:12]} and is now {now[:12]})",
            fix="restore the original weights, or start a new run",
        )
    if not recorded:
        return report
    return replace(report, provenance={**report.provenance, "name": recorded.get("name", name)})


# training states on disk, used to resume a stopped run --------------------------------------------

BUDGET_FILE = "budget.json"  # trials of a run with a time budget


class TrainerFacts(TypedDict):
    """Values other than tensors in the state of a trainer."""

    step: Natural
    micro_batch: Natural
    scaler: dict[str, Any]


class StateFacts(TrainerFacts):
    """Values other than tensors in a training state."""

    stage: Natural  # index of the stage in the run, counting from 0
    epochs: Natural  # number of finished and validated epochs of the stage
    tally: RunningMetrics  # running metrics of the current epoch
    best: BestFacts
    best_file: str  # with the best weights; empty before the first epoch ends
    log_bytes: Natural  # size of metrics.jsonl in bytes


@dataclass(frozen=True, slots=True)
class State:
    """Training state saved for resuming: tensors of the model and optimiser, and `StateFacts`."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


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


def trainer_state(trainer: Trainer) -> tuple[dict[str, Tensor], TrainerFacts]:
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


@torch.no_grad()
def load_trainer_state(
    trainer: Trainer, tensors: Mapping[str, Tensor], facts: TrainerFacts
) -> None:
    """Restore a trainer from a state returned by `trainer_state`; a RunError if it does not fit."""
    targets = _tensors_of(trainer)
    optimized = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    wanted = {name: target.shape for name, target in targets.items()}
    for name, value in tensors.items():
        slot = re.fullmatch(r"optimizer/(\d{1,6})/\w+", name)
        if slot and int(slot[1]) < len(optimized):
            wanted[name] = optimized[int(slot[1])].shape if value.ndim else value.shape
    found = {name: value.shape for name, value in tensors.items()}
    if found != wanted:
        odd = min(dict(found.items() ^ wanted.items()))
        raise RunError(
            f"the training state does not fit this model: {odd[:100]} is missing or unknown, or "
            "has the wrong shape",
            fix="start a new run in another directory with --out",
        )
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


def save_state(
    folder: Path, stage: int, step: int, state: State, best: Mapping[str, Tensor] | None
) -> str:
    """Write the state after `step` steps of a stage, and any best weights not yet on disk.

    States other than the two newest are deleted afterwards.

    Returns:
        The name of the file with the best weights, as recorded in the state; empty for none.
    """
    with writing(folder):
        folder.mkdir(exist_ok=True)
    facts = dict(state.facts)
    if best is not None:
        facts["best_file"] = f"best-{stage}-{step:08}.safetensors"
        write_state(folder / facts["best_file"], best, {})
    write_state(folder / f"state-{stage}-{step:08}.safetensors", state.tensors, facts)
    kept = list_states(folder)[:2]
    needed = {path.name for path in kept} | {_best_file_of(path) for path in kept}
    _remove_files(path for path in folder.glob("*.safetensors") if path.name not in needed)
    return str(facts.get("best_file", ""))


def _remove_files(paths: Iterable[Path]) -> None:
    """Delete files; log a message for each file that cannot be deleted."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning(f"cannot remove {path}: {describe_os_error(error)}")


def write_state(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a state file with a digest of all its contents."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(facts, default=asdict)
    content = to_safetensors(plain, metadata=state_metadata(text, plain))
    write_atomically(path, with_sorted_metadata(content))


def state_metadata(facts: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the metadata of a state file, with a digest that detects any changed byte."""
    return {"format": "pt", "facts": facts, "sha256": state_digest(facts, tensors)}


def read_state(path: Path) -> State | None:
    """Return the state that `write_state` wrote to a file, or None if it is missing or damaged."""
    try:
        read_header(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata.get("facts", "")
        if metadata != state_metadata(text, tensors):
            return None
        facts = parse_json(text)
        if not facts:
            return State(tensors, {})
        found: StateFacts = structured(facts, StateFacts)
        name = re.fullmatch(r"(best-\d+-\d+\.safetensors)?", found["best_file"])
        return State(tensors, found) if name else None
    except (SafetensorError, OSError, ValueError):
        return None


def _best_file_of(path: Path) -> str | None:
    """Return the best-weights file name recorded in a state, or None if the state is unreadable."""
    try:
        facts = parse_json(read_header(path).metadata.get("facts", "{}"))
    except (OSError, ValueError):
        return None
    name = facts.get("best_file") if isinstance(facts, dict) else None
    return name if isinstance(name, str) else None


def list_states(folder: Path) -> list[Path]:
    """Return the paths of the states in a folder, latest stage and step first."""
    matches = [re.fullmatch(r"state-(\d+)-(\d+)\.safetensors", p.name) for p in folder.glob("*")]
    order = {folder / m[0]: (int(m[1]), int(m[2])) for m in matches if m}
    return sorted(order, key=lambda path: order[path], reverse=True)


def newest_state(folder: Path) -> tuple[State, Mapping[str, Tensor]] | None:
    """Return the newest intact state and its best weights, or None if there are no states.

    Damaged states, or those whose best weights are, are renamed to `*.damaged` and logged.

    Raises:
        RunError: The folder contains states, but all of them are damaged.
    """
    found = list_states(folder)
    for path in found:
        state = read_state(path)
        name = state.facts.get("best_file") if state else None
        best = read_state(folder / str(name)) if name else State({}, {})
        if state is not None and best is not None:
            return state, best.tensors
        broken = path if state is None else folder / str(name)
        log.warning(f"{broken} is damaged: falling back to the previous state")
        with writing(broken):
            if broken.exists():
                broken.replace(broken.with_name(f"{broken.name}.damaged"))
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
    return read_run_json(folder / BUDGET_FILE, BudgetResults)


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
