"""Cross-validated predictions of the images of a run."""

import numpy as np
import torch

from tests.support.training_data import data_set, digest, row
from vitft.features.head import HeldOutLogits
from vitft.training.cross_validated import cross_validated_classes, cross_validated_set
from vitft.training.stages import ScoredImages

ROWS = [
    row("a1", 0),
    row("a2", 0, "val"),
    row("a3", 0, sha256=digest("a1")),  # a copy of a1
    row("b1", 1),
    row("b2", 1, "val", sha256=digest("b1")),  # a copy of b1
    row("b3", 1, "test"),
    row("c1", 2),
    row("c2", 2, "test", sha256=digest("c1")),  # a copy of c1
    row("c3", 2),
]
DISTINCT = ("a1", "a2", "b1", "c1", "c3")


def scored(rows: list[int], classes: list[int]) -> ScoredImages:
    """Return held-out logits of some distinct images, which predict the given classes."""
    logits = torch.eye(3)[classes] + torch.arange(len(rows))[:, None] / 10
    held_out = HeldOutLogits(torch.tensor(rows), logits)
    return ScoredImages(features=torch.zeros(5, 2), held_out=held_out)


def test_training_images_are_scored_unless_they_are_also_validation_images() -> None:
    data = data_set(ROWS)
    assert tuple(one.sha256 for one in data.distinct) == tuple(map(digest, DISTINCT))

    found = cross_validated_set(data, scored([0, 1, 2, 4], [2, 0, 1, 0]))

    assert found is not None
    assert found.labels.tolist() == [0, 2]  # of a1 and c3
    assert found.logits.dtype == np.float64
    expected = [[0.0, 0.0, 1.0], [1.3, 0.3, 0.3]]
    np.testing.assert_allclose(found.logits, expected, rtol=1e-6)


def test_without_scored_training_images_there_is_no_set() -> None:
    assert cross_validated_set(data_set(ROWS), scored([1, 2], [0, 1])) is None
    nothing = ScoredImages(features=torch.zeros(5, 2), held_out=None)
    assert cross_validated_set(data_set(ROWS), nothing) is None
    assert cross_validated_classes(data_set(ROWS), nothing) is None


def test_predicted_classes_are_those_of_the_rows_of_the_split() -> None:
    found = cross_validated_classes(data_set(ROWS), scored([0, 1, 2, 3], [2, 0, 1, 1]))

    assert found is not None
    assert found.dtype == np.int32
    # a3 and b2 are copies; test images have no prediction, not even as copies; c3 was not scored
    assert found.tolist() == [2, 0, 2, 1, 1, -1, 1, -1, -1]


def test_images_with_several_labels_have_no_predicted_class() -> None:
    data = data_set(ROWS, classes=("x", "y", "x|y"), labels=("x", "y"))

    assert cross_validated_classes(data, scored([0, 1], [0, 1])) is None
