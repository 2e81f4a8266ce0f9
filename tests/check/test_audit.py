"""Findings of an audit and proposed fixes: only certain findings are dropped."""

import pytest

from vitft.check.audit import AuditedImage, audit_images, audit_summary
from vitft.data.proposals import propose_fixes
from vitft.data.unused import unused_notes
from vitft.metrics.results import AuditResults, Mislabel

A, B = "1" * 64, "2" * 64


def item(path: str, sha256: str, split: str = "") -> AuditedImage:
    return AuditedImage(path=path, label=path.split("/")[0], split=split, sha256=sha256)


def actions(audit: AuditResults) -> dict[str, tuple[str, str]]:
    return {fix.path: (fix.action, fix.kind) for fix in propose_fixes(audit)}


def test_identical_files_with_one_label_are_dropped_except_the_first() -> None:
    audit = audit_images([item("cat/1.jpg", A), item("cat/2.jpg", A), item("cat/3.jpg", A)])

    assert audit["duplicates"][0]["kind"] == "exact"
    assert actions(audit) == {"cat/2.jpg": ("drop", "exact"), "cat/3.jpg": ("drop", "exact")}


def test_of_copies_across_the_split_the_validation_image_is_kept() -> None:
    audit = audit_images([item("cat/1.jpg", A, "train"), item("cat/2.jpg", A, "val")])

    assert audit["duplicates"][0]["across_split"]
    assert actions(audit) == {"cat/1.jpg": ("drop", "exact")}


def test_of_identical_files_the_one_with_the_shortest_name_is_kept() -> None:
    names = ("x (1).jpg", "x - Kopie.jpg", "x.jpg", "y.jpg")
    audit = audit_images([item(f"cat/{name}", A) for name in names])

    assert {*actions(audit)} == {"cat/x (1).jpg", "cat/x - Kopie.jpg", "cat/y.jpg"}


@pytest.mark.parametrize(
    "copy",
    [
        "tulip (1).jpg",
        "IMG_copy1.jpg",
        "sun_kopie.jpg",
        "sun - Kopie (2).jpg",
        "sun copy 2.JPG",
        "Copy of a.jpg",
        "Kopie von a.jpg",
        "a~1.jpg",
        "a~.jpg",
    ],
)
def test_of_identical_files_the_one_whose_name_is_not_that_of_a_copy_is_kept(copy: str) -> None:
    names = (copy, "10094731133_94a942463c.jpg")
    audit = audit_images([item(f"tulip/{name}", A) for name in names])

    assert actions(audit) == {f"tulip/{copy}": ("drop", "exact")}


@pytest.mark.parametrize("name", ["photocopy.jpg", "copyright.jpg", "a (b).jpg", "x1.jpg"])
def test_a_name_that_only_resembles_that_of_a_copy_may_be_kept(name: str) -> None:
    audit = audit_images([item(f"cat/{name}", A), item("cat/a longer name.jpg", A)])

    assert actions(audit) == {"cat/a longer name.jpg": ("drop", "exact")}


def test_an_image_with_two_labels_is_kept_without_probabilities() -> None:
    audit = audit_images([item("cat/1.jpg", A), item("dog/1.jpg", A), item("dog/2.jpg", A)])

    assert audit["duplicates"][0]["labels_differ"]
    assert actions(audit) == {
        "cat/1.jpg": ("undecided", "two labels"),
        "dog/1.jpg": ("undecided", "two labels"),
        "dog/2.jpg": ("drop", "exact"),
    }


@pytest.mark.parametrize(
    ("cat", "dog", "bird", "dropped"),
    [
        pytest.param(0.98, 0.01, 0.01, {"dog/1.jpg"}, id="certain"),
        pytest.param(0.70, 0.29, 0.01, set(), id="uncertain"),
        pytest.param(0.10, 0.001, 0.899, set(), id="neither of the two"),
    ],
)
def test_an_image_with_two_labels_loses_a_far_less_probable_one(
    cat: float, dog: float, bird: float, dropped: set[str]
) -> None:
    likely = {"cat": cat, "dog": dog, "bird": bird}
    audit = audit_images(
        [item("cat/1.jpg", A), item("dog/1.jpg", A)],
        probabilities={"cat/1.jpg": likely, "dog/1.jpg": likely},
    )

    fixes = propose_fixes(audit)

    assert {fix.path for fix in fixes if fix.action == "drop"} == dropped


def test_near_duplicates_and_doubtful_labels_are_kept_with_a_reason() -> None:
    audit = audit_images(
        [item("cat/1.jpg", A), item("dog/1.jpg", B)],
        groups={A: A, B: A},
        mislabels=[
            {
                "path": "dog/1.jpg",
                "label": "dog",
                "suggested": "cat",
                "given_probability": 0.01,
                "suggested_probability": 0.97,
            }
        ],
    )

    (fix,) = propose_fixes(audit)

    assert (fix.path, fix.action, fix.kind) == ("dog/1.jpg", "undecided", "mislabel")
    assert (fix.label, fix.new_label) == ("dog", "cat")
    assert "nearly identical to cat/1.jpg (label cat" in fix.reason
    assert "probably cat; set the action to move, keep or drop" in fix.reason


