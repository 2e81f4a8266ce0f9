"""Paths that do not exist: what was probably meant."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitft.data.missing import check_some_exist, is_missing, refuse_run, warn_of_misspelt
from vitft.system.errors import DataError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the image photos/rose.jpg."""
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "photos" / "rose.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_three_misspelt_paths_are_corrected(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(5):
        Image.new("RGB", (4, 4)).save(here / "photos" / f"tulip-of-my-garden-{i}.jpg")
    names = [f"photos/tulip-of-my-gardn-{i}.jpg" for i in range(5)]

    warn_of_misspelt(["photos/rose.jpg", "elsewhere/unlike.jpg", *names])

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    for i, line in enumerate(lines):
        assert line.startswith(f"photos/tulip-of-my-gardn-{i}.jpg not found: did you mean photos/")


def test_a_single_misspelt_path_is_corrected(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_misspelt(["photos/roze.jpg"])

    assert caplog.messages == ["photos/roze.jpg not found: did you mean photos/rose.jpg?"]


@pytest.mark.parametrize(
    ("names", "problem", "fix"),
    [
        (["photos/roze.jpg"], "photos/roze.jpg does not exist",
         "check the path: did you mean photos/rose.jpg?"),
        (["zzz", "yyy"], "zzz and yyy do not exist", "check the paths"),
        (["https://me:secret@host/x"], "https://***@host/x is a web address",
         "download the image first"),
    ],
)  # fmt: skip
def test_only_missing_paths_are_an_error(
    here: Path, names: list[str], problem: str, fix: str
) -> None:
    with pytest.raises(DataError) as caught:
        check_some_exist(names)

    assert caught.value.problem.startswith(problem)
    assert caught.value.fix.startswith(fix)


def test_some_missing_paths_are_a_warning(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_some_exist(["photos/rose.jpg", "photos/roze.jpg"])

    assert len(caplog.messages) == 1
    check_some_exist([])


def test_an_image_inside_an_array_dataset_exists(here: Path) -> None:
    np.savez("set.npz", x=np.zeros((4, 3, 3), np.uint8), y=np.arange(4))

    assert not is_missing("set.npz/all/0/00000.bmp")
    assert is_missing("other.npz/all/0/00000.bmp")
    assert is_missing("photos/none.jpg")
    assert not is_missing("photos")


def test_the_data_before_a_path_are_found(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.savez("set.npz", x=np.zeros((4, 3, 3), np.uint8), y=np.arange(4))
    for name in ("b", "a", "c", "d"):
        (here / name / "cat").mkdir(parents=True)
        (here / name / "cat" / "1.jpg").touch()

    warn_of_misspelt(["all/3/00003.bmp", "cat/1.jpg"])

    assert caplog.messages == [
        "all/3/00003.bmp not found: did you mean set.npz/all/3/00003.bmp?",
        "cat/1.jpg not found: did you mean a/cat/1.jpg or b/cat/1.jpg or c/cat/1.jpg?",
    ]


@pytest.mark.parametrize(("place", "is_found"), [("folder-49", True), ("folder-50", False)])
def test_the_data_are_looked_for_in_fifty_folders(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
    is_found: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(51):
        (tmp_path / f"folder-{i:02}").mkdir()
    (tmp_path / place / "kind-of-flower").mkdir()
    (tmp_path / place / "kind-of-flower" / "7354.jpg").touch()

    warn_of_misspelt(["kind-of-flower/7354.jpg"])

    expected = f"kind-of-flower/7354.jpg not found: did you mean {place}/kind-of-flower/7354.jpg?"
    assert (expected in caplog.messages) == is_found


def test_a_folder_is_no_suggestion_for_a_file(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    (here / "photoz.jpg").mkdir()

    warn_of_misspelt(["photo.jpg", "photo"])

    assert caplog.messages == ["photo not found: did you mean photos?"]


@pytest.mark.parametrize("lacking", [None, "model.safetensors", "split.csv"])
def test_the_folder_of_a_run_is_refused(tmp_path: Path, lacking: str | None) -> None:
    for name in {"model.safetensors", "split.csv"} - {lacking}:
        (tmp_path / str(name)).touch()

    if lacking:
        refuse_run(str(tmp_path))
    else:
        with pytest.raises(DataError, match="is a run, not a folder of images"):
            refuse_run(str(tmp_path))
