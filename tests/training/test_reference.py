"""Every kind of run can note images unlike its training images, or says that it cannot."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import vitft
from tests.conftest import draw_folder
from tests.models.test_timm_model import random_model, saved
from tests.support.training_data import data_set, pooled_inputs, row
from tests.training.test_run import run_it
from vitft.api import Trained
from vitft.features.cut import Cut, Prefix, cut_model
from vitft.features.reference import REFERENCE_FILE, Features, power_text
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.predict.torch_engine import Predictor
from vitft.report.run_page import write_report
from vitft.system.rundir import RunDir
from vitft.training import reference as module

NOTE = "unlike the training images"
KINDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("head", {}, {}),
    ("pre_logits", {"pre_logits": "keep"}, {}),
    ("blocks:1", {}, {}),
    ("lora", {}, {"lora_rank": 2}),
    ("none", {}, {}),
    ("head,none", {}, {}),
    ("none", {"name": "none"}, {}),
]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three colours of 40 images each."""
    return draw_folder(tmp_path_factory.mktemp("many") / "colours", per_class=40)


def both_features(model: Trained, images: list[str]) -> tuple[Features, Features]:
    """Return the features and the intermediate features of images."""
    assert isinstance(model.engine, Predictor)
    views = [model.engine.view(Path(image).read_bytes(), image) for image in images]
    scores = model.engine.scores(np.stack(views))
    return scores.features, scores.intermediate


def train(data: Path, weights: Path, out: Path, stages: str, /, **more: Any) -> dict[str, Any]:
    """Train for an epoch and return audit.json."""
    optim = {"solver": "lbfgs"} if stages == "head" else {"epochs": 1}
    settings = {"optim": optim, "train": {"freeze": stages, "cache": str(out.parent / "cache")}}
    for section, values in more.items():
        settings.setdefault(section, {}).update(values)
    run_it(data, weights, out, **settings)
    audit: dict[str, Any] = json.loads((out / "audit.json").read_text())
    return audit


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
    train(many, tiny_weights, tmp_path / "run", "head,none", **lr)

    model = vitft.load(tmp_path / "run", device="cpu")
    assert model.postprocess.reference is not None
    images = sorted(str(path) for path in many.rglob("*.png"))
    features, more = both_features(model, images)
    assert model.features(images) == pytest.approx(features, abs=1e-5)
    reference = model.postprocess.reference
    assert reference.intermediate is not None
    for found, kind in ((reference, features), (reference.intermediate, more)):
        assert found.centre == pytest.approx(kind.mean(axis=0), abs=0.05 * float(kind.std()))


@pytest.mark.parametrize(
    ("depth", "read", "frozen", "expected"),
    [
        (12, 1, None, 9),
        (24, 1, None, 18),
        (12, 1, 10, 10),  # the output of the frozen blocks
        (12, 6, None, 6),  # the head reads blocks 7 to 12
        (2, 1, None, 1),
        (1, 1, None, 0),
        (3, 3, None, 0),
        (12, 1, 12, 0),  # only the head was trained
    ],
)
def test_the_intermediate_feature_comes_after_three_quarters_of_the_blocks(
    depth: int, read: int, frozen: int | None, expected: int
) -> None:
    config = ViTConfig(
        image_size=(4, 4), patch_size=(4, 4), width=4, heads=1, depth=depth, read_blocks=read
    )
    model = VisionTransformer(config)
    cut = cut_model(model, "none") if frozen is None else Cut(Prefix(model, frozen), nn.Identity())

    assert module.intermediate_blocks(cut, model) == expected


def test_a_timm_model_has_no_intermediate_feature() -> None:
    model = random_model()

    assert module.intermediate_blocks(cut_model(model, "none"), model) == 0


