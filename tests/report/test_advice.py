"""Advice on the page of a run: when each piece is given, and its numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_files import make_run
from vitft.data.split import Row
from vitft.metrics.intervals import wilson_interval
from vitft.predict.validation import ValidationPrediction
from vitft.report.advice import (
    ClassRecall,
    advise,
    compared_with_accuracy,
    confused_pair,
    copies_across_split,
    cross_validated_recalls,
    doubtful_labels,
    few_validation_images,
    measured_classes,
    more_images,
    no_better_than_guessing,
    small_classes,
    validation_recalls,
    weakest_class,
    weakest_label_advice,
)
from vitft.report.run_files import Run, read_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of three classes with 6 training and 4 validation images each."""
    return read_run(make_run(tmp_path / "run"))


def with_results(run: Run, **results: Any) -> Run:
    """Return the run with some of its results replaced."""
    return replace(run, results={**run.results, **results})  # type: ignore[typeddict-item]


def crossed(run: Run, **found: Any) -> Run:
    """Return the run with some results of its cross-validation replaced."""
    before = run.results["cross_validation"] or {}
    return with_results(run, cross_validation={**before, **found})


def labelled(run: Run, **labels: Any) -> Run:
    """Return the run as a multi-label one."""
    split = replace(run.split, labels=run.classes)
    return replace(with_results(run, labels=labels) if labels else run, split=split)


def with_sizes(run: Run, **sizes: tuple[int, int, int]) -> Run:
    """Return the run with so many training, validation and test images of each class."""
    rows = [
        Row(f"{name}/{part}{i}", label, part, f"{label} {part} {i}")  # type: ignore[arg-type]
        for label, (name, counts) in enumerate(sizes.items())
        for part, images in zip(("train", "val", "test"), counts, strict=True)
        for i in range(images)
    ]  # fmt: skip
    split = replace(run.split, classes=tuple(sizes), rows=tuple(rows))
    return replace(run, classes=tuple(sizes), rows=tuple(rows), split=split)


def with_mistakes(run: Run, *pairs: tuple[str, str], classes: Sequence[str] = "abcdef") -> Run:
    """Return the run with one wrong prediction per pair of a label and a prediction."""
    wrong = [
        ValidationPrediction(
            path=f"{i}.jpg",
            sha256=f"{i:064}",
            label=label,
            predicted=predicted,
            probability=0.6,
            label_probability=0.4,
        )
        for i, (label, predicted) in enumerate(pairs)
    ]
    return replace(run, classes=tuple(classes), predictions=tuple(wrong))


# which advice ------------------------------------------------------------------------------------


def test_warnings_come_before_gains_and_a_run_without_results_has_no_advice(run: Run) -> None:
    wrong = [("daisy", "rose")] * 4

    steps = advise(with_mistakes(run, *wrong, classes=run.classes))

    assert [step.what.split(" ", 1)[0] for step in steps] == [
        "Retrain", "Review", "Compare", "If", "Twice", "To",
    ]  # fmt: skip
    assert [step.section for step in steps] == ["audit", "audit", "", "", "", ""]
    assert advise(replace(run, results={})) == []  # type: ignore[typeddict-item]


def test_a_model_at_chance_level_has_no_advice_on_single_classes(run: Run) -> None:
    poor = with_results(run, balanced_interval=(0.2, 0.5), cross_validation=None)
    steps = advise(with_mistakes(poor, *[("daisy", "rose")] * 4, classes=run.classes))

    assert [step.what.split(" ", 1)[0] for step in steps] == ["Do", "Retrain", "Review", "To"]


def test_a_multi_label_model_that_ranks_at_random_should_not_be_used(run: Run) -> None:
    chance = labelled(run, map_interval=(0.2, 0.5), chance_map=0.3, per_label={})
    better = labelled(run, map_interval=(0.31, 0.5), chance_map=0.3, per_label={})

    step = no_better_than_guessing(chance)

    assert step is not None
    assert step.what == "Do not use this model yet."
    assert "precision (20.0 to 50.0%) is not entirely above 30.0%" in step.why
    assert no_better_than_guessing(better) is None


@pytest.mark.parametrize(
    ("groups", "text"),
    [(0, ""), (1, "1 group of identical or nearly identical images contains both"),
     (2, "2 groups of identical or nearly identical images contain both")],
)  # fmt: skip
def test_groups_of_copies_across_the_split_are_counted(run: Run, groups: int, text: str) -> None:
    (across,) = run.audit["duplicates"]
    within: Any = {**across, "members": [{**across["members"][0], "split": "train"}] * 2}

    step = copies_across_split(
        replace(run, audit={**run.audit, "duplicates": [within, *[across] * groups]})
    )

    assert text in step.why if step else not text


