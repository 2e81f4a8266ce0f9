"""What a run has fitted so far and what it records: its directory, status and training states.

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
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from vitft.config.run import to_toml
from vitft.data.image_table import Images
from vitft.features.head import HeldOutLogits
from vitft.metrics.intervals import Z
from vitft.metrics.results import BudgetResults, Metrics, RunResults, SolvedHeadResults
from vitft.models.card import Provenance
from vitft.models.checkpoint import state_digest
from vitft.models.timm_model import Model
from vitft.system import rundir
from vitft.system.cores import freed_memory_kept
from vitft.system.device import describe_device, peak_memory
from vitft.system.errors import ResourceError, RunError, Stopped
from vitft.system.files import write_atomically, write_json, writing
from vitft.system.imports import version
from vitft.system.structure import Natural, Share, parse_json, structured
from vitft.system.tensors import read_header, with_sorted_metadata
from vitft.system.text import count, describe_os_error
from vitft.training.loop import RunningMetrics, check_shapes
from vitft.training.runtime import Runtime
from vitft.training.setup import WEIGHTS_FILE, Start

log = logging.getLogger(__name__)

# training states on disk, used to resume a stopped run --------------------------------------------

_BUDGET_FILE = "budget.json"


class _BestFacts(TypedDict):
    """The best epoch so far, without its weights."""

    epochs: Natural  # number of validated epochs of the run
    since: Natural  # how many of them came after the best one
    highest: Share  # highest validation accuracy of an epoch
    figures: RunResults | None  # None before the end of the first epoch
    extra: SolvedHeadResults | None  # of a solved head, reported for any later stage, too


class _StateFacts(TypedDict):
    """Values other than tensors in a training state."""

    step: Natural
    micro_batch: Natural
    scaler: dict[str, Any]
    stage: Natural  # index of the stage in the run, counting from 0
    epochs: Natural  # number of finished and validated epochs of the stage
    tally: RunningMetrics  # running metrics of the current epoch
    best: _BestFacts
    log_bytes: Natural  # size of metrics.jsonl in bytes


@dataclass(frozen=True, slots=True)
class State:
    """Training state saved for resuming."""

    tensors: Mapping[str, Tensor]  # of the trainer
    facts: _StateFacts
    best: Mapping[str, Tensor]  # weights of the best epoch; empty before the end of the first


def save_state(folder: Path, state: State) -> None:
    """Write a state with a digest of all its contents, and delete all but the two newest."""
    with writing(folder):
        folder.mkdir(exist_ok=True)
    path = folder / f"state-{state.facts['stage']}-{state.facts['step']:08}.safetensors"
    tensors = {**state.tensors, **{f"best/{name}": value for name, value in state.best.items()}}
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = _metadata(json.dumps(state.facts, default=asdict), plain)
    write_atomically(path, with_sorted_metadata(to_safetensors(plain, metadata=metadata)))
    _remove_files(_list_states(folder)[2:])


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
    """Return the state that `save_state` wrote to a file, or None if it is damaged."""
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
        return State(tensors, structured(parse_json(facts), _StateFacts), best)
    except (SafetensorError, OSError, ValueError):
        return None


def _list_states(folder: Path) -> list[Path]:
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
    found = _list_states(folder)
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


def _remove_temporary_files(folder: Path) -> None:
    """Remove the unfinished files that a killed process left; no other process may be writing."""
    names = re.compile(r"\..+\.[0-9a-f]{12}")  # names from `files.temporary_file`
    _remove_files(p for p in folder.glob(".*") if names.fullmatch(p.name) and p.is_file())


def remove_states(folder: Path) -> None:
    """Delete the states of a finished run, but keep damaged files."""
    _remove_temporary_files(folder)
    _remove_files([*folder.glob("*.safetensors"), folder / _BUDGET_FILE, folder / WEIGHTS_FILE])
    with contextlib.suppress(OSError):  # not empty (damaged files), or missing
        folder.rmdir()


# weights of the best epoch, and everything that a run has fitted ----------------------------------


class ScoredImages(NamedTuple):
    """Features of the distinct images, and their logits from heads fitted to other images."""

    features: Tensor
    held_out: HeldOutLogits | None  # held-out logits; None if there are too few images per class


class BestWeights:
    """Trained weights with the best validation metrics so far, and the metrics themselves.

    Of the epochs whose accuracy is at most one standard error below the highest, the one with the
    lowest loss is the best (`BEST_RULE` in words). With few images, the accuracy stays the same for
    many epochs or changes by chance. Like the interval, the standard error counts groups. If
    `selects` is false, the latest weights are kept, whatever their metrics.
    """

    def __init__(self, model: Model, *, selects: bool = True) -> None:
        self.model, self.selects = model, selects
        self.facts = _BestFacts(epochs=0, since=0, highest=0.0, figures=None, extra=None)
        self.weights: Mapping[str, Tensor] = {}

    @property
    def results(self) -> RunResults:
        """Contents of eval.json so far; empty before the end of the first epoch."""
        figures, more = self.facts["figures"], self.facts["extra"] or {}
        return cast("RunResults", {**figures, **more} if figures else {})

    def update(self, metrics: Metrics) -> None:
        """Count an epoch, and copy the model's weights if the metrics are the best so far."""
        facts, before = self.facts, self.facts["figures"]
        number, highest = facts["epochs"] + 1, max(facts["highest"], metrics["top1"])

        def fits(one: Metrics) -> bool:
            low, high = one["top1_interval"]
            return highest - one["top1"] <= (high - low) / (2 * Z)

        is_better = before is None or not self.selects
        if before is not None and self.selects:
            is_lower = metrics["loss"] < before["loss"]
            is_better = fits(metrics) if fits(metrics) != fits(before) else is_lower
        weights = self.copy_weights() if is_better else self.weights
        figures: Any = {**metrics, "best_epoch": number} if is_better else before
        selected = self.selects and number > 1
        figures = {**figures, "epochs": number, "selected_on_validation": selected}
        new: _BestFacts = {
            "epochs": number,
            "since": 0 if is_better else facts["since"] + 1,
            "highest": highest,
            "figures": figures,
            "extra": facts["extra"],
        }
        self.facts, self.weights = new, weights  # signals cannot come between

    def restore(self) -> None:
        """Load the best weights into the model; a RunError if it has other names or shapes.

        Without `weights`, those of the model are the best ones, or no epoch has ended.
        """
        self.load(self.facts, self.weights)
        trained = dict(self.trained_tensors())
        for name, value in self.weights.items():
            trained[name].detach().copy_(value)

    def load(self, facts: _BestFacts, weights: Mapping[str, Tensor]) -> None:
        """Continue with the best weights of a saved state; a RunError if they do not fit."""
        if weights:
            wanted = {name: value.shape for name, value in self.trained_tensors()}
            check_shapes({name: value.shape for name, value in weights.items()}, wanted)
        self.facts, self.weights = facts, weights

    def copy_weights(self) -> dict[str, Tensor]:
        """Return copies of the trained tensors, kept on the CPU to save GPU memory."""
        return {name: t.detach().to("cpu", copy=True) for name, t in self.trained_tensors()}

    def trained_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Return the names and values of all trainable parameters and buffers."""
        trained = (pair for pair in self.model.named_parameters() if pair[1].requires_grad)
        return chain(trained, self.model.named_buffers())


class Fitted:
    """The head or the weights that a run has fitted so far, and how: solved, stepped, searched."""

    def __init__(self, start: Start, run: rundir.RunDir, runtime: Runtime) -> None:
        self.start, self.run, self.runtime = start, run, runtime
        self.config = start.config  # with the layers that a search within a budget has chosen
        self.inputs = start.inputs  # to the current stage
        self.precision = start.pipeline.precision
        self.best = BestWeights(start.pipeline.model, selects=not start.config.train.budget)
        self.centre: Tensor | None = None  # weight (C, D) towards which the head is shrunk
        if start.config.weights.keep_head:
            self.centre = start.pipeline.model.head.get_parameter("weight").detach().clone()
        self.budget: BudgetResults | None = None  # trials so far, and the layers once chosen
        self.scored: ScoredImages | None = None  # of the distinct images, once computed
        self.adapter: Mapping[str, Tensor] = {}  # LoRA matrices, once merged into the weights
        self.saved: State | None = None  # the state at which a resumed run continues
        self.final: RunResults | None = None  # of the evaluation, once the model is written
        self.is_reported = False

    def resume(self) -> None:
        """Continue a stopped run: its trials and the time used, best weights and newest state."""
        run, group = self.run, self.runtime.group
        # One process reads the budget: it could change before a slower one reads it
        path, known = run.resume / _BUDGET_FILE, None
        if group.is_main:
            known = rundir.read_run_json(path, BudgetResults)
        self.budget = group.broadcast(known)
        if self.budget is not None:
            self.runtime.started -= self.budget["used"]
            self.best.selects = False
        if group.is_main:
            _remove_temporary_files(run.path)
        else:
            group.barrier()  # wait until damaged states have been renamed
        self.saved = newest_state(run.resume)
        if self.saved is None:
            run.cut_log(0)
        else:
            facts = self.saved.facts
            if facts["stage"] >= len(self.config.train.stages):
                raise rundir.damaged_file(run.resume, "its newest state has an unknown stage")
            epochs = self.config.optim.epochs
            log.info(
                f"resuming after {count(facts['step'], 'step')}, in epoch "
                f"{min(facts['epochs'] + 1, epochs)} of {epochs}"
            )
        if group.is_main:
            group.barrier()

    @property
    def model(self) -> Model:
        return self.best.model

    @property
    def results(self) -> RunResults:
        """Contents of eval.json so far; empty before the end of the first epoch."""
        if self.final is not None:
            return self.final
        best = self.best.results
        is_chosen = self.budget is not None and self.budget["chosen"] is not None
        return cast("RunResults", {**best, "budget": self.budget} if is_chosen else best)

    def record_budget(self, found: BudgetResults) -> None:
        """Write the trials so far and any chosen layers, so that a resumed run has them."""
        self.budget = found
        _write_for_resume(self.run, _BUDGET_FILE, found)

    def save_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Save a training state, given that of the stage, with the best weights so far."""
        more = {**facts, "best": self.best.facts, "log_bytes": self.run.log_size()}
        state = State(tensors, cast("_StateFacts", more), self.best.weights)
        save_state(self.run.resume, state)