def test_features_are_computed_for_a_sample_of_the_images_only(
    many: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPUTED_IMAGES", 24)

    audit = train(many, tiny_weights, tmp_path / "run", "none")

    assert audit["out_of_distribution"]["images"] == 24 + 24
    head = train(many, tiny_weights, tmp_path / "head", "head")
    assert head["out_of_distribution"]["images"] == 120


def test_a_run_without_the_note_says_so_everywhere(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="vitft")

    audit = train(image_folder, tiny_weights, tmp_path / "run", "none")

    reason = "too few held-out images (6 of the 20 needed)"
    assert audit["out_of_distribution"]["reason"] == reason
    assert f"no images will be flagged as unlike the training images: {reason}" in caplog.text
    assert not (tmp_path / "run" / REFERENCE_FILE).exists()
    model = vitft.load(tmp_path / "run", device="cpu")
    assert "no images are flagged as unlike the training images" in model.postprocess.describe()
    page = write_report(tmp_path / "run").read_text()
    assert f"does not flag images that are unlike the training images: {reason}." in page


@pytest.mark.parametrize(("freeze", "is_trained"), [("head", False), ("none", True)])
def test_the_power_is_logged_and_for_frozen_features_stated_with_every_prediction(
    many: Path,
    tiny_weights: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    freeze: str,
    is_trained: bool,
) -> None:
    caplog.set_level(logging.DEBUG, logger="vitft")

    audit = train(many, tiny_weights, tmp_path / "run", freeze)

    power = power_text(audit["out_of_distribution"]["unknown_class_range"])
    assert f"of new images; {power}" in caplog.text
    assert ("flagged as unlike the training images: at least" in caplog.text) == is_trained
    too_high = "may be too high, because the features were trained on these classes"
    assert (too_high in caplog.text) == is_trained
    assert (too_high in write_report(tmp_path / "run").read_text()) == is_trained
    described = vitft.load(tmp_path / "run", device="cpu").postprocess.describe()
    assert described.endswith(power) == (not is_trained)


@pytest.mark.parametrize("stages", ["head", "none"])
def test_a_timm_model_notes_foreign_images_too(many: Path, tmp_path: Path, stages: str) -> None:
    weights = saved(tmp_path / "w.safetensors", random_model())

    audit = train(many, weights, tmp_path / "run", stages)

    assert audit["out_of_distribution"]["reason"] is None
    model = vitft.load(tmp_path / "run", device="cpu")
    assert model.postprocess.reference is not None
    features = model.features(sorted(str(path) for path in many.rglob("*.png")))
    assert np.mean(model.postprocess.reference.are_unlike(features)) < 0.1
    assert all(model.postprocess.reference.are_unlike(features[:9] + 50 * features.std()))


@pytest.mark.parametrize(
    ("pooled", "training", "sampled"),
    [(True, 20_000, 20_000), (True, 20_001, 10_001), (False, 2_000, 2_000), (False, 2_001, 1_001)],
)
def test_at_most_20000_cached_or_2000_computed_images_are_sampled_from_each_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooled: bool, training: int, sampled: int
) -> None:
    rows = [row(str(i), 0) for i in range(training)] + [row("v", 0, "val")]
    inputs = pooled_inputs(data_set(rows), {})
    if not pooled:
        inputs = replace(inputs, cut=inputs.cut._replace(prefix=None))
    seen: list[Any] = []

    def fit(x: Any, labels: Any, held_out: Any, groups: Any, *, trained: bool, **_: Any) -> Any:
        seen.append((len(x), len(labels), len(groups), held_out.tolist(), trained))
        return None, {"reason": "none"}

    monkeypatch.setattr(module, "reference_features", lambda *given: (given[2], None, 0))
    monkeypatch.setattr(module, "fit_reference", fit)
    run: Any = RunDir(tmp_path)
    (tmp_path / REFERENCE_FILE).write_bytes(b"of an earlier attempt")

    for frozen in (False, True):
        module.write_reference(run, inputs, None, frozen=frozen, seed=0)  # type: ignore[arg-type]

    for (images, labels, groups, held_out, trained), frozen in zip(
        seen, (False, True), strict=True
    ):
        assert images == labels == groups == sampled + 1  # and the validation image
        assert held_out == [frozen] * sampled + [True]
        assert trained is not frozen
    assert not (tmp_path / REFERENCE_FILE).exists()


def test_a_process_that_does_not_write_leaves_an_earlier_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "reference_features", lambda *_: (np.zeros((1, 2)), None, 0))
    monkeypatch.setattr(module, "fit_reference", lambda *_, **__: (None, {"reason": "none"}))
    (tmp_path / REFERENCE_FILE).write_bytes(b"earlier")
    inputs = pooled_inputs(data_set([row("t", 0)]), {})

    module.write_reference(
        RunDir(tmp_path, writes=False),
        inputs,
        None,  # type: ignore[arg-type]
        frozen=True,
        seed=0,
    )

    assert (tmp_path / REFERENCE_FILE).exists()


OOD: Any = {
    "images": 90, "held_out": 90, "reason": None, "false_alarms": 0.013,
    "unknown_class_range": (0.1, 0.7), "classes_left_out": 1, "features_trained": False,
}  # fmt: skip


def test_the_log_says_how_reliable_the_notes_are() -> None:
    text = "flagged as unlike the training images: 1% of new images"
    power = "of images of similar classes, 10% to 70% are flagged, depending on the class"
    more = " (1 class left out in turn)"

    assert module.describe_reference(OOD) == f"{text}; {power}{more}"
    trained = module.describe_reference(OOD | {"features_trained": True})
    assert trained.endswith(
        f"{power}{more}, which may be too high, because the features were trained on these classes"
    )
    assert module.describe_reference(OOD | {"unknown_class_range": None}) == text
    assert module.describe_reference(OOD | {"reason": "too few images"}) == (
        "no images will be flagged as unlike the training images: too few images"
    )
