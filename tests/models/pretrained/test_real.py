"""Real weights predict the same as timm on real photos."""

import json
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from timm.data import create_transform

from vitft import load_pretrained

SHARED = Path(__file__).parents[4] / "shared"
FOLDER = SHARED / "weights" / "vit_tiny_patch16_224"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not SHARED.is_dir(), reason="no real weights beside the checkout"),
]


@torch.no_grad()
def test_the_real_vit_tiny_sees_the_golden_features_in_the_photos_themselves() -> None:
    expected = load_file(FOLDER / "expected.safetensors")
    facts = json.loads((FOLDER / "expected.json").read_text())
    model, report = load_pretrained(FOLDER)

    views = []
    for name in facts["files"]:
        with Image.open(SHARED / "data" / name, formats=["JPEG"]) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
            views.append(torch.from_numpy(report.transform.pixels(upright)))
    features = model.pool(model.encode(model.embed(report.transform.normalise(torch.stack(views)))))
    logits = model.classify(features)

    assert (features - expected["cls_feature"]).abs().max() <= 1e-4
    assert (logits - expected["logits"]).abs().max() <= 1e-4
    assert torch.equal(logits.topk(5).indices, expected["logits"].topk(5).indices)


@torch.no_grad()
def test_the_real_vit_tiny_names_every_photo_as_timm_does() -> None:
    photos = sorted(SHARED.glob("data/flower_photos/*/*.jpg"))[
        ::48
    ]  # 25 of 1,200; benchmarks/accuracy/parity.py takes all
    theirs = timm.create_model("vit_tiny_patch16_224").eval()
    theirs.load_state_dict(load_file(FOLDER / "model.safetensors"))
    half = (0.5, 0.5, 0.5)
    view = create_transform(
        (3, 224, 224), crop_pct=0.9, mean=half, std=half, interpolation="bicubic"
    )
    ours, report = load_pretrained(FOLDER)

    different = []
    for path in photos:
        with Image.open(path, formats=["JPEG"]) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        pixels = torch.from_numpy(report.transform.pixels(upright))[None]
        mine = ours(report.transform.normalise(pixels)).argmax()
        if mine != theirs(view(upright)[None]).argmax():
            different.append(path.name)

    assert len(photos) == 25
    assert different == []
