"""From logits to classes, labels, probabilities and notes."""

import math

import numpy as np
import pytest

from vitft.features import Reference
from vitft.metrics import Outputs
from vitft.predict import Postprocess, Prediction, Scores

ABC = ("a", "b", "c")
QUARTERS = np.log([[0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]).astype(np.float32)


@pytest.mark.parametrize(("top_k", "classes"), [(2, "ba"), (3, "bac"), (9, "bac")])
def test_classes_of_equal_probability_are_in_the_order_of_the_model(
    top_k: int, classes: str
) -> None:
    (found,) = Postprocess(outputs=Outputs.of(ABC), top_k=top_k)([""], Scores(QUARTERS[:1]))

    assert found.classes == tuple(classes)
    assert found.probabilities == pytest.approx((0.5, 0.25, 0.25)[:top_k])


def test_ties_have_the_same_first_class_whatever_the_number_of_classes() -> None:
    tied = Scores(np.zeros((1, 3), np.float32))

    answers = [
        Postprocess(outputs=Outputs.of(ABC), top_k=k)([""], tied)[0].classes[0] for k in (1, 2, 3)
    ]

    assert answers == ["a", "a", "a"]


@pytest.mark.parametrize(("threshold", "notes"), [(0.0, ()), (0.5, ()), (0.5001, ("not sure",))])
def test_only_a_probability_below_the_threshold_is_not_sure(
    threshold: float, notes: tuple[str, ...]
) -> None:
    even = Scores(np.zeros((1, 2), np.float32))  # both classes have exactly 0.5

    for top_k in (1, 2):
        (found,) = Postprocess(outputs=Outputs.of("ab"), top_k=top_k, threshold=threshold)(
            [""], even
        )
        assert found.notes == notes


def test_what_was_not_asked_for_is_empty() -> None:
    (found,) = Postprocess(outputs=Outputs.of("ab"))(["x"], Scores(np.zeros((1, 2), np.float32)))

    assert found == Prediction(path="x", classes=("a",), probabilities=(0.5,))


def test_a_label_is_assigned_from_its_threshold_on_most_probable_first() -> None:
    logits = np.array([[0.0, 2.0, -0.1], [-1.0, -1.0, -1.0]], np.float32)
    postprocess = Postprocess(outputs=Outputs.of(ABC, several=True))

    some, none = postprocess(["1", "2"], Scores(logits))

    assert (some.classes, some.labels) == (("b", "a", "c"), ("b", "a"))  # a has exactly 0.5
    sea, third = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(0.1))
    assert some.probabilities == pytest.approx((sea, 0.5, third))
    assert some.probability == pytest.approx(sea * 0.5 * (1 - third))
    assert some.target_probability == some.probability
    assert (none.labels, none.classes) == ((), ABC)
    own = Postprocess(outputs=Outputs(classes=ABC, thresholds=(0.6, 0.9, 0.4)))
    assert own(["1"], Scores(logits[:1]))[0].labels == ("c",)


def test_the_probability_of_a_target_set_is_that_of_exactly_these_labels() -> None:
    postprocess = Postprocess(outputs=Outputs.of("ab", several=True))
    logits = np.log([[0.8 / 0.2, 0.1 / 0.9]]).astype(np.float32)

    (found,) = postprocess([""], Scores(logits), np.array([[False, True]]))

    assert found.target_probability == pytest.approx(0.2 * 0.1)


def reference(limit: float) -> Reference:
    """Two classes of features at (0, 0) and (10, 0)."""
    means = np.array([[0, 0], [10, 0]], np.float32)
    return Reference(
        centre=np.zeros(2, np.float32), means=means, within=np.eye(2, dtype=np.float32), limit=limit
    )


def test_an_image_far_from_every_class_is_noted_after_not_sure() -> None:
    features = np.array([[0, 1], [0, 5]], np.float32)
    postprocess = Postprocess(outputs=Outputs.of(ABC), threshold=0.9, reference=reference(4.0))

    near, far = postprocess(["", ""], Scores(QUARTERS, features))

    assert near.notes == ("not sure",)
    assert far.notes == ("not sure", "unlike the training images")
