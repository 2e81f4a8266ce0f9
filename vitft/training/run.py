"""`vitft finetune`: data and weights in, a run directory out.

The order is: look at the images, split them, load the weights, cut the model at the freeze
boundary, fit what trains, measure what predict will answer, write. The decisions are in `optim`,
`features`, `feed` and `loop`; this file connects them.
"""

import contextlib
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitft.config.defaults import FINE_TUNING
from vitft.config.run import Config, flat_settings, to_toml
from vitft.data.folder import Folder
from vitft.data.inspection import InspectedFolder
from vitft.data.sampling import describe_epoch
from vitft.data.split import split, write_class_indices
from vitft.data.summary import log_inspection, log_split
from vitft.features.cache import default_folder, prune
from vitft.features.extract import Extractor
from vitft.features.fingerprints import Fingerprints
from vitft.features.pipeline import build_pipeline, check_disk_space, inspect_images
from vitft.features.views import View, eval_view
from vitft.metrics.results import RunResults
from vitft.models.checkpoint import Card
from vitft.models.pretrained import LoadReport
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.system.device import describe_device, peak_memory
from vitft.system.errors import Stopped
from vitft.system.malloc import freed_memory_kept
from vitft.system.rundir import (
    PeakMemory,
    RunDir,
    RunEnvironment,
    create_run,
    environment,
    locked,
    point_latest,
)
from vitft.system.signals import Stopper
from vitft.system.text import count
from vitft.training.audit import keep_reference, take_stock
from vitft.training.batches import Feed
from vitft.training.best import Best
from vitft.training.distributed import Team, joined
from vitft.training.finish import card_of, confirmed, keep_adapter, keep_best, keep_calibrated
from vitft.training.setup import prepare
from vitft.training.stages import Job, train
from vitft.training.state import check_manifest, newest_state, remove_states, sweep
from vitft.training.thumbnails import write_gallery
from vitft.training.trackers import reach_trackers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """Outcome of a run: directory, metrics and exit status."""

    run: Path
    figures: RunResults
    """Contents of eval.json; empty if the run was stopped before its first epoch ended."""
    status: str = "finished"
    """As in environment.json: finished, interrupted, terminated or out of time."""
    exit_code: int = 0
    everything_s: float | None = None
    """Seconds that training everything from this head would take here, as far as can be told."""

    @property
    def interrupted(self) -> bool:
        """Whether the run ended before its training did."""
        return self.status != "finished"

    def __repr__(self) -> str:
        top1 = self.figures.get("top1")
        return f"Result(run='{self.run}', status={self.status!r}, top1={top1})"


def finetune(
    config: Config, *, out: Path, resume: bool = False, max_seconds: float = 0.0
) -> Result:
    """Fine-tune pretrained weights on an image folder and write the run directory `out`.

    A signal (Ctrl-C, SIGTERM, SIGUSR1, SIGHUP) or the end of the time keeps the best weights and
    the state so far, and says so in the result; `resume` goes on from there.

    Args:
        config: The settings; of a run that is resumed, its own.
        out: The run directory, new or, to resume, the old one.
        resume: Go on with a run that was stopped or killed.
        max_seconds: Stop after so long; 0: never.

    Raises:
        DataError: The folder, its classes or too many of its images cannot be used.
        WeightsError: The weights cannot be found, read or fitted to the request.
        RunError: `out` cannot be written, or is no run that can be resumed.
        LockedError: Another process writes `out`.
        DivergedError: The loss is not finite.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        stopper = stack.enter_context(Stopper(max_seconds))
        team = stack.enter_context(joined(config.train.timeout))
        stopper.agree = team.agree
        if resume and team.leads:
            stack.enter_context(locked(RunDir(out)))
        named = config.train.trackers if team.leads else ()
        trackers = reach_trackers(named, resume=resume)
        stack.callback(trackers.end, "failed", {})
        start = begin(config, team)
        feed, model = start.feed, start.model
        if resume:
            run = RunDir(out, writes=team.leads)
            check_manifest(run, feed.manifest)
        else:
            path = team.from_leader(create_run(out).path if team.leads else out)
            run = RunDir(path, writes=team.leads)
            if team.leads:
                stack.enter_context(locked(run))
                run.write_text("config.toml", to_toml(feed.config))
                feed.manifest.write(run.split)
                write_class_indices(run.class_indices, feed.manifest.classes)
        job = Job(run=run, best=Best(model), precision=start.precision, stopper=stopper, team=team)
        card = card_of(model, start.report, feed.manifest)
        trackers.begin(run, flat_settings(feed.config), resume=resume)
        job.trackers = trackers
        on_cpu = feed.device.type == "cpu" and not feed.config.train.shard
        with freed_memory_kept(when=on_cpu):
            result = train_and_keep(job, start, card, started)
        trackers.end(result.status, result.figures)
        if feed.config.solvable:
            result = replace(result, everything_s=start.everything_s)
        team.wait()
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where training begins: images looked at and split, the model loaded and cut."""

    feed: Feed
    model: Model
    report: LoadReport
    checked: InspectedFolder
    precision: str
    looking_s: float
    """Seconds that looking at the images took."""

    @property
    def everything_s(self) -> float | None:
        """What the usual fine-tuning would take: a step costs about three forward passes.

        None where the features were in the cache, so that nothing was measured.
        """
        extractor, manifest = self.feed.extractor, self.feed.manifest
        if extractor is None or extractor.computed < len(manifest.rows) / 2:
            return None
        epochs = FINE_TUNING["optim"]["epochs"]
        passes = epochs * (3 * len(manifest.train) + len(manifest.val))
        return passes * self.looking_s / extractor.computed


