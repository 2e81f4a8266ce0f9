"""Numbers about runs and data: what is written as JSON, and what users see of it (`Results`).

eval.json, audit.json and the lines of metrics.jsonl are checked against the types here
(`system.structure`); `docs/schemas` describes every field. Every number about a run that users see
is derived once from eval.json: the terminal, the pages, the files of exports, the server and
notebooks read it from `Results`, and `vitft.messages` puts it into words.

Fractions are from 0 to 1 and losses are in nats. All intervals are 95% intervals (low, high).
Undefined values, such as the recall of a class without images, are None.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Self, TypedDict, cast

from msgspec import Meta

from vitft.metrics.intervals import Interval, proportions_differ, wilson_interval
from vitft.system.rundir import damaged_file, read_run_json
from vitft.system.structure import AtLeastOne, Natural, Share, structured

# types of values in the result files: intervals, losses and other positive numbers ----------------

Loss = Annotated[float, Meta(ge=0, le=1e9)]
_Positive = Annotated[float, Meta(gt=0, le=1e30)]
_Error = Annotated[float, Meta(ge=-1, le=1)]


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
    """Results of a trial of some layers and of a head, on all images that it held out in turn."""

    layers: str  # in the notation of `train.layers`
    epochs: AtLeastOne
    folds: NotRequired[AtLeastOne]  # number of times that the layers were trained, 1 if absent
    images: Natural  # number of images trained on each time
    held_out: Natural  # number of images scored in all
    head_top1: Share  # accuracy of a head fitted to the same images
    head_loss: Loss
    interpolation: NotRequired[Share]  # fraction of the trained weights, 1 if absent
    tried: NotRequired[list[InterpolationResults]]  # results for all fractions
    seconds: Loss  # duration of the trial, with all repetitions
    final_seconds: Loss  # expected duration of training on all training images


class _SkippedTrial(TypedDict):
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
    relative_time: NotRequired[_Positive]  # time to compute features, relative to the usual start
    seconds: NotRequired[Loss]  # duration of the trial


class BudgetResults(TypedDict):
    """Trials of a run with a time budget, and the layers chosen for training."""

    size: NotRequired[StartTrial]  # of a larger input; absent if there was nothing to try
    weights: NotRequired[StartTrial]  # of other weights
    seconds: Loss  # the budget
    used: Loss  # time from the start of the run to the end of the last trial
    trials: list[TrialResults]
    skipped: list[_SkippedTrial]
    chosen: str | None  # layers trained after the head, or `head`; None before the choice
    epochs: Natural  # number of epochs of the chosen layers; 0 if only the head was trained
    interpolation: NotRequired[Share]  # fraction of the trained weights that is saved, 1 if absent


# numbers of images by true and predicted class, as a matrix or as its nonzero entries -------------

MAX_DENSE_CLASSES = 1000  # for which the confusion matrix is written as a table


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
    """Return the numbers of images by true and predicted class, omitting zeros."""
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
    temperature: _Positive | None  # divisor of the logits; 1 if none was fitted
    note: str | None  # reason why no temperature was fitted
    cross_validated: NotRequired[Natural]  # training images to which it was also fitted
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
    temperature: NotRequired[_Positive]  # divisor of the logits of this label


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
    """Accuracy on some images; in a learning curve, of a head fitted to some, cross-validated."""

    images: Natural  # number of images scored; in a learning curve, fitted to in each fold
    top1: Share
    top1_interval: Interval


class OnKnownImages(TypedDict, total=False):
    """How many images the weights or the teacher were trained on; None if this is not known."""

    known_to_weights: Natural | None  # absent if it is 0


class _Accuracy(LearningCurvePoint, OnKnownImages):
    """Accuracy of predictions for some images."""

    groups: NotRequired[AtLeastOne]  # (patients, videos, ...), which the intervals count instead
    balanced: Share  # mean recall over the classes that have images
    balanced_interval: Interval
    p_guessing: NotRequired[Share]  # that the logits do not depend on the class; of single labels
    majority: Share  # accuracy of always predicting the largest class or label set


class Metrics(_Accuracy, ProbabilityMetrics):
    """Metrics of a model on labelled images.

    For a multi-label model, a prediction is correct if it consists of exactly the image's labels,
    `per_class` has one entry per label, and `confusion` is empty.
    """

    top5: Share | None  # None for five or fewer classes, and for multi-label models
    top5_interval: Interval | None
    per_class: dict[str, ClassMetrics]  # in the order of the model's outputs
    labels: NotRequired[LabelResults]  # present only for multi-label models
    confusion: list[list[Natural]]
    """Matrix by true class (row) and predicted class (column), or empty (`MAX_DENSE_CLASSES`)."""
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


class HeadChoice(TypedDict):
    """Blocks whose features a head fitted by L-BFGS uses, and the scores used to choose them."""

    blocks: AtLeastOne  # number of blocks that the head reads, counted from the last one
    reads: str  # the candidate that was chosen
    candidates: list[HeadCandidate]
    last_block_top1: Share | None  # on validation images; None if the head reads only this block


class SolvedHeadResults(TypedDict, total=False):
    """Additional results for a head fitted by L-BFGS."""

    first_loss: Loss  # training loss of a head whose weights are all zero
    l2: _Positive  # penalty on the weights of the head; the median if each label has its own
    label_l2: list[_Positive]  # penalty of each label of a multi-label model
    knn_top1: Share  # accuracy of nearest neighbours in feature space
    head: HeadChoice  # absent if only the last block could be read
    cross_validation: CrossValidation  # absent if classes have too few images


class FinalTestResults(Metrics):
    """Metrics of the final model on the test images, which influenced no decision."""

    left_out: Natural  # number of test images excluded, as copies of other images


class RunResults(Metrics, SolvedHeadResults):
    """Contents of a run's eval.json: metrics on the validation images, and facts about the run."""

    epochs: AtLeastOne  # 1 for a head fitted by L-BFGS
    best_epoch: AtLeastOne  # epoch of the saved weights, counted from 1
    selected_on_validation: bool  # whether the epoch was selected on the validation images
    budget: NotRequired[BudgetResults]  # absent from runs without a time budget
    confirmed_in_float32: NotRequired[Natural]  # number of images with logits recomputed in float32
    left_out: NotRequired[Natural]  # validation images excluded, as copies; absent if 0
    test: NotRequired[FinalTestResults]  # absent without test images or in an unfinished run
    seconds: NotRequired[Loss]  # absent in an unfinished run


