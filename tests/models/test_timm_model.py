"""timm models behind the interface of vitft's own."""

import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import timm
import torch
from torch import nn

from tests.training.test_run import run_it
from vitft.data import EvalTransform
from vitft.metrics import Metrics
from vitft.models import (
    Card,
    TimmConfig,
    TimmModel,
    build_model,
    freeze_model,
    load_backbone,
    save_checkpoint,
)
from vitft.predict import Predictor
from vitft.system import RunError, StructureError, UsageError, structured
from vitft.training import BestWeights

SMALL = TimmConfig(timm="test_resnet", image_size=(32, 32), num_classes=3)
PIXELS = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))

KINDS = {
    "convolutions and BatchNorm": TimmConfig(timm="test_resnet", image_size=(32, 32)),
    "a head of two names": TimmConfig(timm="test_convnext", image_size=(32, 32)),
    "a head that is a 1x1 convolution": TimmConfig(timm="resnetv2_18", image_size=(32, 32)),
    "a hidden layer before the head": TimmConfig(timm="mobilenetv3_small_050", image_size=(32, 32)),
    "a ViT of a stated size": TimmConfig(timm="test_vit", image_size=(48, 32), sized=True),
    "mixed stages": TimmConfig(timm="mobilevit_xxs", image_size=(32, 32)),
}


def random_model(config: TimmConfig = SMALL) -> TimmModel:
    torch.manual_seed(0)
    model = TimmModel(config).eval()
    if isinstance(model.head, nn.Linear):
        nn.init.normal_(model.head.weight)
        nn.init.normal_(model.head.bias)
    return model


def saved(path: Path, model: TimmModel) -> Path:
    card = Card(
        architecture=model.config,
        transform=EvalTransform(image_size=model.config.image_size),
        classes=tuple("abc"),
        weights={"name": "timm:test"},
    )
    save_checkpoint(path, model.state_dict(), card)
    return path


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_weights_go_to_timm_and_back_and_answer_alike(config: TimmConfig) -> None:
    model = random_model(replace(config, num_classes=5))
    size: dict[str, Any] = {"img_size": config.image_size} if config.sized else {}
    theirs = timm.create_model(config.timm, num_classes=5, **size).eval()
    pixels = torch.randn(2, 3, *config.image_size)

    theirs.load_state_dict(model.state_dict(), strict=True)
    back = build_model(model.state_dict(), model.config)

    with torch.no_grad():
        torch.testing.assert_close(theirs(pixels), model(pixels), atol=1e-5, rtol=0)
        assert torch.equal(back(pixels), model(pixels))


def measured(top1: float) -> Metrics:
    """Metrics of one epoch, as far as they decide which one is the best."""
    return cast("Metrics", {"top1": top1, "top1_interval": (top1, top1), "loss": 0.0})


def test_running_statistics_belong_to_the_best_weights() -> None:
    model = random_model()
    freeze_model(model, "all")
    best = BestWeights(model)
    best.update(measured(1.0))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    model.train()(PIXELS)  # moves the means of BatchNorm
    best.update(measured(0.5))
    best.restore()

    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("name", ["hf-hub:a/b", "local-dir:/x", "", "../x", "Resnet18"])
def test_a_card_cannot_make_timm_fetch_anything(name: str) -> None:
    with pytest.raises(StructureError, match="invalid timm model"):
        structured({"timm": name, "image_size": [8, 8]}, TimmConfig)


def test_tensors_of_another_model_are_refused() -> None:
    with pytest.raises(RunError, match="do not match"):
        build_model(random_model().state_dict(), replace(SMALL, timm="test_convnext"))


def test_an_earlier_run_is_weights_for_the_next(tmp_path: Path) -> None:
    model = random_model()
    path = saved(tmp_path / "model.safetensors", model)

    again, report = load_backbone(path, num_classes=7)

    assert torch.equal(again.features(PIXELS), model.features(PIXELS))
    assert again.config.num_classes == 7
    assert not again(PIXELS).any()
    assert report.provenance["from"] == "timm:test"
    kept, report = load_backbone(path, num_classes=3, classes=("a", "b", "c"))
    assert torch.equal(kept(PIXELS), model(PIXELS))
    assert report.head == "kept"
    with pytest.raises(UsageError, match="fine-tuned at 32 pixels, and this size cannot be"):
        load_backbone(path, num_classes=3, image_size=64)


@pytest.mark.parametrize(
    "settings",
    [
        {"optim": {"solver": "lbfgs"}},
        {"optim": {"solver": "sgd", "epochs": 2}, "train": {"augment": "crop"}},
        {"train": {"layers": "all"}, "optim": {"epochs": 2}},
        {"train": {"layers": "head,blocks:2"}, "optim": {"epochs": 2}},
        {"train": {"layers": "blocks:1", "augment": "crop"}, "optim": {"epochs": 2}},
    ],
    ids=["solved", "stepped", "everything", "head, then blocks", "blocks of augmented images"],
)
def test_a_run_goes_from_images_to_predictions(
    image_folder: Path, tmp_path: Path, settings: dict[str, dict[str, Any]]
) -> None:
    weights = saved(tmp_path / "weights.safetensors", random_model())

    done = run_it(image_folder, weights, tmp_path / "run", **settings)

    figures = json.loads((done.run / "eval.json").read_text())
    predictor = Predictor.from_run(str(done.run))
    rows = (done.run / "split.csv").read_text().splitlines()[1:]
    held_back = [row.split(",") for row in rows if ",val," in row]
    answers = predictor.stream(str(image_folder / row[0]) for row in held_back)
    right = [
        a.classes[0] == row[0].split("/")[0] for a, row in zip(answers, held_back, strict=True)
    ]
    assert figures["top1"] == sum(right) / len(right)
    assert isinstance(predictor.model, TimmModel)


def test_a_card_that_names_a_giant_of_timm_is_refused_without_building_it() -> None:
    giant = TimmConfig(timm="vit_giant_patch14_224", image_size=(224, 224), num_classes=3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(RunError, match="do not match the architecture"):
        build_model({"x": torch.zeros(1)}, giant)

    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 * 1024  # KiB; its weights would take 4 GB
