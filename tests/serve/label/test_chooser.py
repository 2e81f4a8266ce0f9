"""The choice of pictures to ask about, and the head that guesses the rest."""

import hashlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.serve.label import chooser, guesses
from vitft.serve.label.chooser import (
    cluster_centres,
    directions,
    first_pictures,
    k_means,
    random_order,
    similarity,
    unsure_pictures,
)
from vitft.serve.label.guesses import guess, guess_head, self_trained_head


def groups(sizes: list[int], *, width: int = 16, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return directions around one centre per group, and the groups."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(len(sizes), width, generator=generator)
    x = centres[y] + noise * torch.randn(len(y), width, generator=generator)
    return F.normalize(x, dim=1), y


def test_directions_have_length_one_and_ignore_the_scale_of_a_dimension() -> None:
    x = torch.randn(50, 8)

    z = directions(x.clone())
    scaled = directions(x * torch.tensor([1000.0, 1, 1, 1, 0.001, 1, 1, 1]) + 5)

    torch.testing.assert_close(z.norm(dim=1), torch.ones(50))
    torch.testing.assert_close(z, scaled, atol=1e-3, rtol=0)


def test_the_first_pictures_show_every_group_even_a_rare_one() -> None:
    z, y = groups([200, 100, 50, 20, 10, 5])

    first = first_pictures(z)

    assert {*y[first[:10]].tolist()} == {0, 1, 2, 3, 4, 5}
    assert len(first) == len({*first}) <= 80
    assert y[first[0]] == 0  # the largest group


def test_the_first_pictures_do_not_depend_on_chance() -> None:
    z, _ = groups([40, 40])

    assert first_pictures(z) == first_pictures(z)


@pytest.mark.parametrize("number", [1, 2, 3, 9, 11])
def test_few_pictures_are_asked_about_once_each(number: int) -> None:
    z = F.normalize(torch.randn(number, 4), dim=1)

    assert sorted(first_pictures(z)) == [*range(number)]


def test_identical_pictures_are_no_reason_to_fail() -> None:
    z = F.normalize(torch.ones(30, 4), dim=1)

    assert len({*first_pictures(z)}) >= 1


def test_the_clusters_double_from_ten_to_eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    find = chooser.cluster_centres

    def counting(z: Tensor, k: int, *rest: Any, **options: Any) -> list[int]:
        asked.append(k)
        return find(z, k, *rest, **options)

    monkeypatch.setattr(chooser, "cluster_centres", counting)
    z = directions(torch.randn(200, 8, generator=torch.Generator().manual_seed(0)))

    assert len(first_pictures(z)) <= 80
    assert asked == [10, 20, 40, 80]


def test_many_pictures_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser, "CLUSTERED", 100)
    z, y = groups([300, 300, 300])

    first = first_pictures(z)

    assert {*y[first[:10]].tolist()} == {0, 1, 2}
    assert max(first) > 100


def ask(z: Tensor, probabilities: Tensor, *, answered: list[int], most: int) -> list[int]:
    rest = torch.tensor([i for i in range(len(z)) if i not in answered])
    return unsure_pictures(
        probabilities, z, candidates=rest, answered=torch.tensor(answered), others=rest, most=most
    )


def test_the_first_unsure_picture_represents_most_unsure_ones() -> None:
    z, _ = groups([1, 30, 10, 30])
    probabilities = torch.tensor([[0.99, 0.01]]).repeat(len(z), 1)
    probabilities[1:41] = 0.5  # a large and a small group of which nothing is known

    first, second, *_ = ask(z, probabilities, answered=[0], most=3)

    assert 1 <= first < 31
    assert 31 <= second < 41


def test_a_picture_like_an_answered_one_is_not_asked_about() -> None:
    z = F.normalize(torch.tensor([[1.0, 0], [1, 0.01], [0, 1], [0, -1]]), dim=1)
    probabilities = torch.full((4, 2), 0.5)

    assert sorted(ask(z, probabilities, answered=[0], most=2)) == [2, 3]


