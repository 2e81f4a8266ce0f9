"""Groups of images (patients, videos, cameras): never on both sides of the split."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.test_folder import touch
from tests.data.test_split import DRAWN, Mode, good
from vitft.config.sections import DataSpec
from vitft.data.draw import joined_groups, joined_note
from vitft.data.folder import File, Folder, assign_parts
from vitft.data.inspection import InspectedFolder
from vitft.data.scan import scan
from vitft.data.split import Manifest, split
from vitft.study.plan import Plan, check_study
from vitft.system.errors import DataError, UsageError


def inspected(groups: dict[str, list[str]]) -> InspectedFolder:
    """An inspected folder; `groups` maps each class to the groups of its images, in order."""
    files = [
        File(f"{name}/{i:03}.jpg", label, group=group)
        for label, (name, members) in enumerate(groups.items())
        for i, group in enumerate(members)
    ]
    folder = Folder(root=Path("data"), classes=tuple(groups), files=tuple(files), layout="classes")
    return InspectedFolder(folder=folder, good=tuple(map(good, files)), bad=(), odd={})


def split_it(
    found: InspectedFolder, seed: int = 0, rate: float = 0.2, mode: Mode = "content"
) -> Manifest:
    spec = DataSpec(split=mode, seed=seed, val_rate=rate)
    return split(found, spec, groups=joined_groups(found.good, {}))


def sides(found: InspectedFolder, manifest: Manifest) -> dict[str, set[str]]:
    """The sides on which each group is."""
    group_of = {file.path: file.group for file in found.good}
    result: dict[str, set[str]] = {}
    for row in manifest.rows:
        result.setdefault(group_of[row.path], set()).add(row.split)
    return result


@pytest.mark.parametrize("mode", DRAWN)
@pytest.mark.parametrize("seed", range(20))
def test_no_group_is_ever_on_both_sides(seed: int, mode: Mode) -> None:
    draw = random.Random(seed)
    sizes = {name: draw.randint(20, 60) for name in ("a", "b", "c")}
    found = inspected(
        {name: [f"g{draw.randrange(15)}" for _ in range(n)] for name, n in sizes.items()}
    )

    manifest = split_it(found, seed, mode=mode)

    assert all(len(parts) == 1 for parts in sides(found, manifest).values())
    for label in range(3):
        assert {row.split for row in manifest.rows if row.label == label} == {"train", "val"}


@pytest.mark.parametrize("mode", DRAWN)
@pytest.mark.parametrize("seed", range(10))
def test_the_fraction_held_out_is_within_half_a_group(seed: int, mode: Mode) -> None:
    # 10 patients with 5 images of each of two classes: 2 patients are a fifth
    found = inspected({name: [f"p{i // 5}" for i in range(50)] for name in ("a", "b")})

    manifest = split_it(found, seed, mode=mode)

    assert len(manifest.val) == 20
    assert len(set(map(tuple, sides(found, manifest).values()))) == 2


def test_another_seed_draws_other_groups() -> None:
    found = inspected({name: [f"p{i // 5}" for i in range(50)] for name in ("a", "b")})

    drawn = [{row.path for row in split_it(found, seed).val} for seed in range(6)]

    assert len({frozenset(paths) for paths in drawn}) > 3


def test_copies_and_groups_are_joined() -> None:
    found = inspected({"a": ["g1", "g2", "", "", "g3"], "b": ["g4", "g5", "g6", "g7", ""]})
    first, second, third, fourth = found.good[:4]
    same = replace(third, sha256=first.sha256)  # an image without a group is a copy of one in g1
    found = replace(found, good=(first, second, same, fourth, *found.good[4:]))
    copies = {second.sha256: "x", fourth.sha256: "x"}

    groups = joined_groups(found.good, copies)

    assert groups.get(same.sha256, same.sha256) == groups.get(first.sha256, first.sha256)
    assert groups[second.sha256] == groups[fourth.sha256]
    assert groups.get(first.sha256, first.sha256) != groups[second.sha256]


def test_groups_that_copies_join_are_counted() -> None:
    found = inspected({"a": ["g1", "g2", "", "g3"], "b": ["g4", "g5", "g6", ""]})
    first, second, *rest = found.good
    same = (first, replace(second, sha256=first.sha256), *rest)

    assert joined_note(found.good, joined_groups(found.good, {}), {}) == ""
    note = joined_note(same, joined_groups(same, {}), {})
    assert note.startswith("identical images in different groups merge the 6 groups into 5,")
    copies = {found.good[0].sha256: "x", found.good[4].sha256: "x"}
    note = joined_note(found.good, joined_groups(found.good, copies), copies)
    assert "identical images or near-duplicates in different groups merge" in note


def test_without_groups_the_split_does_not_change() -> None:
    found = inspected({"a": [""] * 30, "b": [""] * 20})
    copies = {found.good[0].sha256: "x", found.good[1].sha256: "x"}

    assert joined_groups(found.good, copies) is copies
    assert split_it(found) == split(found, DataSpec())


def test_a_class_with_a_single_group_is_refused_with_the_reason() -> None:
    found = inspected({"a": ["p1"] * 9, "b": ["p2", "p3"] * 5})

    with pytest.raises(DataError, match=r"a \(9\); all images of a group must be on the same side"):
        split_it(found)


# ---- groups in file names


def folder_of_videos(root: Path, *parts: str) -> Path:
    for part in parts or ("",):
        touch(root, *(f"{part}/{c}/v{v}_{i}.png".lstrip("/")
                      for c in ("cat", "dog") for v in range(3) for i in range(2)))  # fmt: skip
    return root


def test_a_pattern_finds_the_groups_in_paths(tmp_path: Path) -> None:
    data = folder_of_videos(tmp_path / "d")
    touch(data, "cat/other.png")

    found = scan(data, DataSpec(group_by=r"(v\d+)_"))

    assert {file.group for file in found.files} == {"v0", "v1", "v2", ""}
    assert "3 groups of images found by data.group_by; 1 image without a group" in found.notes


def test_a_pattern_may_use_the_class_folder(tmp_path: Path) -> None:
    found = scan(folder_of_videos(tmp_path / "d"), DataSpec(group_by=r"(.*)_\d+"))

    assert len({file.group for file in found.files}) == 6


def test_a_pattern_replaces_the_group_column_of_a_table(tmp_path: Path) -> None:
    data = folder_of_videos(tmp_path / "d")
    rows = [f"{p.relative_to(data)},{p.parent.name},same" for p in sorted(data.rglob("*.png"))]
    (data / "t.csv").write_text("\n".join(["path,label,group", *rows]))

    found = scan(data / "t.csv", DataSpec(group_by=r"(v\d+)_"))

    assert {file.group for file in found.files} == {"v0", "v1", "v2"}


@pytest.mark.parametrize("val_from", ["auto", "test"])
@pytest.mark.parametrize("parts", [("train", "val"), ("train", "test"), ("train", "val", "test")])
def test_a_group_in_two_parts_is_refused(
    tmp_path: Path, parts: tuple[str, ...], val_from: str
) -> None:
    data = folder_of_videos(tmp_path / "d", *parts)

    with pytest.raises(DataError, match=r"the group v0 is in train \(train/cat/v0_0.png\) and in"):
        assign_parts(scan(data, DataSpec(group_by=r"(v\d+)_")), val_from)  # type: ignore[arg-type]


def test_a_group_in_two_parts_of_a_table_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a/0.png", "b/0.png", "a/1.png", "b/1.png")
    rows = ["a/0.png,a,train,p1", "b/0.png,b,train,p2", "a/1.png,a,val,p3", "b/1.png,b,test,p2"]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split,group", *rows]))

    with pytest.raises(DataError, match=r"p2 is in train \(b/0.png\) and in test \(b/1.png\)"):
        scan(tmp_path / "t.csv")


def test_a_pattern_without_matches_is_refused_with_a_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none of the paths, e.g. cat/v0_0.png"):
        scan(folder_of_videos(tmp_path / "d"), DataSpec(group_by=r"patient(\d+)"))


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "missing )"),
        ("v.*", "0 capturing groups"),
        ("(a)(b)", "2 capturing groups"),
        ("(?<!x*)(a)", "look-behind"),
    ],
)
def test_a_bad_pattern_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(UsageError, match=f"data.group_by=.*{problem.replace(')', '.')}"):
        DataSpec(group_by=pattern)


@pytest.mark.parametrize("also", [{"split": "reference"}, {"group": "patient"}])
def test_a_pattern_excludes_the_reference_split_and_a_column(also: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"data.group_by"):
        DataSpec(group_by="(v)", **also)  # type: ignore[arg-type]


def test_a_study_of_groups_needs_a_split_column(tmp_path: Path) -> None:
    names = [f"{c}/{i}.png" for c in "ab" for i in range(8)]
    touch(tmp_path, *names)
    rows = [f"{name},{name[0]},p{name[2]},{'test' if name[2] > '5' else 'train'}" for name in names]
    (tmp_path / "whole.csv").write_text("\n".join(["path,label,group,part", *rows]))
    (tmp_path / "drawn.csv").write_text("\n".join(["path,label,group,other", *rows]))

    def plan(name: str) -> Plan:
        return check_study(str(tmp_path / name), ["pixels"], [2], seeds=1, out=None)

    assert plan("whole.csv").shots == (2,)
    assert plan("whole.csv").out.name == "study-whole"
    with pytest.raises(
        UsageError, match=r"a study samples individual images, but .* defines groups"
    ):
        plan("drawn.csv")
