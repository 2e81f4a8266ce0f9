"""Comparison of runs: shared images, significance of the differences, page and JSON."""

import hashlib
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import tomli_w
from PIL import Image

from tests.report.test_decisions import with_fixes
from tests.report.test_report import at_chance, check_harmless
from tests.support.run_files import (
    ENVIRONMENT,
    FLOWERS,
    HOSTILE,
    add_test_results,
    make_run,
    with_cross_validated,
)
from vitft.cli.compare import disputed_text
from vitft.cli.main import main
from vitft.config.defaults import default_lr
from vitft.config.run import config_from_table, read_toml, to_toml
from vitft.metrics.comparison_results import ComparisonResults
from vitft.metrics.intervals import mcnemar
from vitft.models.vit_config import ViTConfig
from vitft.predict.validation import read_split
from vitft.report.comparable import check_runs, evaluate_commands, nothing_shared
from vitft.report.comparison import RunComparison, SharedImage, compare_runs, shown_setting
from vitft.report.comparison_json import comparison_results
from vitft.report.comparison_page import (
    curve_charts,
    disputed_groups,
    run_descriptions,
    write_comparison,
)
from vitft.report.fixed_images import data_changes, data_notes, fixes_notes
from vitft.report.reproduce import different_settings, shown_settings, usual_settings
from vitft.report.run_files import Run, find_runs, read_run
from vitft.system.errors import RunError, UsageError
from vitft.system.structure import structured
from vitft.system.text import points


def compared(*runs: Path) -> RunComparison:
    return compare_runs([read_run(run) for run in runs])


# comparison --------------------------------------------------------------------------------------


def test_two_runs_on_one_split_are_tested_on_all_images(tmp_path: Path) -> None:
    good = make_run(tmp_path / "good", per_class=60, held_back=50, hardness=0.5)
    poor = make_run(tmp_path / "poor", per_class=60, held_back=50, hardness=2, seed=1)

    result = compared(good, poor)

    assert result.shared == 150
    assert list(result.notes) == []
    (pair,) = result.pairs
    assert pair.paired.only_first - pair.paired.only_second == result.rights[1] - result.rights[0]
    assert pair.difference == (result.rights[1] - result.rights[0]) / 150 < 0
    assert pair.p == mcnemar(pair.paired.only_first, pair.paired.only_second) < 0.001
    assert result.conclusion(pair).startswith("A is more accurate than B on these images, by ")


def test_equal_runs_are_equally_accurate(tmp_path: Path) -> None:
    result = compared(make_run(tmp_path / "a"), make_run(tmp_path / "b"))

    assert result.pairs[0].p == 1
    assert result.conclusions() == ["A and B are equally accurate on these 12 images"]


def test_few_shared_images_cannot_tell_which_run_is_more_accurate(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, held_back=1, seed=i) for i, name in enumerate("ab")]

    result = compared(*runs)

    assert result.conclusions() == [
        "3 shared images are too few to tell whether A or B is more accurate"
    ]
    assert result.next_step().startswith("The surest answer comes from labelled photos that no")
    assert f"`vitft evaluate --data NEW --run {runs[0]}`" in result.next_step()


def test_only_shared_images_of_different_splits_are_compared(tmp_path: Path) -> None:
    more, fewer = make_run(tmp_path / "more", held_back=6), make_run(tmp_path / "fewer")

    result = compared(more, fewer)

    assert result.shared == 12
    assert result.notes[0].startswith(
        "The splits differ: the runs have 18 and 12 distinct validation images, and"
    )


# added training images ---------------------------------------------------------------------------


def grown(path: Path, *, hardness: float, **settings: object) -> Path:
    """A run like those of `make_run`, with 20 further training images."""
    run = make_run(path, per_class=60, held_back=50, hardness=hardness)
    rows = [f"x/{i}.jpg,rose,train,{i:064}" for i in range(20)]
    with (run / "split.csv").open("a") as file:
        file.write("\n".join(rows) + "\n")
    table = read_toml(run / "config.toml")
    for key, value in {"data.like": "runs/first", **settings}.items():
        section, _, name = key.partition(".")
        table[section][name] = value
    (run / "config.toml").write_text(to_toml(config_from_table(table)))
    return run


