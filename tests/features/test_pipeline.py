"""Disk space of cached tokens; the number of blocks that a head may read by default."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from vitft.config.sections import TrainSpec
from vitft.data.transforms import EvalTransform, eval_view
from vitft.features.cut import cut_model
from vitft.features.extract import Extractor
from vitft.features.pipeline import blocks_to_read, check_disk_space
from vitft.models.registry import create_model
from vitft.models.vit import VisionTransformer
from vitft.system.errors import ResourceError

VIEW = eval_view(EvalTransform(image_size=(16, 16)))


class Disk(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


def extractor_of(model: VisionTransformer, folder: Path, freeze: str) -> Extractor:
    prefix = cut_model(model, freeze).prefix
    assert prefix is not None
    return Extractor(prefix, folder=folder, precision="bf16", max_pixels=10**6)


def test_the_size_of_the_tokens_is_logged_first(
    tiny_vit: VisionTransformer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extractor = extractor_of(tiny_vit, tmp_path, "blocks:1")
    tokens, width = extractor.prefix.shape

    check_disk_space(extractor, VIEW, images=1000)

    said = " ".join(capsys.readouterr().err.split())
    assert f"(1,000 images x {tokens} tokens x {width} values x 2 bytes)" in said


def test_tokens_that_do_not_fit_on_the_disk_are_refused_first(
    tiny_vit: VisionTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extractor = extractor_of(tiny_vit, tmp_path, "blocks:1")
    tokens, width = extractor.prefix.shape
    room = 1000 * tokens * width * 2
    free = [room]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10 * room, 0, free[0]))

    check_disk_space(extractor, VIEW, images=1000)  # it just fits
    free[0] = room - 1
    with pytest.raises(ResourceError, match=r"(?s)1,000 images .* free.*fix: .*--cache DIR"):
        check_disk_space(extractor, VIEW, images=1000)


def test_cached_tokens_need_no_space(
    tiny_vit: VisionTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extractor = extractor_of(tiny_vit, tmp_path, "blocks:1")
    store = extractor.store(VIEW)
    store.places.update({bytes([i]): (0, i) for i in range(3)})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(1, 1, 0))

    check_disk_space(extractor, VIEW, images=3)
    with pytest.raises(ResourceError):
        check_disk_space(extractor, VIEW, images=4)


def test_one_feature_per_image_is_not_logged(
    tiny_vit: VisionTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(1, 1, 0))

    check_disk_space(extractor_of(tiny_vit, tmp_path, "head"), VIEW, images=1000)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "options", "blocks"),
    [
        pytest.param("vit_tiny_patch16_224", {}, 6, id="tiny"),
        pytest.param("vit_small_patch16_224", {}, 4, id="small"),
        pytest.param("vit_base_patch16_224", {}, 2, id="base"),
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
