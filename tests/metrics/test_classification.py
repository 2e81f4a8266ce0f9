"""Classification metrics."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    balanced_accuracy_score,
    log_loss,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)

from vitft.metrics import (
    FittedTemperature,
    Outputs,
    TrainingLoss,
    calibrated_metrics,
    class_pair_counts,
    classification_metrics,
    log_losses,
    mean_interval,
    probability_metrics,
    wilson_interval,
)


def some(images: int = 90, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits with an accuracy of about one half."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (images,), generator=rng)
    logits = torch.randn(images, classes, generator=rng)
    logits[torch.arange(images), labels] += 1.5
    return logits, labels


def test_rows_of_the_confusion_are_true_classes() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])

    found = classification_metrics(logits, torch.tensor([0, 0, 2]), Outputs.of("abc"))

    assert found["confusion"] == [[1, 0, 1], [0, 0, 0], [0, 0, 1]]


def test_metrics_equal_those_of_scikit_learn() -> None:
    logits, labels = some()
    names = [str(i) for i in range(7)]
    named = logits.argmax(dim=-1)

    figures: Mapping[str, Any] = classification_metrics(logits, labels, Outputs.of(names))

    table = precision_recall_fscore_support(labels, named, labels=range(7))
    for name, column in zip(("precision", "recall", "f1"), table, strict=False):
        assert [row[name] for row in figures["per_class"].values()] == pytest.approx(column)
    assert figures["balanced"] == pytest.approx(balanced_accuracy_score(labels, named))
    shares = logits.double().softmax(dim=-1).numpy()
    assert figures["loss"] == pytest.approx(log_loss(labels, shares), abs=1e-6)
    for k in (1, 5):
        accuracy = top_k_accuracy_score(labels, logits, k=k)
        assert figures[f"top{k}"] == pytest.approx(accuracy)
        assert figures[f"top{k}_interval"] == wilson_interval(round(accuracy * 90), 90)
    assert figures["majority"] == int(torch.bincount(labels).max()) / 90


@pytest.mark.parametrize(("classes", "is_measured"), [(5, False), (6, True)])
def test_the_top_five_are_counted_from_six_classes_on(classes: int, is_measured: bool) -> None:
    figures = classification_metrics(*some(classes=classes), Outputs.of(map(str, range(classes))))

    assert (figures["top5"] is not None) == is_measured


def test_every_metric_lies_in_its_interval() -> None:
    logits, labels = some()
    temperature = FittedTemperature(value=1.5, held_out=np.full(90, 1.5))
    figures: Mapping[str, Any] = {
        **classification_metrics(logits, labels, Outputs.of(map(str, range(7)))),
        **calibrated_metrics(logits, labels, temperature),
    }

    every = [(figures, name) for name in ("top1", "top5", "balanced", "loss")]
    every += [(figures["calibration"], "ece")]
    every += [
        (row, name)
        for row in figures["per_class"].values()
        for name in ("recall", "precision", "f1")
    ]

    for table, name in every:
        low, high = table[f"{name}_interval"]
        assert low <= table[name] <= high
        assert low < high


def test_what_is_undefined_is_none() -> None:
    figures = classification_metrics(
        torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), Outputs.of("abc")
    )

    empty: dict[str, Any] = {**figures["per_class"]["b"]}
    assert empty.pop("images") == 0
    assert set(empty.values()) == {None}
    assert figures["top5"] is None
    assert figures["top5_interval"] is None
    assert figures["balanced"] == 1.0


def test_a_class_never_predicted_has_no_precision_and_an_f1_of_zero() -> None:
    figures = classification_metrics(
        torch.tensor([[1.0, 0.0]] * 2), torch.tensor([0, 1]), Outputs.of(["cat", "dog"])
    )

    dog = figures["per_class"]["dog"]
    assert dog["precision"] is None
    assert dog["f1"] == 0
    assert dog["f1_interval"] is not None
    assert dog["f1_interval"][1] > 0.5  # one image says little


def test_probabilities_are_scored_with_held_out_temperatures() -> None:
    logits, labels = some()
    temperatures = torch.rand(90, dtype=torch.float64) + 0.5
    judged = (logits.double() / temperatures[:, None]).numpy()

    figures = calibrated_metrics(
        logits, labels, FittedTemperature(value=3.0, held_out=temperatures.numpy(), note="")
    )

    assert figures["loss"] == pytest.approx(log_loss(labels, torch.tensor(judged).softmax(-1)))
    calibration, fixed = (
        found["calibration"] for found in (figures, probability_metrics(judged, labels))
    )
    assert calibration is not None
    assert fixed is not None
    assert calibration["temperature"] == 3.0
    assert calibration["bins"] == fixed["bins"]


@pytest.mark.parametrize(
    ("classes", "is_dense"), [(1000, True), (1001, False), (30_000, False)]
)  # 30,000 squared would be too many
def test_the_confusion_matrix_of_up_to_a_thousand_classes_is_a_table(
    classes: int, is_dense: bool
) -> None:
    last, logits = classes - 1, torch.zeros(2, classes)
    logits[0, 5] = logits[1, last] = 1

    names = [str(i) for i in range(classes)]
    found = classification_metrics(logits, torch.tensor([0, last]), Outputs.of(names))

    assert bool(found["confusion"]) == is_dense
    assert ("confused_pairs" in found) != is_dense
    assert class_pair_counts(found) == {(0, 5): 1, (last, last): 1}


def test_the_interval_of_a_loss_does_not_begin_below_zero() -> None:
    logits = np.array([[9.0, 0.0]] * 29 + [[0.0, 9.0]])
    losses = log_losses(logits, np.zeros(30, np.int64))

    found = probability_metrics(logits, torch.zeros(30, dtype=torch.long))

    assert found["loss_interval"] == mean_interval(losses)
    assert 0 < (mean_interval(losses) or (0, 0))[0] < losses.mean() / 5


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_training_loss_is_a_weighted_sum_of_cross_entropies(smoothing: float) -> None:
    logits, labels = some()
    weights = torch.linspace(0.5, 2, 7)
    log_probabilities = logits.log_softmax(dim=1)
    truth = torch.nn.functional.one_hot(labels, 7) * (1 - smoothing) + smoothing / 7

    plain = TrainingLoss().total(logits, labels, label_smoothing=smoothing)
    weighted = TrainingLoss(class_weights=weights).total(logits, truth)

    assert plain.item() == pytest.approx(-(truth * log_probabilities).sum().item(), rel=1e-5)
    assert weighted.item() == pytest.approx(
        -(weights * truth * log_probabilities).sum().item(), rel=1e-5
    )
