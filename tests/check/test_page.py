"""The page of a check: which images it shows, its pictures and its commands."""

import re
from html import unescape
from pathlib import Path

import pytest

from tests.support.pictures import encoded, scene, scenes_folder
from vitft.check import (
    CheckResult,
    check_folder,
    write_check_page,
)
from vitft.config import DataSpec, TrainSpec, WeightsSpec


def found_in(root: Path) -> CheckResult:
    return check_folder(
        root, spec=DataSpec(), weights=WeightsSpec(name=""), train=TrainSpec(cache="none")
    )


@pytest.fixture
def near_copies(tmp_path: Path) -> Path:
    """Return a folder of scenes with a near-duplicate and an identical file."""
    root = scenes_folder(tmp_path / "pets")
    (root / "dog" / "smaller.jpg").write_bytes(encoded(scene(100).resize((112, 84)), 70))
    (root / "cat" / "same.jpg").write_bytes((root / "cat" / "0.jpg").read_bytes())
    return root


def test_the_page_names_the_data_the_counts_and_the_next_command(
    near_copies: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "folder" / "check.html"

    written = write_check_page(
        found_in(near_copies),
        out,
        name="my pets",
        command="vitft finetune --data pets",
        max_pixels=10**6,
        note="Look twice",
    )

    page = unescape(out.read_text())
    assert written == out
    assert "<title>my pets: images and labels checked" in page
    assert re.search(r"vitft finetune --data pets --fixes \S+\.csv", page)
    assert "Look twice" in page
    assert "12 readable images (11 different, 1 identical copy)" in page
    assert "2 classes" in page
    assert page.count("data:image/jpeg") == 4
    assert "Remove the empty class folders" not in page
