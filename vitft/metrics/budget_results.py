"""Types of the results of a time budget: trials, and what was chosen (`budget` in eval.json)."""

from typing import NotRequired, TypedDict

from vitft.metrics.values import Interval, Loss, Positive
from vitft.system.structure import AtLeastOne, Natural, Share


class InterpolationResults(TypedDict):
    """Results of a trial for one interpolation between the weights before and after training."""

    fraction: Share  # of the trained weights
    top1: Share
    loss: Loss  # mean cross-entropy after temperature scaling
    error: Loss  # standard error of the difference between this loss and that of the head


class TrialResults(TypedDict):
    """Results of a trial of some layers and of a head, on training images that were held out.

    If the trial was repeated with other held-out images, the results cover all of them.
    """

    layers: str  # in the notation of `train.layers`
    epochs: AtLeastOne
    folds: NotRequired[AtLeastOne]  # number of times that the layers were trained, 1 if absent
    images: Natural  # number of images trained on each time
    held_out: Natural  # number of images scored in all
    top1: Share
    head_top1: Share  # accuracy of a head fitted to the same images
    loss: Loss  # mean cross-entropy after temperature scaling
    head_loss: Loss
    error: Loss  # standard error of the difference between the losses
    interpolation: NotRequired[Share]  # fraction of the trained weights, 1 if absent
    tried: NotRequired[list[InterpolationResults]]  # results for all fractions
    seconds: Loss  # duration of the trial, with all repetitions
    final_seconds: Loss  # expected duration of training on all training images


class SkippedTrial(TypedDict):
    """Layers that were skipped because the time budget was too short to try them."""

    layers: str
    seconds_needed: Loss  # budget that would have been enough to try them


class StartTrial(TypedDict):
    """Cross-validated heads on the training images for a run's start and another one.

    The other start has a larger input or other weights. If the time budget was too short, only
    `image_size`, `weights`, `chosen` and `seconds_needed` are present.
    """

    image_size: tuple[AtLeastOne, AtLeastOne]  # of the other start: height and width in pixels
    weights: NotRequired[str]  # name of the other weights; absent if only the size differs
    chosen: bool  # whether the run uses the other start; other weights are only reported
    seconds_needed: NotRequired[Loss]  # budget that would have been enough to try it
    usual_size: NotRequired[list[AtLeastOne]]
    images: NotRequired[Natural]  # number of training images scored
    top1: NotRequired[Share]
    usual_top1: NotRequired[Share]
    loss: NotRequired[Loss]  # mean cross-entropy after temperature scaling
    usual_loss: NotRequired[Loss]
    error: NotRequired[Loss]  # standard error of the difference between the losses
    gain_interval: NotRequired[Interval]  # of the difference between the accuracies
    relative_time: NotRequired[Positive]  # time to compute features, relative to the usual start
    seconds: NotRequired[Loss]  # duration of the trial


class StartTrials(TypedDict):
    """Trials of other starts of a run with a time budget; absent if there was nothing to try."""

    size: NotRequired[StartTrial]
    weights: NotRequired[StartTrial]


class BudgetResults(StartTrials):
    """Trials of a run with a time budget, and the layers chosen for training."""

    seconds: Loss  # the budget
    used: Loss  # time from the start of the run to the end of the last trial
    trials: list[TrialResults]
    skipped: list[SkippedTrial]
    chosen: str | None  # layers trained after the head, or `head`; None before the choice
    epochs: Natural  # number of epochs of the chosen layers; 0 if only the head was trained
    interpolation: NotRequired[Share]  # fraction of the trained weights that is saved, 1 if absent
