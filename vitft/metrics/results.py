"""Types of the results written as JSON: eval.json, audit.json and the lines of metrics.jsonl.

`docs/schemas` describes every field; the comments here are for readers of the code.

Fractions are from 0 to 1 and losses are in nats. All intervals are 95% intervals (low, high).
Undefined values, such as the recall of a class without images, are None. Files are checked against
these types (`system.structure`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from vitft.system.rundir import damaged_file, read_run_json
from vitft.system.structure import AtLeastOne, Natural, Range, Share

# types of values in the result files: intervals, losses and other positive numbers ----------------

Interval = Annotated[tuple[float, float], Range(ge=-1e6, le=1e6)]  # lower and upper bounds
Loss = Annotated[float, Range(ge=0, le=1e9)]
Positive = Annotated[float, Range(gt=0, le=1e30)]
_Error = Annotated[float, Range(ge=-1, le=1)]


# types of the results of a time budget: trials, and what was chosen (`budget` in eval.json) -------


class _TrialScores(TypedDict):
    """Scores of a model on training images that were held out."""

    top1: Share
    loss: Loss  # mean cross-entropy after temperature scaling
    error: Loss  # standard error of the difference between this loss and that of the head


class InterpolationResults(_TrialScores):
    """Results of a trial for one interpolation between the weights before and after training."""

    fraction: Share  # of the trained weights


class TrialResults(_TrialScores):
    """Results of a trial of some layers and of a head, on training images that were held out.

    If the trial was repeated with other held-out images, the results cover all of them.
    """

    layers: str  # in the notation of `train.layers`
    epochs: AtLeastOne
    folds: AtLeastOne  # number of times that the layers were trained
    images: Natural  # number of images trained on each time
    held_out: Natural  # number of images scored in all
    head_top1: Share  # accuracy of a head fitted to the same images
    head_loss: Loss
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


class BudgetResults(TypedDict):
    """Trials of a run with a time budget, and the layers chosen for training."""

    size: NotRequired[StartTrial]  # of a larger input; absent if there was nothing to try
    weights: NotRequired[StartTrial]  # of other weights
    seconds: Loss  # the budget
    used: Loss  # time from the start of the run to the end of the last trial
    trials: list[TrialResults]
    skipped: list[SkippedTrial]
    chosen: str | None  # layers trained after the head, or `head`; None before the choice
    epochs: Natural  # number of epochs of the chosen layers; 0 if only the head was trained
    interpolation: NotRequired[Share]  # fraction of the trained weights that is saved, 1 if absent


# numbers of images by true and predicted class, as a matrix or as its nonzero entries -------------

MAX_DENSE_CLASSES = 1000
"""Maximum number of classes for which the confusion matrix is written as a table. With 5,000
classes, it would take 76 MB, almost all of it zeros."""


def mostly_taken_for(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the most frequent wrong prediction of each class that has one, by name.

    Two that are as frequent are `one or other`; more than two are left out.
    """
    names, wrong = list(results["per_class"]), dict[str, dict[str, int]]()
    for (true, predicted), images in class_pair_counts(results).items():
        if true != predicted:
            wrong.setdefault(names[true], {})[names[predicted]] = images
    most = {
        name: [other for other, images in counts.items() if images == max(counts.values())]
        for name, counts in wrong.items()
    }
    return {name: " or ".join(others) for name, others in most.items() if len(others) <= 2}


def class_pair_counts(results: Mapping[str, Any]) -> dict[tuple[int, int], int]:
    """Return the numbers of images by true and predicted class, omitting zeros.

    The dictionary is empty for multi-label models.
    """
    if pairs := results.get("confused_pairs"):
        return {(i, j): n for i, j, n in pairs}
    return {
        (i, j): n
        for i, row in enumerate(results.get("confusion", []))
        for j, n in enumerate(row)
        if n
    }


# types of the results written as JSON: eval.json, audit.json and the lines of metrics.jsonl -------


class ClassMetrics(TypedDict):
    """Metrics of one class."""

    images: Natural
    recall: Share | None
    recall_interval: Interval | None
    precision: Share | None
    precision_interval: Interval | None
    f1: Share | None
    f1_interval: Interval | None


