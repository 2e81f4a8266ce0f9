"""Trials of a run with a time budget: what they hold out, how long they take, what they report."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.training_data import (
    data_set,
    digest,
    pooled_inputs,
    row,
)
from vitft.config import config_from_table
from vitft.features import HeadMethod
from vitft.training import LayerSettings, Trial, hold_out, tempered_losses

CONFIG = config_from_table({"train": {"budget": "10m", "seed": 3}})


def clusters() -> tuple[Any, Tensor, Tensor]:
    """Return a context with 30 training images in three clusters, their features and labels."""
    noise = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 3
    x = torch.cat([2 * torch.eye(3)[labels], torch.zeros(30, 1)], dim=1)
    x += 0.5 * torch.randn(30, 4, generator=noise)
    rows = [row(str(i), i % 3) for i in range(30)] + [row("val", 0, "val")]
    data = data_set(rows, groups={digest("0"): "g", digest("3"): "g"})
    features = {digest(str(i)): x[i] for i in range(30)}
    model = SimpleNamespace(pre_logits=nn.Identity())
    context: Any = SimpleNamespace(
        config=CONFIG,
        inputs=pooled_inputs(data, features),
        model=model,
    )
    return context, x, labels


def test_the_results_are_those_of_the_best_fraction_of_the_trained_weights() -> None:
    context, _, _ = clusters()
    held = hold_out(context, HeadMethod(l2=0.1, read=3), 1)
    trial = Trial(context, LayerSettings(layers="all"), held, seconds=1, times=(0.0, 0.1))
    y = torch.tensor([one.label for one in held.manifest.val])
    generator = torch.Generator().manual_seed(1)
    good = 2 * torch.eye(3)[y] + torch.randn(len(y), 3, generator=generator)
    bad = torch.randn(len(y), 3, generator=generator)

    found = trial.results(4, {0.25: bad, 0.5: good, 1.0: bad}, 9.0)

    losses = [tempered_losses(logits, y.numpy()) for logits in (held.logits, good)]
    assert found["loss"] == pytest.approx(losses[1].mean())
    assert found["head_loss"] == pytest.approx(losses[0].mean())
    difference = losses[0] - losses[1]
    variance = ((difference - difference.mean()) ** 2).sum() / (len(y) - 1)
    assert found["error"] == pytest.approx((variance / len(y)) ** 0.5)
    assert found["top1"] == pytest.approx(float((good.argmax(dim=1) == y).float().mean()))
    assert found["head_top1"] == pytest.approx(float((held.logits.argmax(1) == y).float().mean()))
    assert found["interpolation"] == 0.5
    assert [one["fraction"] for one in found["tried"]] == [0.25, 0.5, 1.0]
    assert (found["epochs"], found["folds"], found["seconds"]) == (4, 1, 9.0)
    assert (found["images"], found["held_out"]) == (30 - len(y), len(y))
    assert found["final_seconds"] == pytest.approx(trial.final_seconds(4))
