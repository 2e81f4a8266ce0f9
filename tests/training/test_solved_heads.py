"""The stage that fits a head: features, losses, sharing of rows, and what stands for new images."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.training_data import data_set, digest, pooled_inputs, row
from vitft.config import config_from_table
from vitft.features import HeadMethod, nearest_neighbours
from vitft.training import HeadSolver, ProcessGroup, cross_validate_images

ROWS = [row(f"t{i}", i % 3) for i in range(24)] + [row(f"v{i}", i % 3, "val") for i in range(9)]
VIEWS = ("plain", "crop 0 0")


def features() -> dict[Any, Tensor]:
    """Return features (3,) of each image and view, of which two are those of the last block."""
    noise = torch.Generator().manual_seed(0)
    return {
        (one.sha256, view): 2 * torch.eye(3)[one.label] + torch.randn(3, generator=noise)
        for one in ROWS
        for view in VIEWS
    }


def context_of(*, rank: int = 0, size: int = 1, **table: Any) -> Any:
    data = data_set(ROWS, group=ProcessGroup(rank, size))
    model = SimpleNamespace(pre_logits=nn.Linear(3, 3), head=nn.Linear(3, 3))
    with torch.no_grad():
        model.pre_logits.weight.copy_(torch.eye(3))
        model.pre_logits.bias.fill_(1.0)
    best = SimpleNamespace(model=model, results={"best_epoch": 1}, head_results={"l2": 0.1})
    return SimpleNamespace(
        config=config_from_table(table), inputs=pooled_inputs(data, features()), best=best,
        scored=None,
    )  # fmt: skip


def test_the_head_reads_what_pre_logits_makes_of_the_features() -> None:
    context = context_of(train={"views": 1})
    solver, known = HeadSolver(context), features()

    training, validation, distinct = solver.features

    assert [view.name for view in solver.views] == [*VIEWS]
    expected = [known[one.sha256, view] + 1 for view in VIEWS for one in ROWS[:24]]
    torch.testing.assert_close(training, torch.stack(expected))
    torch.testing.assert_close(
        validation, torch.stack([known[one.sha256, "plain"] + 1 for one in ROWS[24:]])
    )
    assert len(distinct) == 33
    assert not training.requires_grad
    assert solver.labels.tolist() == [one.label for one in ROWS[:24]]


def test_the_solved_head_is_scored_on_validation_images_and_by_cross_validation() -> None:
    context = context_of(optim={"l2": 0.1})
    solver = HeadSolver(context)
    solved = solver.solve()

    found: Any = solver.score(solved, 1.25)

    training, validation, _ = solver.features
    read = solved.method.read
    x, held = training[:, :read], validation[:, :read]
    assert (read, found["l2"], found["first_loss"]) == (2, 0.1, 1.25)
    assert found["cross_validation"]["images"] == 33
    assert context.scored.features.shape == (33, 2)
    assert "label_l2" not in found
    votes = nearest_neighbours(x, solver.labels, held, classes=3)
    truth = torch.tensor([one.label for one in ROWS[24:]])
    assert found["knn_top1"] == pytest.approx((votes.argmax(dim=1) == truth).float().mean().item())
    assert ("head" in found) is bool(solved.candidates)


def test_images_are_cross_validated_with_their_groups() -> None:
    data = data_set(ROWS, groups={digest("t0"): "g", digest("t3"): "g"})
    distinct = torch.stack([features()[one.sha256, "plain"] for one in data.distinct])
    config = config_from_table({})

    results, scored = cross_validate_images(data, distinct, config, HeadMethod(l2=0.1, read=2))
    few, nothing = cross_validate_images(
        data_set(ROWS[:3]), distinct[:3], config, HeadMethod(l2=0.1, read=2)
    )

    assert results is not None
    assert scored.held_out is not None
    assert scored.held_out.logits.shape == (33, 3)
    assert torch.equal(scored.features, distinct[:, :2])
    assert (few, nothing.held_out) == (None, None)