class FileRemark(TypedDict):
    """A file that is damaged or unusual, and the reason."""

    path: str  # path relative to the data folder, with slashes
    reason: str
    label: NotRequired[str]  # absent for unreadable files


class EvaluationResults(Metrics):
    """What is read of the eval.json that `vitft evaluate` writes."""

    data: dict[str, Any]


class CopyMember(TypedDict):
    """One image in a group of duplicates."""

    path: str
    label: str
    split: str  # `train`, `val`, `test`, or empty if there is no split


class CopyGroup(TypedDict):
    """A group of images that are identical files or near-duplicates of each other."""

    kind: str  # `exact` or `near`
    members: list[CopyMember]
    across_split: bool  # whether its images are in more than one subset of the split
    labels_differ: bool
    probabilities: NotRequired[dict[str, Share]]  # of the labels and of the most probable class


class Mislabel(TypedDict):
    """An image whose label is probably wrong."""

    path: str
    label: str
    suggested: str  # the most probable class
    given_probability: Share  # probability of `label`
    suggested_probability: Share


class OodResults(TypedDict):
    """Rates at which images are flagged as unlike the training images; None if they cannot be."""

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
    unused: list[dict[str, Any]]  # neither images nor hidden, most frequent suffix first
    notes: list[str]  # other notes on the folder, e.g. on images in subfolders
    own_split: NotRequired[bool]  # absent if the data has none, and from `vitft check`
    bad: list[FileRemark]
    odd: list[FileRemark]
    duplicates: list[CopyGroup]
    mislabels: list[Mislabel]
    imbalance: dict[str, Any]  # the largest and the smallest class, if there are any
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
    l2: _Positive
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


# every number about a run that users see ---------------------------------------------------------

_Kind = Literal["test", "cross-validation", "validation", "evaluation"]
Measure = Literal["accuracy", "mean average precision", "all labels right"]

