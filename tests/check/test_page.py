"""The page of a check: which images it shows, its pictures and its commands."""

import re
from html import unescape
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.pictures import encoded, scene, scenes_folder
from vitft.check.audit import AuditedImage, audit_images
from vitft.check.folder import CheckResult, check_folder
from vitft.check.page import shown_paths, write_check_page
from vitft.config.sections import DataSpec, TrainSpec, WeightsSpec
from vitft.metrics.results import AuditResults, CopyGroup, Mislabel


def mislabelled(path: str) -> Mislabel:
    return Mislabel(
        path=path, label="a", suggested="b", given_probability=0.1, suggested_probability=0.9
    )


def copies(*paths: str, labels_differ: bool = False, across_split: bool = False) -> CopyGroup:
    return CopyGroup(
        kind="exact",
        members=[{"path": path, "label": "a", "split": ""} for path in paths],
        across_split=across_split,
        labels_differ=labels_differ,
    )


def with_findings(**findings: Any) -> CheckResult:
    """Return a result with the given lists of findings, of which only the paths matter."""
    audit = cast("AuditResults", {"mislabels": [], "duplicates": [], "odd": [], **findings})
    return cast("CheckResult", type("Result", (), {"audit": audit})())


def test_forty_findings_of_a_kind_are_shown_and_six_images_of_a_group() -> None:
    found = with_findings(
        mislabels=[mislabelled(f"label/{i}") for i in range(41)],
        duplicates=[copies(*(f"copy/{i}" for i in range(7)))],
        odd=[{"path": f"odd/{i}", "reason": "blurry"} for i in range(41)],
    )

    shown = shown_paths(found)

    assert shown == [
        *(f"label/{i}" for i in range(40)),
        *(f"copy/{i}" for i in range(6)),
        *(f"odd/{i}" for i in range(40)),
    ]


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


def test_copies_within_one_subset_are_not_across_the_split() -> None:
    images = [
        AuditedImage(path=path, label="a", split=split, sha256=sha * 64)
        for path, split, sha in (
            ("1", "train", "1"),
            ("2", "", "1"),
            ("3", "train", "2"),
            ("4", "test", "2"),
            ("5", "val", "3"),
        )
    ]

    groups = audit_images(images)["duplicates"]

    assert [group["across_split"] for group in groups] == [False, True]
    assert [[member["path"] for member in group["members"]] for group in groups] == [
        ["1", "2"],
        ["3", "4"],
    ]
