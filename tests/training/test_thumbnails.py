"""Thumbnails for the report."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import draw_folder
from tests.support.training_data import data_set
from vitft.config import DataSpec
from vitft.data import (
    EvalTransform,
    Images,
    inspect_folder,
    scan,
    split,
)
from vitft.models import VisionTransformer
from vitft.predict import (
    thumb_name,
)
from vitft.system import RunDir
from vitft.training import write_thumbnails

TRANSFORM = EvalTransform(image_size=(16, 16))


def finished(tmp_path: Path, folder: Path, *, wrong: int = 3) -> tuple[RunDir, Images]:
    """Return a run in which the first `wrong` validation images are misclassified."""
    manifest = split(inspect_folder(scan(folder)), DataSpec(path=str(folder)))
    run = RunDir(tmp_path / "run")
    run.path.mkdir(parents=True)
    manifest.write(run.split)
    run.write("class_indices.json", json.dumps(dict(enumerate(manifest.classes))))
    logits = np.zeros((len(manifest.val), 3), np.float32)
    for i, one in enumerate(manifest.val):
        logits[i, (one.label + (i < wrong)) % 3] = 1 + i
    np.savez(run.path / "validation.npz", logits=logits)
    return run, manifest


def keep(run: RunDir, manifest: Images, model: VisionTransformer, precision: str = "fp32") -> int:
    data = data_set(
        manifest.rows, root=manifest.root, classes=manifest.classes, transform=TRANSFORM
    )
    return write_thumbnails(run, data, model, precision)


def test_images_named_by_the_audit_have_thumbnails(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    run, manifest = finished(tmp_path, image_folder)
    train, odd = manifest.train[:2]
    member = {"path": "gone", "label": "blue", "split": "train"}
    odds = {"given_probability": 0.01, "suggested_probability": 0.99}
    audit = {
        "images": 30,
        "unused": [],
        "notes": [],
        "bad": [],
        "odd": [{"path": odd.path, "reason": "a JPEG with the suffix .HEIC"}],
        "duplicates": [
            {"kind": "near", "members": [member], "across_split": False, "labels_differ": False}
        ],
        "mislabels": [{"path": train.path, "label": "blue", "suggested": "red", **odds}],
        "imbalance": {"largest": ["blue", 10], "smallest": ["red", 10], "ratio": 1.0},
    }
    (run.path / "audit.json").write_text(json.dumps(audit))

    keep(run, manifest, tiny_vit)

    assert (run.path / "thumbs" / thumb_name(train.sha256)).is_file()
    assert (run.path / "thumbs" / thumb_name(odd.sha256)).is_file()


def test_a_full_or_read_only_disk_costs_the_thumbnails_only(
    tmp_path: Path,
    image_folder: Path,
    tiny_vit: VisionTransformer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, manifest = finished(tmp_path, image_folder)
    (run.path / ".thumbs").write_text("a file where the folder should be")

    assert keep(run, manifest, tiny_vit) == 0
    assert "the report will have no thumbnails" in capsys.readouterr().err


def test_thumbnails_hold_no_metadata_of_the_original(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    folder = draw_folder(tmp_path / "photos", per_class=5)
    for file in list(folder.rglob("*.png")):
        with Image.open(file, formats=["PNG"]) as image:
            exif = Image.Exif()
            exif[0x010F] = "SecretMaker"
            exif.get_ifd(0x8825)[29] = "2024:SECRETGPS"
            image.resize((300, 200)).save(
                file.with_suffix(".jpg"), exif=exif, comment=b"SecretComment", icc_profile=b"SECRET"
            )
        file.unlink()
    run, manifest = finished(tmp_path, folder)
    assert b"SECRETGPS" in Path(manifest.locate(manifest.val[0])).read_bytes()

    keep(run, manifest, tiny_vit)

    pictures = list((run.path / "thumbs").iterdir())
    assert len(pictures) >= 3
    for picture in pictures:
        data = picture.read_bytes().lower()
        assert b"secret" not in data
        assert b"exif" not in data


def test_the_attention_in_bf16_is_nearly_that_of_float32(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    """Both explain the class that was predicted in float32."""
    torch.manual_seed(0)
    assert isinstance(tiny_vit.head, torch.nn.Linear)
    torch.nn.init.normal_(tiny_vit.head.weight)
    pictures = {}
    for precision in ("fp32", "bf16"):
        run, manifest = finished(tmp_path / precision, image_folder)

        keep(run, manifest, tiny_vit, precision)

        files = sorted((run.path / "thumbs").glob("*-attention.jpg"))
        pictures[precision] = [np.asarray(Image.open(file), np.float32) for file in files]
    exact, fast = (np.stack(some) for some in pictures.values())
    assert len(exact) == 3
    assert np.abs(exact - fast).mean() < 2  # grey levels
    assert next(tiny_vit.parameters()).dtype == torch.float32