_MORE_IMAGES = 3  # times as many as the validation images, so that cross-validation tells more
_MAX_WEAKEST = 3
_FEW_SCORED = 20  # images below which calibration is not relied on
_SIGNIFICANT = 0.025  # largest one-sided p-value of logits that depend on the class
_RARE = 0.1
"""Predictions are nearly constant if all other classes together are predicted at most this many
times as often as they occur."""
_CHANCE_MARGIN = 1 / 3
"""Fraction by which the lower half of the interval of a cross-validated balanced accuracy is
widened for the comparison with guessing: where there is nothing to learn, heads fitted to the same
images make the same mistakes (benchmarks/notebook/intervals.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured fraction, its 95% interval, and the images on which it rests."""

    value: Share
    interval: Interval | None  # None if there are too few images for one
    images: AtLeastOne
    groups: Natural = 0  # (patients, videos, ...), which the interval counts instead of images
    kind: _Kind
    """`test` for images that influenced no decision, `cross-validation` for images predicted by
    heads that were not fitted to them, `validation` for images that may have selected the epoch,
    `evaluation` for those of `vitft evaluate`."""
    measure: Measure = "accuracy"
    baseline: Share | None = None  # of always predicting the largest class, or of random scores
    known_to_weights: Natural | None = 0
    """How many of the images trained the initial weights, the teacher or, as copies, the run; None
    if this is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassEstimate:
    """A class with its recall, or a label with its average precision."""

    name: str
    value: Share
    interval: Interval | None
    images: Natural  # of the class; for a label, all images
    kind: _Kind
    taken_for: str = ""  # most frequent wrong prediction; empty if unknown, and for labels
    measure: Literal["recall", "average precision"] = "recall"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtChance:
    """Images on which a model is not measurably better than guessing."""

    kind: _Kind
    images: Natural
    interval: Interval  # of the balanced accuracy, or of the mean average precision of labels
    guessing: Share  # the balanced accuracy of guessing, or the precision of random scores
    too_few: bool = False
    """Whether not even an accuracy of 100% on so few images would be better than guessing. False if
    `predicts` is known, which says more."""
    predicts: str = ""  # class predicted for nearly all validation images, if any
    fraction: Share = 0.0  # of the validation images, for which `predicts` is predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The numbers of a run, also in exports (`to_json`). What is unknown is None or empty."""

    name: str = ""  # of the run directory
    data: str = ""  # name of the folder or file
    weights: str = ""  # name of the pretrained weights, or the path of their file
    ended: str = ""  # time in ISO 8601
    status: str = ""  # of a run that has not finished, e.g. `interrupted`; otherwise empty
    headline: Estimate | None = None
    """The number to quote: the accuracy (of a multi-label model: the mean average precision) on the
    test images, if there are any, because they are used only once. Otherwise, that of
    cross-validation, if it tells more than the validation images. Otherwise, that on the validation
    images."""
    supporting: tuple[Estimate, ...] = ()  # all others, e.g. the fraction with exactly right labels
    selected_on_validation: bool = False  # the epoch, so that the result is slightly optimistic
    at_chance: AtChance | None = None  # None for a model measurably better than guessing
    weakest: tuple[ClassEstimate, ...] = ()
    """Up to three classes or labels with the lowest recall or average precision below 100%, lowest
    first, in cross-validation or else on the validation images."""
    growth: Interval | None = None  # of the accuracy from twice as many images, extrapolated
    rounded: bool = False  # the weights, to 8 bits after the measurement

    @property
    def is_calibrated(self) -> bool:
        """Whether the probabilities say how often an answer is right.

        They do in a finished run with one class per image that is better than guessing, if enough
        images were scored that are new to the weights.
        """
        one, is_ended = self.headline, not self.status and not self.at_chance
        if self.on_known_images or not is_ended or one is None:
            return False
        return one.measure == "accuracy" and one.images >= _FEW_SCORED

    @property
    def on_known_images(self) -> tuple[Estimate, ...]:
        """Estimates that say nothing about new images: the initial weights were trained on some."""
        return tuple(one for one in self.estimates if one.known_to_weights != 0)

    @classmethod
    def of(cls, found: RunResults | None, environment: Mapping[str, Any] | None = None) -> Self:
        """Derive the numbers from the contents of eval.json and environment.json."""
        environment = environment or {}
        status = environment.get("status", "finished").replace("finished", "")
        known = cls(ended=environment.get("ended", ""), status=status)
        if found is None:
            return known
        test, more = found.get("test"), own_cross_validation(found)
        validation, *exact = _estimates(found, "validation")
        tested = _estimates(test, "test") if test else ()
        crossed, headline = tuple[Estimate, ...](), (*tested, validation)[0]
        if more and "labels" not in found:
            crossed = (_estimate(more, "cross-validation"),)
            if not tested and _tells_more(found, crossed[0], validation):
                headline = crossed[0]
        others = (*tested[:1], *crossed, validation, *tested[1:], *exact)
        gain = more["gain_interval"] if more else None
        weak = sorted(_weak_classes(found, more), key=lambda one: one.value)
        return replace(
            known,
            headline=headline,
            supporting=tuple(one for one in others if one is not headline),
            selected_on_validation=found.get("selected_on_validation", False),
            at_chance=_at_chance(found),
            weakest=tuple(weak[:_MAX_WEAKEST]),
            growth=(max(0.0, gain[0]), max(0.0, gain[1])) if gain else None,  # more do no harm
        )

    @classmethod
    def of_evaluation(cls, found: Mapping[str, Any]) -> Self:
        """Derive the numbers from what `vitft evaluate` has measured."""
        headline, *others = _estimates(cast("Metrics", found), "evaluation")
        return cls(headline=headline, supporting=tuple(others))

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """Return results read from JSON (`to_json`), or None if they are missing or not valid."""
        try:
            return cast("Self", structured(value, cls))
        except ValueError:
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as a JSON object; `docs/schemas/results.json` describes it."""
        usual = ("known_to_weights", 0)
        return asdict(self, dict_factory=lambda pairs: {k: v for k, v in pairs if (k, v) != usual})

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The headline, followed by the supporting estimates; empty if nothing was measured."""
        return (self.headline, *self.supporting) if self.headline else ()

    def estimate(self, *kinds: _Kind) -> Estimate | None:
        """Return the estimate of the first of these kinds that the run has."""
        found = {one.kind: one for one in reversed(self.estimates)}  # exact labels come last
        return next((found[kind] for kind in kinds if kind in found), None)

    @property
    def exact(self) -> Estimate | None:
        """Fraction of images with exactly the right labels, of a multi-label model."""
        return next((one for one in self.estimates if one.measure == "all labels right"), None)

    @property
    def difference(self) -> tuple[Estimate, Estimate] | None:
        """Test or validation images, and others (see `estimate`) with another accuracy, if any."""
        held = self.estimate("test", "validation")
        other = self.estimate("cross-validation", "validation")
        if held is None or other is None or held is other or self.exact or not _differ(held, other):
            return None
        return held, other


