"""Types of the output of `vitft compare --format json`.

Fractions, differences and intervals are from -1 to 1, e.g. 0.05 for 5 points. All intervals are 95%
intervals (low, high). Images are counted once for each content.
"""

from typing import Any, Literal, TypedDict

from vitft.metrics.values import Interval

FixesVerdict = Literal["helped", "no clear effect", "hurt", "mixed"]


class ComparedRun(TypedDict):
    """One of the compared runs; undefined values are None."""

    name: str
    letter: str  # that stands for the run in sentences such as `conclusion`
    path: str
    results: dict[str, Any]  # `metrics.summary.Results`
    shared_right: int  # number of shared images that the run classifies correctly
    shared_interval: Interval | None
    recall: dict[str, float]  # on the shared images, by class


class _FixesResults(TypedDict):
    """Effect of the fixes of one run, on images with the same label in both runs."""

    run: str  # name of the run with the fixes
    verdict: FixesVerdict  # `mixed` if the runs also differ in other settings or added images
    relabelled: int  # number of images whose label differs
    left_out: int  # number of images that the fixes leave out and the other run has
    added: int  # number of other images that only one of the runs has
    settings: list[str]  # other settings that differ and may change the accuracy
    cross_validated: bool  # whether all images were scored, or only the shared validation images
    images: int  # number of images with the same label that both runs scored
    only_with_right: int  # number of these images that only the run with the fixes predicts right
    only_without_right: int
    difference: float  # accuracy with the fixes minus accuracy without them
    interval: Interval
    p_holm: float


class AddedResults(TypedDict):
    """Training images that only one of two runs has."""

    run: str  # name of that run
    images: int
    settings: list[str]  # other settings that differ and may change the accuracy


class ComparedPair(TypedDict):
    """Comparison of two runs on the validation images that all runs share."""

    runs: tuple[str, str]
    test: Literal["mid-p McNemar", "sign flips of groups"]
    only_first_right: int
    only_second_right: int
    difference: float  # accuracy of the second run minus accuracy of the first
    interval: Interval
    p_holm: float  # two-sided p-value, Holm-corrected for the number of pairs
    significant: bool  # whether `p_holm` is below 0.05
    more_accurate: str | None  # name of the more accurate run; None if it is not significant
    conclusion: str  # the sentence that the terminal prints
    added: AddedResults | None  # None if the runs have almost the same images, or other fixes
    fixes: _FixesResults | None  # None if both runs have the same fixes


class DataChanges(TypedDict):
    """Images and labels in which a run differs from the first run."""

    run: str
    labels_changed: int
    left_out: int
    added: int


class ComparisonResults(TypedDict):
    """Output of `vitft compare --format json`."""

    shared_images: int
    notes: list[str]
    limit: str | None  # smallest difference that so few shared images can show, as a sentence
    winner: str | None  # name of the run that is significantly more accurate than all others
    runs: list[ComparedRun]
    pairs: list[ComparedPair]
    settings: dict[str, list[Any]]  # settings that differ, with the value in each run
    data: list[DataChanges]  # every run but the first, compared with the first
    disagree: list[str]  # paths of the shared images on which the predictions differ
