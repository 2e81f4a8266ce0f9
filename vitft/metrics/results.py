"""Types of the results written as JSON: eval.json and audit.json.

Fractions are from 0 to 1 and losses are in nats. All intervals are 95 % intervals (low, high); they
are lists instead of tuples when read from a file. Undefined values, such as the recall of a class
without images, are None.
"""

from typing import NotRequired, TypedDict

Interval = tuple[float, float]  # lower and upper bounds


class ClassMetrics(TypedDict):
    """Metrics of one class."""

    images: int
    recall: float | None
    recall_interval: Interval | None
    precision: float | None
    precision_interval: Interval | None
    f1: float | None
    f1_interval: Interval | None


class CalibrationBin(TypedDict):
    """One point of a reliability diagram: the images with confidences from `low` to `high`."""

    low: float
    high: float
    images: int
    confidence: float  # mean over the images
    accuracy: float


class CalibrationMetrics(TypedDict):
    """Calibration of the probabilities."""

    ece: float  # expected calibration error, corrected for the bias of small samples
    ece_interval: Interval
    ece_binned: float  # the usual plug-in estimate, without the correction
    ece_before: float | None
    """Corrected error before temperature scaling; None if no temperature is known."""
    temperature: float | None  # divisor of the logits; 1 if none was fitted
    note: str | None  # reason why no temperature was fitted
    cross_validated: NotRequired[int]
    """Number of training images to whose cross-validated logits the temperature was fitted, in
    addition to the validation images; absent from `vitft evaluate` and older runs."""
    bins: list[CalibrationBin]


class ProbabilityMetrics(TypedDict):
    """Metrics that depend on the temperature."""

    loss: float  # mean cross-entropy
    loss_interval: Interval | None
    calibration: CalibrationMetrics | None  # None if only accuracy was measured


class Metrics(ProbabilityMetrics):
    """Metrics of a model on labelled images."""

    images: int
    top1: float
    top1_interval: Interval
    top5: float | None  # None for five or fewer classes
    top5_interval: Interval | None
    balanced: float  # mean recall over the classes that have images
    balanced_interval: Interval
    majority: float  # accuracy of always predicting the largest class
    per_class: dict[str, ClassMetrics]  # in the order of the model's outputs
    confusion: list[list[int]]  # by true class (row) and predicted class (column)


class LearningCurvePoint(TypedDict):
    """Cross-validated accuracy of a head fitted to a subset of the images."""

    images: int  # number of training images, averaged over the folds
    top1: float


WeakClass = TypedDict(
    "WeakClass",
    {
        "class": str,  # a keyword, which requires the functional form
        "recall": float,
        "images": int,
        "taken_for": str | None,  # most frequent wrong prediction
    },
)
"""A class with a low recall."""


class HeadCandidate(TypedDict):
    """A way to fit the head, with its cross-validated scores on the training images."""

    reads: str  # `last block`, `several blocks` or `mixture`
    cv_loss: float
    cv_top1: float


class CrossValidation(TypedDict):
    """Results of cross-validating a linear head on the training and validation images."""

    images: int  # number of images scored
    of: int  # total number of images
    top1: float
    top1_interval: Interval
    curve: list[LearningCurvePoint]  # from few images to many
    gain_from_twice: float | None  # extrapolated gain in accuracy from doubling their number
    weak_spots: list[WeakClass]  # the three classes with the lowest recall, lowest first


class HeadChoice(TypedDict):
    """Blocks that a solved head reads, and the scores used to choose them."""

    blocks: int  # number of last blocks that the head reads
    reads: str  # the candidate that was chosen
    candidates: list[HeadCandidate]
    last_block_top1: float | None
    """Validation accuracy of a head that reads the last block only; None if the chosen head
    does."""


class SolvedHeadResults(TypedDict):
    """Additional results for a solved head."""

    first_loss: float  # training loss of the zero head
    l2: float  # penalty on the weights of the head
    knn_top1: float  # accuracy of nearest neighbours in feature space
    head: NotRequired[HeadChoice]  # absent if only the last block could be read
    cross_validation: NotRequired[CrossValidation]  # absent with too few images per class