@pytest.mark.parametrize("order", [1, -1], ids=["second", "first"])
@pytest.mark.parametrize(
    ("hardness", "verdict"),
    [
        (0.5, "The 20 training images that {more} adds to those of {fewer} helped: "),
        (2.0, "No clear effect of the 20 training images that {more} adds to those"),
        (5.0, "The 20 training images that {more} adds to those of {fewer} hurt: "),
    ],
)
def test_it_is_said_whether_added_images_helped(
    tmp_path: Path, hardness: float, verdict: str, order: int
) -> None:
    runs = [
        make_run(tmp_path / "few", per_class=60, held_back=50, hardness=2, seed=1),
        grown(tmp_path / "more", hardness=hardness),
    ]

    result = compared(*runs[::order])

    (text,) = result.conclusions()
    fewer, more = ("A", "B")[::order]
    assert text.startswith(verdict.format(more=more, fewer=fewer))
    accuracies = dict(zip("AB", (top1 for top1, _ in result.accuracies), strict=True))
    difference = points(accuracies["B"] - accuracies["A"])
    assert f"B - A = {difference} on the shared images (95% interval " in text
    assert ("; p" in text) == (hardness != 2)


def test_added_images_get_no_credit_if_another_setting_differs(tmp_path: Path) -> None:
    few = make_run(tmp_path / "few", per_class=60, held_back=50, hardness=2, seed=1)
    more = grown(tmp_path / "more", hardness=0.5, **{"optim.l2": 3.0})

    (text,) = compared(few, more).conclusions()

    assert text.startswith("B is more accurate than A on these images, by ")
    assert text.endswith(
        "; 20 training images of B are not among those of A, but optim.l2 differs too"
    )


def test_a_few_further_images_are_not_mentioned(tmp_path: Path) -> None:
    few = make_run(tmp_path / "few", per_class=1400, held_back=50, hardness=2, seed=1)
    more = make_run(tmp_path / "more", per_class=1400, held_back=50, hardness=0.5)
    with (more / "split.csv").open("a") as file:
        file.writelines(f"x/{i}.jpg,rose,train,{i:064}\n" for i in range(20))  # to 4,050

    (text,) = compared(few, more).conclusions()

    assert text.startswith("B is more accurate than A on these images, by ")


def test_runs_with_images_of_their_own_are_compared_as_before(tmp_path: Path) -> None:
    few = make_run(tmp_path / "few", per_class=60, held_back=50, hardness=2, seed=1)
    more = grown(tmp_path / "more", hardness=0.5)
    split = few / "split.csv"
    split.write_text(split.read_text() + f"y/1.jpg,rose,train,{'e' * 64}\n")

    (text,) = compared(few, more).conclusions()

    assert text.startswith("B is more accurate than A on these images, by ")


def test_an_unfinished_run_is_to_be_resumed_before_it_is_compared(tmp_path: Path) -> None:
    done, stopped = make_run(tmp_path / "done"), make_run(tmp_path / "stopped")
    (stopped / "validation.npz").unlink()
    (stopped / "environment.json").write_text(json.dumps(ENVIRONMENT | {"status": "interrupted"}))

    with pytest.raises(RunError, match="has not finished") as error:
        compared(done, stopped)

    assert error.value.fix == f"finish it with `vitft finetune --resume {stopped}`"


def test_without_shared_images_the_error_names_what_differs(tmp_path: Path) -> None:
    here, there = make_run(tmp_path / "here"), make_run(tmp_path / "there")
    table = (there / "split.csv").read_text().replace(",val,", ",val,0").splitlines()
    cut = [f"{line[:-1]}" if ",val,0" in line else line for line in table]
    (there / "split.csv").write_text("\n".join(cut) + "\n")

    settings = read_toml(there / "config.toml")
    settings["data"] |= {"path": "digits.npz", "seed": 1}
    (there / "config.toml").write_text(to_toml(config_from_table(settings)))

    with pytest.raises(UsageError, match="no validation image is shared by all runs") as error:
        compared(here, there)

    assert error.value.problem.endswith(
        "the runs differ in data (flowers and digits.npz) and data.seed (0 and 1)"
    )
    commands = [f"`vitft evaluate --data NEW --run {run}`" for run in (here, there)]
    assert error.value.fix.endswith(" and ".join(commands))


