"""Inspection of a folder: every file is read, hashed and decoded once."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.test_folder import draw
from tests.support.pictures import encoded, scene
from vitft.config.sections import DataSpec
from vitft.data.folder import File, Folder
from vitft.data.inspection import (
    InspectedFile,
    OpenedImage,
    collect,
    describe_counts,
    inspect_file,
    inspect_folder,
    log_inspection,
    merge_inspections,
    readable_now,
)
from vitft.data.scan import scan
from vitft.data.split import split
from vitft.system.errors import DataError, ImageError

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"


def test_every_image_is_decoded_hashed_and_measured_once(tmp_path: Path) -> None:
    draw(tmp_path, "a/1.png", "b/1.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (6, 4)).save(tmp_path / "a" / "turned.jpg", exif=exif)
    Image.new("L", (3, 3)).save(tmp_path / "b" / "grey.jpg", "PNG")
    (tmp_path / "b" / "half.png").write_bytes((tmp_path / "b" / "1.png").read_bytes()[:-30])
    done: list[int] = []

    checked = inspect_folder(scan(tmp_path), progress=done.append)

    assert [(f.path, f.width, f.height) for f in checked.good] == [
        ("a/1.png", 6, 4), ("a/turned.jpg", 4, 6), ("b/1.png", 6, 4), ("b/grey.jpg", 3, 3)
    ]  # fmt: skip
    assert [path for path, _ in checked.bad] == ["b/half.png"]
    assert checked.odd == {
        "rotated by EXIF": 1,
        "converted from L": 1,
        "content is PNG, but the suffix is .jpg": 1,
    }
    assert done == [1] * 5
    assert len({f.sha256 for f in checked.good}) == 4


def test_an_ordinary_jpeg_is_decoded_by_the_fast_decoder_only_on_request() -> None:
    data, file = encoded(scene(1)), File("a/1.jpg", 0)
    fast, usual = (
        OpenedImage(file, data, max_pixels=10**6, fast=is_fast) for is_fast in (True, False)
    )

    assert fast.jpeg is not None
    assert usual.jpeg is None
    assert np.array_equal(np.asarray(fast.image), np.asarray(usual.image))
    assert fast.facts() == usual.facts()


def test_the_result_does_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    folder = scan(noisy(tmp_path, bad=range(0, 60, 9)))

    assert inspect_folder(folder, workers=0) == inspect_folder(folder, workers=5)


def noisy(root: Path, *, bad: Iterable[int], total: int = 60) -> Path:
    """Two classes of images, some of them empty files."""
    stream, spoiled = np.random.default_rng(0), set(bad)
    for i in range(total):
        path = root / "ab"[i % 2] / f"{i:03}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        image = Image.fromarray(stream.integers(0, 256, (8, 8, 3)).astype(np.uint8))
        image.save(path)
        if i in spoiled:
            path.write_bytes(b"")
    return root


def test_unreadable_entries_of_the_scan_are_reported(tmp_path: Path) -> None:
    draw(tmp_path, "a/1.png", "b/1.png")
    (tmp_path / "a" / "0.jpg").symlink_to("nowhere")

    assert inspect_folder(scan(tmp_path)).bad == (("a/0.jpg", "dangling symbolic link"),)


def test_a_file_deleted_since_the_scan_is_reported(tmp_path: Path) -> None:
    folder = scan(draw(tmp_path, "a/1.png", "b/1.png"))
    (tmp_path / "a" / "1.png").unlink()

    result = inspect_file(str(tmp_path), folder.files[0], OpenedImage.facts)

    assert isinstance(result, ImageError)
    assert (result.path, result.reason) == ("a/1.png", "not found")


@pytest.mark.parametrize(
    ("bad", "good", "different", "text"),
    [
        (0, 3, 3, "3 readable images"),
        (1, 3, 3, "3 readable images (4 files, 1 unreadable)"),
        (0, 3, 2, "3 readable images (2 different, 1 identical copy)"),
        (2, 4, 2, "4 readable images (6 files, 2 unreadable; 2 different, 2 identical copies)"),
    ],
)
def test_the_counts_of_a_folder_are_explained_by_each_other(
    bad: int, good: int, different: int, text: str
) -> None:
    assert describe_counts(bad, good, different=different) == text


def test_nothing_is_written_into_the_data_folder(tmp_path: Path) -> None:
    root = noisy(tmp_path, bad=[0])
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in root.rglob("*.png")}

    inspect_folder(scan(root))

    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in root.rglob("*")
            if p.is_file()} == before  # fmt: skip


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared/ beside the checkout")
def test_real_photos_are_found_split_and_read() -> None:
    flowers = inspect_folder(scan(SHARED / "flower_photos"))
    clothing = split(inspect_folder(scan(SHARED / "clothing_small")), DataSpec())

    assert (len(flowers.good), flowers.bad) == (1200, ())
    assert (len(clothing.train), len(clothing.val)) == (300, 100)
    assert len(clothing.classes) == 10


def results(good: int, bad: int) -> list[InspectedFile | ImageError]:
    """Readable and unreadable files of a folder."""
    return [
        *(InspectedFile(f"{i}.png", 0, "", f"{i:064}", 4, 4) for i in range(good)),
        *(ImageError(f"bad {i:02}.png", "empty file") for i in range(bad)),
    ]


@pytest.mark.parametrize(
    ("good", "bad", "is_refused"),
    [
        pytest.param(0, 10, False, id="ten files"),
        pytest.param(20, 11, True, id="eleven of 31"),
        pytest.param(180, 20, False, id="a tenth"),
        pytest.param(180, 21, True, id="more than a tenth"),
    ],
)
def test_more_than_ten_files_and_a_tenth_must_not_be_unreadable(
    good: int, bad: int, is_refused: bool, tmp_path: Path
) -> None:
    folder = Folder(root=tmp_path, classes=("a",), files=(), layout="classes", reference=False)

    def found(*, allow_bad: bool) -> int:
        return len(collect(folder, results(good, bad), allow_bad=allow_bad).bad)

    assert found(allow_bad=True) == bad
    if is_refused:
        with pytest.raises(DataError, match=rf"{bad} of {good + bad} files .* \(bad 00.png: empty"):
            found(allow_bad=False)
    else:
        assert found(allow_bad=False) == bad


@pytest.mark.parametrize(("bad", "rest"), [(10, []), (11, ["1 more unreadable file"])])
def test_the_first_ten_unreadable_files_are_listed(
    bad: int, rest: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Folder(root=tmp_path, classes=("a",), files=(), layout="classes", reference=False)

    log_inspection(collect(folder, results(90, bad), allow_bad=True))

    lines = [record.getMessage() for record in caplog.records]
    expected = [*(f"bad {i:02}.png: empty file" for i in range(10)), *rest]
    assert lines == [f"skipped {text}" for text in expected]


def test_a_folder_with_too_many_unreadable_files_is_refused_by_default(tmp_path: Path) -> None:
    folder = scan(noisy(tmp_path, bad=range(0, 60, 5)))

    with pytest.raises(DataError, match=r"12 of 60 files(.|\n)*fix: repair or remove them, or"):
        inspect_folder(folder, workers=0)
    assert len(inspect_folder(folder, workers=0, allow_bad=True).bad) == 12
    assert readable_now(folder, ["a/000.png", "b/001.png"], max_pixels=100) == ["b/001.png"]
    assert readable_now(folder, ["b/001.png"], max_pixels=63) == []


def test_the_fix_for_files_that_need_a_library_is_its_installation(tmp_path: Path) -> None:
    folder = Folder(root=tmp_path, classes=("a",), files=(), layout="classes")
    heic = [ImageError(f"{i}.heic", "HEIC needs a library: run pip install x") for i in range(11)]

    with pytest.raises(DataError) as caught:
        collect(folder, heic, allow_bad=False)

    assert caught.value.fix.startswith("run pip install x, or repair or remove them")


def test_shards_of_a_folder_are_merged_in_its_order(tmp_path: Path) -> None:
    files = tuple(File(f"{i}.png", 0) for i in range(30))
    folder = Folder(root=tmp_path, classes=("a",), files=files, layout="classes")
    found = [ImageError(f.path, "empty file") if i % 2 else InspectedFile(f.path, 0, "", "0", 4, 4)
             for i, f in enumerate(files)]  # fmt: skip
    shards = [collect(folder, found[part::3], allow_bad=True) for part in (2, 0, 1)]

    merged = merge_inspections(folder, shards, allow_bad=True)

    assert merged == collect(folder, found, allow_bad=True)
    with pytest.raises(DataError, match="15 of 30 files"):
        merge_inspections(folder, shards, allow_bad=False)


def test_notes_and_remarks_are_logged_with_their_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = Folder(root=tmp_path, classes=("a",), files=(), layout="classes", notes=("a note",))
    kinds = [("rotated",), ("rotated", "grey"), ("rotated",), ("alpha", "grey")]
    good = [InspectedFile(f"{i}.png", 0, "", "0", 4, 4, odd) for i, odd in enumerate(kinds)]

    inspected = collect(folder, good, allow_bad=False)
    log_inspection(inspected)

    assert list(inspected.odd.items()) == [("rotated", 3), ("grey", 2), ("alpha", 1)]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["a note", "alpha: 1 image", "grey: 2 images", "rotated: 3 images"]
