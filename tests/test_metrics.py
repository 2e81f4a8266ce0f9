"""Scores and labels to numbers."""

import pytest
import torch
from scipy.stats import binomtest

from vitft.metrics import confusion, evaluation, top_k, wilson


@pytest.mark.parametrize(("correct", "total"), [(0, 10), (9, 10), (10, 10), (93, 100), (1, 3)])
def test_the_interval_is_wilsons(correct: int, total: int) -> None:
    expected = binomtest(correct, total).proportion_ci(method="wilson")

    assert wilson(correct, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_of_no_images_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_rows_of_the_confusion_are_true_classes() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])

    matrix = confusion(logits, torch.tensor([0, 0, 2]))

    assert matrix.tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 1]]


def test_top_k_counts_the_class_among_the_best_k() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])

    assert top_k(logits, torch.tensor([1, 2]), 2) == 1


def test_an_evaluation_counts_every_image_once() -> None:
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])

    figures = evaluation(logits, torch.tensor([0, 0, 1, 1]), ["cat", "dog"])

    assert (figures["images"], figures["top1"]) == (4, 0.75)
    assert figures["per_class"]["dog"]["recall"] == 0.5
    assert figures["per_class"]["cat"]["precision"] == pytest.approx(2 / 3)
    assert figures["balanced"] == 0.75
    assert figures["majority"] == 0.5


def test_a_class_without_images_has_no_recall() -> None:
    figures = evaluation(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), ["cat", "dog"])

    assert figures["per_class"]["dog"]["recall"] is None
    assert figures["balanced"] == 1.0