def test_up_to_26_runs_can_be_compared(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    runs = [replace(run, path=tmp_path / str(i)) for i in range(27)]

    check_runs(runs[:26])
    with pytest.raises(UsageError, match="cannot compare 27 runs"):
        check_runs(runs)
    with pytest.raises(UsageError, match="given twice"):
        check_runs([runs[0], runs[1], runs[0]])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, "no validation image is shared by all runs"),
        ({"data": {"path": "x/digits.npz"}}, "; the runs differ in data (flowers and digits.npz)"),
        ({"data": {"seed": 1}}, "; the runs differ in data.seed (0 and 1)"),
    ],
)
def test_the_error_for_runs_without_common_images_names_only_what_differs(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    run = read_run(make_run(tmp_path / "run"))
    config = {key: {**run.config[key], **changes.get(key, {})} for key in run.config}
    other = replace(run, config=config, path=tmp_path / "other")

    assert nothing_shared([run, other]).problem.endswith(problem)
    partly = nothing_shared([run, replace(other, classes=("rose", "tulip"))])
    assert "no validation image is shared" in partly.problem
    assert "classes" in partly.problem
    assert partly.fix.startswith("evaluate each run on the same labelled photos")
    alien = nothing_shared([run, replace(other, classes=("tulip", "violet"))])
    assert "the runs have no class in common; the runs differ in" in alien.problem
    assert evaluate_commands([run, other]) == [
        f"`vitft evaluate --data NEW --run {run.path}`",
        f"`vitft evaluate --data NEW --run {other.path}`",
    ]
    assert evaluate_commands([run] * 3) == ["`vitft evaluate --data NEW --run RUN`"]


def test_images_and_labels_that_differ_from_the_first_run_are_counted(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    first, second, *rest = run.rows
    other = replace(run, rows=(replace(first, label=2), *rest, replace(first, sha256="new")))
    fewer = replace(run, rows=tuple(rest))

    assert data_changes([run, other, run, fewer]) == [(1, 1, 1), (0, 0, 0), (0, 2, 0)]
    assert data_notes([run, other, run, fewer]) == [
        "Data of B compared with A (distinct images): labels changed: 1; images left out: 1; "
        "images added: 1.",
        "Data of D compared with A (distinct images): labels changed: 0; images left out: 2; "
        "images added: 0.",
    ]
    assert second.sha256 not in {row.sha256 for row in other.rows}


def test_fixes_are_blamed_only_for_the_images_that_they_changed(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    table = tmp_path / "fixes.csv"
    table.write_text(
        "path,action,new_label\n0/000.jpg,move,rose\n0/001.jpg,drop,\n0/002.jpg,keep,\n"
    )
    run = read_run(with_fixes(path, table, hashlib.sha256(table.read_bytes()).hexdigest()))
    plain = read_run(make_run(tmp_path / "plain"))
    tables = [{one.sha256: one for one in each.predictions} for each in (plain, run)]
    moved, dropped, kept = ([one.sha256 for one in run.predictions][i] for i in range(3))
    for sha256 in (dropped, kept):
        del tables[1][sha256]

    notes = fixes_notes([plain, run], tables, [moved])
    other = fixes_notes([plain, plain], [tables[0]] * 2, [moved, kept])
    third = fixes_notes([plain, run, plain], [*tables, tables[0]], [])

    assert notes == [
        "Excluded: 1 validation image that has different labels in the runs: the fixes of B "
        "changed 1 of them.",
        "The fixes of B left out 1 validation image of the other run, which the comparison "
        "excludes.",
    ]
    assert other == ["Excluded: 2 validation images that have different labels in the runs."]
    assert third == [notes[1].replace("other run", "other runs")]


def test_an_image_with_two_labels_is_left_out(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other")
    table = (other / "split.csv").read_text()
    (other / "split.csv").write_text(table.replace("0/000.jpg,daisy", "0/000.jpg,rose"))

    result = compared(one, other)

    assert result.shared == 11
    assert "Excluded: 1 validation image that has different labels in the runs." in (result.notes)


def test_images_that_fixes_relabelled_or_left_out_are_counted(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other", held_back=3)
    table = (other / "split.csv").read_text()
    (other / "split.csv").write_text(table.replace("0/000.jpg,daisy", "0/000.jpg,rose"))
    fixes = tmp_path / "fixes.csv"
    fixes.write_text(
        "path,action,new_label\n0/000.jpg,move,rose\n0/001.jpg,keep,rose\n0/003.jpg,drop,\n"
    )
    with_fixes(other, fixes, hashlib.sha256(fixes.read_bytes()).hexdigest())

    notes = compared(one, other).notes

    assert (
        "The splits differ: the runs have 12 and 9 distinct validation images, and only the 8 "
        "images that all of them share, with the same label, are compared." in notes
    )
    assert (
        "Excluded: 1 validation image that has different labels in the runs: the fixes of "
        "B changed 1 of them." in notes
    )
    assert (
        "The fixes of B left out 1 validation image of the other run, which the comparison "
        "excludes." in notes
    )
    assert not any(
        "fixes_digest" in key for key, _ in different_settings([*map(read_run, (one, other))])
    )
    fixes.write_text("path,action\n")
    assert not [text for text in compared(one, other).notes if "The fixes of" in text]


def test_settings_without_effect_in_one_run_and_with_their_default_are_listed_apart(
    tmp_path: Path,
) -> None:
    runs = [make_run(tmp_path / name) for name in "abc"]
    for run, table in zip(
        runs,
        (
            {"optim": {"solver": "lbfgs", "epochs": 20}},
            {"optim": {"solver": "lbfgs", "epochs": 10, "lr": 0.1, "l2": 2.0}},
            {"optim": {"solver": "adamw", "epochs": 5, "l2": 3.0}},
        ),
        strict=True,
    ):
        (run / "config.toml").write_text(to_toml(config_from_table(table)))

    solved, other, stepped = map(read_run, runs)

    assert dict(different_settings([solved, other])) == {"optim.l2": [0.0, 2.0]}
    differ = dict(different_settings([other, stepped]))
    assert differ["optim.epochs"] == [None, 5]
    assert differ["optim.l2"] == [2.0, None]
    usual = dict(usual_settings([other, stepped]))
    assert differ["optim.momentum"] == usual["optim.momentum"] == [None, 0.9]
    assert not usual.keys() & {"optim.epochs", "optim.l2"}
    assert usual_settings([solved, other]) == []
    shown = dict(shown_settings([other, stepped]))
    assert shown.keys() | usual.keys() == differ.keys()
    assert not shown.keys() & usual.keys()
    text = compared(runs[1], runs[2]).usual_settings_text()
    assert "optim.momentum – / 0.9" in text


def test_defaults_that_depend_on_the_model_and_the_images_are_listed_apart(
    tmp_path: Path,
) -> None:
    """A run writes them to config.toml with their values."""
    head, blocks = (make_run(tmp_path / name) for name in "ab")
    width = read_run(blocks).card.architecture.width

    def differ(**optim: float) -> dict[str, list[Any]]:
        table = {"train": {"freeze": "blocks:1"}, "optim": {"solver": "adamw", **optim}}
        (blocks / "config.toml").write_text(to_toml(config_from_table(table)))
        return dict(shown_settings([read_run(head), read_run(blocks)]))

    lr = default_lr("blocks:1", width)
    third = make_run(tmp_path / "c")
    table = {"train": {"freeze": "blocks:1"}, "optim": {"solver": "adamw", "clip": 0.0}}
    (third / "config.toml").write_text(to_toml(config_from_table(table)))
    differ()
    runs = [read_run(head), read_run(blocks), read_run(third)]
    assert "optim.clip" in dict(usual_settings(runs))
    lora = {"train": {"freeze": "lora"}, "optim": {"solver": "adamw", "clip": 1.0}}
    (third / "config.toml").write_text(to_toml(config_from_table(lora)))
    runs = [read_run(head), read_run(blocks), read_run(third)]
    assert "optim.clip" in dict(shown_settings(runs))  # the default of each, but not the same

    assert not {"optim.lr", "optim.batch_size"} & differ(lr=lr, batch_size=8).keys()
    assert {"optim.lr", "optim.batch_size"} <= differ(lr=2 * lr, batch_size=32).keys()


def test_a_run_without_cross_validated_accuracy_does_not_hide_that_of_others(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, found in (("a", {"top1": 0.625, "top1_interval": [0.5, 0.75]}), ("b", None)):
        run = make_run(here / name)
        results = json.loads((run / "eval.json").read_text())
        results["cross_validation"] |= found or {}
        if found is None:
            del results["cross_validation"]
        (run / "eval.json").write_text(json.dumps(results))

    assert main(["compare", "a", "b", "--format", "json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert main(["compare", "a", "b", "--out", "page.html"]) == 0
    printed = capsys.readouterr().out

    assert [run["cross_validated"] for run in runs] == [0.625, None]
    assert [run["cross_validated_interval"] for run in runs] == [[0.5, 0.75], None]
    assert "cross-validated" in printed
    assert re.search(r"A a .* 62\.5% +50\.0 to 75\.0%\n", printed)
    assert re.search(r"B b .* –\s*\n", printed)
    page = (here / "page.html").read_text(encoding="utf-8")
    shown = re.findall(r'data-label="cross-validated accuracy">([^<]*)<small>([^<]*)<', page)
    assert shown == [("62.5%", "50.0 to 75.0%"), ("–", "")]


def test_the_cross_validation_of_a_head_is_not_that_of_a_run_that_trained_further(
    here: Path,
) -> None:
    for name, best_epoch in (("a", 1), ("b", 7)):
        run = make_run(here / name)
        results = json.loads((run / "eval.json").read_text())
        results |= {"best_epoch": best_epoch}
        (run / "eval.json").write_text(json.dumps(results))

    result = compared(here / "a", here / "b")

    assert result.cross_validated[0] is not None
    assert result.cross_validated[1] is None
    assert result.notes[-1] == (
        "No cross-validated accuracy for B: layers were trained after the head, which alone was "
        "cross-validated."
    )
    titles = [title for title, _ in curve_charts(result)]
    assert not any("Cross-validated" in title for title in titles)


def test_the_effect_of_fixes_is_stated_in_data_and_cross_validated_accuracy(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = make_run(here / "before"), make_run(here / "after", hardness=0.5)
    rows = (after / "split.csv").read_text().replace("0/007.jpg,daisy", "0/007.jpg,rose")
    lines = [line for line in rows.splitlines() if "0/008.jpg" not in line]
    lines += [f"x/9{i}.jpg,rose,train,{i:064}" for i in range(2)]
    (after / "split.csv").write_text("\n".join(lines) + "\n")
    fixes = here / "fixes.csv"
    fixes.write_text("path,action,new_label\n0/007.jpg,move,rose\n0/008.jpg,drop,\n")
    with_fixes(after, fixes, hashlib.sha256(fixes.read_bytes()).hexdigest())
    for run, top1 in ((before, 0.5), (after, 0.75)):
        results = json.loads((run / "eval.json").read_text())
        bounds = [top1 - 0.1, top1 + 0.1]
        results["cross_validation"] |= {"top1": top1, "top1_interval": bounds}
        (run / "eval.json").write_text(json.dumps(results))

    assert main(["compare", "before", "after", "--format", "json", "--out", "j.html"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert main(["compare", "before", "after", "--out", "page.html"]) == 0
    printed = capsys.readouterr()

    assert [run["cross_validated"] for run in answer["runs"]] == [0.5, 0.75]
    assert answer["runs"][1]["cross_validated_interval"] == pytest.approx([0.65, 0.85])
    changes = (
        "Data of B compared with A (distinct images): labels changed: 1; images left out: 1; "
        "images added: 2."
    )
    assert changes in answer["notes"]
    assert changes in printed.err
    assert "a gain is partly that wrong labels are no longer counted" in printed.err
    header = next(line for line in printed.out.splitlines() if line.startswith("run "))
    assert header.split("  ")[-2].strip() == "cross-validated"
    assert "75.0%" in printed.out
    assert 'data-label="cross-validated accuracy">75.0%<small>' in (here / "page.html").read_text()


def test_heads_that_were_cross_validated_are_compared_on_all_images(tmp_path: Path) -> None:
    one = with_cross_validated(make_run(tmp_path / "a"), wrong=20)
    other = with_cross_validated(make_run(tmp_path / "b", seed=1), wrong=4)

    def notes() -> list[str]:
        return [text for text in compared(one, other).notes if "In cross-validation" in text]

    images = len(read_split(one, FLOWERS).rows)
    assert notes() == [
        f"In cross-validation on {images} images of both runs, with heads not fitted to the image, "
        f"A classifies {1 - 20 / images:.1%} correctly and B {1 - 4 / images:.1%} (p < 0.001)."
    ]
    results = json.loads((other / "eval.json").read_text())
    del results["cross_validation"]
    (other / "eval.json").write_text(json.dumps(results))
    assert notes() == []


def test_without_changes_of_the_data_nothing_is_said_of_fixes(tmp_path: Path) -> None:
    plain, other = make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1)
    for run in (plain, other):
        results = json.loads((run / "eval.json").read_text())
        del results["cross_validation"]  # e.g. after training more layers on few images
        (run / "eval.json").write_text(json.dumps(results))

    result = compared(plain, other)

    assert not [note for note in result.notes if "Data of" in note or "fixes" in note]
    assert all(len(row) == 4 for row in result.accuracy_rows())


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    run, old = make_run(tmp_path / "run"), make_run(tmp_path / "old")
    (old / "validation.npz").unlink()

    with pytest.raises(UsageError, match="is given twice"):
        compared(run, run)
    with pytest.raises(RunError, match="which contains the validation predictions, is missing"):
        compared(run, old)


def test_three_runs_give_three_pairs_and_one_page(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / n, hardness=1 + s, seed=s) for s, n in enumerate("xyz")]

    result = compared(*runs)

    assert [(p.first, p.second) for p in result.pairs] == [(0, 1), (0, 2), (1, 2)]
    page = check_harmless(write_comparison(result, tmp_path / "page.html").read_text())
    assert "with Holm's correction for 3 pairs" in page.text
    disputed = sum(image.disputed for image in result.images)
    assert "Where the runs disagree" in page.text
    figures = [tag for tag, a in page.elements if tag == "figure" and a.get("class") == "card"]
    assert len(figures) == disputed > 0


def test_a_run_at_chance_level_is_called_so_in_a_comparison(tmp_path: Path) -> None:
    good = make_run(tmp_path / "good", per_class=60, held_back=50, hardness=0.5)
    poor = at_chance(make_run(tmp_path / "poor", per_class=60, held_back=50))

    result = compared(good, poor)

    assert list(result.notes) == ["B is at chance level: it always predicts poppy."]
    assert "always predicts poppy" in write_comparison(result, tmp_path / "page.html").read_text()


# the page -----------------------------------------------------------------------------------------


def winners(html: str) -> int:
    return sum("winner" in (a.get("class") or "") for _, a in check_harmless(html).elements)


def test_a_difference_that_is_not_significant_is_not_called_one(tmp_path: Path) -> None:
    result = compared(make_run(tmp_path / "a"), make_run(tmp_path / "b", hardness=2, seed=1))

    (pair,) = result.pairs
    assert 0.05 <= pair.p < 1
    assert result.conclusion(pair).startswith("No significant difference on these images: A is ")


def test_green_marks_a_significant_difference_and_never_a_tie(tmp_path: Path) -> None:
    good = make_run(tmp_path / "good", per_class=60, held_back=50, hardness=0.5)
    same = make_run(tmp_path / "same", per_class=60, held_back=50, hardness=0.5)
    poor = make_run(tmp_path / "poor", per_class=60, held_back=50, hardness=5, seed=1)

    tie, clear = compared(good, same), compared(poor, good)

    assert (tie.winner, clear.winner) == (None, 1)
    assert winners(write_comparison(tie, tmp_path / "tie.html").read_text()) == 0
    assert winners(write_comparison(clear, tmp_path / "clear.html").read_text()) >= 1


def test_few_shared_images_are_said_to_show_only_large_differences(tmp_path: Path) -> None:
    few = [make_run(tmp_path / name, seed=i) for i, name in enumerate("ab")]
    tiny = [make_run(tmp_path / f"{n}2", held_back=1, seed=i) for i, n in enumerate("ab")]
    many = [make_run(tmp_path / f"{n}3", per_class=200, held_back=150) for n in "ab"]

    assert compared(*few).power_text() == (
        "With 12 shared images, a difference of less than 41.7 points cannot be significant."
    )  # five images in favour of one run: p = 1 / 2**5 = 0.03
    assert compared(*tiny).power_text().endswith("no difference can be significant.")
    assert compared(*many).power_text() == ""


def test_the_curves_of_all_runs_share_a_chart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / n, epochs=True, seed=s) for s, n in enumerate("xyz")]
    head = make_run(tmp_path / "head")

    html = write_comparison(compared(*runs, head), tmp_path / "page.html").read_text()

    labels = [a.get("aria-label") for tag, a in check_harmless(html).elements if tag == "svg"]
    assert "Validation accuracy by epoch" in labels
    assert "Cross-validated accuracy by training images" in labels
    assert "Cross-validated accuracy by L2 penalty" not in labels  # only one run has penalties


def test_runs_are_described_by_what_differs_and_otherwise_by_name(tmp_path: Path) -> None:
    one, other = read_run(make_run(tmp_path / "one")), read_run(make_run(tmp_path / "other"))
    settings = tmp_path / "other" / "config.toml"
    settings.write_text(settings.read_text().replace('freeze = "head"', 'freeze = "blocks:2"'))

    assert run_descriptions([one, other]) == ["one", "other"]
    assert run_descriptions([one, read_run(tmp_path / "other")]) == ["head", "blocks:2"]


def test_disputed_images_of_two_runs_are_grouped_by_the_run_that_is_right(tmp_path: Path) -> None:
    result = compared(*(make_run(tmp_path / n, hardness=2, seed=s) for s, n in enumerate("ab")))

    groups = disputed_groups(result)

    assert [group.title for group in groups][:2] == ["Only A is right", "Only B is right"]
    (pair,) = result.pairs
    assert [group.number for group in groups][:2] == [
        pair.paired.only_second,
        pair.paired.only_first,
    ]


# the command -------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_compare_writes_only_the_page_that_is_named_and_never_overwrites_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(here / "a"), make_run(here / "b", seed=1, hardness=2)

    assert main(["compare", "a", "b"]) == 0
    captured = capsys.readouterr()
    assert "add --out compare.html for a page" in captured.err
    assert {path.name for path in here.iterdir()} == {"a", "b"}

    codes = [main(["compare", "a", "b", "--out", "compare.html"]) for _ in range(2)]
    assert codes == [0, 5]
    assert main(["compare", "a"]) == 2

    captured = capsys.readouterr()
    assert "mid-p McNemar test on the shared images" in captured.out
    assert {p.name for p in here.glob("*.html")} == {"compare.html"}
    assert "already exists" in captured.err
    assert "only one run to compare" in captured.err


@pytest.mark.parametrize(
    ("epochs", "width"),
    [pytest.param(True, 1260, id="with curves"), pytest.param(False, 768, id="heads")],
)
def test_a_figure_shows_accuracies_and_curves_with_names_of_any_script(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    epochs: bool,
    width: int,
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("$a_1$ 蒲公英", "_b")):
        make_run(tmp_path / name, seed=seed, epochs=epochs)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of missing glyphs
        assert main(["compare", "$a_1$ 蒲公英", "_b", "--out", "figure.png"]) == 0

    assert "figure: figure.png" in capsys.readouterr().err
    with Image.open("figure.png") as figure:
        assert figure.width == width


def test_a_figure_in_an_unknown_format_is_refused_before_the_runs_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "a", "b", "--out", str(tmp_path / "figure.svg")]) == 2

    error = capsys.readouterr().err
    assert "a figure is a PNG file" in error
    assert "use a name that ends with .png, or .html for a page" in error


def test_the_conclusion_comes_first_with_a_next_step_and_one_direction(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(here / "a", per_class=60, held_back=50, hardness=2, seed=1)
    grown(here / "b", hardness=0.5)

    assert main(["compare", "a", "b", "--out", "compare.html"]) == 0

    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert " B - A = " in " ".join(lines[: lines.index("")])
    (pair,) = (line for line in lines if line.startswith("B - A  "))
    assert pair.split()[3] in shown.partition(" on the shared images")[0]
    assert "A - B" not in shown
    step = " ".join(" ".join(lines[: lines.index("")]).split())
    assert "`vitft evaluate --data NEW --run a` and `vitft evaluate --data NEW --run b`" in step
    page = (here / "compare.html").read_text()
    assert "vitft evaluate --data NEW --run a" in page


@pytest.mark.parametrize("is_link", [True, False], ids=["link", "file"])
def test_latest_and_repeated_runs_are_compared_once(
    here: Path, capsys: pytest.CaptureFixture[str], is_link: bool
) -> None:
    make_run(here / "runs" / "a"), make_run(here / "runs" / "b", seed=1, hardness=2)
    if is_link:
        (here / "runs" / "latest").symlink_to("b")
    else:  # on a disk without links
        (here / "runs" / "latest").write_text("b\n")
    runs = ["runs/latest", "runs/a", "runs/b", "runs/a/"]

    assert main(["compare", *runs, "--format", "json"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["b", "a"]

    assert main(["compare", "runs/b", "runs/latest"]) == 2
    assert "only one run to compare: runs/b is given 2 times" in capsys.readouterr().err


def test_compare_prints_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(here / "a"), make_run(here / "b", seed=1, hardness=2)

    main(["compare", "a", "b", "--format", "json", "--out", "page.html"])

    answer = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in answer["runs"]] == ["a", "b"]
    assert [run["letter"] for run in answer["runs"]] == ["A", "B"]
    assert answer["pairs"][0]["runs"] == ["a", "b"]
    assert answer["shared_images"] == 12


def test_json_contains_the_conclusions_of_the_terminal(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(here / "good", per_class=60, held_back=50, hardness=0.5)
    poor = make_run(here / "poor", per_class=60, held_back=50, hardness=2, seed=1)

    assert main(["compare", "good", "poor", "--format", "json", "--out", "j.html"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert main(["compare", "good", "poor", "--out", "page.html"]) == 0
    printed = capsys.readouterr()

    structured(answer, ComparisonResults)
    (pair,) = answer["pairs"]
    assert pair["conclusion"] in printed.out.splitlines()
    assert (pair["test"], pair["significant"]) == ("mid-p McNemar", True)
    assert pair["more_accurate"] == answer["winner"] == "good"
    assert (pair["added"], pair["fixes"]) == (None, None)
    assert answer["limit"] in printed.err.splitlines()
    assert answer["data"] == [{"run": "poor", "labels_changed": 0, "left_out": 0, "added": 0}]
    more = grown(here / "more", hardness=0.5)
    added = comparison_results(compared(poor, more))["pairs"][0]["added"]
    assert added == {"run": "more", "images": 20, "settings": []}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("model.channels", 0, "auto"),
        ("model.channels", 1, "1"),
        ("train.mixup", 0, "0"),
        ("weights.image_size", None, "–"),
        ("data.like", "", "–"),
    ],
)
def test_a_value_that_is_chosen_for_the_data_is_called_automatic(
    key: str, value: object, text: str
) -> None:
    assert shown_setting(key, value) == text


def test_blocks_that_cross_validation_chose_and_test_images_are_stated(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / name)) for name in "ab"]
    add_test_results(tmp_path / "b")
    other = read_run(tmp_path / "b")
    assert other.card is not None
    assert isinstance(other.card.architecture, ViTConfig)
    shape = replace(other.card.architecture, read_blocks=2)
    other = replace(other, card=replace(other.card, architecture=shape))

    same, differ = compare_runs(runs), compare_runs([runs[0], other])

    assert ("read by the head", "1 block", "2 blocks") in differ.setting_rows()
    assert "read by the head" not in [row[0] for row in same.setting_rows()]
    sentence = (
        "On their test images, which are not compared: B 88.0% (83.0 to 92.0%) on 240 images."
    )
    assert sentence in differ.notes
    assert not any("test images" in note for note in same.notes)


def test_the_page_the_table_and_json_name_the_settings_that_differ(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        config = make_run(here / name, seed=seed) / "config.toml"
        table = read_toml(config)
        table["optim"]["l2"] = seed + 0.5
        table["weights"]["image_size"] = [16, 16 + seed]
        config.write_text(tomli_w.dumps(table))

    assert main(["compare", "a", "b", "--format", "json", "--out", "j.html"]) == 0
    answer = json.loads(capsys.readouterr().out)["settings"]
    assert main(["compare", "a", "b", "--out", "page.html"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert answer["optim.l2"] == [0.5, 1.5]
    assert answer["weights.image_size"] == [[16, 16], [16, 17]]
    start = lines.index("settings in which the runs differ")
    rows = [line.split(maxsplit=1) for line in lines[start + 2 : start + 2 + len(answer)]]
    assert [row[0] for row in rows] == sorted(answer)
    assert dict(rows)["optim.l2"].split() == ["0.5", "1.5"]
    page = (here / "page.html").read_text()
    assert '<th scope="row">optim.l2</th><td data-label="A">0.5</td><td data-label="B">1.5' in page
    assert page.count('<th scope="row">weights.image_size</th>') == 1


def test_hostile_names_stay_text_in_a_comparison(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {i * 10: f"{name} {i}".replace("/", "\u2044") for i, name in enumerate(HOSTILE)}
    folders = ["<img src=x onerror=alert(1)>", "=1+1\x1b[2J"]
    for seed, folder in enumerate(folders):
        make_run(here / folder, HOSTILE, hardness=3, seed=seed, names=names)

    main(["compare", *folders, "--out", "page.html"])
    table = capsys.readouterr().out
    main(["compare", *folders, "--out", "page2.html", "--format", "json"])

    page = check_harmless((here / "page.html").read_text())
    assert folders[0] in page.text
    assert "\x1b" not in table
    answer = capsys.readouterr().out
    assert "\x1b" not in answer
    assert json.loads(answer)["runs"][1]["name"] == folders[1]


def test_images_with_different_wrong_predictions_are_counted_apart() -> None:
    def image(*predicted: str) -> SharedImage:
        ones = tuple(1.0 for _ in predicted)
        return SharedImage(sha256="", path="x", label="a", predicted=predicted, probabilities=ones)

    images = [image("a", "b"), image("b", "c"), image("b", "b"), image("a", "a")]
    runs = cast("list[Run]", [None, None])
    comparison = RunComparison(runs=runs, names="AB", notes=(), images=images, pairs=())

    assert disputed_text(comparison) == (
        " with the 2 images on which the runs disagree (1 of them with different wrong predictions)"
    )
    assert disputed_text(replace(comparison, images=images[2:])) == ""


def test_one_run_is_too_few_and_its_repetition_is_named(tmp_path: Path) -> None:
    run = str(make_run(tmp_path / "a"))

    with pytest.raises(UsageError, match=r"^only one run to compare\n"):
        find_runs([run])
    with pytest.raises(UsageError, match=r"only one run to compare: .*a is given 2 times\n"):
        find_runs([run, run])
