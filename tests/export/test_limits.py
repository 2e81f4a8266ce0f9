"""Section "Intended use and limits" of a model card: which classes and confusions it names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.export_run import make_run
from vitft.export.limits import ClassPair, limits_of, most_confused
from vitft.metrics.results import RunResults, read_results

SEVERAL = {"map_interval": (0.6, 0.8), "chance_map": 0.3}
AUDIT: Any = {"images": 9, "bad": [], "odd": [], "duplicates": [], "mislabels": []}
AUDIT["imbalance"] = {"largest": None, "smallest": None, "ratio": None}
"""An audit that has found nothing."""


def row(images: int, recall: float | None) -> dict[str, Any]:
    """Return the results of one class."""
    return {"images": images, "recall": recall, "recall_interval": (0.25, 0.75)}


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Path, RunResults]:
    """A run of three classes that is better than chance, with its results."""
    run = make_run(tmp_path)
    found = read_results(run / "eval.json")
    assert found is not None
    good: Any = {"top1": 0.8, "top1_interval": (0.7, 0.9), "balanced_interval": (0.7, 0.9)}
    return run, {**found, **good}


Said = Callable[..., list[str]]


@pytest.fixture
def said(measured: tuple[Path, RunResults]) -> Said:
    """A function that returns the sentences after the first two, given changed results.

    Unless it changes them, nothing is confused, and every recall is 100%.
    """
    run, found = measured

    def sentences(names: str = "abc", **changed: Any) -> list[str]:
        perfect = {name: row(20, 1.0) for name in names}
        changed = {"per_class": perfect, "confusion": [], **changed}
        results: Any = {**found, **changed}
        return limits_of(run, names, results)[2:]

    return sentences


def test_the_three_most_frequent_confusions_are_named(said: Said) -> None:
    matrix = [[10, 2, 0, 5], [1, 10, 3, 0], [4, 0, 10, 0], [0, 0, 0, 10]]

    found = most_confused({"confusion": matrix})  # type: ignore[typeddict-item]

    assert found == [ClassPair(0, 3, 5, 17), ClassPair(2, 0, 4, 14), ClassPair(1, 2, 3, 14)]
    (text,) = said("wxyz", confusion=matrix)
    assert text.endswith("are: w predicted as z (5 of 17); y predicted as w (4 of 14); "
                         "x predicted as y (3 of 14).")  # fmt: skip


@pytest.mark.parametrize(("wrong", "number"), [(0, 0), (1, 0), (2, 1)])
def test_a_confusion_of_one_image_is_not_named(said: Said, wrong: int, number: int) -> None:
    assert len(said("ab", confusion=[[9, wrong], [0, 9]])) == number


def test_the_three_lowest_recalls_below_all_right_are_named(said: Said) -> None:
    per_class = {
        "a": row(20, 0.9),
        "b": row(20, 1.0),
        "c": row(20, 0.7),
        "d": row(0, None),
        "e": row(1, 0.0),
        "f": row(20, 0.8),
    }

    lowest, few = said("abcdef", per_class=per_class)

    assert lowest == (
        "The lowest recalls on the validation images are: e 0.0% on 1 image (95% interval 25.0 to "
        "75.0%); c 70.0% on 20 images (95% interval 25.0 to 75.0%); f 80.0% on 20 images (95% "
        "interval 25.0 to 75.0%)."
    )
    assert few.startswith("2 classes have fewer than 10 validation images")
    assert said("ab") == []


@pytest.mark.parametrize(
    ("images", "more", "text"),
    [
        ((10, 10), {}, None),
        ((9, 10), {}, "1 class has fewer than 10"),
        ((9, 9), {}, "2 classes have fewer than 10"),
        ((9, 10), {"labels": SEVERAL}, "1 label has fewer than 10"),
        ((9, 9), {"labels": SEVERAL}, "2 labels have fewer than 10"),
    ],
)
def test_classes_with_fewer_than_ten_validation_images_are_counted(
    said: Said, images: tuple[int, ...], more: dict[str, Any], text: str | None
) -> None:
    per_class = {f"c{i}": row(n, 1.0) for i, n in enumerate(images)}

    found = said("ab", per_class=per_class, **more)

    assert [one.partition(" validation")[0] for one in found] == ([text] if text else [])


@pytest.mark.parametrize(
    ("images", "text"), [(19, "There were too few"), (20, "The probabilities differ from the")]
)
def test_a_calibration_error_needs_twenty_images(said: Said, images: int, text: str) -> None:
    error = {"ece": 0.06, "ece_interval": (0.02, 0.13)}

    (found,) = said(calibration=error, images=images)

    assert found.startswith(text)
    assert said(calibration=None, images=images) == []


@pytest.mark.parametrize(
    ("groups", "labels", "texts"),
    [
        (0, 0, []),
        (1, 1, ["1 group of identical or nearly identical images contains both",
                "1 label in the data is probably wrong"]),
        (2, 2, ["2 groups of identical or nearly identical images contain both",
                "2 labels in the data are probably wrong"]),
    ],
)  # fmt: skip
def test_problems_of_the_data_are_counted(
    said: Said, measured: tuple[Path, RunResults], groups: int, labels: int, texts: list[str]
) -> None:
    leak, within = (
        {
            "kind": "near",
            "members": [{"path": f"{i}.png", "label": "a", "split": part} for i, part in pair],
            "across_split": True,
            "labels_differ": False,
        }
        for pair in (enumerate(("train", "val")), enumerate(("train", "train")))
    )
    doubt = {"given_probability": 0.1, "suggested_probability": 0.9}
    mislabels = [
        {"path": f"{i}.png", "label": "a", "suggested": "b", **doubt} for i in range(labels)
    ]
    audit = {**AUDIT, "duplicates": [within, *[leak] * groups], "mislabels": mislabels}
    (measured[0] / "audit.json").write_text(json.dumps(audit))

    found = said()

    assert len(found) == len(texts)
    assert all(one.startswith(text) for one, text in zip(found, texts, strict=True))


def test_what_is_said_depends_on_the_kind_of_model_and_its_accuracy(
    measured: tuple[Path, RunResults],
) -> None:
    run, found = measured
    names = ("blue", "green", "red")
    several: Any = {"labels": SEVERAL}

    whole = limits_of(run, names, found)
    exported = limits_of(run, names, found, by_class=False)
    poor = limits_of(run, names, {**found, "balanced_interval": (0.1, 0.4)})
    labels = limits_of(run, names, {**found, **several})

    assert whole[0].startswith("The model assigns an image to one of 3 classes.")
    assert whole[1].startswith("The validation images come from the same data")
    assert any("recalls" in text for text in whole)
    assert exported == whole[:2]
    assert poor[2:] == ["The model is at chance level, so it should not be used."]
    assert labels[0] == "The model assigns any of 3 labels, or none, to an image."


def test_validation_images_of_the_data_itself_are_called_so(
    measured: tuple[Path, RunResults],
) -> None:
    run, found = measured
    (run / "audit.json").write_text(json.dumps({**AUDIT, "own_split": True}))

    assert any(
        text.startswith("The validation images are those that the data names")
        for text in limits_of(run, ("blue", "green", "red"), found)
    )


@pytest.mark.parametrize(
    ("tied", "end"),
    [
        (3, "c 80.0% on 20 images (95% interval 25.0 to 75.0%)."),
        (4, "(95% interval 25.0 to 75.0%); and 1 more class with the same recall as c."),
        (6, "(95% interval 25.0 to 75.0%); and 3 more classes with the same recall as c."),
    ],
)
def test_classes_beyond_the_third_with_the_same_recall_are_counted(
    said: Said, tied: int, end: str
) -> None:
    names = "abcdef"[:tied]
    per_class = {**{name: row(20, 0.8) for name in names}, "x": row(20, 0.9)}

    (lowest,) = said(f"{names}x", per_class=per_class)

    assert lowest.endswith(end)
