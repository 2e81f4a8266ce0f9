"""What is said about paths of a table that lead to no file."""

import os
from pathlib import Path

import pytest

from vitft.data.scan import missing_fix, reason_missing


def test_only_a_regular_file_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "link").symlink_to("gone.jpg")
    os.mkfifo(tmp_path / "pipe")

    reasons = [
        reason_missing(f"{tmp_path}/{name}")
        for name in ("a.jpg", "link", "pipe", ".", "a.jpg/b.jpg", "x" * 300)
    ]

    assert reasons == [
        "", "no such file", "not a regular file", "not a regular file", "not a directory",
        "file name too long",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("C:\\u\\set\\a\\1.jpg", "e.g. set/a/1.jpg in place of C:\\u\\set\\a\\1.jpg"),
        ("C:/u/a/1.jpg", "e.g. 1.jpg in place of C:/u/a/1.jpg"),
        ("C:\\gone\\9.jpg", "e.g. 9.jpg in place of C:\\gone\\9.jpg"),
    ],
)
def test_of_a_path_of_windows_the_longest_end_that_exists_is_proposed(
    tmp_path: Path, path: str, advice: str
) -> None:
    for name in ("set/a/1.jpg", "1.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    found = missing_fix(path, tmp_path, has_root=False)

    assert found == f"write paths below {tmp_path}, {advice}"


@pytest.mark.parametrize("has_root", [False, True])
def test_paths_relative_to_the_current_folder_are_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_root: bool
) -> None:
    (tmp_path / "1.jpg").touch()
    monkeypatch.chdir(tmp_path)

    here, gone = (missing_fix(path, Path("set"), has_root=has_root) for path in ("1.jpg", "2.jpg"))

    place = "choose another" if has_root else "choose their"
    assert here == "use --set data.root=. (the paths are relative to the current folder)"
    assert gone == f"correct the paths, {place} folder with --set data.root=DIR"
