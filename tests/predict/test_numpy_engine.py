"""The NumPy engine: one image per core, and no scores from a damaged file."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vitft.data import EvalTransform
from vitft.models import Card, VisionTransformer, save_checkpoint
from vitft.predict import NumpyEngine, Predictor


@pytest.fixture
def model(tmp_path: Path, tiny_vit: VisionTransformer) -> Path:
    tiny_vit.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    card = Card(
        architecture=tiny_vit.config,
        transform=EvalTransform(image_size=(16, 16), mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1)),
        classes=("blue", "green", "red"),
    )
    save_checkpoint(tmp_path / "m.safetensors", tiny_vit.state_dict(), card)
    return tmp_path / "m.safetensors"


def opened(model: Path) -> NumpyEngine:
    engine = NumpyEngine.open(model)
    assert engine is not None
    return engine


VIEWS = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)


def test_scores_are_those_of_torch(model: Path) -> None:
    engine, exact = opened(model), Predictor.from_run(str(model), device="cpu")

    found, expected = engine.scores(VIEWS), exact.scores(VIEWS)

    assert found.logits == pytest.approx(expected.logits, abs=1e-4)
    assert found.features == pytest.approx(expected.features, abs=1e-4)
    assert engine.start([*VIEWS])().logits.tolist() == found.logits.tolist()
