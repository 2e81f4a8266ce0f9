"""What trains and how fast."""

import pytest
import torch

from vitft.config import OptimSpec
from vitft.errors import UsageError
from vitft.model import VisionTransformer
from vitft.optim import freeze_model, frozen_blocks, lr_at, make_optimizer


@pytest.mark.parametrize(
    ("step", "lr"),
    [
        pytest.param(0, 0.1, id="starts above zero"),
        pytest.param(9, 1.0, id="peaks when warm-up ends"),
        pytest.param(10, 1.0, id="the cosine starts at the peak"),
        pytest.param(55, 0.5, id="is half way down in the middle"),
        pytest.param(100, 0.0, id="ends at zero"),
    ],
)
def test_learning_rate_follows_warmup_then_cosine(step: int, lr: float) -> None:
    assert lr_at(step, 100, peak=1.0, warmup=0.1) == pytest.approx(lr)


def test_learning_rate_can_end_at_a_share_of_its_peak() -> None:
    assert lr_at(10, 10, peak=2.0, warmup=0.0, final=0.01) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("freeze", "blocks"),
    [
        pytest.param("head", 12, id="the whole encoder"),
        pytest.param("pre_logits", 12, id="the same cut"),
        pytest.param("blocks:2", 10, id="all but two"),
        pytest.param("blocks:12", 0, id="only the embedding"),
        pytest.param("none", None, id="nothing, not even the embedding"),
    ],
)
def test_the_freeze_mode_says_how_many_blocks_stay(freeze: str, blocks: int | None) -> None:
    assert frozen_blocks(freeze, 12) == blocks


def test_more_blocks_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="the model has 12 blocks"):
        frozen_blocks("blocks:13", 12)


@pytest.mark.parametrize(
    ("freeze", "first", "count"),
    [
        pytest.param("head", "head.weight", 2, id="the head"),
        pytest.param("blocks:1", "blocks.1.norm1.weight", 16, id="the last block, norm and head"),
        pytest.param("none", "cls_token", 32, id="everything"),
    ],
)
def test_only_parameters_behind_the_boundary_train(
    tiny_vit: VisionTransformer, freeze: str, first: str, count: int
) -> None:
    trained = freeze_model(tiny_vit, freeze)

    assert trained[0] == first
    assert len(trained) == count
    assert trained == [n for n, p in tiny_vit.named_parameters() if p.requires_grad]


def test_training_pre_logits_needs_a_model_that_has_them(tiny_vit: VisionTransformer) -> None:
    with pytest.raises(UsageError, match="--pre-logits keep"):
        freeze_model(tiny_vit, "pre_logits")


@pytest.mark.parametrize("solver", ["sgd", "adamw"])
def test_the_optimiser_moves_only_what_trains(tiny_vit: VisionTransformer, solver: str) -> None:
    freeze_model(tiny_vit, "head")
    before = {n: p.clone() for n, p in tiny_vit.named_parameters()}
    optimizer = make_optimizer(tiny_vit, OptimSpec(solver=solver, lr=0.1))  # type: ignore[arg-type]

    tiny_vit(torch.randn(2, 3, 16, 16))[:, 0].sum().backward()
    optimizer.step()

    moved = [n for n, p in tiny_vit.named_parameters() if not torch.equal(p, before[n])]
    assert moved == ["head.weight", "head.bias"]
