"""Proposed fixes: which action, for which file, in which order."""

from typing import Any

import pytest

from vitft.data import propose_fixes


def member(path: str, split: str = "") -> Any:
    return {"path": path, "label": path.split("/")[0], "split": split}


def group(kind: str, *members: Any) -> Any:
    return {"kind": kind, "members": list(members), "across_split": False, "labels_differ": False}


def audit(**found: object) -> Any:
    empty = {"images": 9, "bad": [], "odd": [], "duplicates": [], "mislabels": [], "imbalance": {}}
    return {**empty, **found}


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
    fixes = propose_fixes(audit(duplicates=[group("exact", *(member(*one) for one in paths))]))

    assert [fix.path for fix in fixes] == [path for path, _ in paths if path != kept]
    assert {(fix.action, fix.kind, fix.confidence) for fix in fixes} == {("drop", "exact", 1.0)}
    assert fixes[0].reason == f"identical to {kept}"


def test_files_with_an_improbable_label_are_dropped_with_the_probability() -> None:
    members = [member("cat/1.jpg"), member("cat/2.jpg"), member("dog/1.jpg"), member("dog/2.jpg")]

    known = {**group("exact", *members), "probabilities": {"cat": 0.01, "dog": 0.9}}

    fixes = propose_fixes(audit(duplicates=[known]))

    assert [(fix.path, fix.action, fix.kind, fix.confidence) for fix in fixes] == [
        ("dog/2.jpg", "drop", "exact", 1.0),
        ("cat/1.jpg", "drop", "two labels", 0.9),
        ("cat/2.jpg", "drop", "two labels", 0.9),
    ]
    assert fixes[-1].reason == "identical to dog/1.jpg, whose label is more probable"


def test_files_with_two_labels_are_left_to_the_user() -> None:
    copies = group("exact", member("cat/1.jpg"), member("dog/1.jpg"), member("ape/1.jpg"))

    fixes = propose_fixes(audit(duplicates=[copies]))

    assert {fix.label: fix.reason for fix in fixes} == {
        "ape": "identical to a file with another label (cat, dog): drop all but one",
        "cat": "identical to a file with another label (ape, dog): drop all but one",
        "dog": "identical to a file with another label (ape, cat): drop all but one",
    }
    assert {(f.action, f.kind, f.confidence) for f in fixes} == {("undecided", "two labels", None)}


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
