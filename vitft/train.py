"""`vitft finetune`: data and weights in, a run directory out.

The order is: look at the images, split them, load the weights, cut the model at the freeze
boundary, fit what trains, measure what predict will answer, write. The decisions are in `optim`,
`features`, `feed` and `loop`; this file connects them.
"""

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from vitft import console
from vitft.cache import default_folder, prune
from vitft.checkpoint import Card, save_checkpoint
from vitft.config import Config, to_toml
from vitft.data.folder import scan
from vitft.data.split import Manifest, split, write_class_indices
from vitft.device import describe_device, one_thread, pick_device, pick_precision
from vitft.errors import ResourceError, RunError
from vitft.extract import Extractor, plain
from vitft.features import Cut, cut_model
from vitft.feed import Feed
from vitft.loop import Step, diverged, fit, logits_of
from vitft.metrics import evaluation
from vitft.model import VisionTransformer
from vitft.optim import freeze_model
from vitft.pretrained import LoadReport, load_pretrained
from vitft.probe import answers, nearest_neighbours, solve_head
from vitft.record import Best, Tally, validation_figures
from vitft.rundir import RunDir, create_run, environment, point_latest
from vitft.survey import look_at, say_split
from vitft.transforms import EvalTransform

CLOSE_CALLS = 8
"""Validation images computed again in float32 at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to."""

    run: Path
    figures: dict[str, Any]
    """The contents of eval.json; empty if the run was interrupted before its first epoch ended."""
    interrupted: bool


def finetune(config: Config, *, out: Path) -> Result:
    """Fine-tune pretrained weights on an image folder and write the run directory `out`.

    An interruption by Ctrl-C keeps the best weights so far and says so in the result.

    Raises:
        DataError: The folder, its classes or too many of its images cannot be used.
        WeightsError: The weights cannot be found, read or fitted to the request.
        RunError: `out` cannot be written.
        DivergedError: The loss is not finite.
    """
    started = time.monotonic()
    data = str(Path(config.data.path).expanduser().resolve())  # found again from anywhere
    config = replace(config, data=replace(config.data, path=data))
    folder = scan(Path(data), reference=config.data.split == "reference")
    device = pick_device(config.train.device)
    precision = pick_precision(config.train.precision, device)
    model, report = load_weights(config, num_classes=len(folder.classes))
    trained = freeze_model(model, config.train.freeze)
    cut = cut_model(model.to(device), config.train.freeze)
    extractor = make_extractor(cut, config, report.transform, precision)
    say_what_trains(model, trained, config, device, precision)
    checked = look_at(folder, extractor, report.transform, config)
    manifest = split(checked, config.data)
    say_split(manifest)
    feed = Feed(
        config=config,
        manifest=manifest,
        transform=report.transform,
        cut=cut,
        extractor=extractor,
        device=device,
    )
    feed.compute_views()
    if not config.train.cache and extractor is not None:
        prune(default_folder(), idle_s=3600)
    run = create_run(out)
    run.write_text("config.toml", to_toml(config))
    manifest.write(run.split)
    write_class_indices(run.class_indices, manifest.classes)
    best = Best(model)
    card = card_of(model, report, manifest)
    status = train_and_keep(feed, run, best, card, precision, started)
    if status == "finished":
        point_latest(run)
    return Result(run=run.path, figures=best.figures, interrupted=status == "interrupted")


def train_and_keep(
    feed: Feed, run: RunDir, best: Best, card: Card, precision: str, started: float
) -> str:
    """Train, and write what there is however it ends; returns how it ended."""
    status, where = "failed", (describe_device(feed.device), precision)
    try:
        run.write_json("environment.json", environment("running", *where))
        try:
            status = train(feed, run, best, precision)
        finally:  # whatever happened, the best weights so far are kept before anything else
            if best.epochs:
                best.restore()
                save_checkpoint(run.model, best.model.state_dict(), card)
                run.write_json("eval.json", best.figures)
        if best.epochs:
            best.figures |= confirmed(feed, best.model, precision)
            best.figures["seconds"] = round(time.monotonic() - started, 1)
            run.write_json("eval.json", best.figures)
    except KeyboardInterrupt:
        status = "interrupted"
    finally:
        run.write_json("environment.json", environment(status, *where))
    return status


