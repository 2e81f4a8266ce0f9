"""Whether fixes helped: the comparison of a run with fixes and a run without them."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.test_decisions import with_fixes
from tests.support.run_files import FLOWERS, make_run, with_cross_validated
from vitft.cli.main import main
from vitft.config.run import config_from_table, read_toml, to_toml
from vitft.data.fixes import Fix
from vitft.data.split import Row
from vitft.metrics.comparison_results import ComparisonResults
from vitft.metrics.intervals import PairedDifference
from vitft.predict.validation import read_split
from vitft.report.comparison import RunComparison, compare_runs
from vitft.report.comparison_json import comparison_results
from vitft.report.comparison_page import write_comparison
from vitft.report.fixes_effect import (
    FixesEffect,
    dropped_images,
    evaluation_command,
    fixes_effect,
    fixes_text,
)
from vitft.report.run_files import read_run
from vitft.system.errors import RunError
from vitft.system.structure import structured

CHANGES = "1 distinct image with other labels, 1 left out"
"""What the fixes of `fixed` change."""


def fixed(path: Path, *, hardness: float = 1.0, seed: int = 0) -> Path:
    """A run of 90 images that relabelled a training image and left out another one."""
    run = make_run(path, per_class=30, hardness=hardness, seed=seed)
    rows = (run / "split.csv").read_text().replace("0/020.jpg,daisy", "0/020.jpg,rose")
    kept = [line for line in rows.splitlines() if "0/021.jpg" not in line]
    (run / "split.csv").write_text("\n".join(kept) + "\n")
    table = path.parent / "fixes.csv"
    table.write_text("path,action,new_label\n0/020.jpg,move,rose\n0/021.jpg,drop,\n")
    return with_fixes(run, table, hashlib.sha256(table.read_bytes()).hexdigest())


def compared(*runs: Path) -> RunComparison:
    return compare_runs([read_run(run) for run in runs])


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

    (text,) = result.conclusions()
    _, fixing = ("A", "B")[::order]
    beginning = verdict.format(
        after=fixing, changes="1 distinct image with other labels, 1 left out"
    )
    difference = f"{order * 100 * (before - after) / 88:+.1f}".replace("-", "−")
    assert text.startswith(f"{beginning}: B - A = {difference} points on the 88 images ")
    assert "each classified in cross-validation by a head not fitted to it (95% interval " in text
    assert "With 12 shared images" not in result.power_text()


def test_images_that_were_relabelled_do_not_count_as_gained(tmp_path: Path) -> None:
    before, after = make_run(tmp_path / "before", per_class=30), fixed(tmp_path / "after")
    for run in (before, after):  # both predict the corrected label of the relabelled image
        rows = read_split(with_cross_validated(run, wrong=0), FLOWERS).rows
        predicted = [2 if row.path == "0/020.jpg" else row.label for row in rows]
        with np.load(run / "validation.npz") as file:
            logits = file["logits"]
        np.savez(run / "validation.npz", logits=logits, cross_validated=predicted)

    (effect,) = compared(before, after).fixes

    assert effect is not None
    assert (effect.paired.images, effect.difference) == (88, 0)


def test_without_cross_validation_the_command_for_the_corrected_labels_is_named(
    tmp_path: Path,
) -> None:
    photos = tmp_path / "flower photos"
    photos.mkdir()
    runs = [make_run(tmp_path / "before", per_class=30), fixed(tmp_path / "after", hardness=0.5)]
    for run in runs:
        settings = read_toml(run / "config.toml")
        settings["data"]["path"] = str(photos)
        (run / "config.toml").write_text(to_toml(config_from_table(settings)))

    result = compared(*runs)

    (text,) = result.conclusions()
    assert "on the 12 images with the same label in both runs that both hold out" in text
    assert result.limits[1] == (
        "For the accuracy of A on the corrected labels of the validation images of B: vitft "
        f"evaluate --data {runs[1]}/split.csv --set 'data.root={photos}' --run {runs[0]}"
    )
    assert any("cannot be compared: a gain is partly" in note for note in result.limits)
    assert compared(*runs[::-1]).limits[1] == (
        "For the accuracy of B on the corrected labels of the validation images of A: vitft "
        f"evaluate --data {runs[1]}/split.csv --set 'data.root={photos}' --run {runs[0]}"
    )


def test_fixes_get_no_credit_if_another_setting_differs(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "before", per_class=30), fixed(tmp_path / "after")]
    settings = read_toml(runs[1] / "config.toml")
    settings["optim"]["l2"] = 3.0
    settings["data"] |= {"like": "before", "group_duplicates": True}
    (runs[1] / "config.toml").write_text(to_toml(config_from_table(settings)))
    for run, wrong in zip(runs, (20, 5), strict=True):
        with_cross_validated(run, wrong=wrong)

    (text,) = compared(*runs).conclusions()

    assert text.startswith(
        f"The effect of the fixes of B ({CHANGES}) cannot be separated from that of optim.l2: "
        "B - A = +"
    )


def test_images_of_another_table_do_not_count_as_left_out_by_the_fixes(tmp_path: Path) -> None:
    plain, after = make_run(tmp_path / "before", per_class=30), fixed(tmp_path / "x")
    table = tmp_path / "fixes.csv"
    table.write_text(table.read_text() + "0/gone.jpg,drop,\n1/copy.jpg,drop,\n")  # copies, damaged
    with_fixes(after, table, hashlib.sha256(table.read_bytes()).hexdigest())
    head, *rows = (plain / "split.csv").read_text().splitlines()
    more = [f"0/9{n}.jpg,daisy,train,{n:064}" for n in range(7)]
    rows = [f"photos/{row}" for row in [*rows, *more]]  # the table is one folder higher
    (plain / "split.csv").write_text("\n".join([head, *rows]) + "\n")

    (effect,) = compared(plain, after).fixes

    assert effect is not None
    assert (effect.relabelled, effect.left_out, effect.added) == (1, 1, 7)


def test_fixes_that_change_no_image_are_not_mentioned(tmp_path: Path) -> None:
    plain, other = make_run(tmp_path / "plain"), make_run(tmp_path / "other", seed=1)
    with_fixes(other, tmp_path / "fixes.csv", "ab" * 32)

    result = compared(plain, other)

    assert result.fixes == [None]
    assert result.limits == list(result.notes) == []


def test_the_page_and_json_state_the_effect_of_the_fixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [make_run(tmp_path / "before", per_class=30), fixed(tmp_path / "after")]
    for run, wrong in zip(runs, (20, 5), strict=True):
        with_cross_validated(run, wrong=wrong)

    assert main(["compare", "before", "after", "--format", "json", "--out", "page.html"]) == 0

    answer = json.loads(capsys.readouterr().out)
    structured(answer, ComparisonResults)
    effect = answer["pairs"][0]["fixes"]
    numbers = ("relabelled", "left_out", "added", "images", "only_with_right", "only_without_right")
    assert [effect[key] for key in numbers] == [1, 1, 0, 88, 15, 0]
    assert (effect["run"], effect["verdict"], effect["cross_validated"]) == (
        "after",
        "helped",
        True,
    )
    assert effect["difference"] == pytest.approx(15 / 88)
    assert effect["interval"][0] > 0
    assert effect["p_holm"] < 0.001
    page = (tmp_path / "page.html").read_text()
    assert f'<p class="verdict">The fixes of B ({CHANGES}) helped.</p>' in page
    assert "cannot be compared: a gain is partly" in page


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


@pytest.mark.parametrize(("held_out", "is_cross_validated"), [(87, True), (88, False)])
def test_cross_validated_predictions_are_used_if_they_are_more(
    tmp_path: Path, held_out: int, *, is_cross_validated: bool
) -> None:
    plain, after = make_run(tmp_path / "before", per_class=30), fixed(tmp_path / "after")
    first, second = (read_run(with_cross_validated(run, wrong=9)) for run in (plain, after))

    effect = fixes_effect(first, second, PairedDifference(5, 3, held_out, 0.25), 0.25)

    assert effect is not None
    assert effect.is_cross_validated is is_cross_validated
    assert effect.paired.images == 88  # without the relabelled image and the one left out
    if not is_cross_validated:
        assert (effect.paired, effect.p) == (PairedDifference(5, 3, held_out, 0.25), 0.25)
        reverse = fixes_effect(second, first, PairedDifference(5, 3, held_out, 0.25), 0.25)
        assert reverse is not None
        assert (reverse.paired.only_first, reverse.paired.only_second) == (3, 5)
        assert (effect.is_second, reverse.is_second) == (True, False)


def effect_of(**changes: Any) -> FixesEffect:
    """Return an effect of fixes that corrected one label."""
    usual: dict[str, Any] = {
        "is_second": True,
        "relabelled": 1,
        "left_out": 0,
        "added": 0,
        "settings": (),
        "is_cross_validated": False,
        "paired": PairedDifference(30, 10, 100, 0.01),
        "p": 0.01,
    }
    return FixesEffect(**{**usual, **changes})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"p": 0.049}, "helped"),
        ({"p": 0.05}, "no clear effect"),
        ({"paired": PairedDifference(5, 30, 100, 0.01)}, "hurt"),
        ({"added": 1}, "mixed"),
        ({"settings": ("optim.l2",)}, "mixed"),
    ],
)
def test_the_verdict_needs_significance_and_no_other_difference(
    changes: dict[str, Any], verdict: str
) -> None:
    effect = effect_of(**changes)

    assert effect.verdict == verdict
    assert effect.difference == effect.paired.difference
    assert effect.interval == effect.paired.interval(effect.p)


@pytest.mark.parametrize(
    ("changes", "beginning", "measured"),
    [
        ({}, "The fixes of B (1 distinct image with other labels) helped: B - A", "+20.0 points"),
        (
            {"is_second": False},
            "The fixes of A (1 distinct image with other labels) helped: B - A",
            "−20.0 points on",
        ),
        (
            {"both": True},
            "The fixes of B in place of those of A (1 distinct image with other labels) helped",
            "+20.0 points",
        ),
        ({"relabelled": 0, "left_out": 2}, "The fixes of B (2 distinct images left out) he", "+"),
        (
            {"relabelled": 1200, "left_out": 1100},
            "The fixes of B (1,200 distinct images with other labels, 1,100 left out) helped",
            "+20.0",
        ),
        (
            {"added": 1},
            "The effect of the fixes of B (1 distinct image with other labels) cannot be "
            "separated from that of 1 added image: B - A",
            "+20.0",
        ),
        (
            {"added": 2, "settings": ("optim.l2",)},
            "The effect of the fixes of B (1 distinct image with other labels) cannot be "
            "separated from that of optim.l2 and 2 added images",
            "+",
        ),
    ],
)
def test_the_sentence_on_fixes_counts_what_they_changed(
    changes: dict[str, Any], beginning: str, measured: str
) -> None:
    effect = effect_of(**changes)

    text = fixes_text(effect, ("A", "B"), "p = 0.010")

    assert text.startswith(beginning)
    assert measured in text
    low, high = effect.interval if effect.is_second else [-x for x in effect.interval[::-1]]
    ends = f"{100 * low:+.1f} to {100 * high:+.1f} points".replace("-", "−")
    assert f"in both runs that both hold out (95% interval {ends}; p = 0.010)" in text


def test_an_image_is_left_out_if_all_its_files_are_dropped(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    rows = [
        Row("deep/er/0/a.jpg", 0, "train", "a"),
        Row("deep/er/0/copy.jpg", 0, "train", "b"),
        Row("deep/er/1/copy.jpg", 1, "train", "b"),
        Row("er/2/c.jpg", 2, "train", "c"),
    ]
    fixes = [
        Fix(path=path, action=action)
        for path, action in (
            ("0/a.jpg", "drop"), ("0/copy.jpg", "drop"), ("er/2/c.jpg", "drop"), ("2/c", "keep"),
        )
    ]  # fmt: skip

    assert dropped_images(replace(run, rows=tuple(rows)), fixes) == {"a", "c"}
    both = [*fixes, Fix(path="1/copy.jpg", action="drop")]
    assert dropped_images(replace(run, rows=tuple(rows)), both) == {"a", "b", "c"}
    keeps = [replace(fix, action="keep") for fix in fixes]
    assert dropped_images(replace(run, rows=tuple(rows)), keeps) == set()


def test_added_and_missing_images_of_other_causes_are_counted_together(tmp_path: Path) -> None:
    plain, after = make_run(tmp_path / "before", per_class=30), fixed(tmp_path / "after")
    with (after / "split.csv").open("a") as file:
        file.writelines(f"0/9{i}.jpg,daisy,train,{i:064}\n" for i in range(3))
    with (plain / "split.csv").open("a") as file:
        file.writelines(f"0/8{i}.jpg,daisy,train,{9 - i:064}\n" for i in range(2))

    effect = fixes_effect(read_run(plain), read_run(after), PairedDifference(0, 0, 12, 1.0), 1.0)

    assert effect is not None
    assert (effect.relabelled, effect.left_out, effect.added) == (1, 1, 5)
    assert effect.verdict == "mixed"


def test_a_run_on_images_in_an_unknown_folder_has_no_command_that_evaluates_another(
    tmp_path: Path,
) -> None:
    run, other = (read_run(make_run(tmp_path / name)) for name in ("a", "b"))

    where = {"data": {"path": str(tmp_path), "root": ""}}
    known, unknown = (replace(run, config=config) for config in (where, {}))
    assert evaluation_command(known, other).startswith(
        f"vitft evaluate --data {run.path}/split.csv --set data.root={tmp_path} "
    )
    assert unknown.root_uri == ""
    assert evaluation_command(unknown, other) == ""
