"""Choice of the layers to train within a time budget, by trials on the training images.

A run with a budget first chooses its input size (see `input_size`) and fits its head. It then tries
candidates, each of which trains further layers. A candidate is trained on two thirds of the
training images, starting from a head fitted to the same images, and is compared with this head on
the remaining third. If a candidate is clearly better, the best one is trained again on all training
images, starting from the head of the run. Otherwise, only the head is trained. The choice does not
use validation images.
"""

import logging
import time
from dataclasses import replace
from types import MappingProxyType

from vitft.config.run import Config, to_toml
from vitft.config.sections import layers_text
from vitft.features.cut import last_block_size
from vitft.features.head import SolvedHead
from vitft.features.mixture import HeadMethod
from vitft.metrics.results import BudgetResults, SizeTrial, TrialResults
from vitft.models.timm_model import Model
from vitft.models.vit import VisionTransformer
from vitft.system.text import count, duration, percent
from vitft.training.head_stage import of_last_block, read_last_block
from vitft.training.stages import RunContext
from vitft.training.state import read_budget, write_budget
from vitft.training.trial import (
    EVIDENCE,
    MIN_EPOCHS,
    MIN_TRIAL_IMAGES,
    LayerSettings,
    Trial,
    hold_out,
)

log = logging.getLogger(__name__)

MARGIN = 0.85
"""Fraction of the remaining time that trials and training may take; the rest is reserved for
reports and for variations in machine speed."""

LAST_BLOCKS = MappingProxyType({"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "lr": 3e-4})
EVERYTHING = MappingProxyType({"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "layer_decay": 0.75})
CROPS = MappingProxyType({"augment": "crop", "crop_scale": 0.4})


def layers_to_try(model: Model) -> list[LayerSettings]:
    """Return the candidates for a model, in order of increasing time per training step."""
    everything = LayerSettings(layers="none", optim=EVERYTHING, train=CROPS)
    if not isinstance(model, VisionTransformer):
        return [everything]
    if model.config.depth <= 4:
        return [everything]
    return [LayerSettings(layers="blocks:4", optim=LAST_BLOCKS), everything]


def choose_layers(context: RunContext, solved: SolvedHead) -> None:
    """Try the candidates, and add the best one to the run's stages if it is better than the head.

    Finished trials are saved, so a resumed run does not repeat them. In config.toml, the budget is
    replaced with the chosen settings, so the file describes what is trained. Training starts from
    the head that reads only the last block: once blocks are trained, a head does not gain from
    reading earlier blocks as well (docs/experiments.md).

    Args:
        context: The run.
        solved: The head that the run has fitted.
    """
    run, best = context.run, context.best
    found = shared_budget(context)
    if found is None or found["chosen"] is None:
        found = try_candidates(context, solved.method, found or untried(context))
        write_budget(run, found)
    context.budget, context.config = found, with_choice(context, found)
    run.write_text("config.toml", to_toml(context.config))
    if len(context.config.train.stages) > 1:
        context.inputs = of_last_block(context.inputs, best.model)
        read_last_block(best.model, solved.last)
        best.weights = best.copy_weights()
        if best.head_results is not None:
            best.head_results.pop("head", None)


def resume_budget(context: RunContext) -> None:
    """Restore the time used by a stopped run, and the layers that it had chosen, if any."""
    found = shared_budget(context)
    if found is None:
        return
    context.started -= found["used"]
    context.best.selects = False
    if found["chosen"] is not None:
        context.budget = found


def shared_budget(context: RunContext) -> BudgetResults | None:
    """Return the saved trials and the chosen layers, or None if there are none.

    Only the main process reads the file, because the file could change before a slower process
    reads it.
    """
    group = context.inputs.data.group
    return group.broadcast(read_budget(context.run.resume) if group.is_main else None)


def record_size(context: RunContext, found: SizeTrial | None) -> None:
    """Save the scores of another input size, if any, before any layers are tried."""
    if found is not None:
        write_budget(context.run, {**untried(context), "size": found})


def untried(context: RunContext) -> BudgetResults:
    """Return the initial budget results of a run, before any trial."""
    return {
        "seconds": context.config.train.budget_s,
        "used": 0.0,
        "trials": [],
        "skipped": [],
        "chosen": None,
        "epochs": 0,
    }


def try_candidates(context: RunContext, method: HeadMethod, found: BudgetResults) -> BudgetResults:
    """Run as many trials as time allows; return all results and the chosen layers."""
    images = len(context.inputs.data.manifest.train)
    every = layers_to_try(context.best.model)
    if images < MIN_TRIAL_IMAGES:
        log.info(
            f"only the head is trained: {count(images, 'training image')} are too few for trials"
        )
        every = []
    found["skipped"] = []  # a resumed run may have time for what was skipped before
    done = {trial["layers"] for trial in found["trials"]}
    remaining = [candidate for candidate in every if candidate.layers not in done]
    held_out = hold_out(context, method) if remaining else None
    for number, candidate in enumerate(remaining):
        assert held_out is not None
        left = MARGIN * (found["seconds"] - used_seconds(context))
        if left <= 0:
            break
        trial = Trial(context, candidate, held_out, seconds=left)
        left = MARGIN * (found["seconds"] - used_seconds(context))
        best = best_trial(found["trials"])
        after = best["final_seconds"] if best else 0.0
        epochs = trial.affordable_epochs(left / (len(remaining) - number), after=after)
        if epochs < MIN_EPOCHS:  # later candidates are slower still, so use all the time left
            epochs = min(MIN_EPOCHS, trial.affordable_epochs(left, after=after))
        if epochs < MIN_EPOCHS:
            needed = used_seconds(context) + trial.seconds(MIN_EPOCHS) / MARGIN
            found["skipped"].append({"layers": candidate.layers, "seconds_needed": needed})
            log.info(
                f"training {layers_text(candidate.layers)} was not tried: it needs a budget of "
                f"about {duration(needed)}"
            )
            continue
        result = trial.run(epochs)
        found["trials"].append(result)
        found["used"] = used_seconds(context)
        write_budget(context.run, found)
        log.info(describe_trial(result))
    best = best_trial(found["trials"])
    chosen, epochs = (best["layers"], best["epochs"]) if best else ("head", 0)
    return {**found, "chosen": chosen, "epochs": epochs, "used": used_seconds(context)}


def used_seconds(context: RunContext) -> float:
    """Return the time in seconds that the run has used, excluding interruptions.

    All processes receive the value of the main process.
    """
    return context.inputs.data.group.broadcast(time.monotonic() - context.started)


def best_trial(trials: list[TrialResults]) -> TrialResults | None:
    """Return the lowest-loss trial that is clearly better than the head, or None."""
    better = [t for t in trials if t["head_loss"] - t["loss"] > EVIDENCE * t["error"]]
    return min(better, key=lambda trial: trial["loss"], default=None)


def describe_trial(trial: TrialResults) -> str:
    """Return a log line about a trial."""
    return (
        f"trained {layers_text(trial['layers'])} for {count(trial['epochs'], 'epoch')}: "
        f"{percent(trial['top1'])} of {trial['held_out']:,} held-out training images correct "
        f"(with the head alone: {percent(trial['head_top1'])})"
    )


def with_choice(context: RunContext, found: BudgetResults) -> Config:
    """Return the settings that train the chosen layers without a time budget."""
    model, config = context.best.model, context.config
    every = {candidate.layers: candidate for candidate in layers_to_try(model)}
    if found["chosen"] not in every:
        return replace(config, train=replace(config.train, budget=""))
    return every[found["chosen"]].config(config, found["epochs"], width=last_block_size(model))
