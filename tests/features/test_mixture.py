"""The choice between heads that read one and several blocks."""

import functools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.head import SolvedHead, cross_validate, solve_head
from vitft.features.mixture import (
    Candidate,
    HeadMethod,
    choose_candidate,
    mixture_weights,
    tempered,
)
from vitft.metrics.results import LAST_BLOCK, MIXTURE, SEVERAL_BLOCKS

READ = 6
NAMES = ["a", "b", "c"]
solve = functools.partial(solve_head, classes=3, l2=0, balanced=False, seed=0, read=READ)


def blocks(
    images: int = 120, *, last: float, earlier: float, more: int = 10, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Features of two blocks, in which the classes are `last` and `earlier` units apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(images) % 3
    x = torch.randn(images, READ + more, generator=generator)
    x[:, :3] += last * F.one_hot(y, 3)
    x[:, READ : READ + 3] += earlier * F.one_hot(y, 3)
    return x, y


def accuracy(head: SolvedHead, x: Tensor, y: Tensor) -> float:
    logits = x[:, : head.weight.shape[1]] @ head.weight.T + head.bias
    return (logits.argmax(dim=-1) == y).float().mean().item()


def test_a_class_that_earlier_blocks_show_is_read_there() -> None:
    x, y = blocks(last=0.5, earlier=3.0)
    fresh, truth = blocks(300, last=0.5, earlier=3.0, seed=1)

    head = solve(x, y)
    today = solve(x[:, :READ], y)

    assert head.method.reads_several
    assert head.weight.shape == (3, READ + 10)
    assert accuracy(head, fresh, truth) > accuracy(today, fresh, truth) + 0.2
    assert [c["reads"] for c in head.candidates] == [LAST_BLOCK, SEVERAL_BLOCKS, MIXTURE]


def test_noise_in_earlier_blocks_leaves_the_head_as_it_was_to_the_bit() -> None:
    x, y = blocks(last=3.0, earlier=0.0, more=400)

    head = solve(x, y)
    today = solve(x[:, :READ].contiguous(), y)

    assert not head.method.reads_several
    assert torch.equal(head.weight, today.weight)
    assert torch.equal(head.bias, today.bias)
    assert torch.equal(head.last[0], head.weight)


def test_a_few_images_are_no_evidence() -> None:
    x, y = blocks(18, last=0.5, earlier=3.0)

    assert not solve(x, y).method.reads_several


def test_a_mixture_is_one_linear_layer_whose_scores_are_those_of_its_parts() -> None:
    x, y = blocks(last=1.0, earlier=1.0)
    weight = torch.ones(1, len(y))
    method = HeadMethod(l2=0.01, read=READ, logistic=0.7, discriminant=0.4, shrinkage=0.3)

    (mixed,) = method.fit(x, y, weight, classes=3)
    (one,) = HeadMethod(l2=0.01, read=READ).fit(x, y, weight, classes=3)
    (other,) = replace(method, logistic=0.0, discriminant=1.0).fit(x, y, weight, classes=3)

    wide = x.double()
    expected = 0.7 * (wide[:, :READ] @ one[:, :-1].T + one[:, -1])
    expected += 0.4 * (wide @ other[:, :-1].T + other[:, -1])
    assert torch.allclose(wide @ mixed[:, :-1].T + mixed[:, -1], expected, atol=1e-9)


def test_the_head_on_the_last_block_is_kept_for_files_that_hold_no_other() -> None:
    x, y = blocks(last=1.0, earlier=3.0)

    head = solve(x, y)
    today = solve(x[:, :READ].contiguous(), y)

    assert head.method.reads_several
    assert torch.equal(head.last[0], today.weight)
    assert torch.equal(head.last[1], today.bias)


def test_cross_validation_scores_the_head_that_reads_several_blocks() -> None:
    x, y = blocks(last=0.5, earlier=3.0)
    head = solve(x, y)

    found = cross_validate(x, y, NAMES, method=head.method, balanced=False, seed=0)
    plain = HeadMethod(l2=head.l2, read=READ)
    last = cross_validate(x, y, NAMES, method=plain, balanced=False, seed=0)

    assert found is not None
    assert last is not None
    told, held_out = found
    assert told["top1"] > last[0]["top1"] + 0.2
    assert told["top1"] == pytest.approx(
        (held_out.logits.argmax(dim=-1) == y[held_out.rows]).float().mean().item()
    )


def test_the_weights_of_a_mixture_leave_the_prior_only_with_evidence() -> None:
    y = torch.arange(300) % 3
    guess = torch.zeros(300, 3).log_softmax(dim=-1)
    sharp = (4.0 * F.one_hot(y, 3).float()).log_softmax(dim=-1)

    same = mixture_weights(sharp[:6], sharp[:6], y[:6])
    better = mixture_weights(guess, sharp, y)

    assert same[1] < 0.5 < same[0]  # six images: the second starts at exp(-2.5) = 0.08
    assert better[1] > 1


def test_logits_without_errors_stay_less_than_certain() -> None:
    y = torch.arange(40) % 2
    logits = 500.0 * F.one_hot(y, 2).float()

    factor, scores = tempered(logits, y)

    assert scores.exp().max().item() == pytest.approx(1 - 1 / 80, abs=0.002)  # 1 - 1 / (n C)
    assert factor == pytest.approx(math.log(79) / 500, rel=0.01)


def candidate(name: str, right: int, confidence: float, *, images: int = 100) -> Candidate:
    """Scores of `images` images of class 0, of which `right` are correct with one confidence."""
    odds = torch.tensor([confidence, 1 - confidence]).log()
    scores = odds.expand(images, 2).clone()
    scores[right:] = scores[right:].flip(dims=(1,))
    return Candidate(name, HeadMethod(l2=0.1, read=1), scores)


@pytest.mark.parametrize(
    ("today", "several", "mixture", "chosen"),
    [
        pytest.param((80, 0.8), (95, 0.9), (90, 0.9), SEVERAL_BLOCKS, id="clearly better alone"),
        pytest.param((80, 0.8), (70, 0.8), (92, 0.9), MIXTURE, id="better together"),
        pytest.param((80, 0.8), (91, 0.9), (90, 0.9), MIXTURE, id="better by less than its noise"),
        pytest.param((90, 0.9), (91, 0.9), (91, 0.9), LAST_BLOCK, id="no evidence"),
        pytest.param((95, 0.9), (60, 0.9), (80, 0.9), LAST_BLOCK, id="worse"),
    ],
)
def test_the_last_block_is_left_only_for_a_loss_lower_by_a_standard_error(
    today: tuple[int, float], several: tuple[int, float], mixture: tuple[int, float], chosen: str
) -> None:
    y = torch.zeros(100, dtype=torch.long)

    found = choose_candidate(
        candidate(LAST_BLOCK, *today),
        candidate(SEVERAL_BLOCKS, *several),
        candidate(MIXTURE, *mixture),
        y,
    )

    assert found.name == chosen
