"""Scan of data folders: classes, files, and an error for every fault."""

import os
import socket
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from tests.support.limits import HANG_S
from vitft.config.sections import DataSpec
from vitft.data.folder import Folder, assign_parts, warnings_on_names
from vitft.data.images import open_image
from vitft.data.inspection import inspect_folder
from vitft.data.scan import scan
from vitft.data.sources import expand
from vitft.data.split import Manifest, split
from vitft.system.errors import DataError

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"


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


def paths(folder: Folder) -> list[str]:
    return [file.path for file in folder.files]


def problem(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        scan(root)
    assert caught.value.exit_code == 3
    return str(caught.value)


# ---- the layout with one folder per class


def test_classes_are_sorted_and_files_are_sorted_within_them(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.jpg", "b/10.jpg", "a/x.png", "B/1.jpg", "a/Y.png")

    folder = scan(tmp_path)

    assert folder.classes == ("B", "a", "b")
    assert paths(folder) == ["B/1.jpg", "a/Y.png", "a/x.png", "b/10.jpg", "b/2.jpg"]
    assert [file.label for file in folder.files] == [0, 1, 1, 2, 2]
    assert folder.layout == "classes"


def test_folders_within_a_class_belong_to_it(tmp_path: Path) -> None:
    touch(tmp_path, "a/day/1.jpg", "a/night/deep/2.jpg", "a/0.jpg", "b/1.jpg")

    folder = scan(tmp_path)

    assert folder.classes == ("a", "b")
    assert paths(folder)[:3] == ["a/0.jpg", "a/day/1.jpg", "a/night/deep/2.jpg"]


def test_thirteen_suffixes_in_any_case_are_images(tmp_path: Path) -> None:
    names = [
        "1.jpg", "2.JPEG", "3.Png", "4.webp", "5.BMP", "6.gif", "7.tif", "8.TIFF", "9.avif",
        "10.HEIC", "11.heif", "12.hif", "13.jfif",
    ]  # fmt: skip
    touch(tmp_path, *(f"a/{name}" for name in names), "a/9.txt", "a/10.xyz", "a/jpg", "b/1.jpg")

    folder = scan(tmp_path)

    assert len(folder.files) == 14
    assert folder.unused == {".txt": 1, ".xyz": 1, "(no suffix)": 1}


def test_hidden_files_and_system_clutter_are_ignored_and_counted(tmp_path: Path) -> None:
    touch(
        tmp_path, "a/1.jpg", "b/1.jpg", "a/.DS_Store", "a/._1.jpg", "a/Thumbs.db", ".git/x.jpg",
        "__MACOSX/a/._1.jpg", "b/.hidden/2.jpg", "b/__MACOSX/3.jpg", "b/desktop.ini",
    )  # fmt: skip

    folder = scan(tmp_path)

    assert folder.classes == ("a", "b")
    assert len(folder.files) == 2
    assert "not used: 8 hidden entries" in folder.notes


def test_images_outside_the_class_folders_are_reported(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg", "loose.jpg", "README.md")

    folder = scan(tmp_path)

    assert folder.notes == (
        "not used: 1 file: 1 .md (not images; no action is needed)",
        "not used: 1 image outside the class folders (move them into a class folder to use them)",
    )


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


# ---- train and val folders


@pytest.mark.parametrize(
    ("train", "val"),
    [("train", "val"), ("Training", "Validation"), ("trn", "valid"), ("TRAIN", "dev")],
)
def test_train_and_val_folders_under_usual_names_are_kept(
    train: str, val: str, tmp_path: Path
) -> None:
    touch(tmp_path, *(f"{part}/{name}/1.jpg" for part in (train, val) for name in "ab"))

    folder = scan(tmp_path)

    assert folder.layout == "split"
    assert folder.classes == ("a", "b")
    assert [(f.path, f.label, f.part) for f in folder.files] == [
        (f"{train}/a/1.jpg", 0, "train"),
        (f"{val}/a/1.jpg", 0, "val"),
        (f"{train}/b/1.jpg", 1, "train"),
        (f"{val}/b/1.jpg", 1, "val"),
    ]


def test_train_val_and_test_folders_are_three_parts(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{p}/{name}/1.jpg" for p in ("train", "val", "test") for name in "ab"))

    folder = scan(tmp_path)

    assert [file.part for file in folder.files] == ["train", "val", "test"] * 2
    assert folder.notes == ()
    assert assign_parts(folder, "auto") == folder


def test_a_test_folder_is_kept_for_the_end_and_validation_is_drawn_from_train(
    tmp_path: Path,
) -> None:
    touch(tmp_path, *(f"{part}/{name}/1.jpg" for part in ("train", "test") for name in "ab"))

    folder = assign_parts(scan(tmp_path), "auto")

    assert folder.layout == "classes"  # so that a split is drawn
    assert [file.part for file in folder.files] == ["", "test"] * 2
    assert "drawn from the training images" in folder.notes[-1]


def test_a_test_folder_validates_on_request(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{part}/{name}/1.jpg" for part in ("train", "test") for name in "ab"))

    folder = assign_parts(scan(tmp_path), "test")

    assert folder.layout == "split"
    assert [file.part for file in folder.files] == ["train", "val"] * 2
    assert "the test images are used for validation" in folder.notes[-1]


def test_former_runs_ignored_a_test_folder_beside_a_val_folder(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{p}/{name}/1.jpg" for p in ("train", "val", "test") for name in "ab"))

    folder = assign_parts(scan(tmp_path), "test")

    assert [file.part for file in folder.files] == ["train", "val"] * 2


def test_a_test_folder_of_other_classes_is_no_obstacle_beside_a_val_folder(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{part}/{name}/1.jpg" for part in ("train", "val") for name in "ab"))
    touch(tmp_path, "test/unknown/1.jpg")

    folder = scan(tmp_path)

    assert {file.part for file in folder.files} == {"train", "val"}
    assert folder.notes == (
        "test/ is not used for testing: its classes differ from those of the training images",
    )


def test_unlike_classes_in_train_and_val_are_listed(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", "val/cat/1.jpg", "val/Dog/1.jpg")

    text = problem(tmp_path)

    assert "only in train/: dog" in text
    assert "only in val/: Dog" in text
    assert "fix: use the same class folders in train/ and val/" in text


def test_an_empty_class_folder_of_one_part_is_called_empty(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", "val/cat/1.jpg", "val/dog/1.jpg")
    (tmp_path / "train" / "scarf").mkdir()

    text = problem(tmp_path)

    assert "(only in train/: scarf; no images in train/scarf)" in text
    assert "fix: remove the empty train/scarf, or use the same class folders in train/" in text


def test_two_val_folders_are_one_too_many(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{p}/{name}/1.jpg" for p in ("train", "val", "valid") for name in "ab"))

    assert "more than one val folder: " in problem(tmp_path)


def test_an_empty_class_of_the_val_folder_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/notes.txt")

    assert "no images in 1 of 4 class folders: val/b" in problem(tmp_path)


def test_the_reference_split_cannot_be_drawn_from_a_split_folder(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{part}/{name}/1.jpg" for part in ("train", "val") for name in "ab"))

    with pytest.raises(DataError, match="has its own split"):
        scan(tmp_path, DataSpec(split="reference"))


def test_a_train_folder_alone_is_a_folder_of_classes(tmp_path: Path) -> None:
    touch(tmp_path, *(f"train/{name}/1.jpg" for name in "ab"))

    assert f"fix: use --data {tmp_path}/train: its subfolders look like" in problem(tmp_path)


def test_other_folders_beside_train_and_val_and_images_in_subfolders_are_noted(
    tmp_path: Path,
) -> None:
    touch(tmp_path, *(f"{part}/{name}/1.jpg" for part in ("train", "val") for name in "ab"))
    touch(tmp_path, "extra/1.jpg", "more/x.txt", "train/a/deep/2.jpg", "train/a/deep/er/3.jpg")

    folder = scan(tmp_path)

    assert folder.notes == (
        "not used for training or validation: extra and more",
        "2 images in subfolders of train/a are used",
    )


def test_what_the_reference_script_leaves_out_is_noted(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg", "a/deep/2.jpg", "a/deeper/3.jpg", "b/4.webp", ".jpg")

    folder = scan(tmp_path, DataSpec(split="reference"))

    assert "not used: 2 subfolders (as in the reference script)" in folder.notes
    assert any("1 .webp" in note for note in folder.notes)


def test_several_closed_folders_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, *(f"{name}/1.jpg" for name in "abcd"))
    scan_folder, closed_names = os.scandir, set[str]()

    def closed(path: str) -> object:
        if Path(path).name in closed_names:
            raise PermissionError
        return scan_folder(path)

    monkeypatch.setattr("vitft.data.walk.os.scandir", closed)
    for names, more in (("a", ""), ("ab", " and 1 more"), ("abd", " and 2 more")):
        closed_names |= {*names}
        assert problem(tmp_path).partition("\n")[0] == f"permission denied: {tmp_path}/a{more}"


def test_the_name_of_the_data_is_that_of_the_table_or_the_folder(tmp_path: Path) -> None:
    touch(tmp_path, "set/a/1.jpg", "set/b/1.jpg")
    (tmp_path / "t.csv").write_text("path,label\nset/a/1.jpg,a\nset/b/1.jpg,b\n")

    folder, table = scan(tmp_path / "set"), scan(tmp_path / "t.csv")

    assert (folder.name, folder.source) == ("set", tmp_path / "set")
    assert (table.name, table.source, table.root) == ("t.csv", tmp_path / "t.csv", tmp_path)
    assert folder.outputs == folder.classes


# ---- what is no data folder


def test_a_mistyped_folder_is_corrected(tmp_path: Path) -> None:
    (tmp_path / "flower_photos").mkdir()

    text = problem(tmp_path / "flowers_photo")

    assert f"data folder not found: {tmp_path}/flowers_photo" in text
    assert f"fix: check the path: did you mean {tmp_path}/flower_photos?" in text
    assert f"did you mean {tmp_path}/flower_photos?" in problem(tmp_path / "flower_photo" / "train")
    assert "fix: check the path" in problem(tmp_path / "zzz")
    assert f"data file not found: {tmp_path}/mnist.npz" in problem(tmp_path / "mnist.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["flower_photos"]


def test_case_and_unicode_normalisation_of_a_folder_name_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    composed = unicodedata.normalize("NFC", "Käfer")
    Path(composed, "2024").mkdir(parents=True)

    assert f"did you mean {composed}?" in problem(Path("KÄFER"))
    assert f"did you mean {composed}/2024?" in problem(Path("käfr/2024"))
    decomposed = unicodedata.normalize("NFD", "Käfers")
    assert f"did you mean {composed}?" in problem(Path(decomposed))


def test_a_folder_in_another_place_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("Projekt/Daten/Fotos", "Bilder/fotos", "here"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert "did you mean Bilder/fotos or Projekt/Daten/Fotos?" in problem(Path("Fotos"))
    monkeypatch.chdir(tmp_path / "Bilder" / "fotos")
    assert "did you mean ../fotos?" in problem(Path("Fotos"))
    monkeypatch.chdir(tmp_path / "here")
    assert "did you mean ../Bilder?" in problem(Path("Bilder"))
    assert "(it is relative to the current folder, " in problem(Path("Zebras"))


def test_a_mistyped_dataset_is_corrected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits.npz").touch()

    assert "did you mean digits.npz?" in problem(Path("digits.np"))
    assert "fix: use --data torchvision:CIFAR10, which" in problem(Path("cifar10"))
    assert "fix: use --data torchvision:MNIST, which" in problem(Path("MNIST"))


def test_a_relative_name_is_corrected_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(draw(tmp_path, "flowers/a/1.png", "flowers/b/1.png"))

    assert "did you mean flowers?" in problem(Path("flowrs"))
    assert len(scan(Path("flowers")).files) == 2


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "data.zip")

    assert "data.zip is an archive" in problem(tmp_path / "data.zip")


@pytest.mark.parametrize("name", ["nul\0", "x" * 300, "lone\ud800"], ids=["nul", "long", "lone"])
def test_impossible_names_are_errors_of_the_data(name: str, tmp_path: Path) -> None:
    assert problem(tmp_path / name)


def test_the_error_for_a_folder_without_classes_explains_the_layout(tmp_path: Path) -> None:
    touch(tmp_path, "photos/001.jpg", "photos/002.jpg")

    text = problem(tmp_path / "photos")

    assert f"no class folders in {tmp_path}/photos, which contains 2 images" in text
    assert "fix: put each class in its own folder" in text
    assert f"or label the images with `vitft label {tmp_path}/photos`" in text


def test_an_empty_folder_has_no_classes(tmp_path: Path) -> None:
    assert "no class folders in" in problem(tmp_path)


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    touch(tmp_path, "cats/1.jpg")

    assert "need at least 2 classes, found 1 (cats)" in problem(tmp_path)


@pytest.mark.parametrize("inside", ["1.jpg", "from Anna/1.jpg"])
def test_for_a_class_folder_its_parent_is_suggested(tmp_path: Path, inside: str) -> None:
    touch(tmp_path, f"photos/rose/{inside}", "photos/tulip/1.jpg")

    text = problem(tmp_path / "photos/rose")

    assert f"fix: use {tmp_path}/photos: rose seems to be one of its classes" in text


def test_the_parent_of_a_folder_beside_which_are_no_images_is_not_suggested(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "photos/rose/1.jpg", "photos/notes/1.txt")

    assert "fix: put each class in its own folder" in problem(tmp_path / "photos/rose")


def test_the_current_folder_is_not_suggested_but_the_one_above_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "photos/rose/1.jpg", "photos/tulip/1.jpg")
    monkeypatch.chdir(tmp_path / "photos")
    assert "fix: put each class in its own folder" in problem(Path("rose"))
    monkeypatch.chdir(tmp_path / "photos" / "rose")
    assert f"fix: use {tmp_path}/photos: rose seems to be one" in problem(Path())
    monkeypatch.setenv("HOME", str(tmp_path / "photos"))
    assert "fix: put each class in its own folder" in problem(tmp_path / "photos/tulip")


def test_a_wrapping_folder_of_one_class_is_not_pointed_out(tmp_path: Path) -> None:
    touch(tmp_path, "set/flowers/rose/1.jpg", "set/more.jpg")

    text = problem(tmp_path / "set")

    assert "need at least 2 classes, found 1 (flowers)" in text
    assert f"fix: put each class in its own folder, e.g. {tmp_path}/set/cat/001.jpg" in text
    assert "vitft label" not in text


def test_a_wrapping_folder_is_pointed_out(tmp_path: Path) -> None:
    touch(tmp_path, "flowers/rose/1.jpg", "flowers/tulip/1.jpg")

    assert f"fix: use --data {tmp_path}/flowers: its subfolders look like" in problem(tmp_path)


def test_empty_classes_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg", "c/readme.txt")
    (tmp_path / "d").mkdir()

    text = problem(tmp_path)

    assert "no images in 2 of 4 class folders: c (1 .txt) and d" in text
    assert "--classes classes.csv`, a file with the lines `class,new_class`, `c,` and `d,`" in text
    (tmp_path / "classes.csv").write_text("class,new_class\nc,\nd,\n")
    found = scan(tmp_path, DataSpec(classes=str(tmp_path / "classes.csv")))
    assert found.classes == ("a", "b")


def as_nobody(tmp_path: Path, code: str) -> str:
    """Run `code` as a user without rights, inside of `tmp_path`; what it prints."""
    folder = os.open(tmp_path, os.O_RDONLY)  # pytest's folders are closed to others
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", f"import os\nfrom pathlib import Path\n"
         f"from vitft.data.scan import *\nfrom vitft.data.inspection import *\n"
         f"os.fchdir({folder}); os.setuid(65534)\n{code}"],
        pass_fds=[folder],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )  # fmt: skip
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
def test_a_folder_behind_a_closed_one_is_an_error_of_the_data(tmp_path: Path) -> None:
    draw(tmp_path, "home/data/a/1.png", "home/data/b/1.png")
    (tmp_path / "home").chmod(0)

    told = as_nobody(
        tmp_path, "try: scan(Path('home/data'))\nexcept DataError as e: print(e.problem)"
    )

    (tmp_path / "home").chmod(0o755)
    assert told == "cannot read the data folder home/data: permission denied\n"


@needs_root
def test_closed_files_are_bad_files(tmp_path: Path) -> None:
    draw(tmp_path, "data/a/1.png", "data/a/2.png", "data/b/1.png")
    (tmp_path / "data/a/2.png").chmod(0)

    told = as_nobody(tmp_path, "print(inspect_folder(scan(Path('data'))).bad)")

    assert told == "(('a/2.png', 'permission denied'),)\n"


# ---- odd entries


def test_link_loops_end_and_dangling_links_are_listed(tmp_path: Path) -> None:
    draw(tmp_path, "a/1.png", "b/1.png")
    (tmp_path / "a" / "loop").symlink_to(".")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "a" / "dangling.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "b" / "self.png").symlink_to("self.png")
    before = time.process_time()

    folder = scan(tmp_path)

    assert time.process_time() - before < 5
    assert paths(folder) == ["a/1.png", "b/1.png"]
    reason = "dangling symbolic link"
    assert folder.bad == (("a/dangling.jpg", reason), ("b/self.png", reason))
    assert "3 circular links not followed" in folder.notes


def test_links_to_files_and_folders_elsewhere_are_followed(tmp_path: Path) -> None:
    draw(tmp_path, "store/1.png", "data/b/1.png")
    (tmp_path / "data" / "a").symlink_to(tmp_path / "store")
    (tmp_path / "data" / "b" / "2.png").symlink_to(tmp_path / "store" / "1.png")

    assert paths(scan(tmp_path / "data")) == ["a/1.png", "b/1.png", "b/2.png"]


def test_pipes_and_sockets_with_an_images_name_are_bad_files(tmp_path: Path) -> None:
    draw(tmp_path, "a/1.png", "b/1.png")
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "b" / "socket.png"))
        folder = scan(tmp_path)

    assert folder.bad == (
        ("a/pipe.jpg", "not a regular file"),
        ("b/socket.png", "not a regular file"),
    )


HOSTILE = [
    "with space", "new\nline", "car\rriage", 'quo"te', "com,ma", "\U0001f33c", "\u202egnp.exe",
    "\udcff\udcfe", "x" * 251, "caf\u00e9", "cafe\u0301", "=1+1", "\x1b]0;title\x07", "-rf", "a\\b",
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
    assert Manifest.read(tmp_path / "split.csv", data) == manifest
    assert all(open_image(manifest.locate(row)).size == (2, 2) for row in manifest.rows)


def test_names_that_some_file_systems_treat_as_equal_are_reported(tmp_path: Path) -> None:
    composed, apart = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")
    touch(tmp_path, "Cat/1.jpg", "cat/1.jpg", f"{composed}/1.jpg", f"{apart}/1.jpg")
    if len(list(tmp_path.iterdir())) < 4:
        pytest.skip("this file system confuses them itself")

    folder = scan(tmp_path)

    assert len(folder.classes) == 4
    (warning,) = folder.warnings
    assert warning.startswith("names that differ only in case, blanks, separators")
    assert "Cat and cat" in warning
    assert f"{apart} and {composed}" in warning
    assert "the lines `class,new_class`, `cat,Cat` and" in warning
    table = tmp_path.with_suffix(".csv")
    table.write_text(f"class,new_class\ncat,Cat\n{apart},{composed}\n")
    merged = scan(tmp_path, DataSpec(classes=str(table)))
    assert (merged.classes, merged.warnings) == (("Cat", composed), ())


def test_ten_thousand_files_are_found_in_a_second(tmp_path: Path) -> None:
    for label in range(10):
        (tmp_path / str(label)).mkdir()
        for i in range(1000):
            os.close(os.open(f"{tmp_path}/{label}/{i:04}.jpg", os.O_CREAT))

    before = time.process_time()
    folder = scan(tmp_path)

    assert time.process_time() - before < 1
    assert len(folder.files) == 10_000


# ---- the files below a folder, for predict


def test_all_image_files_below_a_folder_are_listed_with_the_bad_ones(tmp_path: Path) -> None:
    touch(tmp_path, "z.jpg", "a/b/c.PNG", ".hidden.jpg", "note.txt")
    (tmp_path / "dangling.jpg").symlink_to("nowhere")

    assert list(expand([str(tmp_path)])) == [
        f"{tmp_path}/{n}" for n in ("a/b/c.PNG", "dangling.jpg", "z.jpg")
    ]


def test_all_spellings_of_a_class_are_named_with_the_lines_that_merge_them() -> None:
    (warning,) = warnings_on_names(["Bee", "CAT", "Cat", "bee", "cat", "caf\u00e9", "cafe\u0301"])

    assert ": Bee and bee; CAT, Cat and cat; caf\u00e9 and cafe\u0301. If they mean" in warning
    assert (
        "`class,new_class`, `bee,Bee`, `Cat,CAT`, `cat,CAT` and `cafe\u0301,caf\u00e9`" in warning
    )
    assert warnings_on_names(["cat", "dog", "cats"]) == ()