class CalibrationBin(TypedDict):
    """One point of a reliability diagram: the images with confidences from `low` to `high`."""

    low: Share
    high: Share
    images: Natural
    confidence: Share  # mean over the images
    accuracy: Share


class _CalibrationMetrics(TypedDict):
    """Calibration of the predicted probabilities."""

    ece: _Error  # expected calibration error, corrected for the bias of small samples
    ece_interval: Interval | None  # None if there are too few groups
    ece_binned: Share  # the usual plug-in estimate, without the correction
    ece_before: _Error | None  # `ece` before temperature scaling; None if unknown
    temperature: Positive | None  # divisor of the logits; 1 if none was fitted
    note: str | None  # reason why no temperature was fitted
    cross_validated: NotRequired[int]  # training images to which it was also fitted
    bins: list[CalibrationBin]


class ProbabilityMetrics(TypedDict):
    """Metrics that depend on the temperature."""

    loss: Loss  # mean cross-entropy
    loss_interval: Interval | None
    calibration: _CalibrationMetrics | None  # None if only accuracy was measured


class LabelMetrics(TypedDict):
    """Ranking metrics and decision rule of one label of a multi-label model."""

    ap: Share | None  # average precision
    ap_interval: Interval | None
    threshold: NotRequired[Share]  # minimum probability at which the label is assigned
    temperature: NotRequired[Positive]  # divisor of the logits of this label


class LabelResults(TypedDict):
    """Metrics of a multi-label model, which may assign any number of labels to an image."""

    map: Share  # mean average precision over the labels that at least one image has
    map_interval: Interval | None
    chance_map: Share  # mean average precision of random scores
    micro_f1: Share  # F1 over all decisions
    micro_f1_interval: Interval | None
    macro_f1: Share  # mean F1 over the labels that at least one image has
    macro_f1_interval: Interval | None
    none: NotRequired[ClassMetrics]  # of images without labels, treated as a class
    per_label: dict[str, LabelMetrics]  # in the order of the model's outputs


class LearningCurvePoint(TypedDict):
    """Accuracy on some images; in a learning curve, of a head fitted to so many, cross-validated.

    `images` is averaged over the folds there, and otherwise the number of images scored.
    """

    images: Natural
    top1: Share
    top1_interval: Interval


class _Accuracy(LearningCurvePoint):
    """Accuracy of predictions for some images."""

    groups: NotRequired[AtLeastOne]  # (patients, videos, ...), which the intervals count instead
    balanced: Share  # mean recall over the classes that have images
    balanced_interval: Interval
    p_guessing: NotRequired[Share]  # that the logits do not depend on the class; of single labels
    majority: Share  # accuracy of always predicting the largest class or label set


class Metrics(_Accuracy, ProbabilityMetrics):
    """Metrics of a model on labelled images.

    For a multi-label model, `labels` is present, a prediction is correct if it consists of exactly
    the image's labels, `per_class` has one entry per label, and `confusion` is empty.
    """

    top5: Share | None  # None for five or fewer classes, and for multi-label models
    top5_interval: Interval | None
    per_class: dict[str, ClassMetrics]  # in the order of the model's outputs
    labels: NotRequired[LabelResults]  # present only for multi-label models
    confusion: list[list[Natural]]
    """Matrix by true class (row) and predicted class (column); empty for multi-label models and for
    more than `MAX_DENSE_CLASSES` classes."""
    confused_pairs: NotRequired[list[tuple[Natural, Natural, AtLeastOne]]]
    """Nonzero entries as (true class, predicted class, images), for more classes than that."""


WeakClass = TypedDict(
    "WeakClass",
    {
        "class": str,  # a Python keyword, which requires the functional form
        "recall": Share,
        "recall_interval": Interval,
        "images": Natural,
        "taken_for": str | None,  # most frequent wrong prediction
    },
)
"""A class with low recall."""


