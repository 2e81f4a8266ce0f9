"""Batches of a stage, from cached features, images in memory and files."""

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
from vitft.training import (
    Dataset,
    ProcessGroup,
    StageInputs,
    epoch_order,
    epoch_size,
    evaluation_batches,
    training_batches,
    training_crop,
    view_key,
)

TRANSFORM = EvalTransform(image_size=(8, 8), interpolation="bilinear", mean=(0.5,), std=(0.25,))
ROWS = [row(name, i % 2) for i, name in enumerate("abcdefg")]


def cut_of(*, prefix: bool, pooled: bool = False) -> Cut:
    found: Any = SimpleNamespace(pooled=pooled) if prefix else None
    return Cut(found, nn.Identity())


@pytest.mark.parametrize(("sampling", "size"), [("shuffled", 7), ("balanced", 6)])
def test_an_epoch_has_every_image_or_as_many_of_each_class(sampling: str, size: int) -> None:
    train = TrainSpec(layers="all", sampling=sampling, seed=3)  # type: ignore[arg-type]

    order = epoch_order(ROWS, train, 0)

    assert epoch_size(ROWS, train) == len(order) == size
    labels = [ROWS[i].label for i in order.tolist()]
    assert labels.count(1) == 3
    assert epoch_order(ROWS, train, 0).tolist() == order.tolist()
    assert epoch_order(ROWS, train, 1).tolist() != order.tolist()
    assert epoch_order(ROWS, replace(train, seed=4), 0).tolist() != order.tolist()


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


def expected_inputs(data: Dataset, names: Sequence[str], train: TrainSpec | None = None) -> Tensor:
    """Return normalised views of the images at `names`, cropped with keys if `train` is given."""
    views = []
    for name in names:
        path, _, key = name.partition("|")
        image = Image.open(data.manifest.root / path).convert("RGB")
        if train is None:
            views.append(data.transform.pixels(image))
        else:
            views.append(training_crop(data.transform, train).pixels(image, key=key))
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

    decoded = list(evaluation_batches(from_files(data), rows))
    kept = list(evaluation_batches(replace(from_files(data), images=table), rows))

    for batches in (decoded, kept):
        torch.testing.assert_close(torch.cat([b.inputs for b in batches]), expected)
        assert torch.cat([b.labels for b in batches]).tolist() == [one.label for one in rows]


def test_each_use_of_an_image_in_an_epoch_has_its_own_crop(folder: Path) -> None:
    data = stored(folder)  # three blue and green images each, and one red
    train = TrainSpec(layers="all", augment="crop", sampling="balanced")
    batches = training_batches(train, OptimSpec(batch_size=8), from_files(data))

    (found,) = batches(0, 0)

    paths = [data.manifest.train[i].path for i in epoch_order(data.manifest.train, train, 0)]
    seen: dict[str, int] = {}
    names = []
    for path in paths:
        times = seen[path] = seen.get(path, -1) + 1
        names.append(f"{path}|0/0/{path}" + f"/{times}" * (times > 0))
    assert max(seen.values()) == 1
    torch.testing.assert_close(found.inputs, expected_inputs(data, names, train))
    assert view_key("1/2", ROWS[0], 0) == "1/2/a"
    assert view_key("1/2", ROWS[0], 1) == "1/2/a/1"
