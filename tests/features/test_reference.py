"""Statistics of a run's features."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.features.test_ood import drawn
from vitft.features import Reference, fit_reference, read_reference
from vitft.models import TimmConfig, ViTConfig
from vitft.system import RunError

MODEL = ViTConfig(width=12, heads=3, depth=4)


def fitted(**options: Any) -> Reference:
    rows = np.arange(300)
    found, _ = fit_reference(drawn(300)[0], rows % 3, rows >= 0, rows, trained=False, **options)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def reference() -> Reference:
    return fitted()


@pytest.fixture(scope="module")
def both() -> Reference:
    """A reference that uses an intermediate feature as well."""
    return fitted(intermediate=drawn(300, seed=2)[0], intermediate_blocks=3)


def test_the_reference_is_saved_with_the_run_and_read_back(
    reference: Reference, both: Reference, tmp_path: Path
) -> None:
    np.savez_compressed(tmp_path / "reference.npz", **reference.arrays())

    found = read_reference(tmp_path, 12, MODEL)

    assert found is not None
    features = drawn(50, seed=6)[0]
    assert found.distances(features) == pytest.approx(reference.distances(features), rel=1e-5)
    assert read_reference(tmp_path / "elsewhere", 12, MODEL) is None
    alone = reference.arrays() | {"means": reference.means[:1]}
    np.savez_compressed(tmp_path / "reference.npz", **alone)
    assert (one := read_reference(tmp_path, 12, MODEL)) is not None
    assert len(one.means) == 1
    np.savez_compressed(tmp_path / "reference.npz", **both.arrays())
    assert (two := read_reference(tmp_path, 12, MODEL)) is not None
    assert two.intermediate_blocks == 3
    assert two.limit == pytest.approx(both.limit)
    more = drawn(50, seed=8)[0]
    assert two.scores(features, more) == pytest.approx(both.scores(features, more), rel=1e-5)


@pytest.mark.parametrize(
    ("flagged", "words"),
    [
        (None, ""),
        ((0.0, 0.19), "usually go unnoticed (0% to 19% are flagged)"),
        ((0.1, 0.1), "usually go unnoticed (10% are flagged)"),
        ((0.0, 0.2), "0% to 20% are flagged, depending on the class"),
        ((0.5, 1.0), "50% to 100% are flagged, depending on the class"),
    ],
)
def test_how_many_images_of_unknown_classes_are_noticed(
    reference: Reference, flagged: tuple[float, float] | None, words: str
) -> None:
    found = replace(reference, unknown=flagged).power()

    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        pytest.param({"limit": None}, 12, id="no limit"),
        pytest.param({"more": np.float32(0)}, 12, id="an unknown array"),
        pytest.param({"limit": np.zeros(1, np.float32)}, 12, id="several limits"),
        pytest.param({"limit": np.float64(9)}, 12, id="another type"),
        pytest.param({"limit": np.float32(np.inf)}, 12, id="no finite limit"),
        pytest.param({"centre": np.full(12, np.nan, np.float32)}, 12, id="a centre that is NaN"),
        pytest.param({"centre": np.zeros((1, 12), np.float32)}, 12, id="two axes"),
        pytest.param({"within": np.zeros(12, np.float32)}, 12, id="one axis"),
        pytest.param({"within": np.zeros((12, 11), np.float32)}, 12, id="not square"),
        pytest.param({"means": np.zeros((3, 11), np.float32)}, 12, id="narrow means"),
        pytest.param({"means": np.zeros((0, 12), np.float32)}, 12, id="no classes"),
        pytest.param({"unknown_range": np.array([0, 1.01], np.float32)}, 12, id="more than all"),
        pytest.param({"unknown_range": np.array([-0.01, 0], np.float32)}, 12, id="less than none"),
        pytest.param({"unknown_range": np.array([0], np.float32)}, 12, id="one bound"),
        pytest.param({}, 11, id="fewer features than dimensions"),
        pytest.param({"intermediate_blocks": np.float32(4)}, 12, id="the last block"),
        pytest.param({"intermediate_blocks": np.float32(0)}, 12, id="no block"),
        pytest.param({"intermediate_blocks": np.float32(2.5)}, 12, id="half a block"),
        pytest.param({"intermediate_blocks": np.float32(-1)}, 12, id="less than no block"),
        pytest.param({"intermediate_blocks": None}, 12, id="an unknown block"),
        pytest.param({"intermediate_means": None}, 12, id="no means"),
        pytest.param({"intermediate_centre": np.zeros(11, np.float32)}, 12, id="a narrow centre"),
        pytest.param(
            {"intermediate_within": np.zeros((12, 11), np.float32)}, 12, id="not square either"
        ),
        pytest.param(
            {"intermediate_means": np.zeros((0, 12), np.float32)}, 12, id="no intermediate classes"
        ),
        pytest.param({"intermediate_centre": np.full(12, np.inf, np.float32)}, 12, id="infinite"),
    ],
)
def test_arrays_that_are_no_reference_are_refused(
    both: Reference, tmp_path: Path, changes: dict[str, Any], width: int
) -> None:
    arrays = {n: a for n, a in (both.arrays() | changes).items() if a is not None}
    np.savez(tmp_path / "reference.npz", **arrays)

    with pytest.raises(RunError, match="damaged run"):
        read_reference(tmp_path, width, MODEL)


def test_a_reference_that_cannot_be_read_is_refused(reference: Reference, tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    np.savez_compressed(tmp_path / "cut" / "reference.npz", **reference.arrays())
    content = (tmp_path / "cut" / "reference.npz").read_bytes()
    (tmp_path / "cut" / "reference.npz").write_bytes(content[:-40])
    with pytest.raises(RunError, match="damaged run"):
        read_reference(tmp_path / "cut", 12, MODEL)
    (tmp_path / "reference.npz").mkdir()

    with pytest.raises(RunError, match="damaged run"):
        read_reference(tmp_path, 12, MODEL)
    (tmp_path / "file").touch()
    assert read_reference(tmp_path / "file", 12, MODEL) is None


def test_the_score_is_that_of_both_features(both: Reference, reference: Reference) -> None:
    features, more = drawn(50, seed=6)[0], drawn(50, seed=8)[0]
    assert both.intermediate is not None

    scores = both.scores(features, more)

    assert scores == pytest.approx(
        (np.cbrt(both.distances(features)) + np.cbrt(both.intermediate.distances(more))) ** 3
    )
    assert both.are_unlike(features, more) == (scores > both.limit).tolist()
    assert reference.scores(features) == pytest.approx(reference.distances(features))
    ratio = both.distances(features) / reference.distances(features)
    assert ratio == pytest.approx(np.full(50, ratio[0]), rel=1e-4)  # only the unit differs


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(MODEL, width=6), id="fewer dimensions"),
        pytest.param(replace(MODEL, depth=3), id="fewer blocks"),
        pytest.param(replace(MODEL, read_blocks=2), id="a block that the head reads"),
        pytest.param(TimmConfig(timm="test_resnet", image_size=(16, 16)), id="a timm model"),
    ],
)
def test_an_intermediate_feature_of_another_model_is_refused(
    both: Reference, tmp_path: Path, config: ViTConfig | TimmConfig
) -> None:
    np.savez(tmp_path / "reference.npz", **both.arrays())

    with pytest.raises(RunError, match="its intermediate feature does not match the model"):
        read_reference(tmp_path, 12, config)
