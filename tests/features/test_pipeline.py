"""Loading and cutting of a model, the pass over its images, and the disk space of its tokens."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from vitft.config import TrainSpec
from vitft.features import blocks_to_read
from vitft.models import TimmConfig, TimmModel, create_model
from vitft.system import UsageError


@pytest.mark.parametrize(
    ("name", "options", "blocks"),
    [
        pytest.param("vit_tiny_patch16_224", {}, 6, id="tiny"),
        pytest.param("vit_small_patch16_224", {}, 4, id="small"),
        pytest.param("vit_base_patch16_224", {}, 2, id="base"),
        pytest.param("vit_large_patch16_224", {}, 2, id="large"),
        pytest.param("vit_huge_patch14_224", {}, 1, id="huge"),
        pytest.param("vit_base_patch16_224", {"pool": "mean"}, 4, id="one token per block"),
        pytest.param("vit_base_patch16_224", {"pool": "map"}, 1, id="attention pooling"),
        pytest.param("vit_tiny_patch16_224", {"depth": 3}, 3, id="only three blocks"),
    ],
)
def test_a_head_may_read_fewer_blocks_of_a_wider_model(
    name: str, options: dict[str, Any], blocks: int
) -> None:
    with torch.device("meta"):
        model = create_model(name, **options)

    assert blocks_to_read(model, TrainSpec(), images=1_000) == blocks


def test_a_head_reads_one_block_if_the_features_of_several_take_too_much_memory() -> None:
    with torch.device("meta"):
        model = create_model("vit_tiny_patch16_224")
    dimensions = replace(model.config, read_blocks=6).feature_size
    views, most = 3, 10**8  # values: 400 MB

    images = most // ((1 + views) * dimensions)

    assert blocks_to_read(model, TrainSpec(views=views), images=images) == 6
    assert blocks_to_read(model, TrainSpec(views=views), images=images + 1) == 1
    assert blocks_to_read(model, TrainSpec(views=views, head_blocks=2), images=images + 1) == 2


def timm_vit_of(image_size: int = 160) -> TimmModel:
    return TimmModel(TimmConfig(timm="test_vit", image_size=(image_size, image_size)))


def test_a_head_on_a_timm_model_reads_one_block() -> None:
    model = timm_vit_of()

    assert blocks_to_read(model, TrainSpec(head_blocks=1), images=10) == 1
    assert blocks_to_read(model, TrainSpec(), images=10) == 1
    with pytest.raises(UsageError, match="head_blocks=2 needs vitft"):
        blocks_to_read(model, TrainSpec(head_blocks=2), images=10)
