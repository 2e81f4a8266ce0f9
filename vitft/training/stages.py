"""One stage of a run: what trains, from what it reads to the best weights so far.

`solve` finds the best linear head at once; `step` takes steps, and can stop after any of them and
go on later as if nothing had been.
"""

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.data.augment import batch_augmentation
from vitft.features.cross_validation import cross_validate
from vitft.features.head import solve_head
from vitft.features.neighbours import nearest_neighbours
from vitft.features.views import eval_view
from vitft.metrics.classification import evaluation
from vitft.models.timm_model import Model, TimmModel
from vitft.system import console
from vitft.system.device import one_thread
from vitft.system.errors import ResourceError
from vitft.system.rundir import RunDir
from vitft.system.signals import Stopper
from vitft.training.batches import Feed
from vitft.training.best import Best, Tally, validation_figures
from vitft.training.distributed import Team
from vitft.training.fsdp import split_up, tell
from vitft.training.loop import Step, Training, diverged, fit, logits_of
from vitft.training.state import State, save_state
from vitft.training.trackers import Trackers

SAVE_S = 30.0
"""Seconds after which the state is saved at the earliest; a killed run loses no more than that."""
SAVE_SHARE = 0.05
"""Share of the time that saving may take."""


@dataclass(slots=True, kw_only=True)
class Job:
    """What the stages of a run have in common."""

    run: RunDir
    best: Best
    precision: str
    stopper: Stopper
    team: Team
    saved: State | None = None
    """Where an earlier process stopped; None once it is taken up."""
    trackers: Trackers = field(default_factory=Trackers)


def train(job: Job, feed: Feed, number: int) -> None:
    """Train one stage; `number` is its place in the run.

    Raises:
        Stopped: By a signal or by time; the state is on disk.
        DivergedError: The loss is not finite.
    """
    if feed.config.solves(feed.config.train.stages[number]):
        solve(job, feed)
    else:
        with one_thread(when=feed.cut.pooled):
            Stage(job, feed, number).run()


def solve(job: Job, feed: Feed) -> None:
    """Put the best linear head on the cached features into the model, and ask them for more."""
    run, best = job.run, job.best
    spec, manifest, seed = feed.config.optim, feed.manifest, feed.config.train.seed
    views = feed.train_views if feed.config.solvable else [eval_view(feed.transform)]
    labels = feed.labels(manifest.train).cpu()
    head, behind = best.model.head, best.model.pre_logits.cpu()  # the identity, or kept and frozen
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        seen = [behind(feed.cached(manifest.train, view)) for view in views]
        x = torch.cat(seen) if len(seen) > 1 else seen[0]  # one may be a file that is mapped
        once = feed.once
        held_back, everything = (behind(feed.cached(rows)) for rows in (manifest.val, once))
    behind.to(feed.device)
    plain_x = x[: len(labels)]
    solved = solve_head(
        x,
        labels.repeat(len(views)),
        classes=len(manifest.classes),
        l2=spec.l2,
        balanced=feed.config.balances,
        seed=seed,
        views=len(views),
        groups=feed.alike(manifest.train),
    )
    solved = replace(
        solved,
        weight=job.team.from_leader(solved.weight),
        bias=job.team.from_leader(solved.bias),
    )
    with torch.no_grad():
        first_loss = F.cross_entropy(head(plain_x.to(feed.device)), labels.to(feed.device)).item()
        head.weight.copy_(solved.weight)
        head.bias.copy_(solved.bias)
    for tried in solved.path:
        run.log({"l2": tried.l2, "cv_loss": tried.loss, "cv_top1": tried.top1})
    logits, truth = validated(feed)
    best.consider(evaluation(logits, truth, manifest.classes))
    votes = nearest_neighbours(plain_x, labels, held_back, classes=len(manifest.classes))
    told, held_out = cross_validate(
        everything,
        feed.labels(once).cpu(),
        manifest.classes,
        l2=solved.l2,
        balanced=feed.config.balances,
        seed=seed,
        groups=feed.alike(once),
    )
    best.judged = everything, held_out
    best.extra = {
        "first_loss": first_loss,
        "l2": solved.l2,
        "knn_top1": (votes.argmax(dim=-1) == truth).float().mean().item(),
        "cross_validation": told,
    }