@pytest.mark.parametrize(
    ("split", "detail"),
    [("val", "cat/1.jpg (validation image)"), ("", "cat/1.jpg (not in the split)")],
)
def test_the_reason_says_where_a_near_duplicate_is(split: str, detail: str) -> None:
    audit = audit_images(
        [item("cat/1.jpg", A, split), item("cat/2.jpg", B, "train")], groups={A: A, B: A}
    )

    (fix,) = propose_fixes(audit)

    assert fix.reason == f"nearly identical to {detail}"


def test_one_row_per_image_with_the_strongest_action_first() -> None:
    audit = audit_images(
        [item("cat/1.jpg", A), item("cat/2.jpg", A)],
        bad=[("cat/0.jpg", "empty file")],
        odd=[("cat/2.jpg", "blurry"), ("cat/1.jpg", "converted from L")],
    )

    fixes = propose_fixes(audit)

    assert [(fix.path, fix.action) for fix in fixes] == [
        ("cat/0.jpg", "drop"),
        ("cat/2.jpg", "drop"),
    ]
    assert fixes[1].reason == "identical to cat/1.jpg; blurry"
    assert audit["odd"] == [{"path": "cat/2.jpg", "reason": "blurry", "label": "cat"}]


def test_the_summary_says_how_many_label_errors_the_fixes_keep() -> None:
    found: list[Mislabel] = [
        Mislabel(
            path=path,
            label="cat",
            suggested="dog",
            given_probability=0.1,
            suggested_probability=0.9,
        )
        for path in ("cat/1.jpg", "cat/2.jpg")
    ]
    audit = audit_images([item("cat/1.jpg", A), item("cat/2.jpg", B)], mislabels=found)

    assert audit_summary(audit) == "2 probable label errors"
    some = audit_summary(audit, {"cat/2.jpg", "dog/1.jpg"})
    assert some == "1 probable label error (besides 1 already decided)"
    assert audit_summary(audit, {"cat/1.jpg", "cat/2.jpg"}) == ""


def test_imbalance_names_the_largest_and_the_smallest_class() -> None:
    items = [item(f"cat/{i}", f"{i:064}") for i in range(6)] + [item("dog/1", A), item("dog/2", B)]

    assert audit_images(items)["imbalance"] == {
        "largest": ("cat", 6),
        "smallest": ("dog", 2),
        "ratio": 3.0,
    }
    assert audit_images([])["imbalance"]["ratio"] is None


def test_a_clean_folder_has_no_findings() -> None:
    audit = audit_images([item("cat/1", A), item("dog/1", B)])

    assert audit_summary(audit) == ""
    assert propose_fixes(audit) == []
    assert not any(audit[part] for part in ("duplicates", "mislabels", "bad"))


def test_the_summary_counts_the_findings_that_affect_training() -> None:
    other = "3" * 64
    audit = audit_images(
        [
            item("cat/1", A, "train"),
            item("cat/2", A, "val"),
            item("cat/3", B, "train"),
            item("dog/3", B, "train"),
            item("cat/4", other, "train"),
            item("dog/4", other, "val"),
        ]
    )

    assert audit_summary(audit) == (
        "2 groups of duplicates across splits, 2 groups of duplicates with different labels"
    )


def test_probabilities_are_listed_for_identical_files_with_several_labels_only() -> None:
    likely = {"ant": 0.0, "bird": 0.7, "cat": 0.1, "dog": 0.2}
    images = [item("dog/1", A), item("cat/1", A), item("cat/2", B), item("cat/3", B)]
    audit = audit_images(
        [*images, item("dog/4", "4" * 64)],
        groups={A: A, "4" * 64: A},
        probabilities={"dog/1": likely, "cat/2": likely},
    )

    differing, alike, near = audit["duplicates"]
    assert list(differing["probabilities"].items()) == [("bird", 0.7), ("cat", 0.1), ("dog", 0.2)]
    assert "probabilities" not in alike
    assert near["kind"] == "near"
    assert "probabilities" not in near


def test_harmless_remarks_and_notes_on_unused_files_are_left_out() -> None:
    audit = audit_images(
        [item("cat/1", A)],
        odd=[
            ("cat/1", "rotated by EXIF"),
            ("cat/1", "converted from L"),
            ("cat/1", "blurry"),
            ("elsewhere/2", "blurry"),
        ],
        bad=[("cat/0", "empty file")],
        own_split=True,
    )

    assert audit["odd"] == [
        {"path": "cat/1", "reason": "blurry", "label": "cat"},
        {"path": "elsewhere/2", "reason": "blurry"},
    ]
    assert audit["bad"] == [{"path": "cat/0", "reason": "empty file"}]
    assert audit["own_split"] is True
    assert "view" not in audit
    assert "own_split" not in audit_images([item("cat/1", A)])


def test_unused_files_are_listed_instead_of_their_notes() -> None:
    unused = {".txt": 2}

    audit = audit_images([], unused=unused, notes=[*unused_notes(unused), "something else"])

    assert [(row["suffix"], row["files"]) for row in audit["unused"]] == [(".txt", 2)]
    assert audit["notes"] == ["something else"]


def test_classes_of_the_same_size_are_named_in_alphabetical_order() -> None:
    audit = audit_images([item("dog/1", A), item("cat/1", B)])

    assert audit["imbalance"] == {"largest": ("cat", 1), "smallest": ("dog", 1), "ratio": 1.0}
