"""Every kind of run can note images unlike its training images, or says that it cannot."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitft
from tests.conftest import draw_folder
from tests.models.test_timm_model import random_model, saved
from tests.training.test_run import run_it
from vitft import Trained
from vitft.predict import Predictor
from vitft.report import write_report

NOTE = "unlike the training images"
KINDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("head", {}, {}),
    ("pre_logits", {"pre_logits": "keep"}, {}),
    ("blocks:1", {}, {}),
    ("lora", {}, {"lora_rank": 2}),
    ("all", {}, {}),
    ("head,all", {}, {}),
    ("all", {"name": "none"}, {}),
]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three colours of 40 images each."""
    return draw_folder(tmp_path_factory.mktemp("many") / "colours", per_class=40)


def both_features(model: Trained, images: list[str]) -> tuple[Any, Any]:
    """Return the features and the intermediate features of images."""
    assert isinstance(model.engine, Predictor)
    views = [model.engine.view(Path(image).read_bytes(), image) for image in images]
    scores = model.engine.scores(np.stack(views))
    return scores.features, scores.intermediate


def train(data: Path, weights: Path, out: Path, stages: str, /, **more: Any) -> dict[str, Any]:
    """Train for an epoch and return audit.json."""
    optim = {"solver": "lbfgs"} if stages == "head" else {"epochs": 1}
    settings = {"optim": optim, "train": {"layers": stages, "cache": str(out.parent / "cache")}}
    for section, values in more.items():
        settings.setdefault(section, {}).update(values)
    run_it(data, weights, out, **settings)
    audit: dict[str, Any] = json.loads((out / "audit.json").read_text())
    return audit


@pytest.mark.long
@pytest.mark.parametrize(
    ("stages", "weights", "more"), KINDS, ids=[f"{k[0]} {k[1].get('name', '')}" for k in KINDS]
)
def test_every_kind_of_run_notes_foreign_images_and_reports_its_power(
    many: Path,
    tiny_weights: Path,
    tmp_path: Path,
    stages: str,
    weights: dict[str, Any],
    more: dict[str, Any],
) -> None:
    image_size = {"image_size": [16, 16]}
    audit = train(
        many, tiny_weights, tmp_path / "run", stages, weights=weights | image_size, train=more
    )

    found = audit["out_of_distribution"]
    frozen = stages in ("head", "pre_logits")
    assert found["reason"] is None
    assert found["features_trained"] is not frozen
    assert found["images"] == 120
    assert found["held_out"] == (120 if frozen else 24)
    assert 0 <= found["unknown_class_range"][0] <= found["unknown_class_range"][1] <= 1
    model = vitft.load(tmp_path / "run", device="cpu")
    reference = model.postprocess.reference
    assert reference is not None
    known = sorted(str(path) for path in many.rglob("*.png"))
    noted = [NOTE in answer.notes for answer in model.predict(known)]
    assert np.mean(noted) < 0.1
    assert (reference.intermediate is None) is frozen
    assert (reference.intermediate_blocks == 0) is frozen
    features, intermediate = both_features(model, known)
    assert reference.are_unlike(features, intermediate) == noted
    features[:20] += 50 * features.std()
    assert all(reference.are_unlike(features[:20], intermediate[:20]))
    page = write_report(tmp_path / "run").read_text()
    assert "not fully reliable. When 3 classes were left out" in page


def test_the_reference_describes_the_features_of_the_trained_model(
    many: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    lr = {"optim": {"lr": 3e-2}}
    train(many, tiny_weights, tmp_path / "run", "head,all", **lr)

    model = vitft.load(tmp_path / "run", device="cpu")
    assert model.postprocess.reference is not None
    images = sorted(str(path) for path in many.rglob("*.png"))
    features, more = both_features(model, images)
    assert model.features(images) == pytest.approx(features, abs=1e-5)
    reference = model.postprocess.reference
    assert reference.intermediate is not None
    for found, kind in ((reference, features), (reference.intermediate, more)):
        assert found.centre == pytest.approx(kind.mean(axis=0), abs=0.05 * float(kind.std()))


@pytest.mark.parametrize("stages", ["head", "all"])
def test_a_timm_model_notes_foreign_images_too(many: Path, tmp_path: Path, stages: str) -> None:
    weights = saved(tmp_path / "w.safetensors", random_model())

    audit = train(many, weights, tmp_path / "run", stages)

    assert audit["out_of_distribution"]["reason"] is None
    model = vitft.load(tmp_path / "run", device="cpu")
    assert model.postprocess.reference is not None
    features = model.features(sorted(str(path) for path in many.rglob("*.png")))
    assert np.mean(model.postprocess.reference.are_unlike(features)) < 0.1
    assert all(model.postprocess.reference.are_unlike(features[:9] + 50 * features.std()))
