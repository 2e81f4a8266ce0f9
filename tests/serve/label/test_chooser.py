"""The choice of pictures to ask about, and the head that guesses the rest."""

import hashlib
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.serve import first_pictures, random_order, self_trained_head, unsure_pictures


def groups(sizes: list[int], *, width: int = 16, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return directions around one centre per group, and the groups."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(len(sizes), width, generator=generator)
    x = centres[y] + noise * torch.randn(len(y), width, generator=generator)
    return F.normalize(x, dim=1), y


def test_the_first_pictures_show_every_group_even_a_rare_one() -> None:
    z, y = groups([200, 100, 50, 20, 10, 5])

    first = first_pictures(z)

    assert {*y[first[:10]].tolist()} == {0, 1, 2, 3, 4, 5}
    assert len(first) == len({*first}) <= 80
    assert y[first[0]] == 0  # the largest group
    assert first_pictures(z) == first


def test_the_first_of_many_pictures_are_those_of_a_sample() -> None:
    z, y = groups([9_000, 2_000], noise=0.0)

    first = first_pictures(z)

    assert {*y[first].tolist()} == {0, 1}  # equal pictures may differ by rounding


def test_identical_pictures_are_no_reason_to_fail() -> None:
    z = F.normalize(torch.ones(30, 4), dim=1)

    assert len({*first_pictures(z)}) >= 1


def test_the_random_order_keeps_its_order_when_pictures_are_added() -> None:
    digests = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(100)]

    few, many = random_order(digests[:60]), random_order(digests)

    assert [i for i in many if i < 60] == few
    assert few != [*range(60)]


def test_many_answers_for_one_class_do_not_hide_another() -> None:
    z, y = groups([300, 30], noise=0.4)
    answered = torch.tensor([*range(250), 300])  # one answer for the second class

    head = self_trained_head(z[answered], y[answered], torch.ones(251), z[:0], classes=2)

    guessed = (z @ head[:, :-1].T + head[:, -1]).argmax(dim=1)
    recall = (guessed == y)[301:].float().mean().item()
    assert recall > 0.9


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

    rest = torch.tensor([i for i in range(len(z)) if i not in (2, 9)])
    found = unsure_pictures(
        probabilities, z, candidates=rest, answered=torch.tensor([2, 9]), others=rest, most=6
    )

    assert found == greedy(probabilities, z, [2, 9], 6)


def test_each_round_covers_all_pictures_with_as_few_as_possible() -> None:
    z, y = groups([9] * 12, noise=0.001)

    first = first_pictures(z)

    assert len({*y[first[:10]].tolist()}) == 10
    assert {*y[first[:12]].tolist()} == {*range(12)}  # the second round adds what is missing
    many = F.normalize(torch.randn(400, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    assert 60 < len(first_pictures(many)) <= 80


def test_a_single_class_has_the_direction_of_its_pictures() -> None:
    z = F.normalize(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), dim=1)

    head = self_trained_head(z, torch.tensor([1, 1]), torch.ones(2), z[:0], classes=3)

    direction = 5 * F.normalize(z.sum(dim=0), dim=0)
    torch.testing.assert_close(head[1], torch.cat([direction, torch.zeros(1)]))
    assert head[[0, 2], -1].tolist() == [-math.inf] * 2
