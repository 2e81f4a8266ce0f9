"""Scan of data folders: classes, files, and an error for every fault."""

import os
from pathlib import Path

import pytest
from PIL import Image

from tests.support.children import python
from vitft.config import DataSpec
from vitft.data import Images, inspect_folder, open_image, scan, split
from vitft.system import DataError


def touch(root: Path, *names: str) -> Path:
    """Empty files: `scan` opens none."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def draw(root: Path, *names: str) -> Path:
    """Small readable images, each of another colour."""
    touch(root, *names)
    for name in names:
        colour = colour_of(name)
        Image.new("RGB", (6, 4), colour).save(root / name, "PNG")
    return root


def colour_of(name: str) -> tuple[int, int, int]:
    data = os.fsencode(name)
    return sum(data) % 256, len(data) % 256, data[-5] if len(data) > 4 else 0


def paths(folder: Images) -> list[str]:
    return [file.path for file in folder.rows]


def problem(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        scan(root)
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_classes_are_sorted_and_files_are_sorted_within_them(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.jpg", "b/10.jpg", "a/x.png", "B/1.jpg", "a/Y.png")

    folder = scan(tmp_path)

    assert folder.classes == ("B", "a", "b")
    assert paths(folder) == ["B/1.jpg", "a/Y.png", "a/x.png", "b/10.jpg", "b/2.jpg"]
    assert [file.label for file in folder.rows] == [0, 1, 1, 2, 2]
    assert folder.layout == "classes"


def test_thirteen_suffixes_in_any_case_are_images(tmp_path: Path) -> None:
    names = [
        "1.jpg", "2.JPEG", "3.Png", "4.webp", "5.BMP", "6.gif", "7.tif", "8.TIFF", "9.avif",
        "10.HEIC", "11.heif", "12.hif", "13.jfif",
    ]  # fmt: skip
    touch(tmp_path, *(f"a/{name}" for name in names), "a/9.txt", "a/10.xyz", "a/jpg", "b/1.jpg")

    folder = scan(tmp_path)

    assert len(folder.rows) == 14
    assert folder.unused == {".txt": 1, ".xyz": 1, "(no suffix)": 1}


def test_the_reference_script_is_followed_in_what_it_lists(tmp_path: Path) -> None:
    touch(
        tmp_path, "a/1.jpg", "a/2.JPG", "a/3.png", "a/4.PNG", "a/5.jpeg", "a/6.Jpg", "a/7.webp",
        "a/.8.jpg", "a/.jpg", "a/deep/9.jpg", "b/1.jpg", ".c/1.jpg",
    )  # fmt: skip
    (tmp_path / "a" / "folder.jpg").mkdir()
    (tmp_path / "a" / "dangling.jpg").symlink_to("nowhere")

    folder = scan(tmp_path, DataSpec(split="reference"))

    assert folder.classes == (".c", "a", "b")
    assert paths(folder) == [
        ".c/1.jpg", "a/.8.jpg", "a/1.jpg", "a/2.JPG", "a/3.png", "a/4.PNG", "a/dangling.jpg",
        "a/folder.jpg", "b/1.jpg",
    ]  # fmt: skip


def as_nobody(tmp_path: Path, code: str) -> str:
    """Run `code` as a user without rights, inside of `tmp_path`; what it prints."""
    folder = os.open(tmp_path, os.O_RDONLY)  # pytest's folders are closed to others
    tmp_path.chmod(0o755)
    done = python(f"import os\nfrom pathlib import Path\n"
         f"from vitft.data.scan import *\nfrom vitft.data.images import *\n"
         f"os.fchdir({folder}); os.setuid(65534)\n{code}", pass_fds=[folder])  # fmt: skip
    os.close(folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@needs_root
@pytest.mark.parametrize("closed", ["data", "data/a", "data/a/deep"])
def test_a_closed_folder_is_named(closed: str, tmp_path: Path) -> None:
    draw(tmp_path, "data/a/1.png", "data/a/deep/2.png", "data/b/1.png")
    (tmp_path / closed).chmod(0)

    told = as_nobody(
        tmp_path, "try: scan(Path('data'))\nexcept DataError as e: print(e.exit_code, e.problem)"
    )

    (tmp_path / closed).chmod(0o755)
    assert told == f"3 permission denied: {closed}\n"


@needs_root
def test_closed_files_are_bad_files(tmp_path: Path) -> None:
    draw(tmp_path, "data/a/1.png", "data/a/2.png", "data/b/1.png")
    (tmp_path / "data/a/2.png").chmod(0)

    told = as_nobody(tmp_path, "print(inspect_folder(scan(Path('data'))).bad)")

    assert told == "(('a/2.png', 'permission denied'),)\n"


HOSTILE = [
    "with space", "new\nline", "car\rriage", 'quo"te', "com,ma", "\U0001f33c", "\u202egnp.exe",
    "\udcff\udcfe", "x" * 251, "caf\u00e9", "cafe\u0301", "=1+1", "\x1b]0;title\x07", "-rf", "a\\b",
    " blank ", "\t", "'", "#", "cr\r\nlf", "\ufeffbom", "\u2028", "\x85", "nul\x01",
]  # fmt: skip


def test_hostile_names_go_all_the_way_from_the_disk_to_the_table(tmp_path: Path) -> None:
    data = tmp_path / "data"
    names = [f"{name[:200]}/{inner}.png" for name in HOSTILE for inner in HOSTILE]
    for name in names:
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            Image.new("RGB", (2, 2), colour_of(name)).save(file, "PNG")

    folder = scan(data)
    checked = inspect_folder(folder)
    manifest = split(checked, DataSpec())
    manifest.write(tmp_path / "split.csv")

    assert sorted(paths(folder)) == sorted(names)
    assert checked.bad == ()
    found = Images.from_csv(tmp_path / "split.csv", data)
    assert (found.classes, found.digest) == (manifest.classes, manifest.digest)
    assert all(open_image(manifest.locate(row)).size == (2, 2) for row in manifest.rows)
