"""The torch engine: one prediction per image, in order."""

from pathlib import Path

import pytest
import torch

from vitft.data import EvalTransform
from vitft.models import Card, VisionTransformer
from vitft.predict import Predictor, gap_change


@pytest.fixture
def predictor(tiny_vit: VisionTransformer) -> Predictor:
    tiny_vit.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    card = Card(
        architecture=tiny_vit.config,
        transform=EvalTransform(image_size=(16, 16)),
        classes=("blue", "green", "red"),
    )
    return Predictor(tiny_vit, card, device="cpu")


def test_a_prediction_does_not_depend_on_the_other_images(
    predictor: Predictor, image_folder: Path
) -> None:
    paths = sorted(str(p) for p in image_folder.rglob("*.png"))

    together = list(predictor.stream(paths, top_k=3))
    alone = [next(iter(predictor.stream([path], top_k=3))) for path in paths]

    for a, b in zip(together, alone, strict=True):
        assert a.classes == b.classes
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-6)


def test_the_change_of_a_gap_is_that_of_a_random_change_of_the_features(
    predictor: Predictor,
) -> None:
    random = torch.Generator().manual_seed(0)
    features = torch.randn(1, 32, generator=random)
    pairs = torch.tensor([[2, 0]])
    noise = torch.randn(20_000, 32, generator=random)
    noise *= features.norm() / noise.norm(dim=1, keepdim=True)

    expected = gap_change(predictor.model, features, pairs).item()
    logits = predictor.model.classify(features + noise) - predictor.model.classify(features)
    gaps = logits[:, 2] - logits[:, 0]

    assert gaps.square().mean().sqrt().item() == pytest.approx(expected, rel=0.03)
