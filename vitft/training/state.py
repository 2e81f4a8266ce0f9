"""Training states on disk, from which a stopped run is resumed.

    resume/state-0-00000120.safetensors   everything that step 121 of stage 0 depends on
    resume/best-0-00000100.safetensors    the best weights until then

A state names the best weights that belong to it. Files are written atomically and verified by a
digest when they are read. The newest state and the one before it are kept; an older one is deleted
only when a newer one is on disk. Steps give the order, never a clock.
"""

import json
import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from vitft.data.split import Manifest
from vitft.models.checkpoint import state_digest
from vitft.system.errors import RunError
from vitft.system.files import write_atomically, writing
from vitft.system.rundir import RunDir
from vitft.training.best import BestFacts
from vitft.training.loop import TrainerFacts

log = logging.getLogger(__name__)

STATES_KEPT = 2
TEMPORARY_FILE = re.compile(r"\..+\.[0-9a-f]{12}")
"""Names that `files.temporary_file` gives to unfinished files."""
STATE_FILE = re.compile(r"state-(\d+)-(\d+)\.safetensors")


class StateFacts(TrainerFacts):
    """The part of a training state that is not tensors."""

    stage: int
    """Place of the stage in the run, from 0."""
    epochs: int
    """Epochs of the stage that are finished and validated."""
    tally: dict[str, Any]
    """`RunningMetrics` of the current epoch."""
    best: BestFacts
    best_file: str
    """Name of the file with the best weights; empty before the first epoch ends."""
    log_bytes: int
    """Size of metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class State:
    """A training state as saved for resuming: tensors of model and optimiser, and `StateFacts`."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def save_state(
    folder: Path, stage: int, step: int, state: State, best: Mapping[str, Tensor] | None
) -> str:
    """Write the state after `step` steps of a stage.

    Args:
        folder: `resume/` of the run; created if it does not exist.
        stage: Place of the stage in the run.
        step: Steps of the stage that are done.
        state: The state; the name of the best weights is added to its facts.
        best: The best weights if they changed since the last state, else None.

    Returns:
        The name of the file with the best weights.

    Raises:
        ResourceError: The disk is full; the older states are intact.
        RunError: The folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(exist_ok=True)
    facts = dict(state.facts)
    if best is not None:
        facts["best_file"] = f"best-{stage}-{step:08}.safetensors"
        write_state(folder / facts["best_file"], best, {})
    write_state(folder / f"state-{stage}-{step:08}.safetensors", state.tensors, facts)
    kept = list_states(folder)[:STATES_KEPT]
    needed = {path.name for path in kept} | {read_facts(path).get("best_file") for path in kept}
    remove_files(path for path in folder.glob("*.safetensors") if path.name not in needed)
    return str(facts.get("best_file", ""))


def remove_files(paths: Iterable[Path]) -> None:
    """Delete files; one that cannot be deleted is only reported."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning(f"cannot remove {path}: {error.strerror}")


def write_state(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write one file with a digest over all of its contents."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(facts)
    write_atomically(path, to_safetensors(plain, metadata=state_metadata(text, plain)))


def state_metadata(facts: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the complete metadata of a file, so that any changed byte of it is noticed."""
    return {"format": "pt", "facts": facts, "sha256": state_digest(facts, tensors)}


def read_state(path: Path) -> State | None:
    """Read a file of `write_state`; None if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
    text = metadata.get("facts", "")
    if metadata != state_metadata(text, tensors):
        return None
    return State(tensors, json.loads(text))


def read_facts(path: Path) -> dict[str, Any]:
    """Read the facts of a state without its tensors; empty if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, Any] = json.loads((file.metadata() or {}).get("facts", "{}"))
            return facts
    except (SafetensorError, OSError, ValueError):
        return {}


def list_states(folder: Path) -> list[Path]:
    """Return the states in a folder, newest first."""
    found = {path: STATE_FILE.fullmatch(path.name) for path in folder.glob("state-*.safetensors")}
    order = {path: (int(match[1]), int(match[2])) for path, match in found.items() if match}
    return sorted(order, key=lambda path: order[path], reverse=True)


def newest_state(folder: Path) -> tuple[State, Mapping[str, Tensor]] | None:
    """Return the newest intact state and its best weights; None if there are no states yet.

    Damaged files are renamed to `*.damaged` and reported.

    Raises:
        RunError: There are states, and all of them are damaged.
    """
    found = list_states(folder)
    for path in found:
        state = read_state(path)
        name = state.facts.get("best_file") if state else None
        best = read_state(folder / str(name)) if name else State({}, {})
        if state is not None and best is not None:
            return state, best.tensors
        broken = path if state is None else folder / str(name)
        log.warning(f"{broken} is damaged; falling back to the state before")
        with writing(broken):
            if broken.exists():
                broken.replace(broken.with_name(f"{broken.name}.damaged"))
    if found:
        raise RunError(
            f"all training states in {folder} are damaged",
            fix="start a new run with another --out; the damaged files are kept as *.damaged",
        )
    return None


def remove_temporary_files(folder: Path) -> None:
    """Remove unfinished files of a process that was killed; only one process writes here."""
    remove_files(p for p in folder.glob(".*") if TEMPORARY_FILE.fullmatch(p.name) and p.is_file())


def remove_states(folder: Path) -> None:
    """Remove the states of a finished run; damaged files are kept."""
    remove_temporary_files(folder)
    remove_files(folder.glob("*.safetensors"))
    if folder.is_dir() and not any(folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)


def check_same_images(run: RunDir, manifest: Manifest) -> None:
    """Refuse to resume a run if the images or the split are not those it began with.

    Raises:
        RunError: They differ.
    """
    before = Manifest.read(run.split, manifest.root)
    if before.digest == manifest.digest:
        return
    old, new = ({(r.path, r.sha256, r.split) for r in m.rows} for m in (before, manifest))
    changed = sorted({path for path, _, _ in old ^ new})
    what = "1 image has" if len(changed) == 1 else f"{len(changed)} images have"
    raise RunError(
        f"{what} changed since {run.path} was started, e.g. {changed[0]}"
        if changed
        else f"the classes have changed since {run.path} was started",
        fix="restore the images as they were, or start a new run",
    )
