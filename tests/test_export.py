"""The trained model as files for other tools."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data import create_transform, resolve_data_config

from tests.test_train import run_it
from vitft.checkpoint import Card, save_checkpoint
from vitft.data.images import open_image
from vitft.data.split import Manifest
from vitft.errors import RunError
from vitft.export import export_safetensors
from vitft.model import VisionTransformer, ViTConfig
from vitft.predict import Predictor
from vitft.pretrained import load_pretrained
from vitft.transforms import EvalTransform


@pytest.fixture
def run(image_folder: Path, tiny_weights: Path, tmp_path: Path) -> Path:
    return run_it(image_folder, tiny_weights, tmp_path / "runs" / "one").run


def test_timm_opens_the_export_and_answers_alike(
    run: Path, image_folder: Path, tmp_path: Path
) -> None:
    done = export_safetensors(str(run), tmp_path / "export")
    model = timm.create_model(f"local-dir:{tmp_path / 'export'}", pretrained=True).eval()
    transform = create_transform(**resolve_data_config(model.pretrained_cfg))
    predictor = Predictor.from_run(str(run))
    manifest = Manifest.read(run / "split.csv", image_folder)

    for row in manifest.val:
        image = open_image(manifest.locate(row))
        with torch.inference_mode():
            theirs = model(transform(image)[None])
        ours = predictor.logits(predictor.card.transform.pixels(image)[None])
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)

    assert (done.images, done.changed) == (6, 0)  # two of each of three classes are held back
    assert model.pretrained_cfg["label_names"] == ["blue", "green", "red"]


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({}, id="plain, not square"),
        pytest.param({"pool": "mean"}, id="mean pooling"),
        pytest.param({"layer_scale": 0.1}, id="LayerScale"),
        pytest.param({"registers": 2}, id="registers"),
        pytest.param(
            {"registers": 4, "layer_scale": 0.1, "prefix_positions": False}, id="as DINOv2"
        ),
    ],
)
def test_timm_builds_every_architecture_that_is_offered_to_it(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(8, 12), patch_size=(4, 4), width=32, depth=2, heads=2, num_classes=2, **shape
    )
    model = VisionTransformer(config).eval()
    for name, parameter in model.named_parameters():
        if "gamma" in name or "token" in name or "head" in name:
            parameter.data.normal_()
    card = Card(
        architecture=config, transform=EvalTransform(image_size=(8, 12)), classes=("a", "b")
    )
    (tmp_path / "run").mkdir()
    save_checkpoint(tmp_path / "run" / "model.safetensors", model.state_dict(), card)

    done = export_safetensors(str(tmp_path / "run"), tmp_path / "export")

    assert done.notes == ()
    opened = timm.create_model(f"local-dir:{tmp_path / 'export'}", pretrained=True).eval()
    pixels = torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(model(pixels), opened(pixels), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "shape",
    [{"norm": "post"}, {"distilled": True}, {"norm_eps": 1e-5}],
    ids=["post-norm", "distilled", "another eps"],
)
def test_what_timm_would_compute_otherwise_is_not_offered_to_it(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    config = ViTConfig(
        image_size=(8, 8), patch_size=(4, 4), width=32, depth=2, heads=2, num_classes=2, **shape
    )
    card = Card(architecture=config, transform=EvalTransform(image_size=(8, 8)), classes=("a", "b"))
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "model.safetensors"
    save_checkpoint(path, VisionTransformer(config).state_dict(), card)

    done = export_safetensors(str(tmp_path / "run"), tmp_path / "export")

    assert "only vitft opens" in done.notes[0]
    assert not (tmp_path / "export" / "config.json").exists()


def test_our_own_loader_opens_the_export_with_its_head(run: Path, tmp_path: Path) -> None:
    export_safetensors(str(run), tmp_path / "export")

    model, report = load_pretrained(tmp_path / "export")

    pixels = torch.randn(2, 3, 16, 16)
    original = Predictor.from_run(str(run)).model
    assert torch.equal(model(pixels), original(pixels))
    assert report.flavour == "vitft"


def test_an_export_may_be_made_again_and_nothing_else_is_overwritten(
    run: Path, tmp_path: Path
) -> None:
    export_safetensors(str(run), tmp_path / "export")
    export_safetensors(str(run), tmp_path / "export")
    (tmp_path / "export" / "thesis.txt").write_text("years of work")

    with pytest.raises(RunError, match="holds other files"):
        export_safetensors(str(run), tmp_path / "export")


def test_without_the_images_the_comparison_says_so(
    run: Path, image_folder: Path, tmp_path: Path
) -> None:
    image_folder.rename(tmp_path / "moved")

    done = export_safetensors(str(run), tmp_path / "export")

    assert (done.images, done.changed) == (0, 0)


def test_a_model_with_pre_logits_is_not_offered_to_timm(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    kept = run_it(image_folder, tiny_weights, tmp_path / "run", weights={"pre_logits": "keep"})

    done = export_safetensors(str(kept.run), tmp_path / "export")

    assert "timm has no such layer" in done.notes[0]
    assert not (tmp_path / "export" / "config.json").exists()
    model, _ = load_pretrained(tmp_path / "export", pre_logits="keep")
    assert model.config.pre_logits


def test_the_config_states_names_and_preprocessing(run: Path, tmp_path: Path) -> None:
    export_safetensors(str(run), tmp_path / "export")

    config = json.loads((tmp_path / "export" / "config.json").read_text())

    assert config["label_names"] == ["blue", "green", "red"]
    assert config["pretrained_cfg"]["mean"] == [0.5, 0.5, 0.5]
    assert config["pretrained_cfg"]["crop_pct"] == 0.9