@pytest.mark.parametrize(
    ("number", "what", "why"),
    [(1, "Review the label of 1 image.", "not trained on it predicts another"),
     (2, "Review the labels of 2 images.", "not trained on them predicts another")],
)  # fmt: skip
def test_suspected_label_errors_are_counted(run: Run, number: int, what: str, why: str) -> None:
    found = run.audit["mislabels"] * number

    step = doubtful_labels(replace(run, audit={**run.audit, "mislabels": found}))

    assert step is not None
    assert step.what == what
    assert why in step.why
    assert doubtful_labels(replace(run, audit={**run.audit, "mislabels": []})) is None
    several = doubtful_labels(labelled(run))
    assert several is not None
    assert "suggests that a label is wrong or missing" in several.why


# confused pairs ----------------------------------------------------------------------------------

AB, OTHERS = ("a", "b"), [(x, y) for x, y in ("cd", "ce", "cf", "de", "df", "ef")]


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        pytest.param([AB] * 4, "4 of the 4 mistakes", id="four, all of one pair"),
        pytest.param([AB] * 3, "", id="three"),
        pytest.param([AB] * 3 + OTHERS[:1], "", id="three of four"),
        pytest.param([AB, AB, ("b", "a"), ("b", "a")], "4 of the 4", id="both directions"),
        pytest.param([AB] * 4 + OTHERS * 2, "4 of the 16", id="a quarter"),
        pytest.param([AB] * 4 + OTHERS * 2 + OTHERS[:1], "", id="less than a quarter"),
        pytest.param([*OTHERS, *[AB] * 5], "5 of the 11", id="most of them last"),
    ],
)
def test_a_pair_of_classes_with_a_quarter_of_the_mistakes_is_named(
    run: Run, pairs: list[tuple[str, str]], text: str
) -> None:
    step = confused_pair(with_mistakes(run, *pairs))

    assert (step is not None) == bool(text)
    if step is not None:
        assert step.what == "Compare images of a and b."
        assert step.why.startswith(text)


def test_a_confused_pair_needs_three_classes_with_one_class_per_image(run: Run) -> None:
    wrong = [AB] * 4

    assert confused_pair(with_mistakes(run, *wrong, classes="ab")) is None
    assert confused_pair(with_mistakes(run, *wrong, classes="abc")) is not None
    assert confused_pair(labelled(with_mistakes(run, *wrong))) is None


# weak classes ------------------------------------------------------------------------------------


def weakest(run: Run, *, sure: bool = False, **recalls: tuple[float, int]) -> Run:
    """Return the run with these recalls on these numbers of validation images per class."""
    per_class = {
        name: {
            "images": images,
            "recall": recall,
            "recall_interval": wilson_interval(round(recall * images), images),
        }
        for name, (recall, images) in recalls.items()
    }
    return with_results(run, per_class=per_class, top1=0.9, cross_validation=None)


def test_the_class_to_collect_has_the_lowest_recall_of_those_with_mistakes(run: Run) -> None:
    sized = with_sizes(run, a=(40, 10, 0), b=(40, 10, 0), c=(40, 10, 0))

    step = weakest_class(weakest(sized, a=(0.7, 10), b=(0.6, 10), c=(1.0, 10)))
    perfect = weakest_class(weakest(sized, a=(1.0, 10), b=(1.0, 10), c=(1.0, 10)))
    alone = weakest_class(replace(weakest(sized, b=(0.6, 10)), classes=("b",)))

    assert step is not None
    assert step.what == "If you collect more images, start with b."
    assert step.why.startswith("Its recall is 60% on 10 validation images, ")
    assert perfect is None
    assert alone is None


def test_two_classes_are_enough_for_a_weakest_one(run: Run) -> None:
    sized = with_sizes(run, a=(40, 10, 0), b=(40, 10, 0))

    step = weakest_class(weakest(sized, a=(0.7, 10), b=(0.8, 10)))

    assert step is not None
    assert "start with a" in step.what


def test_a_class_without_training_images_is_not_the_weakest(run: Run) -> None:
    sized = with_sizes(run, a=(0, 40, 0), b=(40, 10, 0), c=(40, 10, 0))

    step = weakest_class(weakest(sized, a=(0.1, 10), b=(0.6, 10), c=(0.7, 10)))

    assert step is not None
    assert "start with b" in step.what


