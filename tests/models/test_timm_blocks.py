"""Cuts between the blocks of timm models."""

import pytest
import torch
from torch import Tensor, nn

from vitft.features import Cut, cut_model, run_prefix
from vitft.models import TimmConfig, TimmModel, freeze_model
from vitft.system import UsageError

SIDE = 64
KINDS = {
    "test_resnet": 4,
    "test_convnext": 9,
    "test_efficientnet": 5,
    "mobilevit_xxs": 10,
    "xcit_nano_12_p16_224": 12,
    "vit_tiny_r_s16_p8_224": 12,
    "eva02_tiny_patch14_224": 12,
    "poolformer_s12": 12,
}
"""Names of architectures with their numbers of blocks."""


def random_timm(name: str, *, classes: int = 3, side: int = SIDE) -> TimmModel:
    torch.manual_seed(0)
    is_vit = "vit_" in name or name.startswith("eva") or "xcit" in name
    sized = is_vit and "mobile" not in name and "xcit" not in name
    side = 56 if "patch14" in name else side
    config = TimmConfig(timm=name, image_size=(side, side), num_classes=classes, sized=sized)
    model = TimmModel(config).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if not parameter.any():  # the head, and branches that start at zero
            parameter.data.normal_(std=0.3, generator=generator)
    return model


def images(model: TimmModel, count: int = 3) -> Tensor:
    size = model.config.image_size
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(2))


def cut_of(model: TimmModel, layers: str) -> tuple[list[str], Cut]:
    return freeze_model(model, layers), cut_model(model, layers)


@pytest.mark.parametrize(("name", "blocks"), KINDS.items(), ids=[*KINDS])
def test_suffix_after_prefix_is_the_model_at_every_kind_of_cut(name: str, blocks: int) -> None:
    model = random_timm(name)
    pixels = images(model)
    with torch.no_grad():
        expected = model(pixels)
    assert len(model.blocks) == blocks

    for trained in (1, blocks // 2, blocks):
        _, cut = cut_of(model, f"blocks:{trained}")
        assert cut.prefix is not None
        inputs = run_prefix(cut.prefix, pixels).clone()

        logits = cut.suffix.eval()(inputs)

        assert tuple(inputs.shape[1:]) == cut.prefix.shape
        assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert expected.std(dim=0).max() > 1e-4 * expected.abs().max()  # the images differ


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "mobilevit_xxs"])
def test_gradients_behind_the_cut_are_those_of_the_whole_model(name: str) -> None:
    model = random_timm(name)
    pixels, labels = images(model), torch.tensor([0, 1, 2])
    trained, cut = cut_of(model, "blocks:2")
    assert cut.prefix is not None
    parameters = {n: p for n, p in model.named_parameters() if n in {*trained}}

    loss = nn.functional.cross_entropy(cut.suffix(run_prefix(cut.prefix, pixels).clone()), labels)
    found = torch.autograd.grad(loss, [*parameters.values()])
    whole = nn.functional.cross_entropy(model(pixels), labels)
    expected = torch.autograd.grad(whole, [*parameters.values()])

    assert "head.weight" in trained
    for name, one, other in zip(parameters, found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-6), name


def test_the_digest_of_a_cut_is_of_the_part_before_it() -> None:
    model = random_timm("test_resnet")
    _, cut = cut_of(model, "blocks:2")
    assert cut.prefix is not None
    before = cut.prefix.digest()

    model.get_submodule("net.layer4.0.conv1").get_parameter("weight").data.add_(1)
    assert cut.prefix.digest() == before

    model.get_submodule("net.layer1.0.conv1").get_parameter("weight").data.add_(1)
    assert cut.prefix.digest() != before


@pytest.mark.parametrize("name", ["dla34", "densenet121"])
def test_a_network_whose_blocks_do_not_follow_each_other_is_not_cut(name: str) -> None:
    with pytest.raises(UsageError, match="blocks:1 cannot be used with"):
        freeze_model(random_timm(name), "blocks:1")


def test_what_a_network_does_not_support_is_an_error() -> None:
    model = random_timm("hrnet_w18_small")
    model.set_checkpointing(False)
    with pytest.raises(UsageError, match=r"train\.checkpointing=true cannot be used"):
        model.set_checkpointing(True)
    with pytest.raises(UsageError, match="does not support stochastic depth"):
        TimmModel(model.config, drop_path=0.1)
    with pytest.raises(UsageError, match="its head is not a single linear layer"):
        random_timm("levit_128s", side=224)
