"""Inspection of a folder: every file is read, hashed and decoded once."""

from pathlib import Path

from PIL import Image

from tests.data.test_folder import draw
from vitft.data import inspect_folder, scan


def test_every_image_is_decoded_hashed_and_measured_once(tmp_path: Path) -> None:
    draw(tmp_path, "a/1.png", "b/1.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (6, 4)).save(tmp_path / "a" / "turned.jpg", exif=exif)
    Image.new("L", (3, 3)).save(tmp_path / "b" / "grey.JPG", "PNG")
    Image.new("RGB", (3, 3)).save(tmp_path / "b" / "scan.tif")
    (tmp_path / "b" / "half.png").write_bytes((tmp_path / "b" / "1.png").read_bytes()[:-30])
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.glob("*/*")}
    done: list[int] = []

    checked = inspect_folder(scan(tmp_path), progress=done.append)

    assert [(f.path, f.width, f.height) for f in checked.rows] == [
        ("a/1.png", 6, 4), ("a/turned.jpg", 4, 6), ("b/1.png", 6, 4), ("b/grey.JPG", 3, 3),
        ("b/scan.tif", 3, 3),
    ]  # fmt: skip
    assert [path for path, _ in checked.bad] == ["b/half.png"]
    assert {f.path: f.odd for f in checked.rows if f.odd} == {
        "a/turned.jpg": ("rotated by EXIF",),
        "b/grey.JPG": ("converted from L", "content is PNG, but the suffix is .jpg"),
    }
    assert done == [1] * 6
    assert len({f.sha256 for f in checked.rows}) == 5
    after = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in after} == before


def test_a_file_deleted_since_the_scan_is_reported(tmp_path: Path) -> None:
    folder = scan(draw(tmp_path, "a/1.png", "b/1.png"))
    (tmp_path / "a" / "1.png").unlink()

    checked = inspect_folder(folder)

    assert checked.bad == (("a/1.png", "not found"),)
    assert [row.path for row in checked.rows] == ["b/1.png"]
