"""The audit of a run's own images: copies and label errors, from features already computed."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.pictures import encoded, read, scene
from tests.support.training_data import data_set, digest, pooled_inputs, row
from vitft.data import File, Folder, InspectedFile, InspectedFolder, Row
from vitft.features import most_similar, out_of_fold_logits
from vitft.metrics import AuditResults
from vitft.training import (
    Dataset,
    ScoredImages,
    StageInputs,
    audit_run,
    find_near_copies,
    score_by_default_head,
    score_labels,
)


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
