"""A run directory made by hand: a random model, its card, drawn images and their split."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import one_hot

from tests.conftest import tiny
from vitft.data import EvalTransform, Images, Row
from vitft.metrics import Outputs, classification_metrics
from vitft.models import (
    Card,
    Provenance,
    TimmConfig,
    TimmModel,
    VisionTransformer,
    ViTConfig,
    save_checkpoint,
)

SHAPES = ((20, 23), (31, 20), (20, 20), (64, 40), (17, 90), (25, 26))
"""Width and height of the images; some leave an odd rest around the centre."""


def make_run(
    root: Path,
    *,
    config: ViTConfig | TimmConfig | None = None,
    classes: Sequence[str] = ("blue", "green", "red"),
    weights: Provenance | None = None,
    **transform: Any,
) -> Path:
    """`root/run` and, beside it, `root/photos` with two validation images of each class."""
    torch.manual_seed(0)
    config = config or tiny(len(classes))
    model: VisionTransformer | TimmModel = (
        TimmModel(config) if isinstance(config, TimmConfig) else VisionTransformer(config)
    ).eval()
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("head", "gamma", "token", "fc.weight", "bias")):
            parameter.data.normal_()
    run, data = root / "run", root / "photos"
    run.mkdir(parents=True)
    draw_photos(data, classes).write(run / "split.csv")
    card = Card(
        architecture=config,
        transform=EvalTransform(image_size=config.image_size, **transform),
        classes=tuple(classes),
        weights=weights or {"name": "noise", "source": str(root / "noise.safetensors")},
        split=hashlib.sha256((run / "split.csv").read_bytes()).hexdigest(),
    )
    save_checkpoint(run / "model.safetensors", model.state_dict(), card)
    (run / "config.toml").write_text(f"[data]\npath = {json.dumps(str(data))}\n")
    (run / "eval.json").write_text(json.dumps(figures(classes)))
    return run


def draw_photos(data: Path, classes: Sequence[str]) -> Images:
    """Noise in several shapes, one image to train and two to validate per class."""
    random = np.random.default_rng(0)
    rows = []
    for label in range(len(classes)):
        folder = data / str(label)
        folder.mkdir(parents=True)
        for i in range(3):
            width, height = SHAPES[(3 * label + i) % len(SHAPES)]
            coarse = random.integers(0, 256, (6, 7, 3), dtype=np.uint8)
            path = folder / f"{i}.png"
            Image.fromarray(coarse).resize((width, height)).save(path)
            split: Literal["train", "val"] = "val" if i else "train"
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            rows.append(Row(f"{label}/{i}.png", label, split, digest))
    return Images(data, tuple(classes), tuple(rows))


def figures(classes: Sequence[str]) -> dict[str, Any]:
    """An eval.json: of each class, one image is right and one is taken for the next class."""
    size = len(classes)
    truth = torch.arange(size).repeat_interleave(2)
    logits = one_hot((truth + torch.tensor([0, 1] * size)) % size, size).float()
    return {
        **classification_metrics(logits, truth, Outputs.of(classes)),
        "epochs": 3,
        "best_epoch": 2,
        "selected_on_validation": True,
    }
