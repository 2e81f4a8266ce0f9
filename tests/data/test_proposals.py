"""Proposed fixes: which action, for which file, in which order."""

import pytest

from vitft.data.fixes import Fix
from vitft.data.proposals import (
    identical_file_fixes,
    merge_fixes,
    most_probable_label,
    near_duplicate_fixes,
    propose_fixes,
)
from vitft.metrics.results import AuditResults, CopyGroup, CopyMember


def member(path: str, split: str = "") -> CopyMember:
    return {"path": path, "label": path.split("/")[0], "split": split}


def group(kind: str, *members: CopyMember) -> CopyGroup:
    return {"kind": kind, "members": list(members), "across_split": False, "labels_differ": False}


def audit(**found: object) -> AuditResults:
    empty = {"images": 9, "bad": [], "odd": [], "duplicates": [], "mislabels": [], "imbalance": {}}
    return {**empty, **found}  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("probabilities", "label"),
    [
        pytest.param({"cat": 0.60, "dog": 0.02}, "cat", id="30 times as probable"),
        pytest.param({"cat": 0.59, "dog": 0.02}, "", id="less than that"),
        pytest.param({"cat": 0.02, "dog": 0.60}, "dog", id="the second one"),
        pytest.param({"cat": 0.6, "dog": 0.01, "bird": 0.6}, "cat", id="another is as probable"),
        pytest.param({"cat": 0.6, "dog": 0.01, "bird": 0.7}, "", id="another is more probable"),
        pytest.param({"cat": 0.60}, "", id="one is unknown"),
        pytest.param({}, "", id="none is known"),
    ],
)
def test_a_label_is_right_if_it_is_30_times_as_probable(
    probabilities: dict[str, float], label: str
) -> None:
    assert most_probable_label(["cat", "dog"], probabilities) == label
    assert most_probable_label(["cat"], probabilities) == ""


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        pytest.param([("a/x.jpg", "train"), ("a/long.jpg", "val")], "a/long.jpg", id="validation"),
        pytest.param([("a/x.jpg", "test"), ("a/long.jpg", "train")], "a/x.jpg", id="a short name"),
        pytest.param([("a/x (1).jpg", ""), ("a/much longer.jpg", "")], "a/much longer.jpg",
                     id="the name of a copy"),
        pytest.param([("a/x (1)", ""), ("a/a longer name", "")], "a/a longer name",
                     id="a copy without a suffix"),
        pytest.param([("a/b/c/1.jpg", ""), ("a/22.jpg", "")], "a/b/c/1.jpg",
                     id="folders do not count"),
        pytest.param([("a/2.jpg", ""), ("a/1.jpg", "")], "a/1.jpg", id="in the order of paths"),
    ],
)  # fmt: skip
def test_one_of_identical_files_is_kept(paths: list[tuple[str, str]], kept: str) -> None:
    fixes = identical_file_fixes([member(*one) for one in paths], {})

    assert [fix.path for fix in fixes] == [path for path, _ in paths if path != kept]
    assert {(fix.action, fix.kind, fix.confidence) for fix in fixes} == {("drop", "exact", 1.0)}
    assert fixes[0].reason == f"identical to {kept}"


def test_files_with_an_improbable_label_are_dropped_with_the_probability() -> None:
    members = [member("cat/1.jpg"), member("cat/2.jpg"), member("dog/1.jpg"), member("dog/2.jpg")]

    fixes = identical_file_fixes(members, {"cat": 0.01, "dog": 0.9})

    assert sorted((fix.path, fix.action, fix.kind, fix.confidence) for fix in fixes) == [
        ("cat/1.jpg", "drop", "two labels", 0.9),
        ("cat/2.jpg", "drop", "two labels", 0.9),
        ("dog/2.jpg", "drop", "exact", 1.0),
    ]
    assert fixes[0].reason == "identical to dog/1.jpg, whose label is more probable"


