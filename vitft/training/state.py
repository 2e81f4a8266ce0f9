"""The state of a training on disk: written whole, checked when read, never the only one.

    resume/state-0-00000120.safetensors   everything that step 121 of stage 0 depends on
    resume/best-0-00000100.safetensors    the best weights until then

A state names the best weights that belong to it. The newest state and the one before it are kept;
an older one is deleted only when a newer one is on the disk. Steps give the order, never a clock.
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

log = logging.getLogger(__name__)

KEPT = 2
"""States on disk."""
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{12}")
"""As `files.temporary_beside` calls a file until it is whole."""
NAME = re.compile(r"state-(\d+)-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class State:
    """One moment of a training."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def save_state(
    folder: Path, stage: int, step: int, state: State, best: Mapping[str, Tensor] | None
) -> None:
    """Write the state after `step` steps of a stage.

    Args:
        folder: `resume/` of the run; made if it is not there.
        stage: Place of the stage in the run.
        step: Steps done in it.
        state: Tensors and facts; the facts get the name of the best weights.
        best: The best weights, if they changed since the last state; None if they did not.

    Raises:
        ResourceError: The disk is full; the older states are whole.
        RunError: The folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(exist_ok=True)
    facts = dict(state.facts)
    if best is not None:
        facts["best_file"] = f"best-{stage}-{step:08}.safetensors"
        write(folder / facts["best_file"], best, {})
    write(folder / f"state-{stage}-{step:08}.safetensors", state.tensors, facts)
    kept = states(folder)[:KEPT]
    needed = {path.name for path in kept} | {facts_of(path).get("best_file") for path in kept}
    remove(path for path in folder.glob("*.safetensors") if path.name not in needed)


def remove(paths: Iterable[Path]) -> None:
    """Delete files that nobody needs; one that stays is no reason to end a training."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning(f"{path} could not be removed: {error.strerror}")


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """One file, with a digest over all of it."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(facts)
    write_atomically(path, to_safetensors(plain, metadata=metadata_of(text, plain)))


def metadata_of(facts: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The whole of a file's metadata, so that no byte of it can change unnoticed."""
    return {"format": "pt", "facts": facts, "sha256": state_digest(facts, tensors)}


def read(path: Path) -> State | None:
    """What `write` wrote; None if it is not exactly that."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
    text = metadata.get("facts", "")
    if metadata != metadata_of(text, tensors):
        return None
    return State(tensors, json.loads(text))


def facts_of(path: Path) -> dict[str, Any]:
    """The facts of a state, without its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, Any] = json.loads((file.metadata() or {}).get("facts", "{}"))
            return facts
    except (SafetensorError, OSError, ValueError):
        return {}


def states(folder: Path) -> list[Path]:
    """The states in a folder, newest first."""
    found = {path: NAME.fullmatch(path.name) for path in folder.glob("state-*.safetensors")}
    order = {path: (int(match[1]), int(match[2])) for path, match in found.items() if match}
    return sorted(order, key=lambda path: order[path], reverse=True)


def newest_state(folder: Path) -> tuple[State, Mapping[str, Tensor]] | None:
    """The newest whole state and the best weights that belong to it; None if there is none yet.

    A damaged one is kept aside as `*.damaged`, and said.

    Raises:
        RunError: There are states, and none of them is whole.
    """
    found = states(folder)
    for path in found:
        state = read(path)
        name = state.facts.get("best_file") if state else None
        best = read(folder / str(name)) if name else State({}, {})
        if state is not None and best is not None:
            return state, best.tensors
        broken = path if state is None else folder / str(name)
        log.warning(f"damaged: {broken}; going back to the state before")
        with writing(broken):
            if broken.exists():
                broken.replace(broken.with_name(f"{broken.name}.damaged"))
    if found:
        raise RunError(
            f"no state in {folder} is whole",
            fix="start again with another --out; what is damaged lies there as *.damaged",
        )
    return None


def sweep(folder: Path) -> None:
    """Remove the half-written files of a process that was killed; nobody else writes here."""
    remove(p for p in folder.glob(".*") if UNFINISHED.fullmatch(p.name) and p.is_file())


def remove_states(folder: Path) -> None:
    """A finished run needs none; what was damaged stays for whoever wants to know."""
    sweep(folder)
    remove(folder.glob("*.safetensors"))
    if folder.is_dir() and not any(folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)


def check_manifest(run: RunDir, manifest: Manifest) -> None:
    """Refuse to resume on other images than those that the run began with.

    Raises:
        RunError: The split would be another one.
    """
    before = Manifest.read(run.split, manifest.root)
    if before.digest == manifest.digest:
        return
    old, new = ({(r.path, r.sha256, r.split) for r in m.rows} for m in (before, manifest))
    changed = sorted({path for path, _, _ in old ^ new})
    raise RunError(
        f"{len(changed)} images are not as they were when {run.path} began, e.g. {changed[0]}"
        if changed
        else f"the classes are not those with which {run.path} began",
        fix="put the images back as they were, or start a new run",
    )
