"""Prediction sets, whose coverage is guaranteed by images that the model was not fitted to."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from vitft.metrics import Outputs
from vitft.predict import Marks, Postprocess, Scores, SetLimits, marking
from vitft.system import RunDir, RunError, write_json


def quantile(probability: list[float], groups: list[int], coverage: float) -> float:
    """Return the largest limit that enough of the weight reaches, in exact fractions.

    Each group has a total weight of 1, and the new group is one more.
    """
    needed = Fraction(str(coverage)) * (len({*groups}) + 1)
    for limit in sorted({*probability}, reverse=True):
        reached = [g for p, g in zip(probability, groups, strict=True) if p >= limit]
        if sum(Fraction(1, groups.count(g)) for g in reached) >= needed:
            return limit
    return 0.0


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("kind", ["images", "groups", "ties", "groups with ties"])
def test_limits_and_their_coverage_equal_exact_fractions(kind: str, coverage: float) -> None:
    random = np.random.default_rng(round(10 * coverage))
    labels = random.choice(3, 120, p=[0.6, 0.35, 0.05])  # the third class shares the second's limit
    probability = random.random(120)
    if "ties" in kind:
        probability = probability.round(1)
    groups = random.integers(0, 40, 120) if "groups" in kind else np.arange(120)

    found = SetLimits.fit(probability, labels, coverage, classes=3, groups=groups)

    assert found is not None
    assert found.limits[1] == found.limits[2]
    for pool in ([0], [1, 2]):
        rows = np.flatnonzero(np.isin(labels, pool))
        own = probability[rows].tolist(), groups[rows].tolist()
        assert found.limits[pool[0]] == quantile(*own, coverage)
        for row in rows:
            others = rows[groups[rows] != groups[row]]
            limit = quantile(probability[others].tolist(), groups[others].tolist(), coverage)
            assert found.covered[row] == (probability[row] >= limit)


@pytest.mark.parametrize(("coverage", "needed"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19)])
def test_a_coverage_needs_so_many_images(coverage: float, needed: int) -> None:
    def fit(images: int) -> SetLimits | None:
        labels = np.arange(images) % 2
        return SetLimits.fit(np.linspace(0.1, 0.9, images), labels, coverage, classes=2)

    assert needed == 1 or fit(needed - 1) is None
    enough = fit(needed)
    assert enough is not None
    assert enough.limits.tolist() == [pytest.approx(0.1)] * 2  # that of all images


def test_every_class_has_the_coverage_over_draws() -> None:
    random, covered = np.random.default_rng(0), list[list[float]]()
    for _ in range(300):
        labels = np.repeat([0, 1, 2], [100, 40, 25])
        hard = np.array([0.5, 1.0, 3.0])
        probability = random.random(165) ** hard[labels]
        found = SetLimits.fit(probability, labels, 0.9, classes=3)
        assert found is not None
        covered.append((1 - found.limits ** (1 / hard)).tolist())  # P(u ** h >= limit)

    means = np.mean(covered, axis=0)
    exact = [np.ceil(0.9 * (n + 1) - 1e-9) / (n + 1) for n in (100, 40, 25)]  # of Beta
    assert means == pytest.approx(exact, abs=0.01)


def test_sets_contain_the_most_probable_class_and_all_above_their_limits() -> None:
    logits = np.log(np.array([[0.3, 0.2, 0.5], [0.34, 0.36, 0.3], [0.05, 0.9, 0.05]], np.float32))
    postprocess = Postprocess(outputs=Outputs.of("abc"), set_limits=(0.25, 0.95, 0.4))

    found = postprocess(["1", "2", "3"], Scores(logits))

    assert [one.prediction_set for one in found] == [("c", "a"), ("b", "a"), ("b",)]
    assert [len(one.classes) for one in found] == [1, 1, 1]


def test_the_probabilities_of_true_classes_belong_to_a_run(tmp_path: Path) -> None:
    write_json(tmp_path / "class_indices.json", {"0": "cat", "1": "dog"})
    rows = [f"{i}.jpg,{('cat', 'dog')[i % 2]},val,{i:064x}" for i in range(20)]
    (tmp_path / "split.csv").write_text("\n".join(["path,label,split,sha256", *rows, ""]))
    arrays = {
        "logits": np.array([[2.0, -2.0], [-1.0, 1.0]] * 10, np.float32),
        "train_probability": np.full(5, 0.9),
        "train_correct": np.ones(5, bool),
        "train_label_probability": np.full(5, 0.9),
    }
    RunDir(tmp_path).write_arrays("validation.npz", **arrays)
    postprocess = Postprocess(outputs=Outputs.of(("cat", "dog")))

    with pytest.raises(RunError, match=r"does not belong to split\.csv"):
        marking(postprocess, Marks(coverage=0.9), tmp_path)
    RunDir(tmp_path).write_arrays("validation.npz", logits=arrays["logits"])
    found = marking(postprocess, Marks(coverage=0.9), tmp_path)

    assert found.set_limits == pytest.approx([1 / (1 + np.exp(-2))] * 2)
