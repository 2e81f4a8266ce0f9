"""The choice between heads that read one and several blocks."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import sem
from torch import Tensor
from torch.nn import functional as F

from vitft.features import (
    Folded,
    HeadMethod,
    SolvedHead,
    choose_candidate,
    choose_head_method,
    cross_validate,
    linear_logits,
    mixture_weights,
    solve_head,
    tempered,
)
from vitft.metrics import Outputs

READ = 6
LAST_BLOCK, SEVERAL_BLOCKS, MIXTURE = "last block", "several blocks", "mixture"
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
    x, y = blocks(last=2.5, earlier=0.0, more=400)

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


def test_cross_validation_scores_the_head_that_reads_several_blocks() -> None:
    x, y = blocks(last=0.5, earlier=3.0)
    head = solve(x, y)

    found = cross_validate(x, y, Outputs.of(NAMES), method=head.method, balanced=False, seed=0)
    plain = HeadMethod(l2=head.l2, read=READ)
    last = cross_validate(x, y, Outputs.of(NAMES), method=plain, balanced=False, seed=0)

    assert found is not None
    assert last is not None
    told, (rows, logits) = found
    assert told["top1"] > last[0]["top1"] + 0.2
    assert told["top1"] == pytest.approx((logits.argmax(dim=-1) == y[rows]).float().mean().item())


def test_the_weights_of_a_mixture_leave_the_prior_only_with_evidence() -> None:
    y = torch.arange(300) % 3
    guess = torch.zeros(300, 3).log_softmax(dim=-1)
    sharp = (4.0 * F.one_hot(y, 3).float()).log_softmax(dim=-1)

    same = mixture_weights(sharp[:6], sharp[:6], y[:6])
    better = mixture_weights(guess, sharp, y)

    assert same[1] < 0.5 < same[0]  # six images: the second starts at exp(-2.5) = 0.08
    assert better[1] > 1


def scores(right: int, confidence: float, *, images: int = 100) -> Tensor:
    """Scores of `images` images of class 0, of which `right` are correct with one confidence."""
    odds = torch.tensor([confidence, 1 - confidence]).log()
    found = odds.expand(images, 2).clone()
    found[right:] = found[right:].flip(dims=(1,))
    return found


@pytest.mark.parametrize(
    ("today", "several", "mixture", "chosen"),
    [
        pytest.param((80, 0.8), (95, 0.9), (90, 0.9), SEVERAL_BLOCKS, id="clearly better alone"),
        pytest.param((80, 0.8), (70, 0.8), (92, 0.9), MIXTURE, id="better together"),
        pytest.param((80, 0.8), (91, 0.9), (90, 0.9), MIXTURE, id="better by less than its noise"),
        pytest.param((90, 0.9), (91, 0.9), (91, 0.9), LAST_BLOCK, id="no evidence"),
        pytest.param((95, 0.9), (60, 0.9), (80, 0.9), LAST_BLOCK, id="worse"),
        pytest.param((90, 0.9), (90, 0.9), (90, 0.9), LAST_BLOCK, id="the same"),
        pytest.param((60, 0.6), (90, 0.9), (90, 0.8), SEVERAL_BLOCKS, id="alone as accurate"),
        pytest.param((60, 0.6), (89, 0.9), (90, 0.7), MIXTURE, id="alone less accurate"),
    ],
)
def test_the_last_block_is_left_only_for_a_loss_lower_by_a_standard_error(
    today: tuple[int, float], several: tuple[int, float], mixture: tuple[int, float], chosen: str
) -> None:
    pairs = {LAST_BLOCK: today, SEVERAL_BLOCKS: several, MIXTURE: mixture}

    name, candidates = choose_candidate(
        {name: scores(*pair) for name, pair in pairs.items()}, torch.zeros(100, dtype=torch.long)
    )

    assert name == chosen
    assert [one["cv_top1"] for one in candidates] == [pair[0] / 100 for pair in pairs.values()]


def test_a_lower_loss_is_lower_by_a_standard_error_of_the_differences() -> None:
    y = torch.zeros(100, dtype=torch.long)
    today, ratios = scores(85, 0.86), []
    for confidence in np.linspace(0.55, 0.95, 400):
        one = scores(90, float(confidence))
        losses = [F.cross_entropy(each, y, reduction="none") for each in (today, one)]
        gain = (losses[0] - losses[1]).numpy()
        ratios.append(gain.mean() / sem(gain))
        every = {LAST_BLOCK: today, SEVERAL_BLOCKS: scores(0, 0.9), MIXTURE: one}

        name, candidates = choose_candidate(every, y)

        assert (name == MIXTURE) == (ratios[-1] > 1)
        assert candidates[2].get("cv_gain") == pytest.approx(gain.mean(), abs=1e-6)
        assert candidates[2].get("cv_gain_error") == pytest.approx(sem(gain), abs=1e-6)
        assert "cv_gain" not in candidates[0]
    assert any(1 < ratio < 1.1 for ratio in ratios)
    assert any(0.9 < ratio < 1 for ratio in ratios)


@pytest.mark.parametrize("images", [6, 60])
def test_the_weights_of_a_mixture_minimise_the_losses_and_a_penalty(images: int) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(images) % 3
    parts = [
        (scale * F.one_hot(y, 3) + torch.randn(images, 3, generator=generator))
        .double()
        .log_softmax(dim=-1)
        for scale in (2.0, 1.5)
    ]

    def penalised(logs: np.ndarray) -> float:
        mixed = math.exp(logs[0]) * parts[0] + math.exp(logs[1]) * parts[1]
        loss = F.cross_entropy(mixed, y, reduction="sum").item()
        return loss + 3 * float(np.square(logs - (0, -2.5)).sum())  # a weight of 8% a priori

    found = mixture_weights(parts[0], parts[1], y)

    expected = minimize(penalised, (0, -2.5), method="Nelder-Mead", tol=1e-8).x
    assert np.log(found) == pytest.approx(expected, abs=1e-4)


def folded(x: Tensor, y: Tensor) -> Folded:
    return Folded(x=x, y=y, sample_weight=torch.ones(len(y)), classes=3, seed=0)


@pytest.mark.parametrize(("more", "seed"), [(10, 0), (200, 1), (60, 2)])
def test_the_shrinkage_has_the_lowest_held_out_loss(more: int, seed: int) -> None:
    x, y = blocks(60, last=0.0, earlier=3.0, more=more, seed=seed)
    data, losses = folded(x, y), {}
    for shrinkage in (0.02, 0.1, 0.3, 0.6, 0.9):
        logits = torch.empty(60, 3)
        for k in range(5):
            alone = HeadMethod(l2=1.0, read=1, logistic=0, discriminant=1, shrinkage=shrinkage)
            (head,) = alone.fit(x, y, data.weights[k : k + 1], classes=3)
            logits[data.fold_id == k] = linear_logits(x[data.fold_id == k], head).float()
        losses[shrinkage] = F.cross_entropy(tempered(logits, y)[1], y).item()

    method, candidates = choose_head_method(data, l2=0.03, read=READ)

    assert method.shrinkage == min(losses, key=losses.__getitem__)
    assert candidates[1]["cv_loss"] == pytest.approx(losses[method.shrinkage], abs=1e-5)


@pytest.mark.parametrize(
    ("last", "earlier", "more", "name"), [(0.0, 3.0, 10, SEVERAL_BLOCKS), (1.5, 1.2, 60, MIXTURE)]
)
def test_the_chosen_method_has_the_cross_validated_loss_of_its_candidate(
    last: float, earlier: float, more: int, name: str
) -> None:
    x, y = blocks(120, last=last, earlier=earlier, more=more)
    data = folded(x, y)

    method, candidates = choose_head_method(data, l2=0.03, read=READ)

    found = data.held_out(method.fit(x, y, data.weights, classes=3))
    (chosen,) = (one for one in candidates if one["reads"] == name)
    assert method.name == name
    assert F.cross_entropy(found, y).item() == pytest.approx(chosen["cv_loss"], rel=1e-3)
    assert (found.argmax(dim=-1) == y).float().mean().item() == pytest.approx(chosen["cv_top1"])
    plain = HeadMethod(l2=0.03, read=READ).fit(x, y, data.weights, classes=3)
    alone = data.held_out(plain) * method.alone
    assert F.cross_entropy(alone, y).item() == pytest.approx(candidates[0]["cv_loss"], rel=1e-3)