# the run directory and its status -----------------------------------------------------------------


def _write_for_resume(run: rundir.RunDir, name: str, content: Provenance | BudgetResults) -> None:
    """Write the origin of a new run's weights, or trials with the layers chosen, to `resume/`."""
    if run.writes:
        with writing(run.resume):
            run.resume.mkdir(exist_ok=True)
        write_json(run.resume / name, content)


@contextlib.contextmanager
def open_run(out: Path, start: Start, runtime: Runtime) -> Iterator[rundir.RunDir]:
    """Create the run directory with its first files, or check that it can be resumed.

    In the block, training on a CPU keeps the memory that each step frees.
    """
    config, group, manifest = start.config, runtime.group, start.inputs.data.manifest
    on_cpu = start.pipeline.device.type == "cpu" and not config.train.shard
    tables = asdict(config).items()
    settings = {f"{name}.{key}": value for name, table in tables for key, value in table.items()}
    if (run := runtime.resumed) is not None:
        _check_same_images(run, manifest)
        if run.writes:
            run.write("config.toml", to_toml(config))  # a setting given on resuming is its own now
        if not _list_states(run.resume):
            log.info("no training state was saved: training starts again")
        runtime.trackers.start(run, settings, resume=True)
        with freed_memory_kept(when=on_cpu):
            yield run
        return
    run = rundir.RunDir(
        group.broadcast(rundir.create_run(out).path if group.is_main else out), writes=group.is_main
    )
    with rundir.locked(run) if group.is_main else contextlib.nullcontext():
        try:
            if group.is_main:
                run.write("config.toml", to_toml(config))
                manifest.write(run.split)
                names = dict(enumerate(manifest.outputs.classes))
                run.write(run.class_indices.name, json.dumps(names, indent=4))  # as the reference
                _write_for_resume(run, WEIGHTS_FILE, start.report.provenance)
                if start.budget is not None:
                    _write_for_resume(run, _BUDGET_FILE, start.budget)
            runtime.trackers.start(run, settings, resume=False)
            with freed_memory_kept(when=on_cpu):
                yield run
        except ResourceError as error:
            if rundir.has_settings(run.path):
                again = f"continue with `{rundir.resume_command(run.path)}`"
                fix = error.fix.replace("run the command again", again)
                raise ResourceError(error.problem, fix=fix) from error
            (run.path / "config.toml").unlink(missing_ok=True)  # the command can be repeated
            raise