LAST_BLOCK, SEVERAL_BLOCKS, MIXTURE = "last block", "several blocks", "mixture"
"""Values of `HeadCandidate["reads"]`, in the order of `features.head`."""


class HeadCandidate(TypedDict):
    """A way to fit the head, with its cross-validated scores on the training images."""

    reads: str  # `last block`, `several blocks` or `mixture`
    cv_loss: Loss
    cv_top1: Share
    cv_gain: NotRequired[float]  # by how much the loss is below that of the last block alone
    cv_gain_error: NotRequired[Loss]  # its standard error, from the differences of each image


class CrossValidation(_Accuracy):
    """Results of cross-validating a linear head on the training and validation images."""

    of: Natural  # total number of images
    classes: AtLeastOne  # number of classes that have images, as of `balanced`
    curve: list[LearningCurvePoint]  # in ascending order of `images`
    gain_from_twice: _Error | None  # extrapolated, in accuracy, from twice as many images
    gain_interval: Interval | None
    weak_spots: list[WeakClass]  # up to three classes with the lowest recall, lowest first


class _HeadChoice(TypedDict):
    """Blocks whose features a head fitted by L-BFGS uses, and the scores used to choose them."""

    blocks: AtLeastOne  # number of blocks that the head reads, counted from the last one
    reads: str  # the candidate that was chosen
    candidates: list[HeadCandidate]
    last_block_top1: Share | None  # on validation images; None if the head reads only this block


class SolvedHeadResults(TypedDict, total=False):
    """Additional results for a head fitted by L-BFGS."""

    first_loss: Loss  # training loss of a head whose weights are all zero
    l2: Positive  # penalty on the weights of the head; the median if each label has its own
    label_l2: list[Positive]  # penalty of each label of a multi-label model
    knn_top1: Share  # accuracy of nearest neighbours in feature space
    head: _HeadChoice  # absent if only the last block could be read
    cross_validation: CrossValidation  # absent if classes have too few images


class FinalTestResults(Metrics):
    """Metrics of the final model on the test images, which influenced no decision."""

    left_out: Natural  # number of test images that are identical to others, and excluded


class RunResults(Metrics, SolvedHeadResults):
    """Contents of a run's eval.json: metrics on the validation images, and facts about the run."""

    epochs: AtLeastOne  # 1 for a head fitted by L-BFGS
    best_epoch: AtLeastOne  # epoch of the saved weights, counted from 1
    selected_on_validation: bool  # whether the epoch was selected on the validation images
    budget: NotRequired[BudgetResults]  # absent from runs without a time budget
    confirmed_in_float32: NotRequired[int]  # number of images with logits recomputed in float32
    test: NotRequired[FinalTestResults]  # absent without test images or in an unfinished run
    seconds: NotRequired[Loss]  # absent in an unfinished run


class FileRemark(TypedDict):
    """A file that is damaged or unusual, and the reason."""

    path: str  # path relative to the data folder, with slashes
    reason: str
    label: NotRequired[str]  # absent for unreadable files


class EvaluatedData(TypedDict):
    """Data given to `vitft evaluate`, and how many of its images the run had already used."""

    path: str
    unreadable: list[FileRemark]
    trained: int | None  # this and the next three: see `predict.run_images.LEFT_OUT`; None if the
    trained_copies: int | None  # split of the run is unknown
    trained_paths: int | None
    trained_groups: int | None
    validated: int | None  # number of scored images that are (nearly) validation images of the run
    copies: Natural  # number of scored images that are identical to an earlier scored image


class KeptResults(TypedDict):
    """Predictions that are not marked `not sure`, given a threshold."""

    threshold: Share  # probability below which a prediction is marked
    images: Natural  # number of images whose predictions are kept
    fraction: Share  # of all images
    fraction_interval: Interval
    top1: Share | None  # accuracy on the kept images; None if there are none
    top1_interval: Interval | None


class EvaluationResults(Metrics):
    """Contents of the eval.json written by `vitft evaluate`."""

    data: EvaluatedData
    kept: KeptResults | None  # None without a threshold, and for multi-label models


class _LabelledFile(TypedDict):
    path: str
    label: str


