"""Detection of probable label errors."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from vitft.data import Row
from vitft.features import (
    check_labels,
    find_mislabels,
    fit_powers,
    out_of_fold_logits,
    score_given_labels,
    votes_outside_group,
)


def clouds(per_class: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Three clouds of features that hardly overlap."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(3).repeat(per_class)
    centres = 6 * torch.eye(3, 8)
    return centres[y] + torch.randn(len(y), 8, generator=generator), y


def test_swapped_labels_are_found_and_correct_ones_are_not() -> None:
    x, truth = clouds()
    y, swapped = truth.clone(), [3, 40, 77, 111, 150]
    y[swapped] = (y[swapped] + 1) % 3
    alone = torch.arange(len(y))

    logits = out_of_fold_logits(x, y, alone, classes=3, seed=0)
    paths = [[str(row)] for row in range(len(y))]
    found = find_mislabels(*score_given_labels(logits, x, y, alone), y, paths, "012")

    assert sorted(int(suspect["path"]) for suspect in found) == swapped
    assert all(int(s["suggested"]) == truth[int(s["path"])] for s in found)
    ratios = [s["suggested_probability"] / s["given_probability"] for s in found]
    assert ratios == sorted(ratios, reverse=True)


def test_a_label_is_scored_without_the_image_and_its_copies() -> None:
    generator = torch.Generator().manual_seed(1)
    noise, y = torch.randn(90, 40, generator=generator), torch.arange(3).repeat(30)
    x, y, copies = noise.repeat(2, 1), y.repeat(2), torch.arange(90).repeat(2)

    apart = out_of_fold_logits(x, y, copies, classes=3, seed=0, l2=1e-3)
    leaking = out_of_fold_logits(x, y, torch.arange(180), classes=3, seed=0, l2=1e-3)

    assert (apart.argmax(dim=-1) == y).float().mean() < 0.5  # a third is chance
    assert (leaking.argmax(dim=-1) == y).float().mean() > 0.8


def test_copies_do_not_vote_for_each_other() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.9, 0.1]])
    y, copies = torch.tensor([0, 0, 1]), torch.tensor([7, 7, 8])

    votes = votes_outside_group(x, y, copies, classes=2)

    assert votes.tolist() == [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]


def test_an_image_with_weight_zero_is_not_fitted_but_scored() -> None:
    x, y = clouds(20)
    y[0] = 1
    counted = torch.ones(len(y))
    counted[0] = 0

    logits = out_of_fold_logits(
        x, y, torch.arange(len(y)), classes=3, seed=0, sample_weight=counted, l2=0.1
    )

    assert logits.shape == (60, 3)
    assert logits[0].argmax() == 0


def test_a_label_is_reported_if_it_is_more_probably_wrong_than_right() -> None:
    given = torch.tensor([0.5, 0.2, 0.0301, 0.0299, 0.001])
    probabilities = torch.stack([given, 1 - given], dim=1)
    odds = 0.03 / 0.97 * (1 - given) / given  # by Bayes' theorem, if 3% of the labels are wrong
    y = torch.zeros(5, dtype=torch.long)

    found = find_mislabels(probabilities, odds / (1 + odds), y, "abcde", ["cat", "dog"])

    assert [mislabel["path"] for mislabel in found] == ["e", "d"]
    assert found[1]["given_probability"] == pytest.approx(0.0299)
    assert found[1]["suggested_probability"] == pytest.approx(0.9701)
    assert (found[1]["label"], found[1]["suggested"]) == ("cat", "dog")


def hard_labels(count: int, *, wrong: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Return logits (n, 4), labels drawn from them, and the rows of labels drawn at random."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, 4, generator=generator)
    y = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0]
    rows = torch.randperm(count, generator=generator)[:wrong].tolist()
    y[rows] = (y[rows] + torch.randint(1, 4, (wrong,), generator=generator)) % 4
    return logits, y, rows


@pytest.mark.parametrize("sharper", [1.0, 3.0, 0.5])
def test_correct_labels_of_a_difficult_dataset_are_not_reported(sharper: float) -> None:
    logits, y, _ = hard_labels(1000, wrong=0)
    assert (logits.argmax(dim=-1) == y).float().mean() < 0.8
    x = torch.ones(len(y), 1)  # all images have the same neighbours, so these say nothing

    _, wrong = score_given_labels(sharper * logits, x, y, range(len(y)))

    overconfident = (sharper * logits).softmax(dim=-1).gather(1, y[:, None])[:, 0]
    assert (wrong > 0.5).sum() <= 15
    assert sharper < 2 or (overconfident < 1 / 31).sum() > 60


def test_the_powers_undo_overconfidence_and_the_fraction_of_wrong_labels_is_found() -> None:
    logits, y, _ = hard_labels(40_000, wrong=6000)
    factors = torch.stack([3 * logits.log_softmax(dim=-1), torch.zeros(40_000, 4)]).double()

    powers, wrong, _ = fit_powers(factors, y)

    assert powers[0].item() == pytest.approx(1 / 3, rel=0.03)
    assert wrong == pytest.approx(0.15, abs=0.01)


def test_an_image_with_two_labels_is_not_reported_but_its_probabilities_are() -> None:
    x, truth = clouds(20)
    labels = truth.tolist()
    labels[3], labels[40] = 2, 0  # wrong: the first is of class 0, the other of class 1
    files = [Row(f"{row}.jpg", label, "", f"{row:064}", 4, 4) for row, label in enumerate(labels)]
    files.append(Row("copy.jpg", 1, "", f"{40:064}", 4, 4))  # the right label

    found, by_path = check_labels(
        files, ["a", "b", "c"], {}, lambda digests: x[[int(sha256) for sha256 in digests]], seed=0
    )

    assert [(m["path"], m["label"], m["suggested"]) for m in found] == [("3.jpg", "c", "a")]
    assert by_path.keys() == {"40.jpg", "copy.jpg"}
    assert by_path["40.jpg"] == by_path["copy.jpg"]
    assert max(by_path["copy.jpg"], key=by_path["copy.jpg"].__getitem__) == "b"


@pytest.mark.parametrize("classes", [2, 4])
def test_the_powers_and_the_fraction_of_wrong_labels_are_the_most_probable_ones(
    classes: int,
) -> None:
    logits, y, _ = hard_labels(200, wrong=30)
    logits, y = logits[:, :classes], y % classes
    other = torch.randn(200, classes, generator=torch.Generator().manual_seed(1))
    factors = torch.stack([logits.log_softmax(dim=-1), other.log_softmax(dim=-1)]).double()

    powers, wrong, others = fit_powers(factors, y)
    assert others <= classes - 1

    def unlikelihood(point: np.ndarray) -> float:
        """Negative logarithm of the likelihood times the priors that the module states."""
        powers, fraction = np.exp(point[:2]), 1 / (1 + np.exp(-point[2]))
        wrong = 0.03 + 0.47 * fraction  # of 3 to 50% of the labels
        product = powers[0] * factors[0].numpy() + powers[1] * factors[1].numpy()
        chances = np.exp(product) / np.exp(product).sum(axis=1, keepdims=True)
        given = chances[np.arange(200), y]
        labels = np.log((1 - wrong) * given + wrong * (1 - given) / others).sum()
        prior = 0.5 * np.log(fraction) + 48 * np.log(1 - fraction)
        return -labels - prior + np.square(point[:2] / 0.7).sum() / 2

    expected = minimize(unlikelihood, (0, 0, -3), method="Nelder-Mead", tol=1e-9).x
    assert np.log(powers.numpy()) == pytest.approx(expected[:2], abs=1e-4)
    assert wrong == pytest.approx(0.03 + 0.47 / (1 + np.exp(-expected[2])), abs=1e-5)


def test_wrong_and_missing_labels_are_sorted_by_the_probability_of_what_is_given() -> None:
    probabilities = torch.tensor([[0.3, 0.9], [0.05, 0.8]])
    y, paths = torch.tensor([[1, 0], [1, 1]]), [["x", "x2"], ["y"]]

    found = find_mislabels(probabilities, torch.ones(2, 2), y, paths, "ab")

    assert [(m["path"], m["label"], m["suggested"]) for m in found] == [
        ("y", "a", "not a"),
        ("x", "not b", "b"),
        ("x2", "not b", "b"),
        ("x", "a", "not a"),
        ("x2", "a", "not a"),
        ("y", "b", "not b"),
    ]
    assert [m["given_probability"] for m in found][::5] == pytest.approx([0.05, 0.8])
    assert [m["suggested_probability"] for m in found][::5] == pytest.approx([0.95, 0.2])


def test_the_probability_of_a_label_multiplies_those_of_the_head_and_of_the_votes() -> None:
    x, y = torch.eye(3).repeat(4, 1), torch.eye(3).repeat(4, 1)
    y[0, 1] = 1
    logits = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    votes = votes_outside_group(x, y, torch.arange(12), classes=3)

    chances, found = score_given_labels(logits, x, y, range(12))

    head = logits.sigmoid()
    has, lacks = head * (votes + 0.05), (1 - head) * (1 - votes + 0.05)
    torch.testing.assert_close(chances, has / (has + lacks))
    right = torch.where(y.bool(), chances, 1 - chances)
    wrong = 0.03 * (1 - right)  # 3% of the labels are taken to be wrong
    torch.testing.assert_close(found, wrong / (wrong + 0.97 * right))


def confusable_labels() -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Twelve pairs of similar classes; the label of some images is the other one of their pair."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(24).repeat(30)
    centres = 8 * torch.eye(12, 16)[torch.arange(24) // 2]
    centres[:, 12] = 6 * (torch.arange(24) % 2) - 3  # what tells the two of a pair apart
    x = centres[truth] + torch.randn(len(truth), 16, generator=generator)
    swapped = torch.randperm(len(truth), generator=generator)[:36].tolist()
    y = truth.clone()
    y[swapped] = y[swapped] ^ 1
    return x, y, swapped


def test_wrong_labels_of_similar_classes_are_found() -> None:
    x, y, swapped = confusable_labels()
    alone = torch.arange(len(y))

    logits = out_of_fold_logits(x, y, alone, classes=24, seed=0)
    _, wrong = score_given_labels(logits, x, y, alone)
    found = torch.nonzero(wrong > 0.5).flatten().tolist()

    hits = len({*found} & {*swapped})
    assert hits >= 25  # of 36; none if each of the 23 other classes were equally probable
    assert len(found) - hits <= 3
