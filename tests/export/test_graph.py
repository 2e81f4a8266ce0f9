"""Parts of exported graphs: bytes and grey levels inside the graph, its description, and errors."""

import numpy as np
import torch
from PIL import Image

from vitft.export import (
    to_grey,
)


def test_a_graph_converts_colours_to_grey_exactly_as_pillow() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (400, 300, 3), dtype=np.uint8)
    colours[0, :7] = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0] * 3, [1] * 3,
                      [128] * 3]  # fmt: skip
    planes = torch.from_numpy(colours).permute(2, 0, 1)[None].float()

    found = to_grey(planes)

    expected = np.asarray(Image.fromarray(colours).convert("L"))
    assert found.shape == (1, 1, 400, 300)
    assert (found[0, 0].numpy() == expected).all()