class CopyMember(_LabelledFile):
    """One image in a group of duplicates."""

    split: str  # `train`, `val`, `test`, or empty if there is no split


class CopyGroup(TypedDict):
    """A group of images that are identical files or near-duplicates of each other."""

    kind: str  # `exact` or `near`
    members: list[CopyMember]
    across_split: bool  # whether its images are in more than one subset of the split
    labels_differ: bool
    probabilities: NotRequired[dict[str, Share]]  # of the labels and of the most probable class


class Mislabel(_LabelledFile):
    """An image whose label is probably wrong."""

    suggested: str  # the most probable class
    given_probability: Share  # probability of `label`
    suggested_probability: Share


class Imbalance(TypedDict):
    """Largest and smallest class with their numbers of images; None if there are no classes."""

    largest: tuple[str, Natural] | None
    smallest: tuple[str, Natural] | None
    ratio: Loss | None


class UnusedFiles(TypedDict):
    """Number of unused files with the same suffix, the reason why they are unused, and a fix."""

    suffix: str  # in lower case, e.g. `.txt`
    files: Natural
    reason: str
    fix: str


class OodResults(TypedDict):
    """Rates at which images are flagged as "unlike the training images" (see `features.ood`).

    If the run cannot flag images, the fractions are None, and `reason` states why.
    """

    images: Natural  # number of images to which the class statistics were fitted
    held_out: Natural  # number of images from which the limit was estimated
    reason: str | None  # why the run cannot flag images; None if it can
    false_alarms: Share | None  # expected fraction of images of known classes that are flagged
    unknown_class_range: Interval | None  # lowest and highest fraction of a class left out
    classes_left_out: Natural
    features_trained: bool  # on all classes, so that `unknown_class_range` may be too high


class ViewFacts(TypedDict):
    """Input size and cropping of a model, and the fraction of the image area that remains."""

    image_size: tuple[AtLeastOne, AtLeastOne]  # height and width in pixels
    fit: str
    crop: Share
    shown: Share  # mean fraction of an image's area
    least_shown: Share


class AuditResults(TypedDict):
    """Contents of audit.json: possible problems in a labelled folder."""

    images: Natural  # number of readable images
    unused: list[UnusedFiles]  # neither images nor hidden, most frequent suffix first
    notes: list[str]  # other notes on the folder, e.g. on images in subfolders
    own_split: NotRequired[bool]  # absent if the data has none, and from `vitft check`
    bad: list[FileRemark]
    odd: list[FileRemark]
    duplicates: list[CopyGroup]
    mislabels: list[Mislabel]
    imbalance: Imbalance
    view: NotRequired[ViewFacts]  # absent if there are no images
    out_of_distribution: NotRequired[OodResults]  # absent from `vitft check`


class LogLine(TypedDict, total=False):
    """A line of metrics.jsonl: an epoch, or a penalty tried for a head fitted by L-BFGS."""

    epoch: AtLeastOne
    lr: float
    first_loss: Loss
    train_loss: Loss
    train_top1: Share
    val_loss: Loss
    val_top1: Share
    l2: Positive
    cv_loss: Loss
    cv_top1: Share
    cv_classes: AtLeastOne  # absent if all classes are in the sample that chose the penalty


def read_results(path: Path) -> RunResults | None:
    """Return the content of a run's eval.json, or None if the file does not exist.

    Raises:
        RunError: The file is damaged, or does not have the structure of `RunResults`, or its
            confusion matrix does not fit the classes.
    """
    results = read_run_json(path, RunResults)
    if results is None:
        return None
    classes, matrix = len(results["per_class"]), results["confusion"]
    pairs = results.get("confused_pairs")
    if pairs is not None and max((max(i, j) for i, j, _ in pairs), default=-1) >= classes:
        raise damaged_file(path, "confused_pairs contains classes that do not exist")
    is_dense = "labels" not in results and (pairs is None or bool(matrix))
    if is_dense and any(size != classes for size in (len(matrix), *map(len, matrix))):
        raise damaged_file(path, "confusion does not have one row and column per class")
    return results
