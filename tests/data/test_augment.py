"""Augmentation beyond crop and flip."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import v2

from vitft.config import TrainSpec
from vitft.data import CropTransform, batch_augmentation
from vitft.training import seed_everything

NOISE = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
PIXELS = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def test_rand_augment_is_drawn_by_the_key_alone_in_any_thread() -> None:
    crop = CropTransform(image_size=(16, 16), rand=True)
    keys = [f"0/{i}" for i in range(24)]

    def view(key: str) -> bytes:
        return crop.pixels(Image.fromarray(NOISE), key=key).tobytes()

    alone = [view(key) for key in keys]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(view, keys))

    assert together == alone
    assert len({*alone}) == len(keys)


@pytest.mark.parametrize(
    "spec",
    [
        TrainSpec(layers="all", mixup=0.4),
        TrainSpec(layers="all", cutmix=1.0),
        TrainSpec(layers="all", mixup=0.4, cutmix=1.0, erasing=0.5),
    ],
    ids=["mixup", "cutmix", "all"],
)
def test_mixing_is_drawn_by_the_seed_and_labels_stay_shares(spec: TrainSpec) -> None:
    change = batch_augmentation(spec, 3)
    assert change is not None
    before = PIXELS.clone()

    results = []
    for seed in (1, 1, 2):
        seed_everything(0, seed)
        results.append(change(PIXELS, LABELS))
    (first, shares), (again, _), (other, _) = results

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(PIXELS, before)
    assert shares.shape == (6, 3)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(6))


def test_erasing_changes_some_images_and_no_label() -> None:
    change = batch_augmentation(TrainSpec(layers="all", erasing=0.5), 3)
    assert change is not None
    seed_everything(0, 0)

    pixels, labels = change(PIXELS, LABELS)

    changed = (pixels != PIXELS).flatten(1).any(dim=1)
    assert 0 < int(changed.sum()) < 6
    assert torch.equal(labels, LABELS)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_mixing_is_that_of_torchvision_with_the_same_seed(name: str) -> None:
    kind = {"mixup": v2.MixUp, "cutmix": v2.CutMix}[name]
    change = batch_augmentation(TrainSpec(layers="all", **{name: 0.7}), 3)  # type: ignore[arg-type]
    assert change is not None
    for seed in range(4):
        seed_everything(0, seed)
        pixels, labels = change(PIXELS, LABELS)
        seed_everything(0, seed)
        expected, shares = kind(alpha=0.7, num_classes=3)(PIXELS, LABELS)

        assert torch.equal(pixels, expected)
        assert torch.equal(labels, shares)


def test_one_of_mixup_and_cutmix_is_drawn_for_each_batch() -> None:
    change = batch_augmentation(TrainSpec(layers="all", mixup=0.7, cutmix=0.7), 3)
    assert change is not None
    drawn = Counter[bool]()
    for seed in range(40):
        seed_everything(0, seed)
        pixels, _ = change(PIXELS, LABELS)
        drawn[bool(torch.isin(pixels, PIXELS).all())] += 1  # CutMix copies values, mixup blends

    assert min(drawn[True], drawn[False]) >= 10


def test_erasing_is_that_of_timm_with_the_same_seed() -> None:
    change = batch_augmentation(TrainSpec(layers="all", erasing=0.9), 3)
    assert change is not None
    seed_everything(0, 1)
    pixels, _ = change(PIXELS, LABELS)
    seed_everything(0, 1)

    assert torch.equal(pixels, RandomErasing(0.9, mode="pixel", device="cpu")(PIXELS.clone()))
