"""Findings of an audit and proposed fixes: only certain findings are dropped."""

import pytest

from vitft.check.audit import AuditedImage, audit_images, audit_summary
from vitft.data.proposals import propose_fixes

A, B = "1" * 64, "2" * 64


def item(path: str, sha256: str, split: str = "") -> AuditedImage:
    return AuditedImage(path=path, label=path.split("/")[0], split=split, sha256=sha256)


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


def test_imbalance_names_the_largest_and_the_smallest_class() -> None:
    items = [item(f"cat/{i}", f"{i:064}") for i in range(6)] + [item("dog/1", A), item("dog/2", B)]

    assert audit_images(items)["imbalance"] == {
        "largest": ("cat", 6),
        "smallest": ("dog", 2),
        "ratio": 3.0,
    }
    assert audit_images([])["imbalance"]["ratio"] is None


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
