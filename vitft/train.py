"""`vitft finetune`: data and weights in, a run directory out.

The order is: look at the images, split them, load the weights, cut the model at the freeze
boundary, fit what trains, measure what predict will answer, write. The decisions are in `optim`,
`features`, `feed` and `loop`; this file connects them.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitft import console
from vitft.checkpoint import Card, save_checkpoint
from vitft.config import Config, to_toml
from vitft.data.folder import Checked, check_images, scan
from vitft.data.split import Manifest, leaks, split, write_class_indices
from vitft.device import describe_device, pick_device, pick_precision
from vitft.features import cut_model
from vitft.feed import Feed
from vitft.loop import Step, fit, logits_of
from vitft.metrics import evaluation
from vitft.model import VisionTransformer
from vitft.optim import freeze_model
from vitft.pretrained import LoadReport, load_pretrained
from vitft.rundir import RunDir, create_run, environment, point_latest


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
    manifest = look_at(config)
    device = pick_device(config.train.device)
    model, report = load_weights(config, num_classes=len(manifest.classes))
    trained = freeze_model(model, config.train.freeze)
    feed = Feed(
        config=config,
        manifest=manifest,
        transform=report.transform,
        cut=cut_model(model.to(device), config.train.freeze),
        device=device,
        precision=pick_precision(config.train.precision, device),
    )
    say_what_trains(model, trained, feed)
    run = create_run(out)
    run.write_text("config.toml", to_toml(config))
    manifest.write(run.split)
    write_class_indices(run.class_indices, manifest.classes)
    status = "failed"
    figures: dict[str, Any] = {}
    try:
        run.write_json("environment.json", environment("running", describe_device(device)))
        best = Best(model)
        status = train(feed, run, best)
        if best.epochs:
            figures = best.figures | {"seconds": round(time.monotonic() - started, 1)}
            best.restore()
            save_checkpoint(run.model, model.state_dict(), card_of(model, report, manifest))
            run.write_json("eval.json", figures)
    except KeyboardInterrupt:
        status = "interrupted"
    finally:
        run.write_json("environment.json", environment(status, describe_device(device)))
    if status == "finished":
        point_latest(run)
    return Result(run=run.path, figures=figures, interrupted=status == "interrupted")


def look_at(config: Config) -> Manifest:
    """Scan, open and split the images, and say what was found."""
    folder = scan(Path(config.data.path).expanduser(), reference=config.data.split == "reference")
    with console.Progress("checking images", len(folder.files)) as progress:
        checked = check_images(
            folder,
            max_pixels=config.data.max_pixels,
            allow_bad=config.data.allow_bad,
            progress=lambda done, _: progress.advance(done - progress.done),
        )
    say_oddities(checked)
    manifest = split(checked, config.data)
    counts = {name: [0, 0] for name in manifest.classes}
    for part, rows in enumerate((manifest.train, manifest.val)):
        for row in rows:
            counts[manifest.classes[row.label]][part] += 1
    title = f"{len(manifest.rows)} images of {len(manifest.classes)} classes"
    console.chart(title, counts, ("training", "validation"))
    say_leaks(manifest)
    return manifest


def say_oddities(checked: Checked) -> None:
    """Name the files that are left out and count what was converted."""
    for text in checked.folder.notes:
        console.note(console.visible(text))
    for path, reason in checked.bad[:10]:
        console.warn(f"left out: {console.visible(path)}: {console.visible(reason)}")
    if len(checked.bad) > 10:
        console.warn(f"left out: {len(checked.bad) - 10} more unreadable files")
    for kind, count in sorted(checked.odd.items()):
        console.note(f"{kind}: {count} images")


def say_leaks(manifest: Manifest) -> None:
    """Warn of identical files on both sides of the split or under two labels."""
    found = leaks(manifest)
    kinds = {"in training and in validation": found.across, "under two labels": found.labels}
    for kind, groups in kinds.items():
        if groups:
            example = " and ".join(console.visible(path) for path in groups[0][:2])
            console.warn(f"identical files {kind}: {len(groups)} groups, e.g. {example}")


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


def say_what_trains(model: VisionTransformer, trained: Sequence[str], feed: Feed) -> None:
    """Count the parameters on both sides of the freeze boundary."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    count = sum(sizes[name] for name in trained)
    console.note(
        f"training {feed.config.train.freeze}: {count:,} of {sum(sizes.values()):,} parameters, "
        f"on {describe_device(feed.device)} in {feed.precision}"
    )


