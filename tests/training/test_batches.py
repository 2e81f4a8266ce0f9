"""Batches of a stage, from cached features, images in memory and files."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.conftest import draw_folder
from tests.support.training_data import data_set, file_digest, pooled_inputs, row
from vitft.config import OptimSpec, TrainSpec
from vitft.data import EvalTransform
from vitft.features import Cut
from vitft.training import Dataset, ProcessGroup, StageInputs, epoch_order, training_batches

TRANSFORM = EvalTransform(image_size=(8, 8), interpolation="bilinear", mean=(0.5,), std=(0.25,))
ROWS = [row(name, i % 2) for i, name in enumerate("abcdefg")]


def cut_of(*, prefix: bool, pooled: bool = False) -> Cut:
    found: Any = SimpleNamespace(pooled=pooled) if prefix else None
    return Cut(found, nn.Identity())


def features_of(rows: Sequence[Any], views: Sequence[str]) -> dict[Any, Tensor]:
    """Return features (image, view) as pairs of numbers."""
    return {
        (one.sha256, view): torch.tensor([float(i), float(v)])
        for i, one in enumerate(rows)
        for v, view in enumerate(views)
    }


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2)])
def test_cached_features_of_each_epoch_are_those_of_the_next_view(rank: int, size: int) -> None:
    data = data_set([*ROWS, row("val", 0, "val")], group=ProcessGroup(rank, size))
    train = TrainSpec(views=1, seed=2)
    inputs = pooled_inputs(data, features_of(ROWS, ["plain", "crop 2 0"]))

    batches = training_batches(train, OptimSpec(batch_size=3), inputs)

    for epoch in range(3):
        order = epoch_order(ROWS, train, epoch).tolist()
        found = list(batches(epoch, 0))
        assert [batch.images for batch in found] == [3, 3, 1]
        for n, batch in enumerate(found):
            whole = order[3 * n : 3 * n + 3]
            each = -(-len(whole) // size)
            own = whole[rank * each : (rank + 1) * each]
            assert batch.inputs.tolist() == [[i, epoch % 2] for i in own]
            assert batch.labels.tolist() == [ROWS[i].label for i in own]
        later = list(batches(epoch, 2))
        assert [b.inputs.tolist() for b in later] == [found[2].inputs.tolist()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw_folder(tmp_path / "colours", per_class=3)


def stored(folder: Path, **more: Any) -> Dataset:
    """Return a data set of seven training images and two others in files."""
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.png"))]
    rows = [
        row(p, "bgr".index(p[0]), "train" if i < 7 else "val", sha256=file_digest(folder / p))
        for i, p in enumerate(paths)
    ]
    settings = {"transform": replace(TRANSFORM, mean=(0.5,) * 3, std=(0.25,) * 3)} | more
    return data_set(rows, root=folder, **settings)


def from_files(data: Dataset) -> StageInputs:
    return StageInputs(data=data, cut=cut_of(prefix=False), extractor=None)


def expected_inputs(data: Dataset, paths: Sequence[str]) -> Tensor:
    """Return normalised views of images."""
    opened = (Image.open(data.manifest.root / path).convert("RGB") for path in paths)
    views = [data.transform.pixels(image) for image in opened]
    pixels = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).float() / 255
    return (pixels - 0.5) / 0.25


@pytest.mark.parametrize("rank", [0, 1])
def test_every_process_evaluates_the_same_unaugmented_images_in_order(
    folder: Path, rank: int
) -> None:
    data = stored(folder, group=ProcessGroup(rank, 2))
    table = data_set(data.manifest.rows, root=folder, transform=data.transform).load_images()
    rows = data.manifest.rows[1:8]
    expected = expected_inputs(data, [one.path for one in rows])

    decoded = list(from_files(data).evaluation_batches(rows))
    kept = list(replace(from_files(data), images=table).evaluation_batches(rows))

    for batches in (decoded, kept):
        torch.testing.assert_close(torch.cat(batches), expected)


def test_each_use_of_an_image_in_an_epoch_has_its_own_crop(folder: Path) -> None:
    data = stored(folder)  # three blue and green images each, and one red
    train = TrainSpec(layers="all", augment="crop", sampling="balanced")
    batches = training_batches(train, OptimSpec(batch_size=8), from_files(data))

    (found,), (again,), (later,) = batches(0, 0), batches(0, 0), batches(1, 0)

    order = epoch_order(data.manifest.train, train, 0).tolist()
    assert found.labels.tolist() == [data.manifest.train[i].label for i in order]
    uses = Counter(order)
    assert max(uses.values()) == 2
    for image in uses:
        own = found.inputs[[i == image for i in order]]
        assert len({tuple(view.flatten().tolist()) for view in own}) == len(own)
    assert torch.equal(found.inputs, again.inputs)
    assert not torch.equal(found.inputs, later.inputs)