def round_off(job: Job, start: Start) -> None:
    """What is made of the figures when the training is over."""
    if job.best.epochs and job.team.leads:
        take_stock(start.feed, job.run, job.best, start.checked)
        keep_reference(start.feed, job.run)


def finish(job: Job, start: Start, ended: RunEnvironment) -> None:
    """The last files of a run; it is called finished when none is missing any more."""
    run, feed = job.run, start.feed
    if job.team.leads:
        write_gallery(
            run,
            feed.manifest,
            start.model,
            feed.transform,
            max_pixels=feed.config.data.max_pixels,
            precision=job.precision,
        )
        point_latest(run)
        with job.stopper.held():
            run.write_json("environment.json", ended)
            remove_states(run.resume)


def begin(config: Config, team: Team) -> Start:
    """Everything that comes before the run directory; nothing is written but the cache."""
    known = prepare(config, team)
    config, folder, report = known.config, known.folder, known.report
    pipeline, max_pixels, view = known.pipeline, config.data.max_pixels, eval_view(report.transform)
    extractor = pipeline.open_extractor(config.train, max_pixels=max_pixels)
    if extractor is not None:
        check_disk_space(extractor, view, len(folder.files))
    share_the_work(folder, extractor, view, team)
    fingerprints = Fingerprints(config.train.cache) if config.data.group_duplicates else None
    looking = time.monotonic()
    checked = inspect_images(
        folder,
        max_pixels=max_pixels,
        allow_bad=config.data.allow_bad,
        extractor=extractor,
        view=view,
        fingerprints=fingerprints,
    )
    looking = time.monotonic() - looking
    log_inspection(checked)
    groups = fingerprints.duplicate_groups() if fingerprints else {}
    if fingerprints:
        copies = count(len(groups), "image")
        log.info(f"near-duplicates: {copies}, each group kept on one side of the split")
    manifest = split(checked, config.data, groups=groups)
    log_split(manifest)
    if config.train.sampling == "balanced":
        labels = [row.label for row in manifest.train]
        log.info(describe_epoch(labels, manifest.classes))
    feed = Feed(
        config=config,
        manifest=manifest,
        transform=report.transform,
        cut=pipeline.cut,
        extractor=extractor,
        device=pipeline.device,
        team=team,
        groups=groups,
    )
    feed = feed.in_memory()
    if config.solvable or not config.solves(config.train.stages[0]):
        feed.compute_views()
    team.wait()
    if not config.train.cache and extractor is not None:
        prune(default_folder(), idle_s=3600)
    return Start(
        feed=feed,
        model=pipeline.model,
        report=report,
        checked=checked,
        precision=pipeline.precision,
        looking_s=looking,
    )