def test_files_with_two_labels_are_left_to_the_user() -> None:
    fixes = identical_file_fixes(
        [member("cat/1.jpg"), member("dog/1.jpg"), member("ape/1.jpg")], {}
    )

    assert {fix.label: fix.reason for fix in fixes} == {
        "ape": "identical to a file with another label (cat, dog); drop all but one",
        "cat": "identical to a file with another label (ape, dog); drop all but one",
        "dog": "identical to a file with another label (ape, cat); drop all but one",
    }
    assert {(f.action, f.kind, f.confidence) for f in fixes} == {("undecided", "two labels", None)}


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (("cat/1.jpg", "train"), "nearly identical to cat/1.jpg"),
        (("dog/1.jpg", "train"), "nearly identical to dog/1.jpg (label dog)"),
        (("cat/1.jpg", "test"), "nearly identical to cat/1.jpg (test image)"),
        (("dog/1.jpg", "val"), "nearly identical to dog/1.jpg (label dog, validation image)"),
    ],
)
def test_near_duplicates_are_compared_with_the_first(first: tuple[str, str], reason: str) -> None:
    others = [member("cat/2.jpg", "train"), member("cat/3.jpg", "train")]

    fixes = near_duplicate_fixes([member(*first), *others])

    assert [(fix.path, fix.action, fix.kind, fix.reason) for fix in fixes] == [
        ("cat/2.jpg", "undecided", "near", reason),
        ("cat/3.jpg", "undecided", "near", reason),
    ]


def test_certain_fixes_come_first_then_the_kinds_then_the_paths() -> None:
    wrong = [
        {"path": f"a/{name}.jpg", "label": "a", "suggested": "b", "given_probability": 0.1,
         "suggested_probability": p}
        for name, p in (("9", 0.8), ("8", 0.95))
    ]  # fmt: skip
    found = audit(
        odd=[{"path": "a/2.jpg", "reason": "tiny"}, {"path": "a/1.jpg", "reason": "blurry",
                                                    "label": "a"}],
        duplicates=[
            group("near", member("a/3.jpg"), member("a/4.jpg")),
            group("exact", member("a/5.jpg"), member("a/66.jpg")),
            group("exact", member("a/7.jpg"), member("b/7.jpg")),
        ],
        mislabels=wrong,
        bad=[{"path": "z.jpg", "reason": "empty file"}],
    )  # fmt: skip

    fixes = propose_fixes(found)

    assert [(fix.path, fix.kind) for fix in fixes] == [
        ("z.jpg", "bad"),
        ("a/66.jpg", "exact"),
        ("a/7.jpg", "two labels"),
        ("b/7.jpg", "two labels"),
        ("a/9.jpg", "mislabel"),  # in the order of the audit
        ("a/8.jpg", "mislabel"),
        ("a/4.jpg", "near"),
        ("a/1.jpg", "odd"),
        ("a/2.jpg", "odd"),
    ]
    by_path = {fix.path: fix for fix in fixes}
    assert (by_path["a/9.jpg"].new_label, by_path["a/9.jpg"].confidence) == ("b", 0.8)
    assert [by_path[f"a/{i}.jpg"].label for i in (1, 2)] == ["a", ""]


def test_fixes_of_a_file_are_merged_into_the_strongest() -> None:
    fixes = [
        Fix(path="1.jpg", action="undecided", reason="odd", kind="odd"),
        Fix(path="2.jpg", action="drop", reason="alone", kind="bad"),
        Fix(path="1.jpg", action="undecided", label="cat", reason="near", kind="near"),
        Fix(path="1.jpg", action="undecided", label="dog", reason="wrong", kind="mislabel"),
    ]

    assert merge_fixes(fixes) == [
        Fix(
            path="1.jpg",
            action="undecided",
            label="cat",
            reason="wrong; odd; near",
            kind="mislabel",
        ),
        Fix(path="2.jpg", action="drop", reason="alone", kind="bad"),
    ]
    drop = Fix(path="1.jpg", action="drop", reason="copy", kind="exact")
    assert merge_fixes([*fixes, drop])[0].action == "drop"
