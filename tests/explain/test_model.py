"""Models to explain, loaded from runs and from pretrained weights."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vitft.data.transforms import EvalTransform
from vitft.explain.model import (
    class_index,
    load_run_model,
    load_weights_model,
    output_names,
    validation_files,
)
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.timm_config import TimmConfig
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import UsageError, WeightsError


def write_model(path: Path, config: ViTConfig, classes: tuple[str, ...] = ()) -> VisionTransformer:
    model = VisionTransformer(config).eval()
    path.parent.mkdir(exist_ok=True)
    transform = EvalTransform(image_size=config.image_size, crop=0.7, mean=(0.1, 0.2, 0.3))
    thresholds = (0.4,) * len(classes)
    card = Card(
        architecture=config, transform=transform, classes=classes, thresholds=thresholds,
        run={"images": 43},
    )  # fmt: skip
    save_checkpoint(path, model.state_dict(), card)
    return model


def test_a_run_is_loaded_with_its_classes_thresholds_and_name(
    tmp_path: Path, tiny_config: ViTConfig
) -> None:
    original = write_model(tmp_path / "roses" / "model.safetensors", tiny_config, ("a", "b", "c"))

    model = load_run_model(str(tmp_path / "roses"), device="cpu")

    assert (model.name, model.classes, model.run) == ("roses", ("a", "b", "c"), tmp_path / "roses")
    assert (model.thresholds, model.facts) == ((0.4, 0.4, 0.4), {"images": 43})
    assert model.device == torch.device("cpu")
    assert not model.net.training
    view = np.full((2, 16, 16, 3), 255, np.uint8)
    assert model.inputs(view)[0, :, 0, 0].tolist() == pytest.approx([1.8, 1.6, 1.4])
    assert torch.equal(model.net(model.inputs(view)), original(model.inputs(view)))
    assert [class_index(name, model.classes) for name in "abc"] == [0, 1, 2]


def test_another_file_gives_its_own_name_to_the_model(
    tmp_path: Path, tiny_config: ViTConfig
) -> None:
    write_model(tmp_path / "best.safetensors", tiny_config, ("a", "b", "c"))

    assert load_run_model(str(tmp_path / "best.safetensors"), device="cpu").name == "best"


@pytest.mark.parametrize(("file", "name"), [("model", "tulips"), ("vit", "vit")])
def test_weights_are_named_after_their_file_or_folder(
    tmp_path: Path, tiny_config: ViTConfig, file: str, name: str
) -> None:
    path = tmp_path / "tulips" / f"{file}.safetensors"
    original = write_model(path, tiny_config)

    model = load_weights_model(str(path), device="cpu")

    assert (model.name, model.classes, model.run) == (name, ("0", "1", "2"), None)
    assert model.transform.crop == 0.7
    pixels = torch.randn(1, 3, 16, 16)
    assert torch.equal(model.net(pixels), original(pixels))


def test_weights_without_a_head_have_no_classes(tmp_path: Path, tiny_config: ViTConfig) -> None:
    write_model(tmp_path / "x.safetensors", replace(tiny_config, num_classes=0))

    assert load_weights_model(str(tmp_path / "x.safetensors"), device="cpu").classes == ()


def test_a_head_for_another_pooling_is_not_explained(
    tmp_path: Path, tiny_config: ViTConfig
) -> None:
    save_file(VisionTransformer(tiny_config).state_dict(), tmp_path / "x.safetensors")
    facts = {"model_args": {"num_heads": 2}, "global_pool": "max"}
    (tmp_path / "config.json").write_text(json.dumps(facts))

    model = load_weights_model(str(tmp_path / "x.safetensors"), device="cpu")

    assert model.classes == ()
    assert model.net.config.num_classes == 0
    assert model.net(torch.zeros(1, 3, 16, 16)).shape == (1, 32)


def test_a_pickle_is_read_only_if_it_is_allowed(tmp_path: Path, tiny_config: ViTConfig) -> None:
    path = tmp_path / "x.pth"
    torch.save(VisionTransformer(tiny_config).state_dict(), path)
    (tmp_path / "config.json").write_text(json.dumps({"model_args": {"num_heads": 2}}))

    with pytest.raises(WeightsError, match="is a Python pickle"):
        load_weights_model(str(path), device="cpu")
    assert load_weights_model(str(path), allow_pickle=True, device="cpu").classes == ("0", "1", "2")


def test_a_checkpoint_of_a_timm_model_is_refused_as_weights(tmp_path: Path) -> None:
    config = TimmConfig(timm="test_resnet", image_size=(16, 16))
    card = Card(architecture=config, transform=EvalTransform(image_size=(16, 16)))
    save_checkpoint(tmp_path / "x.safetensors", {"x": torch.zeros(1)}, card)

    with pytest.raises(UsageError, match="only after fine-tuning"):
        load_weights_model(str(tmp_path / "x.safetensors"), device="cpu")
    with pytest.raises(UsageError, match="cannot explain timm:resnet18"):
        load_weights_model("timm:resnet18", device="cpu")


def test_an_unknown_class_is_answered_with_up_to_three_similar_ones() -> None:
    classes = ("rose", "roses", "rosehip", "rosemary", "oak")

    assert class_index("rose", classes) == 0
    assert class_index("oak", classes) == 4
    with pytest.raises(UsageError, match="no class 'ros'") as caught:
        class_index("ros", classes)
    assert caught.value.fix == "use one of its classes, e.g. rose, roses, rosehip"
    with pytest.raises(UsageError, match="no class 'rose'") as caught:
        class_index("rose", ())
    assert caught.value.fix.startswith("name no class and use the method rollout")


def test_outputs_without_names_are_numbered() -> None:
    assert output_names(3, ()) == ("0", "1", "2")
    assert output_names(3, ("a", "b", "c")) == ("a", "b", "c")
    assert output_names(0, ()) == ()


def test_validation_images_are_those_that_still_exist(tmp_path: Path) -> None:
    assert validation_files(None) == []
    assert validation_files(tmp_path) == []

    data = tmp_path / "data"
    (data / "a").mkdir(parents=True)
    for i in (0, 2, 3):
        (data / "a" / f"{i}.png").write_bytes(b"x")
    rows = [f"a/{i}.png,a,{'train' if i == 3 else 'val'},{i:064}" for i in (2, 1, 0, 3)]
    (tmp_path / "split.csv").write_text("\n".join(["path,label,split,sha256", *rows, ""]))
    (tmp_path / "config.toml").write_text(f'[data]\npath = "{data}"\n')

    assert validation_files(tmp_path) == [str(data / "a" / f"{i}.png") for i in (2, 0)]