class FinalTestResults(Metrics):
    """Metrics of the finished model on the test part of the data, which no choice depended on."""

    left_out: int  # number of test images that are identical to a training or validation image


class RunResults(Metrics):
    """Contents of a run's eval.json: metrics on the validation images, and facts about the run."""

    epochs: int  # 1 for a solved head
    best_epoch: int  # epoch of the saved weights, counted from 1
    selected_on_validation: bool  # whether the epoch was selected on the same images
    first_loss: NotRequired[float]  # like the next three, from `SolvedHeadResults`
    l2: NotRequired[float]
    knn_top1: NotRequired[float]
    head: NotRequired[HeadChoice]
    cross_validation: NotRequired[CrossValidation]
    confirmed_in_float32: NotRequired[int]  # number of images with logits recomputed in float32
    test: NotRequired[FinalTestResults]  # absent without test images, and if the run did not finish
    seconds: NotRequired[float]  # absent if the run did not finish


class FileRemark(TypedDict):
    """A remark on a damaged or unusual file."""

    path: str  # path relative to the data folder, with slashes
    reason: str


class EvaluatedData(TypedDict):
    """Numbers of images that `vitft evaluate` scored and left out."""

    path: str
    unreadable: list[FileRemark]
    trained: int | None
    """Number of images left out because the run trained on them; None if the split is unknown."""
    trained_copies: int | None
    """Number of images left out because they are near-duplicates of training images."""
    trained_paths: int | None
    """Number of images left out because they have the path of a training image that cannot be read
    for a comparison."""
    validated: int | None
    """Number of scored images that the run validated on, or near-duplicates of such images; None
    if the split is unknown."""
    copies: int  # number of scored images identical to an earlier one


class EvaluationResults(Metrics):
    """Contents of the eval.json written by `vitft evaluate`."""

    data: EvaluatedData


class CopyMember(TypedDict):
    """One image of a group of copies."""

    path: str
    label: str
    split: str  # `train`, `val`, `test`, or empty without a split


class CopyGroup(TypedDict):
    """A group of images that are identical files or near-duplicates."""

    kind: str  # `exact` or `near`
    members: list[CopyMember]
    across_split: bool  # whether its images are in several parts of the split
    labels_differ: bool


class Mislabel(TypedDict):
    """An image whose label is probably wrong."""

    path: str
    label: str
    suggested: str  # the most probable class
    given_probability: float  # probability of `label`
    suggested_probability: float


class Imbalance(TypedDict):
    """Largest and smallest class, each with its number of images (None if there are none)."""

    largest: tuple[str, int] | None
    smallest: tuple[str, int] | None
    ratio: float | None


class UnusedFiles(TypedDict):
    """Files with one suffix that are not used."""

    suffix: str  # in lower case, e.g. `.txt`
    files: int
    reason: str
    fix: str


class OodResults(TypedDict):
    """How often images get the note "unlike the training images" (`features.ood`).

    The fractions are None if the run cannot give the note; `reason` says why.
    """

    images: int  # number of images whose features describe the classes
    held_out: int  # number of images from which the limit was estimated
    reason: str | None  # why the run has no such note; None if it has
    false_alarms: float | None  # expected fraction of noted images of the known classes
    unknown_class: float | None  # fraction of noted images of classes left out in turn
    unknown_class_interval: Interval | None
    unknown_class_range: Interval | None  # lowest and highest fraction of a class left out
    classes_left_out: int
    features_trained: bool
    """Whether the features were trained on the classes left out; the fraction may then be high."""


class AuditResults(TypedDict):
    """Contents of audit.json: possible problems of a labelled folder."""

    images: int  # number of readable images
    unused: list[UnusedFiles]  # files that are neither images nor hidden, the most frequent first
    bad: list[FileRemark]
    odd: list[FileRemark]
    duplicates: list[CopyGroup]
    mislabels: list[Mislabel]
    imbalance: Imbalance
    out_of_distribution: NotRequired[OodResults]  # absent from `vitft check` and older runs