def a_recall(recall: float, images: int, accuracy: float) -> ClassRecall:
    """Return a recall of class a."""
    bounds = wilson_interval(round(recall * images), images)
    return ClassRecall("a", recall, images, f"{images} images", bounds, accuracy)


def test_a_low_recall_is_clear_if_it_is_too_unlikely_for_any_of_the_classes() -> None:
    worst = a_recall(20 / 30, 30, 0.9)
    # the probability of at least 10 wrong predictions of 30 at an error of 10%
    tail = sum(math.comb(30, k) * 0.1**k * 0.9 ** (30 - k) for k in range(10, 31))
    many = int(0.05 / tail)

    assert many > 10
    assert compared_with_accuracy(worst, many) == "clearly below the overall accuracy."
    assert f"The lowest of {many + 1} recalls" in compared_with_accuracy(worst, many + 1)


def test_a_recall_whose_interval_reaches_the_accuracy_may_be_low_by_chance() -> None:
    reaching = ClassRecall("a", 0.5, 100, "100 images", (0.4, 0.6), 0.6)

    assert compared_with_accuracy(reaching, 2) == (
        "but its 95% interval (40 to 60%) is so wide that this may be due to chance."
    )
    assert "chance" not in compared_with_accuracy(replace(reaching, accuracy=0.65), 2)


def test_the_number_of_classes_is_that_of_the_compared_recalls(run: Run) -> None:
    sized = with_sizes(run, a=(9, 1, 0), b=(9, 1, 0), c=(1, 9, 0), d=(0, 9, 0))
    spots = [{"class": "a", "recall": 0.5, "images": 10, "taken_for": "b"}]

    assert measured_classes(crossed(sized, weak_spots=spots)) == 3  # those that were learned
    assert measured_classes(weakest(sized, a=(0.5, 10), b=(0.5, 10))) == 2


def test_recalls_in_cross_validation_are_those_of_classes_with_images(run: Run) -> None:
    spots = [
        {"class": "a", "recall": 2 / 3, "images": 30, "taken_for": "b"},
        {"class": "b", "recall": 0.0, "images": 0, "taken_for": None},
        {"class": "c", "recall": 0.8, "images": 1, "taken_for": None},
    ]
    scored = crossed(run, top1=0.7, weak_spots=spots)

    first, last = cross_validated_recalls(scored)

    assert first == ClassRecall(
        "a", 2 / 3, 30, "30 images in cross-validation", wilson_interval(20, 30), 0.7, "b"
    )
    assert (last.name, last.measured_on, last.taken_for) == (
        "c", "1 image in cross-validation", "",
    )  # fmt: skip
    assert cross_validated_recalls(labelled(scored)) == []
    assert cross_validated_recalls(crossed(run, weak_spots=None)) == []


def test_recalls_on_validation_images_are_sorted_and_name_the_most_frequent_mistake(
    run: Run,
) -> None:
    scored = weakest(run, daisy=(0.8, 10), poppy=(0.5, 10), rose=(0.9, 10))
    per_class: dict[str, Any] = {**scored.results["per_class"]}
    per_class["none"] = {"images": 0, "recall": None, "recall_interval": None}
    wrong = [("poppy", "daisy"), ("poppy", "rose"), ("poppy", "rose"), ("daisy", "poppy")]
    scored = with_mistakes(with_results(scored, per_class=per_class), *wrong)

    recalls = validation_recalls(scored)

    assert [(one.name, one.recall, one.taken_for) for one in recalls] == [
        ("poppy", 0.5, "rose"),
        ("daisy", 0.8, "poppy"),
        ("rose", 0.9, ""),
    ]
    assert {one.measured_on for one in recalls} == {"10 validation images"}
    assert {one.accuracy for one in recalls} == {0.9}
    assert not any(one.taken_for for one in validation_recalls(labelled(scored)))


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        pytest.param((9, 30, 30), "a (9)", id="less than a third of the median"),
        pytest.param((10, 30, 30), "", id="a third"),
        pytest.param((19, 90, 90), "a (19)", id="fewer than twenty"),
        pytest.param((20, 90, 90), "", id="twenty"),
        pytest.param((5, 4, 30, 30, 30), "b (4) and a (5)", id="fewest first"),
        pytest.param((1, 1, 1, 1, 1, 90, 90, 90, 90, 90, 90, 90), "a (1), b (1), c (1) and 2 more",
                     id="more than four"),
    ],
)  # fmt: skip
def test_small_classes_have_less_than_a_third_of_the_usual_and_fewer_than_twenty_images(
    run: Run, sizes: tuple[int, ...], named: str
) -> None:
    names = "abcdefghijklm"
    sized = with_sizes(
        run, **{name: (n - 1, 1, 50) for name, n in zip(names, sizes, strict=False)}
    )  # of which test images do not count

    step = small_classes(sized)

    assert (step.what if step else "") == (f"Collect images of {named} first." if named else "")
    if step:
        assert step.why.startswith("This is" if " and " not in named else "These are")
        assert "half of the classes have" in step.why
        assert "is measured on 1 validation image only" in step.why


