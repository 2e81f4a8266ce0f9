"""Thumbnails for the report."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import draw_folder
from tests.training.test_run import run_it
from vitft.data import Images
from vitft.predict import thumb_name

SOLVED = {"solver": "lbfgs", "l2": 1.0}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photos with metadata, in three classes; one of them is in a wrong class."""
    folder = draw_folder(tmp_path / "photos", per_class=10)
    for file in list(folder.rglob("*.png")):
        with Image.open(file, formats=["PNG"]) as image:
            exif = Image.Exif()
            exif[0x010F] = "SecretMaker"
            exif.get_ifd(0x8825)[29] = "2024:SECRETGPS"
            image.resize((300, 200)).save(
                file.with_suffix(".jpg"), exif=exif, comment=b"SecretComment", icc_profile=b"SECRET"
            )
        file.unlink()
    (folder / "red" / "000.jpg").rename(folder / "blue" / "wrong.jpg")
    return folder


def test_images_named_by_the_audit_have_thumbnails_without_metadata(
    photos: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    assert b"SECRETGPS" in (photos / "blue" / "wrong.jpg").read_bytes()

    run = run_it(photos, tiny_weights, tmp_path / "run", optim=SOLVED).run

    named = [one["path"] for one in json.loads((run / "audit.json").read_text())["mislabels"]]
    rows = {row.path: row for row in Images.from_csv(run / "split.csv", photos).rows}
    assert "blue/wrong.jpg" in named
    for path in named:
        assert (run / "thumbs" / thumb_name(rows[path].sha256)).is_file()
    for picture in (run / "thumbs").iterdir():
        data = picture.read_bytes().lower()
        assert b"secret" not in data
        assert b"exif" not in data