class Stage:
    """A training under way, with everything that has to survive its process."""

    def __init__(self, job: Job, feed: Feed, number: int) -> None:
        config, count = feed.config, feed.epoch_images
        self.job, self.feed, self.number = job, feed, number
        self.precision = "fp32" if feed.cut.pooled else job.precision
        prepare(job.best.model, checkpointing=config.train.checkpointing)
        pixels = feed.cut.prefix is None
        is_split = config.train.shard and job.team.size > 1 and not feed.cut.pooled
        self.training = Training(
            split_up(feed.cut.suffix, job.team) if is_split else feed.cut.suffix,
            config.optim,
            steps_per_epoch=math.ceil(count / config.optim.batch_size),
            precision=self.precision,
            seed=config.train.seed,
            mix=batch_augmentation(config.train, len(feed.manifest.classes)) if pixels else None,
            class_weights=class_weights(feed) if config.optim.class_weights else None,
            compiled=config.train.compile,
            team=job.team,
            split=is_split,
        )
        self.tally = Tally()
        stepping = [s for s in config.train.stages[:number] if not config.solves(s)]
        self.steps_before = len(stepping) * self.training.total
        """Of earlier stages; fewer if one of them ended early."""
        self.epochs = 0
        """Finished and evaluated."""
        self.saved_at, self.cost = time.monotonic(), 0.0

    def run(self) -> None:
        """Train to the end, or to a stop, from the beginning or from where it was stopped."""
        job, config = self.job, self.feed.config
        if job.saved is not None:
            self.take_up(job.saved)
        batches = self.feed.training()
        total = self.feed.epoch_images * config.optim.epochs
        done = min(total, self.training.step * config.optim.batch_size)
        with console.Progress("training", total) as self.progress:
            self.progress.advance(done)
            try:
                with job.stopper.patient(when=job.team.size > 1):
                    fit(
                        self.training,
                        batches,
                        epochs=range(self.epochs, config.optim.epochs),
                        on_step=self.on_step,
                        on_epoch=self.on_epoch,
                        undisturbed=job.stopper.deferred,
                    )
            except (KeyboardInterrupt, ResourceError) as end:  # or another process is gone
                alone = isinstance(end, ResourceError) and self.training.is_split
                if not (job.stopper.is_urgent or alone):  # else a step may be half done, or parts
                    with job.stopper.held():  # of the weights are missing; older states are whole
                        self.keep()
                raise

    def on_step(self, step: Step) -> None:
        """Count a step, show it, and save if it is time."""
        self.tally.add(step)
        self.progress.advance(
            step.images, loss=f"{self.tally.loss:.3f}", accuracy=f"{self.tally.top1:.1%}"
        )
        told = {"loss": step.loss, "lr": step.lr}
        self.job.trackers.step(self.steps_before + step.step + 1, told)
        waited = time.monotonic() - self.saved_at
        is_due = self.job.team.leads and waited > max(SAVE_S, self.cost / SAVE_SHARE)
        if self.training.is_split:  # all have to put their parts together
            is_due = bool(self.job.team.agree(is_due))
        if is_due:
            self.keep()

    def on_epoch(self, epoch: int) -> bool:
        """Evaluate, keep the best, log; whether nothing better is to be expected."""
        job, feed, tally = self.job, self.feed, self.tally
        with self.training.averaged():
            if self.training.is_split:
                tell(self.training.model, feed.cut.suffix)
            logits, labels = validated(feed, precision=self.precision)
            figures = evaluation(logits, labels, feed.manifest.classes)
            if not math.isfinite(figures["loss"]):
                raise diverged(tally.steps - 1, tally.lr, figures["loss"])
            with job.stopper.deferred():
                line = {"epoch": epoch + 1, **tally.figures(), **validation_figures(figures)}
                job.run.log(line)  # first: if the disk is full, this epoch has yet to end
                job.best.consider(figures)
                self.progress.advance(0, validation=f"{figures['top1']:.1%}")
                tally.reset()
                self.epochs = epoch + 1
                for known in ("lr", "first_loss"):  # told step by step
                    del line[known]
                job.trackers.epoch(self.steps_before + self.training.step, line)
        patience = feed.config.optim.patience
        return bool(patience) and job.best.since >= patience

    def keep(self) -> None:
        """Write the state, so that it can be taken up after this step."""
        started = time.monotonic()
        job, best = self.job, self.job.best
        if not (job.team.leads or self.training.is_split):
            return
        tensors, facts = self.training.state()
        if not job.team.leads:
            return
        job.trackers.tell()
        facts |= {
            "stage": self.number,
            "epochs": self.epochs,
            "tally": self.tally.state(),
            "best": best.facts(),
            "log_bytes": job.run.log_size(),
            "best_file": best.file,
        }
        step = self.training.step
        changed = None if best.file or not best.epochs else best.state
        save_state(job.run.resume, self.number, step, State(tensors, facts), changed)
        if changed is not None:
            best.file = f"best-{self.number}-{step:08}.safetensors"
        self.saved_at = time.monotonic()
        self.cost = self.saved_at - started

    def take_up(self, saved: State) -> None:
        """Go on from a state."""
        facts: dict[str, Any] = dict(saved.facts)
        self.training.restore(dict(saved.tensors), facts)
        self.tally.restore(facts["tally"])
        self.epochs = facts["epochs"]
        self.job.run.cut_log(facts["log_bytes"])
        self.job.saved = None


def validated(feed: Feed, *, precision: str = "fp32") -> tuple[Tensor, Tensor]:
    """Scores (n, C) and labels (n,) of the validation images, in order, each computed once."""
    rows = feed.manifest.val
    logits, _ = logits_of(
        feed.cut.suffix, feed.validation()(), device=feed.device, precision=precision
    )
    return feed.team.gathered(logits, len(rows)), feed.labels(rows).cpu()


def prepare(model: Model, *, checkpointing: bool) -> None:
    """Settings of the model that only matter while it trains."""
    if isinstance(model, TimmModel):
        if checkpointing:
            model.net.set_grad_checkpointing(True)
    else:
        model.checkpointing = checkpointing


def class_weights(feed: Feed) -> Tensor:
    """Factors (C,) that let every class count the same, of mean one over the images."""
    labels = feed.labels(feed.manifest.train)
    counts = torch.bincount(labels, minlength=len(feed.manifest.classes))
    return len(labels) / (counts * len(counts)).float()
