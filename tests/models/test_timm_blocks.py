"""Cuts between the blocks of timm models."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vitft.config.sections import TrainSpec
from vitft.data.transforms import EvalTransform
from vitft.features.cut import Cut, cut_model, run_prefix
from vitft.features.pipeline import build_pipeline
from vitft.models.freeze import freeze_model
from vitft.models.timm_blocks import VISIT, parameters_after, watch_blocks
from vitft.models.timm_config import TimmConfig
from vitft.models.timm_model import TimmModel
from vitft.system.errors import UsageError

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


def cut_of(model: TimmModel, freeze: str) -> tuple[list[str], Cut]:
    return freeze_model(model, freeze), cut_model(model, freeze)


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


def test_only_what_lies_behind_the_cut_is_trained() -> None:
    model = random_timm("test_resnet")

    trained, cut = cut_of(model, "blocks:1")
    cut.suffix.train()

    assert {name.split(".")[1] for name in trained if name.startswith("net.")} == {"layer4"}
    assert model.net.layer4[0].training
    assert not model.net.layer3[0].training
    assert not model.net.bn1.training


def test_a_layer_between_two_blocks_is_trained_with_the_second() -> None:
    model = random_timm("test_convnext")
    last_stage = [n for n in model.block_names if n.startswith("stages.3.")]

    of_stage, _ = cut_of(model, f"blocks:{len(last_stage)}")
    and_one_more, _ = cut_of(model, f"blocks:{len(last_stage) + 1}")

    assert not any("downsample" in name for name in of_stage)
    assert {n for n in and_one_more if "stages.3.downsample" in n}


def test_the_digest_of_a_cut_is_of_the_part_before_it() -> None:
    model = random_timm("test_resnet")
    _, cut = cut_of(model, "blocks:2")
    assert cut.prefix is not None
    before = cut.prefix.digest()

    model.get_submodule("net.layer4.0.conv1").get_parameter("weight").data.add_(1)
    assert cut.prefix.digest() == before

    model.get_submodule("net.layer1.0.conv1").get_parameter("weight").data.add_(1)
    assert cut.prefix.digest() != before


def test_the_cut_is_not_seen_by_other_passes_of_the_same_model() -> None:
    model = random_timm("test_resnet")
    pixels = images(model)
    expected = model(pixels)

    _, cut = cut_of(model, "blocks:2")
    assert cut.prefix is not None
    run_prefix(cut.prefix, pixels)

    assert torch.equal(model(pixels), expected)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("densenet121", "the input to its blocks is not a single tensor"),
        ("hrnet_w18_small", "timm does not list the blocks of this model"),
        ("dla34", "the layers before that block are also connected to later blocks"),
        ("twins_pcpvt_small", "depend on how many images entered the network"),
    ],
)
def test_a_network_that_cannot_be_cut_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        freeze_model(random_timm(name), "blocks:4")

    assert "--freeze head" in caught.value.fix


def test_more_blocks_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="the model has only 4 blocks"):
        freeze_model(random_timm("test_resnet"), "blocks:5")


def test_recomputing_activations_behind_a_cut_is_refused() -> None:
    spec = TrainSpec(freeze="blocks:1", checkpointing=True)
    device = torch.device("cpu")

    with pytest.raises(UsageError, match=r"checkpointing=true cannot be combined with --freeze"):
        build_pipeline(
            random_timm("test_vit"),
            EvalTransform(image_size=(SIDE, SIDE)),
            "blocks:1",
            spec,
            device=device,
            precision="fp32",
        )


def test_a_model_of_features_alone_is_cut_too() -> None:
    model = random_timm("test_resnet", classes=0)
    model = TimmModel(replace(model.config, num_classes=0)).eval()

    tokens = model.tokens_before(images(model), 2)

    assert torch.allclose(model.finish(tokens, 2), model.features(images(model)), atol=1e-5)


class Line(nn.Module):
    """A first layer, one block that is called any number of times, and a last layer."""

    def __init__(self, calls: int, *, has_first: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 1) if has_first else nn.Identity()
        self.block, self.last = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 2, 1)
        self.calls = calls
        watch_blocks(self, ("block",))

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.first(pixels)
        for _ in range(self.calls):
            x = self.block(x)
        return self.last(x).mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("net", "found"),
    [
        (Line(1), {"block", "last"}),
        (Line(1, has_first=False), {"block", "last"}),
        (Line(0), "the input to its blocks is not a single tensor"),
        (Line(2), "its blocks are called more than once per pass"),
    ],
)
@pytest.mark.parametrize("trained", [True, False])
def test_parameters_of_a_block_called_once_are_used_from_it_on(
    net: Line, found: set[str] | str, trained: bool
) -> None:
    net.requires_grad_(trained)

    after = parameters_after(net, net.block, torch.zeros(2, 3, 4, 4))

    names = {f"{n}.{leaf}" for n in found for leaf in ("weight", "bias")}
    assert after == (found if isinstance(found, str) else names)
    assert all(p.requires_grad is trained and p.grad is None for p in net.parameters())
    assert VISIT.get() is None
