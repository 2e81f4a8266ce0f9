"""Learning-rate schedule, parameter groups and optimiser."""

import pytest
import torch
from torch import nn

from vitft.config import OptimSpec
from vitft.models import TimmConfig, TimmModel, VisionTransformer, freeze_model
from vitft.system import UsageError
from vitft.training import WeightAverage, lr_at, parameter_groups


@pytest.mark.parametrize(
    ("step", "lr"),
    [
        pytest.param(0, 0.1, id="starts above zero"),
        pytest.param(9, 1.0, id="peaks when warm-up ends"),
        pytest.param(10, 1.0, id="the cosine starts at the peak"),
        pytest.param(55, 0.5, id="is half way down in the middle"),
        pytest.param(100, 0.0, id="ends at zero"),
        pytest.param(150, 0.0, id="stays there"),
    ],
)
def test_learning_rate_follows_warmup_then_cosine(step: int, lr: float) -> None:
    assert lr_at(step, 100, peak=1.0, warmup=0.1) == pytest.approx(lr)


def test_training_pre_logits_needs_a_model_that_has_them(tiny_vit: VisionTransformer) -> None:
    with pytest.raises(UsageError, match="--pre-logits keep"):
        freeze_model(tiny_vit, "pre_logits")


def groups_by_name(model: nn.Module, spec: OptimSpec) -> dict[str, tuple[float, float]]:
    """Return learning-rate factor and weight decay of each trainable parameter."""
    of = {
        id(p): (group["lr_scale"], group["weight_decay"])
        for group in parameter_groups(model, spec)
        for p in group["params"]
    }
    return {name: of[id(p)] for name, p in model.named_parameters() if id(p) in of}


def test_only_matrices_decay(tiny_vit: VisionTransformer) -> None:
    found = groups_by_name(tiny_vit, OptimSpec(weight_decay=0.1))

    decayed = {name for name, (_, decay) in found.items() if decay}
    assert "blocks.0.attn.qkv.weight" in decayed
    assert "patch_embed.proj.weight" in decayed
    assert not {n for n in decayed if "norm" in n or "bias" in n or "token" in n or "pos" in n}


def test_lower_layers_have_lower_learning_rates(tiny_vit: VisionTransformer) -> None:
    found = groups_by_name(tiny_vit, OptimSpec(layer_decay=0.5))

    scales = {name: scale for name, (scale, _) in found.items()}
    assert scales["head.weight"] == scales["norm.weight"] == 1.0
    assert scales["blocks.1.mlp.fc1.weight"] == 0.5
    assert scales["blocks.0.attn.qkv.bias"] == 0.25
    assert scales["patch_embed.proj.weight"] == scales["pos_embed"] == 0.125


def test_the_layers_of_a_model_of_timm_are_known() -> None:
    config = TimmConfig(timm="test_resnet", image_size=(32, 32), num_classes=3)
    found = groups_by_name(TimmModel(config), OptimSpec(layer_decay=0.5))

    scales = [scale for scale, _ in found.values()]
    assert scales[-1] == scales[-2] == 1.0  # the head
    assert max(scales[:-2]) == 0.5
    assert min(scales) < 0.2
    assert scales[0] == min(scales)  # the first convolution


def test_every_parameter_is_in_exactly_one_group(tiny_vit: VisionTransformer) -> None:
    groups = parameter_groups(tiny_vit, OptimSpec(layer_decay=0.7, weight_decay=0.1))

    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in tiny_vit.parameters())


def test_the_average_decays_less_in_early_steps_and_never_more_than_its_limit() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    average = WeightAverage({"w": weight}, 0.5)
    expected, found = 0.0, []

    for step in range(20):
        weight.data.fill_(step + 1)
        average.update(step)
        found.append(average.average["w"].item())
        decay = (1 + step) / (10 + step) if step < 8 else 0.5  # 9 / 18 at step 8
        expected = decay * expected + (1 - decay) * (step + 1)
        assert found[-1] == pytest.approx(expected)

    assert found[0] == pytest.approx(0.9)  # the first step already counts nine tenths


def test_without_a_decay_there_is_no_average() -> None:
    weight = nn.Parameter(torch.ones(1))
    average = WeightAverage({"w": weight}, 0.0)

    with average.swapped_in():
        assert average.average == {}
        assert weight.item() == 1
        assert average.swapped_out == {}  # nothing was copied
    assert average.before == {}
    assert WeightAverage({"w": weight}, 0.5, 0.9).before.keys() == {"w"}


def test_weights_are_moved_back_towards_those_before_training_only_for_validation() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    average = WeightAverage({"w": weight}, 0.0, 0.25)
    weight.data.fill_(6.0)  # after training

    with average.swapped_in():
        assert weight.item() == pytest.approx(2.0 + 0.25 * (6.0 - 2.0))
        assert average.trained["w"].item() == 6
    assert weight.item() == 6
    with average.swapped_in(0.5):
        assert weight.item() == pytest.approx(4.0)
    with average.swapped_in(1.0):
        assert weight.item() == 6


def test_the_average_is_interpolated_with_the_weights_before_training() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    average = WeightAverage({"w": weight}, 0.5, 0.5)
    weight.data.fill_(3.0)
    average.update(steps=100)  # to the middle of 1 and 3

    with average.swapped_in():
        assert weight.item() == pytest.approx(1.5)
    assert weight.item() == 3
