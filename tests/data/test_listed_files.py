"""Files that a table lists; what is read is shown in `contract/reading/paths.toml`."""

import os
from pathlib import Path

from vitft.data.listed_files import reason_missing


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