def test_no_more_pictures_are_asked_about_than_there_are() -> None:
    z, _ = groups([3, 3])

    found = ask(z, torch.full((6, 2), 0.5), answered=[0], most=20)

    assert sorted(found) == [1, 2, 3, 4, 5]


def test_the_random_order_keeps_its_order_when_pictures_are_added() -> None:
    digests = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(100)]

    few, many = random_order(digests[:60]), random_order(digests)

    assert [i for i in many if i < 60] == few
    assert few != [*range(60)]


def test_one_answer_per_class_is_enough_for_clear_groups() -> None:
    z, y = groups([30, 30, 30])
    answered = torch.tensor([0, 30, 60])

    probabilities = guess(z, guess_head(z[answered], y[answered], torch.ones(3), classes=3))

    assert torch.equal(probabilities.argmax(dim=1), y)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(90))


def test_a_class_without_answers_has_no_probability() -> None:
    z, y = groups([30, 30])

    probabilities = guess(z, guess_head(z, 2 * y, torch.ones(60), classes=4))

    assert probabilities[:, [1, 3]].abs().max() == 0
    assert torch.equal(probabilities.argmax(dim=1), 2 * y)


def test_many_answers_for_one_class_do_not_hide_another() -> None:
    z, y = groups([300, 30], noise=0.4)
    answered = torch.tensor([*range(250), 300])  # one answer for the second class

    probabilities = guess(z, guess_head(z[answered], y[answered], torch.ones(251), classes=2))

    recall = (probabilities.argmax(dim=1) == y)[301:].float().mean().item()
    assert recall > 0.9


def test_guesses_for_unanswered_pictures_move_the_head() -> None:
    z, y = groups([100, 100], noise=1.0)
    answered = torch.tensor([0, 100])
    ones = torch.ones(2)

    alone = guess_head(z[answered], y[answered], ones, classes=2)
    trained = self_trained_head(z[answered], y[answered], ones, z[1:100], classes=2)
    both = self_trained_head(z[answered], y[answered], ones, z, classes=2)

    assert torch.equal(self_trained_head(z[answered], y[answered], ones, z[:0], classes=2), alone)
    right = [(guess(z, head).argmax(dim=1) == y).float().mean().item() for head in (alone, both)]
    assert right[1] > right[0]
    assert not torch.equal(trained, both)


def test_a_class_without_answers_gets_none_of_the_guesses() -> None:
    z, y = groups([20, 20])

    head = self_trained_head(z[::4], 2 * y[::4], torch.ones(10), z, classes=4)

    assert guess(z, head)[:, [1, 3]].abs().max() == 0


# rules -------------------------------------------------------------------------------------------


