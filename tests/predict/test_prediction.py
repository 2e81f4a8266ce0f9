"""The prediction for one image: its answer, its text, its cells and its JSON."""

import pytest

from vitft.predict.prediction import Prediction, column_names, summarise

ONE = Prediction(path="a.jpg", classes=("rose", "lily"), probabilities=(0.9123456789, 0.0876543211))
SEVERAL = Prediction(
    path="b.jpg",
    classes=("sea", "cat", "dog"),
    probabilities=(0.9, 0.75, 0.2),
    labels=("sea", "cat"),
    labels_probability=0.54,
)
BROKEN = Prediction(path="c.jpg", error="empty\nfile", run="flowers")


def test_the_answer_is_the_first_class_or_all_labels_in_sorted_order() -> None:
    assert (ONE.answer, ONE.probability) == ("rose", 0.9123456789)
    assert (SEVERAL.answer, SEVERAL.probability) == ("cat|sea", 0.54)


def test_without_further_facts_a_prediction_has_no_notes_no_error_and_no_target() -> None:
    assert (ONE.notes, ONE.error, ONE.run, ONE.labels, ONE.view) == ((), "", "", None, None)
    assert (ONE.labels_probability, ONE.target_probability) == (0.0, 0.0)


def test_fewer_classes_are_kept_but_every_assigned_label() -> None:
    assert ONE.top(1).classes == ("rose",)
    assert ONE.top(1).probabilities == (0.9123456789,)
    assert ONE.top(5) == ONE
    assert SEVERAL.top(1).classes == ("sea", "cat")
    assert SEVERAL.top(3) == SEVERAL


def test_json_has_probabilities_of_six_digits_and_no_empty_fields() -> None:
    assert ONE.to_dict() == {
        "path": "a.jpg",
        "classes": [
            {"class": "rose", "probability": 0.912346},
            {"class": "lily", "probability": 0.087654},
        ],
    }
    assert BROKEN.to_dict() == {"path": "c.jpg", "run": "flowers", "error": "empty\nfile"}
    assert SEVERAL.to_dict()["labels"] == ["sea", "cat"]
    noted = Prediction(path="d", classes=("rose",), probabilities=(1.0,), notes=("not sure",))
    assert noted.to_dict()["notes"] == ["not sure"]


def test_cells_are_rounded_and_padded_to_the_columns() -> None:
    assert ONE.to_cells(3) == ["a.jpg", "rose", 0.912346, "lily", 0.087654, None, None, "", ""]
    assert ONE.to_cells(2) == ["a.jpg", "rose", 0.912346, "lily", 0.087654, "", ""]
    assert BROKEN.to_cells(1) == ["c.jpg", None, None, "", "empty\nfile"]
    for top_k in (1, 2, 3):
        assert len(ONE.top(top_k).to_cells(top_k)) == len(column_names(top_k))


def test_cells_of_several_labels_have_the_probability_of_each_in_the_order_of_the_model() -> None:
    labels = ("cat", "dog", "sea")

    assert SEVERAL.to_cells(1, labels) == ["b.jpg", "cat|sea", 0.75, 0.2, 0.9, "", ""]
    assert BROKEN.to_cells(1, labels) == ["c.jpg", None, None, None, None, "", "empty\nfile"]
    assert column_names(1, labels) == [
        *("path", "labels", "probability_cat", "probability_dog", "probability_sea"),
        *("notes", "error"),
    ]


def test_the_columns_of_further_classes_are_numbered_from_two() -> None:
    assert column_names(1) == ["path", "class", "probability", "notes", "error"]
    assert column_names(3)[3:-2] == [
        *("class_2", "probability_2", "class_3", "probability_3"),
    ]


@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        (ONE, "rose 91.2%, lily 8.8%"),
        (SEVERAL, "sea 90.0%, cat 75.0%"),
        (BROKEN, r"error: empty\nfile"),
        (Prediction(path="", classes=("cat",), probabilities=(0.1,), labels=()), "no label"),
        (
            Prediction(
                path="", classes=("cat",), probabilities=(0.1,), labels=(), notes=("blank", "odd")
            ),
            "no label (blank, odd)",
        ),
    ],
)
def test_the_text_names_the_classes_or_only_the_assigned_labels(
    prediction: Prediction, text: str
) -> None:
    assert summarise(prediction) == text


def test_the_repr_is_short_and_has_no_control_characters() -> None:
    assert repr(Prediction(path="a\x1b", error="bad")) == r"Prediction('a\\x1b': error: bad)"


def test_every_class_has_a_probability() -> None:
    broken = Prediction(path="a", classes=("rose", "lily"), probabilities=(0.9,))

    for use in (broken.to_dict, lambda: broken.to_cells(2), lambda: broken.to_cells(1, ("rose",)),
                lambda: summarise(broken)):  # fmt: skip
        with pytest.raises(ValueError, match=r"strict|longer|shorter"):
            use()
