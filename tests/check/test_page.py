"""The page of a check: which images it shows, its pictures and its commands."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.pictures import encoded, scene, scenes_folder
from vitft.check.audit import AuditedImage, audit_images
from vitft.check.folder import CheckResult, check_folder
from vitft.check.page import draw_thumbnail, shown_paths, write_check_page
from vitft.config.sections import DataSpec, TrainSpec, WeightsSpec
from vitft.metrics.results import AuditResults, CopyGroup, Mislabel
from vitft.system.errors import RunError


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


@pytest.mark.parametrize("kind", ["labels_differ", "across_split"])
def test_the_pictures_are_those_of_the_groups_that_the_page_shows_first(kind: str) -> None:
    groups = [copies(f"{i}/x", f"{i}/y") for i in range(60)]
    groups[55] = copies("55/x", "55/y", **{kind: True})

    shown = shown_paths(with_findings(duplicates=groups))

    assert shown[:4] == ["55/x", "55/y", "0/x", "0/y"]
    assert len(shown) == 80
    assert "39/x" not in shown  # the 41st group


def test_an_image_of_several_findings_has_one_picture() -> None:
    found = with_findings(mislabels=[mislabelled("a")], duplicates=[copies("a", "b")])

    assert shown_paths(found) == ["a", "b"]


def test_two_hundred_images_are_shown_at_most() -> None:
    groups = [copies(*(f"{i}/{k}" for k in range(6))) for i in range(40)]

    shown = shown_paths(with_findings(duplicates=groups))

    assert len(shown) == 200
    assert shown[-1] == "33/1"


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


def test_a_picture_that_can_no_longer_be_read_is_left_out(
    near_copies: Path, tmp_path: Path
) -> None:
    found, out = found_in(near_copies), tmp_path / "check.html"
    (near_copies / "dog" / "smaller.jpg").unlink()

    write_check_page(found, out, name="pets", command="vitft", max_pixels=10**6)
    assert out.read_text().count("data:image/jpeg") == 3
    write_check_page(found, out, name="pets", command="vitft", max_pixels=160 * 120 - 1)
    assert out.read_text().count("data:image/jpeg") == 0


def test_the_number_of_images_is_not_repeated_if_all_are_readable_and_different(
    tmp_path: Path,
) -> None:
    root, out = scenes_folder(tmp_path / "pets"), tmp_path / "check.html"
    scene(7, (20, 30)).save(root / "cat" / "icon.png")

    write_check_page(found_in(root), out, name="pets", command="vitft", max_pixels=10**6)

    assert "11 images of 2 classes" in out.read_text()
    assert "readable images" not in out.read_text()


def test_without_findings_no_page_is_written(tmp_path: Path) -> None:
    out, found = tmp_path / "check.html", found_in(scenes_folder(tmp_path / "pets"))

    assert write_check_page(found, out, name="pets", command="vitft", max_pixels=10**6) is None
    assert not out.exists()


def test_a_page_that_cannot_be_written_is_an_error(near_copies: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(RunError):
        write_check_page(
            found_in(near_copies),
            tmp_path / "file" / "check.html",
            name="pets",
            command="vitft",
            max_pixels=10**6,
        )


def test_near_duplicates_need_grouping_unless_the_data_has_its_own_split(
    near_copies: Path,
) -> None:
    found = found_in(near_copies)
    files = tuple(replace(file, part="val") for file in found.folder.files)

    assert found.groups_help
    assert not replace(found, folder=replace(found.folder, files=files)).groups_help
    exact = [group for group in found.audit["duplicates"] if group["kind"] == "exact"]
    audit: AuditResults = {**found.audit, "duplicates": exact}
    assert not replace(found, audit=audit).groups_help


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


def test_an_image_that_can_no_longer_be_read_has_an_empty_thumbnail(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(scene(0)))
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    result = cast("CheckResult", SimpleNamespace(grey_range=()))

    found = [
        draw_thumbnail(name, root=tmp_path, max_pixels=10**6, result=result)
        for name in ("a.png", "torn.png", "removed.png")
    ]

    assert found[0].startswith("data:image/jpeg;base64,")
    assert found[1:] == ["", ""]
