"""Thumbnails for the report."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import draw_folder
from vitft.config.sections import DataSpec
from vitft.data.inspection import inspect_folder
from vitft.data.scan import scan
from vitft.data.split import Manifest, split, write_class_indices
from vitft.data.thumbnail import THUMBNAIL_SIDE, thumbnail_jpeg
from vitft.data.transforms import EvalTransform
from vitft.models.timm_config import TimmConfig
from vitft.models.timm_model import TimmModel
from vitft.models.vit import VisionTransformer
from vitft.predict.validation import (
    least_confident,
    mistakes,
    read_validation_predictions,
    thumb_name,
)
from vitft.system.rundir import RunDir
from vitft.training.thumbnails import write_thumbnails

TRANSFORM = EvalTransform(image_size=(16, 16))


def finished(tmp_path: Path, folder: Path, *, wrong: int = 3) -> tuple[RunDir, Manifest]:
    """Return a run in which the first `wrong` validation images are misclassified."""
    manifest = split(inspect_folder(scan(folder)), DataSpec(path=str(folder)))
    run = RunDir(tmp_path / "run")
    run.path.mkdir(parents=True)
    manifest.write(run.split)
    write_class_indices(run.class_indices, manifest.classes)
    logits = np.zeros((len(manifest.val), 3), np.float32)
    for i, row in enumerate(manifest.val):
        logits[i, (row.label + (i < wrong)) % 3] = 1 + i
    np.savez(run.path / "validation.npz", logits=logits)
    return run, manifest


def keep(run: RunDir, manifest: Manifest, model: torch.nn.Module) -> int:
    return write_thumbnails(run, manifest, model, TRANSFORM, max_pixels=10**6)


def test_mistakes_have_an_attention_overlay_and_correct_images_none(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    run, manifest = finished(tmp_path, image_folder)

    count = keep(run, manifest, tiny_vit)

    verdicts = read_validation_predictions(run.path)
    names = {file.name for file in (run.path / "thumbs").iterdir()}
    wrong, right = mistakes(verdicts), least_confident(verdicts, per_class=3, most=60)
    assert count == len(wrong) + len(right) == 6
    assert {thumb_name(v.sha256, attention=True) for v in wrong} <= names
    assert {thumb_name(v.sha256) for v in wrong + right} <= names
    assert len(names) == 6 + 3
    for file in (run.path / "thumbs").iterdir():
        with Image.open(file, formats=["JPEG"]) as image:
            assert max(image.size) <= THUMBNAIL_SIDE


def test_images_named_by_the_audit_have_thumbnails(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    run, manifest = finished(tmp_path, image_folder)
    train = manifest.train[0]
    member = {"path": "gone", "label": "blue", "split": "train"}
    odds = {"given_probability": 0.01, "suggested_probability": 0.99}
    audit = {
        "images": 30,
        "bad": [],
        "odd": [],
        "duplicates": [
            {"kind": "near", "members": [member], "across_split": False, "labels_differ": False}
        ],
        "mislabels": [{"path": train.path, "label": "blue", "suggested": "red", **odds}],
        "imbalance": {"largest": ["blue", 10], "smallest": ["red", 10], "ratio": 1.0},
    }
    (run.path / "audit.json").write_text(json.dumps(audit))

    keep(run, manifest, tiny_vit)

    assert (run.path / "thumbs" / thumb_name(train.sha256)).is_file()


def test_networks_that_cannot_be_explained_have_thumbnails_without_overlays(
    tmp_path: Path, image_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, manifest = finished(tmp_path, image_folder)

    with caplog.at_level("INFO"):
        count = keep(run, manifest, torch.nn.Linear(2, 3))

    assert count == len(list((run.path / "thumbs").iterdir())) == 6
    assert "the report will have no relevance overlays" in caplog.text


def test_mistakes_of_a_timm_model_have_an_overlay(tmp_path: Path, image_folder: Path) -> None:
    run, manifest = finished(tmp_path, image_folder)
    config = TimmConfig(timm="test_resnet", image_size=(16, 16), num_classes=3)

    keep(run, manifest, TimmModel(config))

    names = [file.name for file in (run.path / "thumbs").iterdir()]
    assert sum(name.endswith("-attention.jpg") for name in names) == 3


def test_without_logits_there_are_no_thumbnails(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    run, manifest = finished(tmp_path, image_folder)
    (run.path / "validation.npz").unlink()

    assert keep(run, manifest, tiny_vit) == 0
    assert not (run.path / "thumbs").exists()


def test_a_deleted_image_is_left_out(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    run, manifest = finished(tmp_path, image_folder)
    Path(manifest.locate(manifest.val[0])).unlink()

    assert keep(run, manifest, tiny_vit) == 5


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


@pytest.mark.parametrize("size", [(1000, 500), (500, 1000), (30, 20), (5000, 2), (1, 1)])
def test_every_shape_becomes_a_small_image(size: tuple[int, int]) -> None:
    import io

    with Image.open(io.BytesIO(thumbnail_jpeg(Image.new("RGB", size))), formats=["JPEG"]) as image:
        assert max(image.size) == min(THUMBNAIL_SIDE, max(size))
        assert min(image.size) >= 1


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

        write_thumbnails(run, manifest, tiny_vit, TRANSFORM, max_pixels=10**6, precision=precision)

        files = sorted((run.path / "thumbs").glob("*-attention.jpg"))
        pictures[precision] = [np.asarray(Image.open(file), np.float32) for file in files]
    exact, fast = (np.stack(some) for some in pictures.values())
    assert len(exact) == 3
    assert np.abs(exact - fast).mean() < 2  # grey levels
    assert next(tiny_vit.parameters()).dtype == torch.float32
