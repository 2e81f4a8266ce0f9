"""Choice of the layers to train within a time budget, by trials on the training images.

A run with a budget first solves its head. Each candidate then continues from a head fitted to two
thirds of the training images, and is compared with this head on the last third. If a candidate is
clearly better, the best one is trained again on all training images, starting from the head of the
run; otherwise, the head is kept. The validation images take no part in the choice.
"""

import logging
import time
from dataclasses import replace
from types import MappingProxyType

from vitft.config.run import Config, to_toml
from vitft.config.sections import layers_text
from vitft.features.cut import last_block_size
from vitft.features.mixture import HeadMethod
from vitft.metrics.results import BudgetResults, TrialResults
from vitft.models.timm_model import Model
from vitft.models.vit import VisionTransformer
from vitft.system.text import count, duration, percent
from vitft.training.stages import RunContext
from vitft.training.state import read_budget, write_budget
from vitft.training.trial import MIN_EPOCHS, LayerSettings, Trial, hold_out

log = logging.getLogger(__name__)

MIN_TRIAL_IMAGES = 60
"""Number of training images below which only the head is trained: the held-out third would be too
small to show a gain."""
MARGIN = 0.85
"""Fraction of the remaining time for which training is planned; the rest is for reports and for
changes in the speed of the machine."""
EVIDENCE = 2.0
"""Number of standard errors by which the held-out loss must be below that of the head."""

LAST_BLOCKS = MappingProxyType({"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "lr": 3e-4})
EVERYTHING = MappingProxyType({"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "layer_decay": 0.75})
CROPS = MappingProxyType({"augment": "crop", "crop_scale": 0.4})


def layers_to_try(model: Model) -> list[LayerSettings]:
    """Return the candidates for a model, those with the fastest steps first."""
    everything = LayerSettings(layers="none", optim=EVERYTHING, train=CROPS)
    if not isinstance(model, VisionTransformer):
        return [everything]
    last = max(4, model.config.read_blocks)  # the head reads no block before the cut
    if last >= model.config.depth:
        return [everything]
    return [LayerSettings(layers=f"blocks:{last}", optim=LAST_BLOCKS), everything]


def choose_layers(context: RunContext, method: HeadMethod) -> None:
    """Try the candidates, and add the best one to the stages of the run if it beats the head.

    Finished trials are saved, so a resumed run does not repeat them. The settings of the choice
    replace the budget in config.toml, which therefore describes what was trained.

    Args:
        context: The run, with its head solved.
        method: The way in which the head was fitted.
    """
    run = context.run
    found = read_budget(run.resume)
    if found is None or found["chosen"] is None:
        found = try_candidates(context, method, found or untried(context))
        write_budget(run, found)
    context.budget, context.config = found, with_choice(context, found)
    run.write_text("config.toml", to_toml(context.config))


def resume_budget(context: RunContext) -> None:
    """Continue the clock of a stopped run with a time budget, and keep its choice."""
    found = read_budget(context.run.resume)
    if found is None:
        return
    context.started -= found["used"]
    context.best.selects = False
    if found["chosen"] is not None:
        context.budget = found


def untried(context: RunContext) -> BudgetResults:
    """Return the results of a run before its first trial."""
    return {
        "seconds": context.config.train.budget_s,
        "used": 0.0,
        "trials": [],
        "skipped": [],
        "chosen": None,
        "epochs": 0,
    }


def try_candidates(context: RunContext, method: HeadMethod, found: BudgetResults) -> BudgetResults:
    """Run the trials for which there is enough time, and return all results with the choice."""
    images = len(context.inputs.data.manifest.train)
    every = layers_to_try(context.best.model)
    if images < MIN_TRIAL_IMAGES:
        log.info(f"only the head is trained: {count(images, 'training image')} are too few to try")
        every = []
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
        if epochs < MIN_EPOCHS:  # then the candidates after this one are not affordable either
            epochs = min(MIN_EPOCHS, trial.affordable_epochs(left, after=after))
        if epochs < MIN_EPOCHS:
            needed = used_seconds(context) + trial.seconds(MIN_EPOCHS) / MARGIN
            found["skipped"].append({"layers": candidate.layers, "seconds_needed": needed})
            log.info(
                f"not tried: training {layers_text(candidate.layers)}, which needs a budget of "
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
    """Return the time used by the run so far, without interruptions; equal in all processes."""
    return context.inputs.data.group.broadcast(time.monotonic() - context.started)


def best_trial(trials: list[TrialResults]) -> TrialResults | None:
    """Return the trial with the lowest loss of those that are clearly better than the head."""
    better = [t for t in trials if t["head_loss"] - t["loss"] > EVIDENCE * t["error"]]
    return min(better, key=lambda trial: trial["loss"], default=None)


def describe_trial(trial: TrialResults) -> str:
    """Return a log line about a trial."""
    return (
        f"trained {layers_text(trial['layers'])} for {count(trial['epochs'], 'epoch')}: "
        f"{percent(trial['top1'])} of {trial['held_out']:,} held-out training images correct; "
        f"{percent(trial['head_top1'])} with the head alone"
    )


def with_choice(context: RunContext, found: BudgetResults) -> Config:
    """Return the settings of a run that trains the chosen layers and has no budget."""
    model, train = context.best.model, replace(context.config.train, budget="")
    if isinstance(model, VisionTransformer):
        train = replace(train, head_blocks=model.config.read_blocks)
    config = replace(context.config, train=train)
    every = {candidate.layers: candidate for candidate in layers_to_try(model)}
    if found["chosen"] not in every:
        return config
    return every[found["chosen"]].config(config, found["epochs"], width=last_block_size(model))