def test_small_labels_are_called_labels(run: Run) -> None:
    sized = with_sizes(run, a=(4, 2, 0), b=(60, 9, 0), c=(60, 9, 0))
    several = labelled(sized)

    step = small_classes(several)

    assert step is not None
    assert (
        "half of the labels have at least 69 images. The recall of a is measured on 2" in step.why
    )
    assert weakest_class(several) == step


def test_the_label_with_the_lowest_average_precision_is_the_one_to_collect(run: Run) -> None:
    rows = {
        "daisy": {"ap": 0.8, "ap_interval": None},
        "poppy": {"ap": 0.6, "ap_interval": (0.4, 0.7)},
        "rose": {"ap": None, "ap_interval": None},
    }
    several = labelled(run, per_label=rows, map_interval=(0.5, 0.9), chance_map=0.3)

    step = weakest_class(several)

    assert step == weakest_label_advice(several)
    assert step is not None
    assert step.what.endswith("images that have the label poppy.")
    assert step.why == (
        "Its average precision is 60.0% (95% interval: 40.0 to 70.0%) on 12 validation images, the "
        "lowest of all labels."
    )
    assert weakest_label_advice(replace(several, classes=("poppy",))) is None
    assert weakest_label_advice(replace(several, classes=("poppy", "rose"))) is not None
    assert weakest_label_advice(labelled(run)) is None  # an older run
    del rows["poppy"]
    unknown = weakest_label_advice(several)
    assert unknown is not None
    assert unknown.why.startswith("Its average precision is 80.0% on 12 validation images")


# more images -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "gain", "start"),
    [
        pytest.param((0.6, 0.7, 0.8), 0.06, "Twice as many images would improve", id="rising"),
        pytest.param((0.6, 0.7, 0.8), 0.0, "Twice as many images would improve", id="no gain"),
        pytest.param((0.7, 0.8), 0.06, "", id="two points"),
        pytest.param((0.6, 0.7, 0.7), None, "", id="rose at first"),
        pytest.param((0.6, 0.6, 0.7), None, "", id="rises at last"),
        pytest.param((0.7, 0.7, 0.7), None, "Do not expect much", id="flat"),
        pytest.param((0.8, 0.7, 0.6), None, "Do not expect much", id="falling"),
        pytest.param((0.6, 0.7, 0.7, 0.7), None, "Do not expect much", id="flat of late"),
        pytest.param((0.9, 0.6, 0.7, 0.7), None, "", id="rose of late"),
    ],
)
def test_advice_on_more_images_depends_on_the_last_three_points_of_the_curve(
    run: Run, curve: Sequence[float], gain: float | None, start: str
) -> None:
    points = [{"images": 6 * (i + 1), "top1": top1} for i, top1 in enumerate(curve)]

    step = more_images(crossed(run, curve=points, gain_from_twice=gain))

    assert (step is not None) == bool(start)
    assert step is None or step.what.startswith(start)
    assert more_images(crossed(run, curve=None)) is None
    assert more_images(with_results(run, cross_validation=None)) is None


@pytest.mark.parametrize(
    ("interval", "images", "top1", "what"),
    [
        pytest.param((0.70, 0.79), 100, 0.5, "about 597 validation images.", id="wide"),
        pytest.param((0.50, 0.58), 100, 0.5, "", id="eight points"),
        pytest.param((0.70, 0.79), 597, 0.5, "", id="enough"),
        pytest.param((0.70, 0.79), 596, 0.5, "about 597 validation images.", id="one too few"),
    ],
)
def test_more_validation_images_are_advised_until_the_interval_is_eight_points_wide(
    run: Run, interval: tuple[float, float], images: int, top1: float, what: str
) -> None:
    scored = crossed(with_results(run, top1_interval=interval, images=images), top1=top1)

    step = few_validation_images(scored)

    # Wilson's interval of 1/2 is z / sqrt(n + z²) wide on n images: 0.08 if n = (z / 0.08)² - z².
    assert 596 < (1.959964 / 0.08) ** 2 - 1.959964**2 < 597
    assert (step is not None) == bool(what)
    if step is not None:
        assert step.what.endswith(what)
        assert step.why.startswith(f"With {images} images, the interval spans 9 points")