def make_extractor(
    cut: Cut, config: Config, transform: EvalTransform, precision: str
) -> Extractor | None:
    """The frozen prefix at work with its cache; None if nothing is frozen."""
    if cut.prefix is None:
        return None
    named = config.train.cache
    make = functools.partial(
        Extractor, cut.prefix, precision=precision, max_pixels=config.data.max_pixels
    )
    if named == "none":
        return make(folder=None)
    try:
        extractor = make(folder=Path(named).expanduser() if named else default_folder())
        extractor.store(plain(transform))  # here and now, not after an hour
        return extractor
    except (RunError, ResourceError) as error:
        if named:
            raise
        console.warn(f"features are not kept: {console.visible(error.problem)}")
        return make(folder=None)


def load_weights(config: Config, *, num_classes: int) -> tuple[VisionTransformer, LoadReport]:
    """The pretrained model with a zero head; says what was loaded, dropped and resized.

    `random:NAME` is the architecture and transform of NAME with fresh random weights: the
    baseline that shows what pretraining is worth.
    """
    spec = config.weights
    name = spec.name.removeprefix("random:")
    model, report = load_pretrained(
        name,
        num_classes=num_classes,
        image_size=spec.image_size,
        pre_logits=spec.pre_logits,
        pos_embed=spec.pos_embed,
        mean=spec.mean,
        std=spec.std,
        allow_pickle=spec.allow_pickle,
    )
    if name == spec.name:
        for line in report.lines():
            console.note(console.visible(line))
        return model, report
    console.note(f"random weights in the architecture of {console.visible(name)}")
    torch.manual_seed(config.train.seed)
    model = VisionTransformer(model.config)
    return model, replace(report, provenance={"name": spec.name}, positions="random")