class Best:
    """The trained weights that did best on the validation images so far, and their figures."""

    def __init__(self, model: VisionTransformer) -> None:
        self.model = model
        self.epochs = 0
        self.figures: dict[str, Any] = {}
        self.state: dict[str, Tensor] = {}

    def consider(self, figures: dict[str, Any]) -> None:
        """Keep a copy of the weights if accuracy, or at equal accuracy the loss, is better."""
        self.epochs += 1
        if not self.figures or rank(figures) > rank(self.figures):
            self.figures = figures | {"best_epoch": self.epochs}
            self.state = {
                name: p.detach().clone()
                for name, p in self.model.named_parameters()
                if p.requires_grad
            }
        # The same images chose the epoch and measured it: slightly optimistic, so it is stated.
        self.figures |= {"epochs": self.epochs, "selected_on_validation": self.epochs > 1}

    def restore(self) -> None:
        """Put the kept weights back into the model."""
        self.model.load_state_dict(self.state, strict=False)


def rank(figures: dict[str, Any]) -> tuple[float, float]:
    """Larger is better."""
    return figures["top1"], -figures["loss"]


def train(feed: Feed, run: RunDir, best: Best) -> str:
    """Fit what trains, epoch by epoch with validation; returns how it ended."""
    config, count = feed.config, len(feed.manifest.train)
    validation, training = feed.validation(), feed.training()
    tally = Tally()
    with console.Progress("training", count * config.optim.epochs) as progress:

        def on_step(step: Step) -> None:
            tally.add(step)
            progress.advance(step.images, loss=f"{tally.loss:.3f}", accuracy=f"{tally.top1:.1%}")

        def on_epoch(epoch: int) -> None:
            # In float32, like predict and every export: the kept figure is what they will answer.
            logits, labels = logits_of(feed.cut.suffix, validation(), device=feed.device)
            figures = evaluation(logits, labels, feed.manifest.classes)
            best.consider(figures)
            progress.advance(0, validation=f"{figures['top1']:.1%}")
            run.log({"epoch": epoch + 1, **tally.figures(), **validation_figures(figures)})
            tally.reset()

        try:
            fit(
                feed.cut.suffix,
                training,
                steps_per_epoch=math.ceil(count / config.optim.batch_size),
                spec=config.optim,
                precision="fp32" if feed.caches else feed.precision,
                on_step=on_step,
                on_epoch=on_epoch,
            )
        except KeyboardInterrupt:
            return "interrupted"
    return "finished"


def validation_figures(figures: dict[str, Any]) -> dict[str, float]:
    """What of an evaluation goes into the log of epochs."""
    return {"val_loss": figures["loss"], "val_top1": figures["top1"]}


class Tally:
    """Running mean of loss and accuracy over the steps of an epoch."""

    def __init__(self) -> None:
        self.first_loss: float | None = None
        self.reset()

    def reset(self) -> None:
        """Start the next epoch."""
        self.images = self.correct = 0
        self.total = self.lr = 0.0

    def add(self, step: Step) -> None:
        """Count one step."""
        if self.first_loss is None:
            self.first_loss = step.loss
        self.images += step.images
        self.correct += step.correct
        self.total += step.loss * step.images
        self.lr = step.lr

    @property
    def loss(self) -> float:
        return self.total / max(1, self.images)

    @property
    def top1(self) -> float:
        return self.correct / max(1, self.images)

    def figures(self) -> dict[str, float | None]:
        """What goes into the log of epochs; the first loss of a zero head is ln(classes)."""
        return {
            "lr": self.lr,
            "first_loss": self.first_loss,
            "train_loss": self.loss,
            "train_top1": self.top1,
        }


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