def train_and_keep(job: Job, start: Start, card: Card, started: float) -> Result:
    """Train, and write what there is however it ends."""
    run, best, feed = job.run, job.best, start.feed
    status, exit_code, where = "failed", 1, (describe_device(feed.device), job.precision)
    is_measured = False
    if job.team.leads:
        sweep(run.path)
        take_up(job)
    job.team.wait()  # whatever was damaged is set aside by now
    if not job.team.leads:
        take_up(job)
    run.write_json("environment.json", environment("running", *where))
    try:
        try:
            last = all_stages(job, feed)
        finally:  # whatever happened, the best weights so far are kept before anything else
            with job.stopper.held():
                keep_best(run, best, card)
        logits, labels, recomputed = confirmed(last, best.model, job.precision)
        keep_calibrated(
            run,
            best,
            card,
            logits,
            labels,
            confirmed=recomputed,
            seconds=round(time.monotonic() - started, 1),
            undisturbed=job.stopper.held,
        )
        keep_adapter(run, best, feed.config, card)
        is_measured = True
        round_off(job, start)
        finish(job, start, {**environment("finished", *where), **memory(feed.device)})
        status, exit_code = "finished", 0
    except KeyboardInterrupt as stop:
        exit_code = stop.exit_code if isinstance(stop, Stopped) else 130
        status = {0: "out of time", 130: "interrupted"}.get(exit_code, "terminated")
    finally:
        if status != "finished":
            run.write_json(
                "environment.json", {**environment(status, *where), **memory(feed.device)}
            )
    if not is_measured:
        round_off(job, start)
    return Result(run=run.path, figures=best.figures, status=status, exit_code=exit_code)


def memory(device: torch.device) -> PeakMemory:
    """What environment.json says of the memory that the run needed, which is said aloud, too."""
    peaks = peak_memory(device)
    words = [f"{mib:,} MiB {kind}" for kind, mib in peaks.items()]
    if words:
        log.info(f"peak memory: {', '.join(words)}")
    return {"peak_memory_mib": peaks}


def share_the_work(folder: Folder, extractor: Extractor | None, view: View, team: Team) -> None:
    """Let each process of a team compute its share of the features into the common cache.

    Where they have no common cache, each one computes the rest itself.
    """
    if team.size > 1 and extractor is not None:
        files = team.share(folder.files)
        with console.Progress("images to features, a share of them", len(files)) as progress:
            for _ in extractor.extract(str(folder.root), files, view):
                progress.advance()  # what is wrong with a file is said when everybody looks
    team.wait()


def take_up(job: Job) -> None:
    """Let the job go on where an earlier process of this run stopped, if one did."""
    found = newest_state(job.run.resume)
    if found is None:
        job.run.cut_log(0)
        return
    job.saved, weights = found
    facts = job.saved.facts
    job.best.take_up(facts["best"], weights, str(facts.get("best_file", "")))
    log.info(f"resuming after step {facts['step']}, {facts['epochs']} epochs done")


def all_stages(job: Job, feed: Feed) -> Feed:
    """Train one stage after the other; returns what the last one read."""
    first = job.saved.facts["stage"] if job.saved else 0
    for number, stage in enumerate(feed.config.train.stages):
        if number:
            if number > first:  # else the saved weights are put there
                job.best.restore()
            feed = next_feed(job, feed, stage)
            if number > first:
                job.best.widen()
        if number >= first:
            train(job, feed, number)
    return feed


def next_feed(job: Job, feed: Feed, stage: str) -> Feed:
    """The same images for a stage in which more trains."""
    config = feed.config
    pipeline = build_pipeline(
        job.best.model,
        feed.transform,
        stage,
        config.train,
        device=feed.device,
        precision=job.precision,
    )
    extractor = pipeline.open_extractor(config.train, max_pixels=config.data.max_pixels)
    feed = replace(feed, cut=pipeline.cut, extractor=extractor)
    if extractor is not None:
        check_disk_space(extractor, eval_view(feed.transform), len(feed.manifest.rows))
        feed.compute_plain()
        feed.compute_views()
    feed = feed.in_memory()
    log.info(f"training {stage}, from where the stage before it ended")
    return feed