def say_what_trains(
    model: VisionTransformer,
    trained: Sequence[str],
    config: Config,
    device: torch.device,
    precision: str,
) -> None:
    """Count the parameters on both sides of the freeze boundary."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    count = sum(sizes[name] for name in trained)
    console.note(
        f"training {config.train.freeze}: {count:,} of {sum(sizes.values()):,} parameters, "
        f"on {describe_device(device)} in {precision}"
    )


def train(feed: Feed, run: RunDir, best: Best, precision: str) -> str:
    """Solve or fit what trains, with validation; returns how it ended."""
    try:
        if feed.config.optim.solver == "lbfgs":
            solve(feed, run, best)
            return "finished"
        with one_thread(when=feed.cut.pooled):
            step(feed, run, best, precision)
    except KeyboardInterrupt:
        return "interrupted"
    return "finished"


def solve(feed: Feed, run: RunDir, best: Best) -> None:
    """Put the best linear head on the cached features into the model, and ask them for more."""
    spec, manifest, seed = feed.config.optim, feed.manifest, feed.config.train.seed
    views = feed.train_views
    labels = feed.labels(manifest.train).cpu()
    head, behind = best.model.head, best.model.pre_logits.cpu()  # the identity, or kept and frozen
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        x = torch.cat([behind(feed.cached(manifest.train, view)) for view in views])
        once = list({row.sha256: row for row in manifest.rows}.values())  # each picture once
        held_back, everything = (behind(feed.cached(rows)) for rows in (manifest.val, once))
    behind.to(feed.device)
    plain_x = x[: len(labels)]
    solved = solve_head(
        x,
        labels.repeat(len(views)),
        classes=len(manifest.classes),
        l2=spec.l2,
        balanced=spec.class_weights,
        seed=seed,
        views=len(views),
    )
    with torch.no_grad():
        first_loss = F.cross_entropy(head(plain_x.to(feed.device)), labels.to(feed.device)).item()
        head.weight.copy_(solved.weight)
        head.bias.copy_(solved.bias)
    for tried in solved.path:
        run.log({"l2": tried.l2, "cv_loss": tried.loss, "cv_top1": tried.top1})
    logits, truth = logits_of(feed.cut.suffix, feed.validation()(), device=feed.device)
    best.consider(evaluation(logits, truth, manifest.classes))
    votes = nearest_neighbours(plain_x, labels, held_back, classes=len(manifest.classes))
    best.figures |= {
        "first_loss": first_loss,
        "l2": solved.l2,
        "knn_top1": (votes.argmax(dim=-1) == truth).float().mean().item(),
        "cross_validation": answers(
            everything,
            feed.labels(once).cpu(),
            manifest.classes,
            l2=solved.l2,
            balanced=spec.class_weights,
            seed=seed,
        ),
    }


def step(feed: Feed, run: RunDir, best: Best, precision: str) -> None:
    """Fit what trains, epoch by epoch."""
    config, count = feed.config, len(feed.manifest.train)
    validation, training = feed.validation(), feed.training()
    tally = Tally()
    with console.Progress("training", count * config.optim.epochs) as progress:

        def on_step(step: Step) -> None:
            tally.add(step)
            progress.advance(step.images, loss=f"{tally.loss:.3f}", accuracy=f"{tally.top1:.1%}")

        def on_epoch(epoch: int) -> None:
            logits, labels = logits_of(feed.cut.suffix, validation(), device=feed.device)
            figures = evaluation(logits, labels, feed.manifest.classes)
            if not math.isfinite(figures["loss"]):
                raise diverged(tally.steps - 1, tally.lr, figures["loss"])
            best.consider(figures)
            progress.advance(0, validation=f"{figures['top1']:.1%}")
            run.log({"epoch": epoch + 1, **tally.figures(), **validation_figures(figures)})
            tally.reset()

        fit(
            feed.cut.suffix,
            training,
            steps_per_epoch=math.ceil(count / config.optim.batch_size),
            spec=config.optim,
            precision="fp32" if feed.cut.pooled else precision,
            on_step=on_step,
            on_epoch=on_epoch,
        )


def confirmed(feed: Feed, model: VisionTransformer, precision: str) -> dict[str, Any]:
    """The figures that predict and every export will answer with: those of float32.

    Features in bf16 move a score by a few thousandths, which matters only where two classes are
    nearly equal. So the closest calls are computed again from their pixels in float32, in growing
    numbers, until the rest is further apart than four times the largest change seen.
    """
    rows = feed.manifest.val
    logits, labels = logits_of(feed.cut.suffix, feed.validation()(), device=feed.device)
    if precision == "fp32" or feed.extractor is None:
        return evaluation(logits, labels, feed.manifest.classes)
    best = logits.topk(2, dim=-1).values  # (n, 2)
    gaps, order = (best[:, 0] - best[:, 1]).sort()
    change, done = 0.0, 0
    while done < len(rows) and (done == 0 or gaps[done] < 4 * change):
        chosen = order[done : done + CLOSE_CALLS]
        done += len(chosen)
        for chunk, pixels in feed.pixels([rows[i] for i in chosen.tolist()], CLOSE_CALLS):
            with torch.inference_mode():
                exact = model.eval()(pixels).float().cpu()
            assert len(chunk) == len(exact)
            change = max(change, (exact - logits[chosen]).abs().max().item())
            logits[chosen] = exact
    return evaluation(logits, labels, feed.manifest.classes) | {"confirmed_in_float32": done}


def card_of(model: VisionTransformer, report: LoadReport, manifest: Manifest) -> Card:
    """What travels with the trained weights."""
    return Card(
        architecture=model.config,
        transform=report.transform,
        classes=manifest.classes,
        weights=report.provenance,
        pos_embed=report.positions,
        split=manifest.digest,
    )
