"""Types of the results that vitft writes as JSON: eval.json and audit.json.

Fractions are from 0 to 1 and losses are in nats. Every interval is a 95 % interval, (low, high); a
file that was read back holds lists in place of tuples. None stands for what is undefined, such as
the recall of a class without images.
"""

from typing import NotRequired, TypedDict

Interval = tuple[float, float]  # lower and upper end


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
    """Images with a confidence from `low` to `high`, as one point of a reliability diagram."""

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
    """The corrected error before temperature scaling; None if no temperature is known."""
    temperature: float | None  # divisor of the logits; 1 if none was fitted
    note: str | None  # why no temperature was fitted
    bins: list[CalibrationBin]


class ProbabilityMetrics(TypedDict):
    """Metrics that depend on the temperature."""

    loss: float  # mean cross-entropy
    loss_interval: Interval | None
    calibration: CalibrationMetrics | None  # None if only the accuracy was measured


class Metrics(ProbabilityMetrics):
    """Metrics of a model on labelled images."""

    images: int
    top1: float
    top1_interval: Interval
    top5: float | None  # None for up to five classes
    top5_interval: Interval | None
    balanced: float  # mean recall of the classes that have images
    balanced_interval: Interval
    majority: float  # accuracy of always answering the largest class
    per_class: dict[str, ClassMetrics]  # in the order of the model's outputs
    confusion: list[list[int]]  # by true class (row) and predicted class (column)


class LearningCurvePoint(TypedDict):
    """Cross-validated accuracy of a head that was fitted to fewer images."""

    images: int  # training images, mean over the folds
    top1: float


WeakClass = TypedDict(
    "WeakClass",
    {
        "class": str,  # a keyword, hence the functional form
        "recall": float,
        "images": int,
        "taken_for": str | None,  # the most frequent wrong answer
    },
)
"""A class with a low recall."""


class CrossValidation(TypedDict):
    """Results of a linear head by cross-validation over the training and validation images."""

    images: int  # images that were scored
    of: int  # images that there are
    top1: float
    top1_interval: Interval
    curve: list[LearningCurvePoint]  # from few images to many
    gain_from_twice: float | None  # accuracy that twice the images would add, extrapolated
    weak_spots: list[WeakClass]  # the three classes with the lowest recall, lowest first


class SolvedHeadResults(TypedDict):
    """Results that only a solved head has."""

    first_loss: float  # training loss of the zero head
    l2: float  # penalty on the weights of the head
    knn_top1: float  # accuracy of nearest neighbours in feature space
    cross_validation: CrossValidation


class RunResults(Metrics):
    """Contents of a run's eval.json: metrics on the validation images, and how they came about."""

    epochs: int  # 1 for a solved head
    best_epoch: int  # epoch of the saved weights, counted from 1
    selected_on_validation: bool  # the same images selected the epoch: slightly optimistic
    first_loss: NotRequired[float]  # like the next three, from `SolvedHeadResults`
    l2: NotRequired[float]
    knn_top1: NotRequired[float]
    cross_validation: NotRequired[CrossValidation]
    confirmed_in_float32: NotRequired[int]  # images whose logits were recomputed in float32
    seconds: NotRequired[float]  # missing if the run did not finish


class FileRemark(TypedDict):
    """A file and what is wrong with it or unusual about it."""

    path: str  # relative to the data folder, with slashes
    reason: str


class EvaluatedData(TypedDict):
    """The images of `vitft evaluate`, and which of them were left out."""

    path: str
    unreadable: list[FileRemark]
    trained: int | None
    """Images left out because the model was trained on them; None if the split is unknown."""
    validated: int | None
    """Images counted that were validation images of the run; None if the split is unknown."""
    copies: int  # images counted whose bytes are those of an earlier one


class EvaluationResults(Metrics):
    """Contents of the eval.json of `vitft evaluate`."""

    data: EvaluatedData


class CopyMember(TypedDict):
    """One image of a group of copies."""

    path: str
    label: str
    split: str  # `train`, `val`, or empty without a split


class CopyGroup(TypedDict):
    """Images that are identical files or near copies of each other."""

    kind: str  # `exact` or `near`
    members: list[CopyMember]
    across_split: bool  # whether some train and others validate
    labels_differ: bool


class Mislabel(TypedDict):
    """An image whose label is probably wrong."""

    path: str
    label: str
    suggested: str  # the more probable class
    given_probability: float  # of `label`
    suggested_probability: float


class Imbalance(TypedDict):
    """The largest and the smallest class, each with its number of images; None without images."""

    largest: tuple[str, int] | None
    smallest: tuple[str, int] | None
    ratio: float | None


class AuditResults(TypedDict):
    """Contents of audit.json: possible problems of a labelled folder."""

    images: int  # readable images
    bad: list[FileRemark]
    odd: list[FileRemark]
    duplicates: list[CopyGroup]
    mislabels: list[Mislabel]
    imbalance: Imbalance
