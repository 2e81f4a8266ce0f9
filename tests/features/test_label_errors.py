"""Detection of probable label errors."""

import pytest
import torch

from vitft.data.inspection import InspectedFile
from vitft.features.label_errors import (
    check_labels,
    find_mislabels,
    label_probabilities,
    out_of_fold_logits,
)
from vitft.features.neighbours import votes_outside_group


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
    found = find_mislabels(label_probabilities(logits, x, y, alone), y, paths, "012")

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


def test_label_probabilities_sum_to_one() -> None:
    x, y = clouds(10)

    shares = label_probabilities(torch.randn(30, 3), x, y, range(30))

    assert shares.sum(dim=-1).tolist() == pytest.approx([1.0] * 30)


def test_a_label_is_reported_from_odds_of_thirty_to_one() -> None:
    odds = torch.tensor([1.0, 3.0, 29.0, 30.0, 300.0])
    probabilities = torch.stack([1 / (1 + odds), odds / (1 + odds)], dim=1)

    found = find_mislabels(probabilities, torch.zeros(5, dtype=torch.long), "abcde", ["cat", "dog"])

    assert [mislabel["path"] for mislabel in found] == ["e", "d"]
    assert found[1]["given_probability"] == pytest.approx(1 / 31)
    assert found[1]["suggested_probability"] == pytest.approx(30 / 31)
    assert (found[1]["label"], found[1]["suggested"]) == ("cat", "dog")


def test_the_most_certain_errors_come_first() -> None:
    probabilities = torch.tensor([[0.008, 0.4, 0.592], [0.012, 0.9, 0.088], [0.001, 0.099, 0.9]])
    probabilities[0, 2] = 0.3  # odds of 50, 75 and 900 to one

    found = find_mislabels(probabilities, torch.zeros(3, dtype=torch.long), "abc", "012")

    assert [mislabel["path"] for mislabel in found] == ["c", "b", "a"]


def test_an_image_with_two_labels_is_not_reported_but_its_probabilities_are() -> None:
    x, truth = clouds(20)
    labels = truth.tolist()
    labels[3], labels[40] = 2, 0  # wrong: the first is of class 0, the other of class 1
    files = [
        InspectedFile(f"{row}.jpg", label, "", f"{row:064}", 4, 4)
        for row, label in enumerate(labels)
    ]
    files.append(InspectedFile("copy.jpg", 1, "", f"{40:064}", 4, 4))  # the right label

    found, by_path = check_labels(
        files, ["a", "b", "c"], {}, lambda digests: x[[int(sha256) for sha256 in digests]], seed=0
    )

    assert [(m["path"], m["label"], m["suggested"]) for m in found] == [("3.jpg", "c", "a")]
    assert by_path.keys() == {"40.jpg", "copy.jpg"}
    assert by_path["40.jpg"] == by_path["copy.jpg"]
    assert max(by_path["copy.jpg"], key=by_path["copy.jpg"].__getitem__) == "b"


def test_images_without_paths_are_not_reported() -> None:
    probabilities = torch.tensor([[0.01, 0.99]] * 2)

    found = find_mislabels(probabilities, torch.tensor([0, 0]), [[], ["a", "its copy"]], ["0", "1"])

    assert [mislabel["path"] for mislabel in found] == ["a", "its copy"]


def test_label_probabilities_multiply_those_of_the_head_by_the_votes() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    y = torch.tensor([0, 1, 0, 1])
    logits = torch.tensor([[0.8, 0.2]] * 4).log()
    votes = votes_outside_group(x, y, torch.arange(4), classes=2)

    found = label_probabilities(logits, x, y, range(4))

    expected = torch.tensor([0.8, 0.2]) * (votes + 0.05)
    torch.testing.assert_close(found, expected / expected.sum(dim=1, keepdim=True))
