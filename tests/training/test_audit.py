"""The audit of a run's own images: copies and label errors, from features already computed."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.pictures import encoded, read, scene
from tests.support.training_data import data_set, digest, pooled_inputs, row
from vitft.config.sections import DataSpec
from vitft.data.fixes import Fix, write_fixes
from vitft.data.folder import File, Folder
from vitft.data.inspection import InspectedFile, InspectedFolder
from vitft.data.split import Row
from vitft.features import near_copies
from vitft.features.head import HeldOutLogits
from vitft.features.label_errors import out_of_fold_logits
from vitft.features.near_copies import most_similar
from vitft.metrics.results import AuditResults
from vitft.system.rundir import RunDir
from vitft.training import audit as module
from vitft.training.audit import (
    audit_run,
    find_near_copies,
    log_audit,
    score_by_default_head,
    score_labels,
)
from vitft.training.dataset import Dataset, StageInputs
from vitft.training.stages import ScoredImages


def brute_force(x: Tensor) -> list[tuple[float, int, int]]:
    """Return cosine and indices of all pairs of centred features, most similar first."""
    centred = (x - x.mean(dim=0)).double()
    unit = (centred / centred.norm(dim=1, keepdim=True)).numpy()
    cosines = unit @ unit.T
    pairs = ((-cosines[i, j], i, j) for i in range(len(x)) for j in range(i + 1, len(x)))
    return sorted(pair for pair in pairs if -pair[0] >= 0.75)


def test_the_most_similar_pairs_are_those_of_the_highest_cosines() -> None:
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0)) + 3
    expected = brute_force(x)
    assert len(expected) > 200

    assert most_similar(x, 10_000) == [(i, j) for _, i, j in expected]
    assert most_similar(x, 50) == [(i, j) for _, i, j in expected[:50]]


def test_pairs_are_found_anywhere_in_many_images() -> None:
    x = torch.randn(2100, 64, generator=torch.Generator().manual_seed(0))
    copies = [(0, 1), (5, 2099), (1023, 1024), (1024, 1025), (1100, 2048), (2047, 2050)]
    for i, j in copies:
        x[j] = x[i] + 0.01 * x[j]
    found = most_similar(x, 100)

    assert sorted(found) == sorted([*copies, (1023, 1025)])


@pytest.mark.parametrize("most", [1, 3, 500])
def test_the_most_similar_pairs_come_first(most: int) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    centred = x - x.mean(dim=0)
    cosines = torch.cosine_similarity(centred[:, None], centred[None], dim=-1).tolist()
    near = [(-cosines[i][j], i, j) for j in range(40) for i in range(j) if cosines[i][j] >= 0.75]

    assert most_similar(x, most) == [(i, j) for _, i, j in sorted(near)[:most]]


def test_a_cosine_of_three_quarters_is_similar() -> None:
    one, other = torch.eye(5)[0], torch.tensor([0.75, 0.5, 0.25, 0.25, 0.25])
    x = torch.stack([one, other, -one, -other])  # their mean is 0

    assert most_similar(x, 10) == [(0, 1), (2, 3)]
    assert most_similar(x, 1) == [(0, 1)]


@pytest.mark.parametrize("images", [0, 1])
def test_a_single_image_has_no_copy(images: int) -> None:
    assert most_similar(torch.ones(images, 3), 100) == []


def saved(folder: Path, images: dict[str, bytes]) -> Dataset:
    """Write files and return a data set of them; the class is the name of their folder."""
    rows = []
    for path, content in images.items():
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_bytes(content)
        label = "abc".index(path[0])
        rows.append(row(path, label, sha256=hashlib.sha256(content).hexdigest()))
    return data_set(rows, root=folder)


def scenes(folder: Path) -> tuple[Dataset, Tensor]:
    """Return six scenes, of which the last two are copies of others, and random features."""
    images = {f"{'aabb'[i]}/{i}.jpg": encoded(scene(i), 95) for i in range(4)}
    images["b/copy of 1.jpg"] = encoded(scene(1), 60)
    images["c/copy of 3.jpg"] = encoded(read(images["b/3.jpg"]).resize((120, 90)), 80)
    return saved(folder, images), torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def test_similar_features_are_confirmed_by_the_images(tmp_path: Path) -> None:
    data, x = scenes(tmp_path)
    x[4], x[5], x[2] = x[1], x[3], x[0]  # 0 and 2 look alike to the model only

    assert sorted(find_near_copies(data, x, cache="none")) == [(1, 4), (3, 5)]


def test_images_with_different_features_are_not_compared(tmp_path: Path) -> None:
    data, x = scenes(tmp_path)
    x[5] = x[3]

    assert find_near_copies(data, x, cache="none") == [(3, 5)]


def test_no_copies_are_found_once_a_file_has_changed(tmp_path: Path) -> None:
    data, x = scenes(tmp_path)
    x[4], x[5] = x[1], x[3]
    (tmp_path / "b/3.jpg").write_bytes(encoded(scene(99), 95))

    assert find_near_copies(data, x, cache="none") == []


@pytest.mark.parametrize(
    ("images", "most"),
    [(10, 100), (1000, 100), (1010, 101), (4990, 499), (5000, 500), (6000, 500)],
)
def test_a_tenth_as_many_pairs_as_images_are_candidates_within_limits(
    monkeypatch: pytest.MonkeyPatch, images: int, most: int
) -> None:
    asked: list[int] = []

    def no_pairs(_: Tensor, most: int) -> list[tuple[int, int]]:
        asked.append(most)
        return []

    monkeypatch.setattr(near_copies, "most_similar", no_pairs)
    data = data_set([row(str(i), 0) for i in range(images)])

    assert find_near_copies(data, torch.zeros(images, 1), cache="none") == []
    assert asked == [most]


@pytest.mark.parametrize(("limit", "copies"), [(6, 2), (5, 0)])
def test_copies_are_not_searched_among_too_many_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, copies: int
) -> None:
    data, x = scenes(tmp_path)
    x[4], x[5] = x[1], x[3]
    monkeypatch.setattr(near_copies, "CV_IMAGES", limit)

    assert len(find_near_copies(data, x, cache="none")) == copies


def clusters(each: int = 12) -> tuple[list[Row], dict[str, Tensor]]:
    """Return images of three classes, and features around the centre of each class.

    The images a-0 and b-0 have the features of class c.
    """
    noise = torch.Generator().manual_seed(0)
    rows, features = [], {}
    for label, name in enumerate("abc"):
        for i in range(each):
            rows.append(row(f"{name}-{i}", label))
            centre = 2 if (name, i) in (("a", 0), ("b", 0)) else label
            point = 4 * torch.eye(3)[centre] + 0.3 * torch.randn(3, generator=noise)
            features[digest(f"{name}-{i}")] = torch.cat([point, torch.randn(2, generator=noise)])
    return rows, features


def test_a_default_head_is_cross_validated_on_the_features_of_the_last_block() -> None:
    rows, features = clusters()
    inputs = pooled_inputs(data_set(rows), features, leading=3)

    scored = score_by_default_head(inputs, seed=7)

    x = torch.stack([features[one.sha256] for one in rows])[:, :3]
    y = torch.tensor([one.label for one in rows])
    expected = out_of_fold_logits(x, y, torch.arange(len(y)), classes=3, seed=7, l2=0.1)
    assert torch.equal(scored.features, x)
    assert scored.held_out is not None
    assert scored.held_out.rows.tolist() == list(range(len(rows)))
    torch.testing.assert_close(scored.held_out.logits, expected)


def test_too_few_images_are_not_cross_validated() -> None:
    rows, features = clusters(each=1)
    inputs = pooled_inputs(data_set(rows), features, leading=3)

    scored = score_by_default_head(inputs, seed=0)

    assert scored.held_out is None
    assert scored.features.shape == (3, 3)
    assert score_labels(inputs.data, scored) == ([], {})


def test_label_errors_are_reported_but_not_of_images_with_two_labels() -> None:
    rows, features = clusters()
    again = row("c-copy", 2, "val", sha256=digest("b-0"))  # the same file as b-0, labelled c
    twice = row("a-copy", 0, sha256=digest("a-1"))  # the same file as a-1, labelled a, too
    data = data_set([*rows, twice, again])
    scored = score_by_default_head(pooled_inputs(data, features, leading=3), seed=0)

    mislabels, probabilities = score_labels(data, scored)

    assert [(m["path"], m["label"], m["suggested"]) for m in mislabels] == [("a-0", "a", "c")]
    assert {*probabilities} == {"b-0", "c-copy"}
    assert probabilities["b-0"] == probabilities["c-copy"]
    assert max(probabilities["b-0"], key=lambda name: probabilities["b-0"][name]) == "c"
    assert sum(probabilities["b-0"].values()) == pytest.approx(1, abs=1e-5)


def test_only_images_that_were_scored_can_be_label_errors() -> None:
    rows, features = clusters()
    data = data_set(rows)
    whole = score_by_default_head(pooled_inputs(data, features, leading=3), seed=0)
    assert whole.held_out is not None
    kept = torch.arange(1, len(rows))

    some = replace(whole, held_out=HeldOutLogits(kept, whole.held_out.logits[kept]))

    assert {m["path"] for m in score_labels(data, whole)[0]} == {"a-0", "b-0"}
    assert [m["path"] for m in score_labels(data, some)[0]] == ["b-0"]


def inspected(data: Dataset, layout: Any = "classes") -> InspectedFolder:
    good = tuple(
        InspectedFile(one.path, one.label, "", one.sha256, 40, 20, ("unusual",) * (one.path == "x"))
        for one in data.manifest.rows
    )
    files = tuple(File(one.path, one.label) for one in data.manifest.rows)
    folder = Folder(
        root=data.manifest.root,
        classes=data.manifest.classes,
        files=files,
        layout=layout,
        notes=("a note",),
    )
    return InspectedFolder(folder, good, (("bad.png", "torn"),), {})


def audited(inputs: StageInputs, scored: ScoredImages | None = None, **more: Any) -> AuditResults:
    settings: dict[str, Any] = {"seed": 0, "cache": "none", "find_copies": True} | more
    layout = settings.pop("layout", "classes")
    return audit_run(inputs, inspected(inputs.data, layout), scored, **settings)


def test_the_audit_contains_copies_label_errors_and_remarks(monkeypatch: Any) -> None:
    rows, features = clusters()
    rows += [row("x", 1, "val", sha256=digest("b-0")), row("y", 2, sha256=digest("b-0"))]
    inputs = pooled_inputs(data_set(rows), features, leading=3)
    searched: list[Any] = []

    def found(_: Dataset, x: Tensor, *, cache: str) -> Sequence[tuple[int, int]]:
        searched.append((x.shape, cache))
        return [(0, 3)]

    monkeypatch.setattr(module, "find_near_copies", found)

    audit = audited(inputs)

    copies = {group["kind"]: group for group in audit["duplicates"]}
    assert [m["path"] for m in copies["near"]["members"]] == ["a-0", "a-3"]
    assert [m["path"] for m in copies["exact"]["members"]] == ["b-0", "x", "y"]
    assert {*copies["exact"]["probabilities"]} == {"b", "c"}
    assert [m["path"] for m in audit["mislabels"]] == ["a-0"]
    assert [remark["path"] for remark in audit["odd"]] == ["x"]
    assert audit["bad"] == [{"path": "bad.png", "reason": "torn"}]
    assert audit["notes"] == ["a note"]
    assert audit["images"] == 38
    assert audit["imbalance"]["largest"] == ("b", 13)
    assert audit["view"]["shown"] == 0.5  # the centre of 40 x 20
    assert "own_split" not in audit
    assert searched == [((36, 3), "none")]


def test_copies_found_for_the_split_are_not_searched_again(monkeypatch: Any) -> None:
    rows, features = clusters()
    groups = {digest("a-0"): "g", digest("c-1"): "g"}
    inputs = pooled_inputs(data_set(rows, duplicates=groups), features, leading=3)
    monkeypatch.setattr(module, "find_near_copies", None)

    audit = audited(inputs, find_copies=False, layout="split")

    assert [m["path"] for m in audit["duplicates"][0]["members"]] == ["a-0", "c-1"]
    assert audit["duplicates"][0]["kind"] == "near"
    assert audit["own_split"] is True


def test_scores_that_the_run_has_computed_are_used() -> None:
    rows, features = clusters()
    inputs = pooled_inputs(data_set(rows), features, leading=3)
    nothing = ScoredImages(features=torch.randn(36, 3), held_out=None)

    assert audited(inputs, nothing)["mislabels"] == []


def test_without_cached_features_only_the_files_are_audited(monkeypatch: Any) -> None:
    rows, features = clusters()
    pooled = pooled_inputs(data_set(rows, duplicates={}), features, leading=3)
    monkeypatch.setattr(module, "find_near_copies", None)
    inputs = replace(pooled, cut=pooled.cut._replace(prefix=None))

    audit = audited(inputs)

    assert (audit["mislabels"], audit["duplicates"]) == ([], [])
    assert audit["images"] == 36


def test_the_imbalance_of_several_labels_is_that_of_the_labels() -> None:
    rows = [row("1", 0), row("2", 2), row("3", 2), row("4", 1)]
    data = data_set(rows, classes=("x", "y", "x|y"), labels=("x", "y"))
    inputs = replace(pooled_inputs(data, {}), cut=pooled_inputs(data, {}).cut._replace(prefix=None))

    imbalance = audited(inputs)["imbalance"]

    assert (imbalance["largest"], imbalance["smallest"]) == (("x", 3), ("y", 3))


def an_audit(mislabels: int) -> Any:
    named = [{"path": f"a/{i}.png"} for i in range(mislabels)]
    return {"mislabels": named, "duplicates": []}


@pytest.mark.parametrize(
    ("mislabels", "is_several", "words"),
    [
        (1, False, "found 1 probable label error: decide on it in "),
        (1, True, "found 1 probable label error: look at it in "),
        (2, False, "found 2 probable label errors: decide on them in "),
        (12, True, "found 12 probable label errors: look at them in "),
        (0, False, ""),
    ],
)
def test_the_log_says_how_many_findings_wait_for_a_decision(
    tmp_path: Path, caplog: Any, mislabels: int, is_several: bool, words: str
) -> None:
    with caplog.at_level(logging.INFO, "vitft"):
        log_audit(an_audit(mislabels), RunDir(tmp_path), DataSpec(), is_several=is_several)

    assert caplog.messages == ([f"{words}{tmp_path / 'report.html'}"] if words else [])


def test_findings_that_the_fixes_have_decided_are_not_counted(tmp_path: Path, caplog: Any) -> None:
    write_fixes(tmp_path / "fixes.csv", [Fix(path="a/0.png", action="keep", label="a")])

    with caplog.at_level(logging.INFO, "vitft"):
        spec = DataSpec(fixes=str(tmp_path / "fixes.csv"))
        log_audit(an_audit(1), RunDir(tmp_path), spec, is_several=False)
        log_audit(an_audit(2), RunDir(tmp_path), spec, is_several=False)

    assert len(caplog.messages) == 1
    assert "found 1 probable label error (besides 1 already decided): decide on" in caplog.text