@contextlib.contextmanager
def status_recorded(fitted: Fitted) -> Iterator[None]:
    """Write to environment.json and to trackers that the run is running, and then how it ended.

    A signal or the time limit ends the block without an error. At the end of the block the run has
    finished, and cannot be resumed any more.
    """
    run, runtime = fitted.run, fitted.runtime
    _write_environment(fitted, "running")
    runtime.status = "failed"
    try:
        yield
        if runtime.group.is_main:
            rundir.point_latest(run)
            with runtime.stopper.deferred_locally():
                _write_environment(fitted, "finished")  # first: the run needs its states no more
                remove_states(run.resume)
        runtime.status = "finished"
    except KeyboardInterrupt as stop:
        runtime.exit_code = stop.exit_code if isinstance(stop, Stopped) else 130
        ways = {0: "out of time", 130: "interrupted"}
        runtime.status = ways.get(runtime.exit_code, "terminated")
    finally:
        if runtime.status != "finished":
            _write_environment(fitted, runtime.status)
    runtime.trackers.finish(runtime.status, fitted.results)


def _write_environment(fitted: Fitted, status: str) -> None:
    """Write environment.json; other arithmetic than before a run was resumed is logged, too."""
    device, group = fitted.inputs.data.device, fitted.runtime.group
    names = ("vitft", "torch", "numpy", "pillow", "safetensors", "huggingface_hub")
    on_cpu = device.type == "cpu"
    found: rundir.RunEnvironment = {
        "status": status,
        "device": describe_device(device),
        "precision": fitted.precision,
        "processes": group.size,
        "instructions": torch.backends.cpu.get_cpu_capability() if on_cpu else "",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version(name) for name in names},
    }
    # How the steps before a resumption were computed, if not as now
    is_new = status == "running" and fitted.saved is None
    before = None if is_new else rundir.read_environment(fitted.run.path / "environment.json")
    every = [*before.get("earlier", []), _arithmetic(before)] if before else []
    if earlier := [text for text in dict.fromkeys(every) if text != _arithmetic(found)]:
        found["earlier"] = earlier
    if earlier and status == "running":
        log.info(
            f"earlier steps were computed on {' and on '.join(earlier)}, so the results will "
            "differ from those of a run that was not stopped"
        )
    if status != "running":
        found["ended"] = datetime.now().astimezone().isoformat(timespec="seconds")
        found["peak_memory_mib"] = peaks = peak_memory(device)
        if peaks:
            words = ", ".join(f"{mib:,} MiB {kind}" for kind, mib in peaks.items())
            log.debug(f"peak memory: {words}")
    fitted.run.write_json("environment.json", found)


def _arithmetic(known: rundir.RunEnvironment) -> str:
    """Return a description of everything that changes how a run rounds sums."""
    several = f"{number} processes" if (number := known.get("processes", 1)) > 1 else ""
    library = f"torch {known['packages'].get('torch', 'unknown')}"
    device = f"{known['device']} in {known['precision']}"
    return ", ".join(filter(None, (device, known.get("instructions"), several, library)))


def _check_same_images(run: rundir.RunDir, manifest: Images) -> None:
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
