"""Parts of exported graphs: bytes and grey levels inside the graph, its description, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.export_run import make_run, tiny
from vitft.export import (
    NormalisingModel,
    TrainedRun,
    describe_graph,
    example_of,
    load_trained,
    to_grey,
)


@pytest.fixture
def grey(tmp_path: Path) -> TrainedRun:
    config = tiny(3, in_channels=1)
    return load_trained(str(make_run(tmp_path, config=config, mean=(0.4,), std=(0.2,))))


def test_a_graph_converts_colours_to_grey_exactly_as_pillow() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (400, 300, 3), dtype=np.uint8)
    colours[0, :7] = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0] * 3, [1] * 3,
                      [128] * 3]  # fmt: skip
    planes = torch.from_numpy(colours).permute(2, 0, 1)[None].float()

    found = to_grey(planes)

    expected = np.asarray(Image.fromarray(colours).convert("L"))
    assert found.shape == (1, 1, 400, 300)
    assert (found[0, 0].numpy() == expected).all()


def test_a_grey_graph_takes_one_channel_or_bytes_of_three(grey: TrainedRun) -> None:
    layout = json.loads(describe_graph(grey, takes_bytes=False))["input"]["layout"]
    plain, pixels = example_of(grey, takes_bytes=False)
    normalising, colours = example_of(grey, takes_bytes=True)

    assert layout == (
        "float32 (batch, 1, 16, 16): greyscale, (value / 255 - mean) / std per channel"
    )
    assert plain is grey.model
    assert (pixels.dtype, tuple(pixels.shape)) == (torch.float32, (2, 1, 16, 16))
    assert isinstance(normalising, NormalisingModel)
    assert not normalising.training
    assert (colours.dtype, tuple(colours.shape)) == (torch.uint8, (2, 16, 16, 3))
    with torch.inference_mode():
        assert normalising(colours).shape == plain(pixels).shape == (2, 3)
