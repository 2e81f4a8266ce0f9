"""From logits to classes, labels, probabilities and notes."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.reference_run import make_reference_run
from tests.support.run_files import make_run
from vitft.data.fingerprint import BLANK_REMARK
from vitft.features.reference import Reference
from vitft.models.vit import VisionTransformer
from vitft.predict.postprocess import Postprocess, Scores, set_probability
from vitft.predict.prediction import NOT_SURE, OUT_OF_DISTRIBUTION
from vitft.predict.run_info import RunInfo
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import RunError

ABC = ("a", "b", "c")
QUARTERS = np.log([[0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]).astype(np.float32)


def test_each_image_has_its_most_probable_class_by_default() -> None:
    first, second = Postprocess(classes=ABC)(["1.jpg", "2.jpg"], Scores(QUARTERS))

    assert (first.path, first.classes, second.path, second.classes) == (
        *("1.jpg", ("b",)),
        *("2.jpg", ("c",)),
    )
    assert first.probabilities == pytest.approx((0.5,))
    assert (first.notes, first.labels, first.target_probability) == ((), None, 0.0)


@pytest.mark.parametrize(("top_k", "classes"), [(2, "ba"), (3, "bac"), (9, "bac")])
def test_classes_of_equal_probability_are_in_the_order_of_the_model(
    top_k: int, classes: str
) -> None:
    (found,) = Postprocess(classes=ABC, top_k=top_k)([""], Scores(QUARTERS[:1]))

    assert found.classes == tuple(classes)
    assert found.probabilities == pytest.approx((0.5, 0.25, 0.25)[:top_k])


def test_ties_have_the_same_first_class_whatever_the_number_of_classes() -> None:
    tied = Scores(np.zeros((1, 3), np.float32))

    answers = [Postprocess(classes=ABC, top_k=k)([""], tied)[0].classes[0] for k in (1, 2, 3)]

    assert answers == ["a", "a", "a"]


@pytest.mark.parametrize(("threshold", "notes"), [(0.0, ()), (0.5, ()), (0.5001, (NOT_SURE,))])
def test_only_a_probability_below_the_threshold_is_not_sure(
    threshold: float, notes: tuple[str, ...]
) -> None:
    even = Scores(np.zeros((1, 2), np.float32))  # both classes have exactly 0.5

    for top_k in (1, 2):
        (found,) = Postprocess(classes=("a", "b"), top_k=top_k, threshold=threshold)([""], even)
        assert found.notes == notes


def test_the_probability_of_the_target_is_given_on_request() -> None:
    found = Postprocess(classes=ABC)(["", ""], Scores(QUARTERS), [0, 2])

    assert [one.target_probability for one in found] == pytest.approx([0.25, 0.5])


def test_a_label_is_assigned_from_its_threshold_on_most_probable_first() -> None:
    logits = np.array([[0.0, 2.0, -0.1], [-1.0, -1.0, -1.0]], np.float32)
    postprocess = Postprocess(classes=ABC, thresholds=(0.5, 0.5, 0.5))

    some, none = postprocess(["1", "2"], Scores(logits))

    assert (some.classes, some.labels) == (("b", "a", "c"), ("b", "a"))  # a has exactly 0.5
    sea, third = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(0.1))
    assert some.probabilities == pytest.approx((sea, 0.5, third))
    assert some.probability == pytest.approx(sea * 0.5 * (1 - third))
    assert some.target_probability == some.probability
    assert (none.labels, none.classes) == ((), ABC)
    own = replace(postprocess, thresholds=(0.6, 0.9, 0.4))
    assert own(["1"], Scores(logits[:1]))[0].labels == ("c",)


def test_the_probability_of_a_target_set_is_that_of_exactly_these_labels() -> None:
    postprocess = Postprocess(classes=("a", "b"), thresholds=(0.5, 0.5))
    logits = np.log([[0.8 / 0.2, 0.1 / 0.9]]).astype(np.float32)

    (found,) = postprocess([""], Scores(logits), np.array([[False, True]]))

    assert found.target_probability == pytest.approx(0.2 * 0.1)
    assert set_probability(np.array([0.8, 0.1]), np.array([True, False])) == pytest.approx(0.72)


def reference(limit: float) -> Reference:
    """Two classes of features at (0, 0) and (10, 0)."""
    means = np.array([[0, 0], [10, 0]], np.float32)
    return Reference(
        centre=np.zeros(2, np.float32), means=means, within=np.eye(2, dtype=np.float32), limit=limit
    )


def test_an_image_far_from_every_class_is_noted_after_not_sure() -> None:
    features = np.array([[0, 1], [0, 5]], np.float32)
    postprocess = Postprocess(classes=ABC, threshold=0.9, reference=reference(4.0))

    near, far = postprocess(["", ""], Scores(QUARTERS, features))

    assert near.notes == (NOT_SURE,)
    assert far.notes == (NOT_SURE, OUT_OF_DISTRIBUTION)


def test_a_blank_image_is_noted_last_and_the_others_are_not() -> None:
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    blank = np.full((8, 8, 3), 77, np.uint8)
    postprocess = Postprocess(classes=ABC, threshold=0.9)

    first, second = postprocess(["", ""], Scores(QUARTERS), views=[noise, blank])

    assert first.notes == (NOT_SURE,)
    assert second.notes == (NOT_SURE, BLANK_REMARK)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("thresholds", [(), (0.5, 0.5, 0.5)])
def test_logits_that_are_not_finite_are_refused(
    value: float, thresholds: tuple[float, ...]
) -> None:
    logits = QUARTERS.copy()
    logits[1, 2] = value

    with pytest.raises(RunError, match="not finite"):
        Postprocess(classes=ABC, thresholds=thresholds)(["", ""], Scores(logits))


def test_the_line_of_a_run_says_whether_unlike_images_are_flagged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "flowers")
    known = RunInfo.read(None, run / "model.safetensors", 3)
    measured = replace(reference(4.0), unknown=(0.1, 0.5))

    bare = Postprocess(classes=ABC, run=known)

    assert Postprocess(classes=ABC).describe() == ""
    assert Postprocess(classes=ABC).run_name == ""
    assert bare.run_name == "flowers"
    assert bare.describe().startswith("run flowers: 3 classes")
    assert bare.describe().endswith("; no images are flagged as unlike the training images")
    assert replace(bare, reference=reference(4.0)).describe() == known.line()
    assert replace(bare, reference=measured).describe() == f"{known.line()}; {measured.power()}"


def test_the_postprocessing_of_a_run_has_its_statistics_and_default_options(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    run = str(make_reference_run(tmp_path, tiny_vit))
    engine = Predictor.from_run(run, device="cpu")

    found = Postprocess.for_run(run, engine)
    assert found.reference is engine.reference is not None
    assert (found.top_k, found.threshold, found.thresholds) == (1, 0.0, ())
    assert found.run is not None
    assert (found.run.classes, found.run_name) == (3, "run")
