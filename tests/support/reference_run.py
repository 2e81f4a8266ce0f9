"""A run directory of a random model that flags images unlike its training images."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.conftest import save_model
from vitft.features import fit_reference
from vitft.models import VisionTransformer
from vitft.predict import Predictor
from vitft.system import RunDir

CLASSES = ("blue", "green", "red")
FOREIGN = "unlike the training images"


def make_reference_run(
    folder: Path, model: VisionTransformer, classes: tuple[str, ...] = CLASSES
) -> Path:
    """Write `folder/run`, and images that it knows (0.png to 2.png) and does not (foreign.png)."""
    model.head.weight.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    run = folder / "run"
    save_model(run / "model.safetensors", model, classes)
    noise = np.random.default_rng(0).integers(0, 256, (50, 16, 16, 3), np.uint8)
    for i in range(3):
        Image.fromarray(noise[i]).save(folder / f"{i}.png")
    Image.new("RGB", (16, 16), (255, 0, 0)).save(folder / "foreign.png")
    features = Predictor.from_run(str(run), device="cpu").scores(noise).features
    every = np.ones(50, np.bool_)
    reference, _ = fit_reference(features, np.arange(50) % 2, every, np.arange(50), trained=False)
    assert reference is not None
    RunDir(run).write_arrays("reference.npz", **reference.arrays())
    return run
