"""What a training ends with: figures that predict will confirm, calibrated weights, their card."""

import contextlib
import logging
import shutil
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from vitft.config.run import Config
from vitft.data.split import Manifest
from vitft.metrics.calibration import temperature_for
from vitft.metrics.classification import evaluation, probabilities
from vitft.metrics.results import Metrics, RunResults
from vitft.models.checkpoint import Card, save_checkpoint
from vitft.models.lora import merge_adapters, write_adapter
from vitft.models.pretrained import LoadReport
from vitft.models.timm_model import Model
from vitft.system.files import writing
from vitft.system.rundir import RunDir
from vitft.training.batches import Feed
from vitft.training.best import Best
from vitft.training.stages import validated

log = logging.getLogger(__name__)

CLOSE_CALLS = 8
"""Validation images computed again in float32 at a time."""


def confirmed(feed: Feed, model: Model, precision: str) -> tuple[Tensor, Tensor, int | None]:
    """What predict and every export will answer to the validation images: that of float32.

    Features in bf16 move a score by a few thousandths, which matters only where two classes are
    nearly equal. So the closest calls are computed again from their pixels in float32, in growing
    numbers, until the rest is further apart than four times the largest change seen.

    Returns:
        Scores (n, C) and labels (n,), in the order of the manifest, and how many were confirmed.
    """
    rows = feed.manifest.val
    logits, labels = validated(feed)
    if precision == "fp32" or feed.extractor is None:
        return logits, labels, None
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
    return logits, labels, done


def keep_calibrated(
    run: RunDir,
    best: Best,
    card: Card,
    logits: Tensor,
    labels: Tensor,
    *,
    confirmed: int | None = None,
    seconds: float | None = None,
    undisturbed: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Fold the temperature into the head, and replace weights and figures on the disk.

    eval.json is gone while the files change, so whatever ends the program, it never speaks of
    other weights than those beside it.

    Args:
        run: Where the weights lie already, not calibrated.
        best: The model, whose head is divided by the temperature.
        card: Of the model.
        logits: Of the validation images before that, (n, C).
        labels: Their class indices.
        confirmed: Images whose logits were recomputed in float32.
        seconds: Duration of the run.
        undisturbed: Around the change, which a signal should wait for.
    """
    temperature = temperature_for(logits.double().numpy(), labels.numpy())
    metrics: Metrics = {
        **evaluation(logits, labels, card.classes),
        **probabilities(logits, labels, temperature),
    }
    if temperature.note:
        log.info(f"probabilities are left as they are: {temperature.note}")
    with undisturbed():
        if run.writes:
            with writing(run.eval):
                run.eval.unlink(missing_ok=True)
        if temperature.value != 1:
            head = best.model.head
            assert isinstance(head, nn.Linear)
            with torch.no_grad():
                for parameter in head.parameters():
                    parameter.div_(temperature.value)
            keep_weights(run, best.model, card)
        run.write_arrays("validation.npz", logits=(logits / temperature.value).numpy())
        best.figures = cast("RunResults", {**best.figures, **metrics})
        if confirmed is not None:
            best.figures["confirmed_in_float32"] = confirmed
        if seconds is not None:
            best.figures["seconds"] = seconds
        run.write_json(run.eval.name, best.figures)


def keep_best(run: RunDir, best: Best, card: Card) -> None:
    """Write the best weights so far and their figures, if there are any."""
    if best.epochs:
        best.restore()
        best.adapter = merge_adapters(best.model)
        if best.extra is not None:
            best.figures = cast("RunResults", {**best.figures, **best.extra})
        keep_weights(run, best.model, card)
        run.write_json(run.eval.name, best.figures)


def keep_adapter(run: RunDir, best: Best, config: Config, card: Card) -> None:
    """Write what LoRA trained by itself, if that is asked for."""
    if not config.train.keep_adapter or not run.writes:
        return
    folder = run.path / "adapter"
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed right behind it
    base = str(card.weights.get("name", ""))
    write_adapter(folder, best.adapter, best.model, config.train, base=base)
    log.info(f"adapter, for peft.PeftModel.from_pretrained: {folder!s}")


def keep_weights(run: RunDir, model: Model, card: Card) -> None:
    """Write the checkpoint of the run."""
    if run.writes:
        save_checkpoint(run.model, model.state_dict(), card)


def card_of(model: Model, report: LoadReport, manifest: Manifest) -> Card:
    """What travels with the trained weights."""
    return Card(
        architecture=model.config,
        transform=report.transform,
        classes=manifest.classes,
        weights=report.provenance,
        pos_embed=report.positions,
        split=manifest.digest,
    )