def own_cross_validation(found: RunResults) -> CrossValidation | None:
    """Return the cross-validation of a run whose model is the cross-validated head, or None."""
    is_head = found.get("best_epoch") == 1  # the fitted head counts as the first epoch
    return found.get("cross_validation") if is_head else None


def _estimate(
    found: CrossValidation | Metrics, kind: _Kind, measure: Measure = "accuracy"
) -> Estimate:
    return Estimate(
        value=found["top1"],
        interval=found["top1_interval"],
        images=found["images"],
        groups=found.get("groups", 0),
        kind=kind,
        measure=measure,
        baseline=found["majority"],
        known_to_weights=found.get("known_to_weights", 0),
    )


def _estimates(found: Metrics, kind: _Kind) -> tuple[Estimate, ...]:
    """Return the accuracy, or the mean average precision and the fraction with exact labels."""
    labels = found.get("labels")
    if labels is None:
        return (_estimate(found, kind),)
    exact = _estimate(found, kind, "all labels right")
    mean_ap = replace(
        exact,
        value=labels["map"],
        interval=labels["map_interval"],
        measure="mean average precision",
        baseline=labels["chance_map"],
    )
    return mean_ap, exact


def _tells_more(found: RunResults, crossed: Estimate, validation: Estimate) -> bool:
    """Return whether cross-validation tells more about the model than the validation images.

    Neither the accuracies may differ (a validation set from another place may be harder) nor, in a
    finished run, the losses (`calibration.are_comparable`).
    """
    if validation.known_to_weights == validation.images:
        return True
    if crossed.images < _MORE_IMAGES * validation.images or _differ(crossed, validation):
        return False
    calibration = found.get("calibration")
    return "seconds" not in found or bool(calibration and calibration.get("cross_validated"))