def unit(*degrees: float) -> Tensor:
    """Return directions in the plane."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


def test_similarity_decreases_with_the_angle_eightfold_in_the_exponent() -> None:
    found = similarity(unit(0), unit(0, 60, 90, 180))

    torch.testing.assert_close(found, torch.tensor([[0.0, -4, -8, -16]]).exp())


def greedy(probabilities: Tensor, z: Tensor, answered: list[int], most: int) -> list[int]:
    """Choose pictures one by one, computing each sum over the others from scratch."""
    rest = [i for i in range(len(z)) if i not in answered]
    first, second = probabilities.sort(dim=1, descending=True).values[:, :2].T.tolist()
    chosen: list[int] = []
    while len(chosen) < min(most, len(rest)):

        def gain(i: int, known: list[int]) -> float:
            total = 0.0
            for j in rest:
                near = max(math.exp(8 * (float(z[j] @ z[k]) - 1)) for k in known)
                own = math.exp(8 * (float(z[j] @ z[i]) - 1))
                total += (1 - (first[j] - second[j])) * max(0.0, own - near)
            return total

        known = [*answered, *chosen]
        chosen.append(max((i for i in rest if i not in chosen), key=lambda i: gain(i, known)))
    return chosen


def test_unsure_pictures_maximise_the_covered_uncertainty() -> None:
    z, _ = groups([6, 5, 4], noise=0.5)
    generator = torch.Generator().manual_seed(3)
    probabilities = torch.rand(len(z), 4, generator=generator).softmax(dim=1) ** 3
    probabilities /= probabilities.sum(dim=1, keepdim=True)

    found = ask(z, probabilities, answered=[2, 9], most=6)

    assert found == greedy(probabilities, z, [2, 9], 6)


def test_only_the_first_thousand_candidates_are_considered() -> None:
    z = torch.cat([unit(0).repeat(1001, 1), unit(*[90] * 50)])
    probabilities = torch.full((len(z), 2), 0.5)
    others = torch.arange(1, len(z))

    def chosen(best: int) -> int:
        candidates = torch.arange(1, 1100) % 1001
        candidates[best] = 1001  # like 50 others, and unlike the answered one
        (found,) = unsure_pictures(
            probabilities, z, candidates=candidates, answered=torch.tensor([0]), others=others,
            most=1,
        )  # fmt: skip
        return found

    assert chosen(999) == 1001
    assert chosen(1000) != 1001


def test_the_centres_of_clusters_are_the_means_of_their_pictures() -> None:
    z, _ = groups([30, 20, 10], noise=0.02)

    centres = k_means(z, 3, torch.Generator().manual_seed(0))

    cluster = torch.cdist(z, centres).argmin(dim=1)
    for j in cluster.unique():
        torch.testing.assert_close(centres[j], z[cluster == j].mean(dim=0))


def test_the_most_typical_picture_of_each_uncovered_cluster_is_found() -> None:
    z = torch.tensor([[0.0], [0.1], [0.3], [5.0], [5.5], [5.6]])

    found = cluster_centres(z, 2, torch.Generator().manual_seed(0), besides=[])
    rest = cluster_centres(z, 2, torch.Generator().manual_seed(0), besides=[5])

    assert sorted(found) == [1, 4]  # nearest to 0.13 and to 5.37
    assert rest == [1]


def test_each_round_covers_all_pictures_with_as_few_as_possible() -> None:
    z, y = groups([9] * 12, noise=0.001)

    first = first_pictures(z)

    assert len({*y[first[:10]].tolist()}) == 10
    assert {*y[first[:12]].tolist()} == {*range(12)}  # the second round adds what is missing
    many = F.normalize(torch.randn(400, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    assert 60 < len(first_pictures(many)) <= 80


def test_a_single_class_has_the_direction_of_its_pictures() -> None:
    z = unit(10, 50)

    head = guess_head(z, torch.tensor([1, 1]), torch.ones(2), classes=3)

    torch.testing.assert_close(head[1], torch.cat([5 * unit(30)[0], torch.zeros(1)]))
    assert head[[0, 2], -1].tolist() == [-math.inf] * 2
    weighted = guess_head(z, torch.tensor([0, 0]), torch.tensor([1.0, 0.0]), classes=1)
    torch.testing.assert_close(weighted[0, :2], 5 * unit(10)[0])


def test_guesses_are_fitted_three_times_with_a_twentieth_of_the_weight_of_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z, y = groups([40, 40], noise=0.3)
    answered, rest = torch.tensor([0, 40]), torch.arange(1, 30)
    fits: list[tuple[Tensor, Tensor]] = []

    def fit(z: Tensor, y: Tensor, weights: Tensor, *, classes: int) -> Tensor:
        fits.append((y, weights))
        return guess_head(z, y, weights, classes=classes)

    monkeypatch.setattr(guesses, "guess_head", fit)
    self_trained_head(z[answered], y[answered], torch.tensor([1.0, 3.0]), z[rest], classes=2)

    assert [len(weights) for _, weights in fits] == [2, 31, 31, 31]
    before = guess_head(z[answered], y[answered], torch.tensor([1.0, 3.0]), classes=2)
    probability, guessed = guess(z[rest], before).max(dim=1)
    torch.testing.assert_close(fits[1][1], torch.cat([torch.tensor([1.0, 3.0]), probability / 20]))
    assert torch.equal(fits[1][0], torch.cat([y[answered], guessed]))
