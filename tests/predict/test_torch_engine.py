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
from vitft.predict.torch_engine import (
    Predictor,
    gap_change,
    local_device,
    prediction_precision,
)
from vitft.system.errors import DataError, RunError, UsageError


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


@pytest.mark.parametrize(
    ("device", "rank", "gpus", "found"),
    [
        ("auto", "", 4, "auto"),
        ("auto", "5", 4, "cuda:1"),
        ("auto", "1", 2, "cuda:1"),
        ("auto", "1", 1, "auto"),
        ("auto", "1", 0, "auto"),
        ("cpu", "1", 4, "cpu"),
        ("auto", "x", 4, "auto"),
    ],
)
def test_processes_of_a_job_have_a_gpu_each(
    monkeypatch: pytest.MonkeyPatch, device: str, rank: str, gpus: int, found: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    assert local_device(device) == found


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


@pytest.mark.parametrize(("factor", "is_close"), [(3.9, True), (4.1, False)])
def test_a_gap_of_less_than_four_typical_errors_is_a_close_call(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, factor: float, is_close: bool
) -> None:
    rough = Predictor(predictor.model, predictor.card, device="cpu", precision="bf16")
    assert rough.bf16_prefix is not None
    inputs = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    _, logits, _ = rough.bf16_scores(inputs, rough.bf16_prefix)
    best = logits.topk(2, dim=1).values
    typical = (best[:, 0] - best[:, 1]) / factor / rough.bf16_error
    monkeypatch.setattr(torch_engine, "gap_change", lambda *_: typical)

    _, _, close = rough.bf16_scores(inputs, rough.bf16_prefix)

    assert close.tolist() == [is_close] * 5


def test_a_predictor_on_a_cpu_scores_16_images_per_core(predictor: Predictor) -> None:
    assert (predictor.batch, predictor.in_workers, predictor.precision) == (16, True, "fp32")
    assert predictor.bf16_prefix is None
    assert (predictor.workers, predictor.feature_size) == (1, 32)
    torch.set_num_threads(2)
    with predictor.running():
        predictor.enter_worker()
        assert torch.get_num_threads() == 1
        predictor.in_workers = False
        torch.set_num_threads(2)
        predictor.enter_worker()
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
    assert torch.get_num_threads() == 2


def test_a_model_of_several_labels_is_not_computed_in_bf16(predictor: Predictor) -> None:
    several = replace(predictor.card, thresholds=(0.5, 0.5, 0.5))

    assert Predictor(predictor.model, several, device="cpu").thresholds == (0.5, 0.5, 0.5)
    with pytest.raises(UsageError, match="--dtype bf16"):
        Predictor(predictor.model, several, device="cpu", precision="bf16")


def test_scores_are_float32_in_the_order_of_the_images(predictor: Predictor) -> None:
    views = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), np.uint8)

    whole = predictor.scores(views)
    predictor.limit.images = 2
    parts = predictor.scores(views)

    assert (whole.logits.shape, whole.features.shape) == ((5, 3), (5, 32))
    assert whole.logits.dtype == whole.features.dtype == np.float32
    assert parts.logits == pytest.approx(whole.logits, abs=1e-5)
    assert parts.features == pytest.approx(whole.features, abs=1e-5)