def _differ(one: Estimate, other: Estimate) -> bool:
    """Return whether the accuracies of two sets of images differ significantly."""
    return (
        one.interval is not None
        and other.interval is not None
        and proportions_differ((one.value, one.interval), (other.value, other.interval))
    )


def _weak_classes(found: RunResults, more: CrossValidation | None) -> list[ClassEstimate]:
    """Return the classes or labels below 100%, in the order of the model's outputs."""
    kind: _Kind = "validation"
    rows: Iterable[tuple[str, float | None, Interval | None, int, str | None]]
    spots = [weak for weak in (more["weak_spots"] if more else ()) if weak["recall"] < 1]
    if labels := found.get("labels"):
        every = labels["per_label"].items()
        rows = [(name, row["ap"], row["ap_interval"], found["images"], "") for name, row in every]
    elif spots:
        kind = "cross-validation"
        rows = map(itemgetter("class", "recall", "recall_interval", "images", "taken_for"), spots)
    else:
        others = mostly_taken_for(found)
        rows = [
            (name, row["recall"], row["recall_interval"], row["images"], others.get(name, ""))
            for name, row in found["per_class"].items()
        ]
    return [
        ClassEstimate(
            name=name,
            value=value,
            interval=interval,
            images=images,
            kind=kind,
            measure="average precision" if labels else "recall",
            taken_for=other or "",
        )
        for name, value, interval, images, other in rows
        if value is not None and value < 1
    ]


def _at_chance(found: RunResults) -> AtChance | None:
    """Return on what a model is not measurably better than guessing, or None if it is better.

    It is better if, on the largest set of images on which this was measured, the 95% interval of
    its balanced accuracy is above that of guessing (1 / classes), or the accuracy itself is, and
    the logits depend on the class (`p_of_guessing`). The mean average precision of labels is
    compared with that of random scores.
    """
    if labels := found.get("labels"):
        bounds, chance = labels["map_interval"], labels["chance_map"]
        if bounds is None or bounds[0] > chance:
            return None
        return AtChance(kind="validation", images=found["images"], interval=bounds, guessing=chance)
    sets = list[tuple[_Kind, int, float, Metrics | CrossValidation]]()
    parts: dict[_Kind, Metrics | None] = {"validation": found, "test": found.get("test")}
    for name, part in parts.items():
        present = sum(row["images"] > 0 for row in part["per_class"].values()) if part else 0
        if part and present > 1:  # images of one class cannot tell
            sets.append((name, present, 0.0, part))
    if more := own_cross_validation(found):
        sets.append(("cross-validation", more["classes"], _CHANCE_MARGIN, more))
    if not sets:
        return None
    kind, classes, margin, one = max(sets, key=lambda one: one[-1]["images"])
    images, balanced, bounds = one["images"], one["balanced"], one["balanced_interval"]
    low, guessing = bounds[0] - margin * (balanced - bounds[0]), 1 / classes
    tells = balanced > guessing and one.get("p_guessing", 1) < _SIGNIFICANT
    if low > guessing or tells:
        return None
    predicts, fraction = _constant_class(found) or ("", 0.0)
    few = balanced == 1 or wilson_interval(images, images)[0] <= guessing
    return AtChance(
        kind=kind,
        images=images,
        interval=bounds,
        guessing=guessing,
        too_few=few and not predicts,
        predicts=predicts,
        fraction=fraction,
    )


def _constant_class(found: Metrics) -> tuple[str, float] | None:
    """Return the class predicted for nearly all images (see `_RARE`), if any, and their share."""
    names, counts, truth = list(found["per_class"]), Counter[int](), Counter[int]()
    for (true, predicted), images in class_pair_counts(found).items():
        counts[predicted] += images
        truth[true] += images
    best, total = max(counts, key=counts.__getitem__), counts.total()
    is_constant = total - counts[best] <= _RARE * (total - truth[best])
    return (names[best], counts[best] / total) if is_constant else None
