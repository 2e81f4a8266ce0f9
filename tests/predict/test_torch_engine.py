"""The torch engine: one prediction per image, in order."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vitft.data.sources import expand
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.timm_config import TimmConfig
from vitft.models.timm_model import TimmModel
from vitft.models.vit import VisionTransformer
from vitft.predict import torch_engine
from vitft.predict.torch_engine import Predictor, prediction_precision
from vitft.system.errors import DataError, RunError


@pytest.fixture
def predictor(tiny_vit: VisionTransformer) -> Predictor:
    tiny_vit.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    card = Card(
        architecture=tiny_vit.config,
        transform=EvalTransform(image_size=(16, 16)),
        classes=("blue", "green", "red"),
    )
    return Predictor(tiny_vit, card, device="cpu")


def test_every_input_has_one_prediction_in_order(predictor: Predictor, image_folder: Path) -> None:
    paths = sorted(str(p) for p in image_folder.rglob("*.png"))

    answers = list(predictor.stream(paths, top_k=2))

    assert [a.path for a in answers] == paths
    assert all(len(a.classes) == 2 and not a.error for a in answers)
    assert all(a.probabilities[0] >= a.probabilities[1] for a in answers)


def test_an_unreadable_file_gets_an_error_and_the_others_their_own_prediction(
    predictor: Predictor, image_folder: Path
) -> None:
    good = sorted(str(p) for p in image_folder.rglob("*.png"))
    (image_folder / "page.jpg").write_text("<html>")
    bad = str(image_folder / "page.jpg")
    alone = {a.path: a.classes for a in predictor.stream(good)}

    mixed = list(predictor.stream([bad, *good[:17], bad, *good[17:], "missing.jpg"]))

    assert [bool(a.error) for a in mixed].count(True) == 3
    assert [a.path for a in mixed if a.error] == [bad, bad, "missing.jpg"]
    assert all(a.classes == alone[a.path] for a in mixed if not a.error)


def test_a_prediction_does_not_depend_on_the_other_images(
    predictor: Predictor, image_folder: Path
) -> None:
    paths = sorted(str(p) for p in image_folder.rglob("*.png"))

    together = list(predictor.stream(paths, top_k=3))
    alone = [next(iter(predictor.stream([path], top_k=3))) for path in paths]

    for a, b in zip(together, alone, strict=True):
        assert a.classes == b.classes
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-6)


def test_more_classes_than_there_are_gives_all(predictor: Predictor, image_folder: Path) -> None:
    (answer,) = predictor.stream([str(image_folder / "red" / "000.png")], top_k=9)

    assert set(answer.classes) == {"blue", "green", "red"}
    assert sum(answer.probabilities) == pytest.approx(1)


def test_folders_become_their_images_sorted(image_folder: Path) -> None:
    files = list(expand([str(image_folder / "red"), "single.jpg"]))

    assert files[0].endswith("red/000.png")
    assert files[-1] == "single.jpg"
    assert len(files) == 11
    assert len(list(expand([str(image_folder)]))) == 30


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images in"):
        list(expand([str(tmp_path)]))


def test_a_backbone_without_classes_is_refused(tiny_weights: Path) -> None:
    with pytest.raises(RunError, match="backbone without classes"):
        Predictor.from_run(str(tiny_weights))


def test_auto_is_bf16_where_that_is_faster_and_close_calls_are_found(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, card = torch.device("cpu"), predictor.card
    several = replace(card, thresholds=(0.5, 0.5, 0.5))
    timm = TimmModel(TimmConfig(timm="test_vit", image_size=(160, 160), num_classes=3))
    monkeypatch.setattr(torch_engine, "pick_precision", lambda *_: "bf16")

    assert prediction_precision(predictor.model, card, cpu) == "bf16"
    assert prediction_precision(predictor.model, several, cpu) == "fp32"
    assert prediction_precision(timm, card, cpu) == "fp32"
    assert Predictor(predictor.model, card, device="cpu", precision="auto").bf16_prefix is not None
    monkeypatch.setattr(torch_engine, "pick_precision", lambda *_: "fp32")
    assert Predictor(predictor.model, card, device="cpu", precision="auto").bf16_prefix is None


def test_a_model_with_a_large_error_in_bf16_settles_more_images_in_float32(
    predictor: Predictor, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = np.stack([predictor.view(p.read_bytes(), "") for p in image_folder.rglob("*.png")])
    exact = predictor.scores(views).logits
    rough = Predictor(predictor.model, predictor.card, device="cpu", precision="bf16")
    assert rough.bf16_prefix is not None
    assert 0 < rough.probe_error(rough.bf16_prefix) < 0.1
    changed = np.abs(rough.scores(views).logits - exact).max(axis=1)
    monkeypatch.setattr(Predictor, "probe_error", lambda *_: 100.0)

    careful = Predictor(predictor.model, predictor.card, device="cpu", precision="bf16")

    assert (changed > 1e-5).any()
    assert np.abs(careful.scores(views).logits - exact).max() < 1e-5
