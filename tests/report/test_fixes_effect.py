"""Whether fixes helped: the comparison of a run with fixes and a run without them."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.test_compare import compared
from tests.report.test_decisions import with_fixes
from tests.support.run_files import make_run, with_cross_validated
from vitft.config import config_from_table, read_toml, to_toml
from vitft.predict import read_split
from vitft.report import comparison_results, write_comparison
from vitft.system import RunError


def fixed(path: Path, *, hardness: float = 1.0, seed: int = 0) -> Path:
    """A run of 90 images that relabelled a training image and left out another one."""
    run = make_run(path, per_class=30, hardness=hardness, seed=seed)
    rows = (run / "split.csv").read_text().replace("0/020.jpg,daisy", "0/020.jpg,rose")
    kept = [line for line in rows.splitlines() if "0/021.jpg" not in line]
    (run / "split.csv").write_text("\n".join(kept) + "\n")
    table = path.parent / "fixes.csv"
    table.write_text("path,action,new_label\n0/020.jpg,move,rose\n0/021.jpg,drop,\n")
    return with_fixes(run, table, hashlib.sha256(table.read_bytes()).hexdigest())


@pytest.mark.parametrize("order", [1, -1], ids=["fixed second", "fixed first"])
@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        pytest.param(20, 5, "The fixes of {after} ({changes}) helped", id="helped"),
        pytest.param(8, 6, "No clear effect of the fixes of {after} ({changes})", id="no effect"),
        pytest.param(5, 20, "The fixes of {after} ({changes}) hurt", id="hurt"),
    ],
)
def test_fixes_are_measured_on_all_images_whose_label_they_did_not_change(
    tmp_path: Path, before: int, after: int, verdict: str, order: int
) -> None:
    plain = make_run(tmp_path / "before", per_class=30)
    runs = [
        with_cross_validated(plain, wrong=before),
        with_cross_validated(fixed(tmp_path / "x"), wrong=after),
    ]

    result = compared(*runs[::order])

    (text,) = result.conclusions
    _, fixing = ("A", "B")[::order]
    beginning = verdict.format(
        after=fixing, changes="1 distinct image with other labels, 1 left out"
    )
    difference = f"{order * 100 * (before - after) / 88:+.1f}".replace("-", "−")
    assert text.startswith(f"{beginning}: B - A = {difference} points on the 88 images ")
    assert "cross-validated (95% CI " in text
    assert "With 12 shared images" not in result.power


def test_images_that_were_relabelled_do_not_count_as_gained(tmp_path: Path) -> None:
    before, after = make_run(tmp_path / "before", per_class=30), fixed(tmp_path / "after")
    for run in (before, after):  # both predict the corrected label of the relabelled image
        rows = read_split(with_cross_validated(run, wrong=0)).rows
        predicted = [2 if row.path == "0/020.jpg" else row.label for row in rows]
        with np.load(run / "validation.npz") as file:
            logits = file["logits"]
        np.savez(run / "validation.npz", logits=logits, cross_validated=predicted)

    (pair,) = comparison_results(compared(before, after))["pairs"]

    assert (pair["fixes"]["images"], pair["fixes"]["difference"]) == (88, 0)


def test_p_values_of_several_pairs_are_corrected(tmp_path: Path) -> None:
    runs = [
        with_cross_validated(make_run(tmp_path / "a", per_class=30), wrong=10),
        with_cross_validated(make_run(tmp_path / "b", per_class=30), wrong=10),
        with_cross_validated(fixed(tmp_path / "c"), wrong=4),
    ]

    pairs = comparison_results(compared(*runs))["pairs"]

    assert pairs[0]["fixes"] is None
    alone = comparison_results(compared(runs[0], runs[2]))["pairs"][0]["fixes"]
    assert alone is not None
    for pair in pairs[1:]:
        assert pair["fixes"] is not None
        assert pair["fixes"]["p_holm"] == pytest.approx(2 * alone["p_holm"])


@pytest.mark.parametrize("content", [np.zeros(3), np.full(90, 7), np.array(["x"] * 90)])
def test_damaged_cross_validated_predictions_are_refused(
    tmp_path: Path, content: np.ndarray[Any, Any]
) -> None:
    before, after = make_run(tmp_path / "before", per_class=30), fixed(tmp_path / "after")
    with np.load(before / "validation.npz") as file:
        logits = file["logits"]
    np.savez(before / "validation.npz", logits=logits, cross_validated=content)

    with pytest.raises(RunError, match="damaged run"):
        write_comparison(compared(before, after), tmp_path / "page.html")


# rules -------------------------------------------------------------------------------------------


def verdict_of(*runs: Path) -> str:
    (pair,) = comparison_results(compared(*runs))["pairs"]
    return str(pair["fixes"]["verdict"])


def test_the_verdict_needs_significance_and_no_other_difference(tmp_path: Path) -> None:
    plain = make_run(tmp_path / "before", per_class=30)
    before = with_cross_validated(plain, wrong=20)
    better = with_cross_validated(fixed(tmp_path / "better"), wrong=5)
    other = with_cross_validated(fixed(tmp_path / "other"), wrong=5)
    table = read_toml(other / "config.toml")
    table["optim"]["l2"] = 3.0
    (other / "config.toml").write_text(to_toml(config_from_table(table)))
    grown = with_cross_validated(fixed(tmp_path / "grown"), wrong=5)
    with (grown / "split.csv").open("a") as file:
        file.write(f"x/1.jpg,rose,train,{1:064}\n")
    with np.load(grown / "validation.npz") as arrays:
        logits, crossed = arrays["logits"], arrays["cross_validated"]
    np.savez(grown / "validation.npz", logits=logits, cross_validated=[*crossed, 2])

    verdicts = [verdict_of(before, run) for run in (better, other, grown)]

    assert verdicts == ["helped", "mixed", "mixed"]
