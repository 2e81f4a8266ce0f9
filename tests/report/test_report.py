"""The page of a run: its contents, its safety with any name, and its layout."""

import hashlib
import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.limits import HANG_S
from tests.support.run_files import ENVIRONMENT, HOSTILE, make_run, with_cross_validated
from vitft.cli.finetune import named_settings
from vitft.cli.main import build_parser, main
from vitft.config.run import config_from_table, merge_settings, read_toml, to_toml
from vitft.data.unused import unused_files
from vitft.predict.validation import thumb_name
from vitft.report import charts, palette, svg
from vitft.report.advice import ClassRecall, advise, compared_with_accuracy
from vitft.report.chart_sections import confidence_section, epochs_section
from vitft.report.html import digest_source, unbroken_percent
from vitft.report.reproduce import command_of, digests, environment_rows
from vitft.report.run_files import Run, Thumbnails, find_run, read_run
from vitft.report.run_page import write_report
from vitft.system.errors import RunError, VitftError

ELEMENTS = {
    *("html", "head", "meta", "title", "link", "style", "body", "script", "header", "footer"),
    *("nav", "main", "section", "a", "p", "h1", "h2", "h3", "dl", "div", "dt", "dd", "ol", "li"),
    *("ul", "strong", "small", "span", "figure", "img", "figcaption", "details", "summary"),
    *(
        "fieldset",
        "legend",
        "label",
        "input",
        "select",
        "option",
        "noscript",
        "bdi",
        "br",
        "pre",
        "code",
        "button",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    ),
    *("svg", "g", "path", "defs", "use", "clippath", "rect", "text"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "rel", "href", "class", "id", "alt"),
    *("src", "title", "scope", "type", "role", "hidden", "tabindex", "aria-label", "aria-sort"),
    *(
        "aria-hidden",
        "data-cell",
        "data-file",
        "data-suggested",
        "data-table",
        "data-root",
        "value",
        "data-value",
        "data-fold",
        "data-label",
        "viewbox",
        "preserveaspectratio",
    ),
    *("x", "y", "width", "height", "d", "transform", "clip-path", "fill", "stroke", "opacity"),
    *("font-size", "text-anchor", "stroke-width", "stroke-dasharray", "fill-opacity"),
}


class Page(HTMLParser):
    """Parser that collects the elements, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.within: list[str] = []
        self.seen: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br", "input"):
            self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.within.pop() == tag, f"</{tag}> closes nothing"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        assert decl == "doctype html"

    def handle_data(self, data: str) -> None:
        tag = self.within[-1] if self.within else ""
        self.words.setdefault(tag, []).append(data)
        if tag not in ("script", "style"):
            self.seen.append(data)

    @property
    def text(self) -> str:
        """The visible text in one line."""
        return " ".join(" ".join(self.seen).split())


def check_harmless(html: str) -> Page:
    """Check elements, attributes, links and content policy of a page, and return it parsed."""
    page = Page(html)
    for tag, attributes in page.elements:
        assert tag in ELEMENTS, tag
        assert set(attributes) <= ATTRIBUTES, (tag, attributes)
        assert attributes.get("src", "data:image/jpeg;base64,").startswith(
            "data:image/jpeg;base64,"
        )
        assert re.match(r"#[\w-]+$|data:,$", attributes.get("href") or "#x")
    assert len(page.words["script"]) == len(page.words["style"]) == 1
    (policy,) = [
        a["content"] or "" for tag, a in page.elements if a.get("http-equiv") and tag == "meta"
    ]
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src {digest_source(page.words['script'][0])};" in policy
    assert f"style-src {digest_source(page.words['style'][0])};" in policy
    assert "unsafe" not in policy
    return page


# contents ----------------------------------------------------------------------------------------


def test_the_page_shows_training_accuracy_weakest_class_and_next_steps(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", seed=5)
    figures = json.loads((run / "eval.json").read_text())

    page = check_harmless(write_report(run).read_text())

    assert (
        "distinguishes 3 classes (daisy, poppy and rose). It was trained on 18 images" in page.text
    )
    assert "evaluated on 12 other images, the validation images." in page.text
    right, low = 100 * figures["top1"], 100 * figures["top1_interval"][0]
    assert f"{right:.1f}% accuracy on 12 validation images" in page.text
    assert f"95% interval: {low:.1f} to" in page.text
    assert "always the largest class: 33.3%" in page.text
    worst = min(figures["per_class"], key=lambda name: figures["per_class"][name]["recall"])
    assert f"Weakest class: {worst} Recall" in page.text
    assert (
        "Recall is the fraction of images of the class that are classified correctly;" in page.text
    )
    assert "no class has a lower one. The class has 6 training images." in page.text
    assert "so another class may be weaker." in page.text
    assert "What to do next" in page.text
    assert "Review the label of 1 image." in page.text
    assert "vitft finetune --data photos/flowers --weights demo" in page.text
    assert "cd" * 32 in page.text
    assert "torch" in page.text


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("demo", "was pretrained (weights: demo)"),
        ("none", "was initialised at random"),
        ("random:demo", "was initialised at random"),
    ],
)
def test_random_weights_are_not_called_pretrained(tmp_path: Path, weights: str, words: str) -> None:
    run = make_run(tmp_path / "run")
    settings = run / "config.toml"
    settings.write_text(settings.read_text().replace('"demo"', f'"{weights}"'))

    assert words in check_harmless(write_report(run).read_text()).text


def test_every_section_is_in_the_contents(tmp_path: Path) -> None:
    page = check_harmless(write_report(make_run(tmp_path / "run", hardness=2)).read_text())

    ids = {attributes["id"] for tag, attributes in page.elements if tag == "section"}
    links = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert {f"#{name}" for name in ids} - links == {"#summary"}
    assert len(ids) == 13


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        pytest.param("validation.npz", "mistakes", id="scores of an older run"),
        pytest.param("audit.json", "audit", id="no check of the folder"),
        pytest.param("metrics.jsonl", "training", id="no log"),
        pytest.param("split.csv", "balance", id="no split"),
        pytest.param("config.toml", None, id="no settings"),
        pytest.param("environment.json", None, id="no versions"),
        pytest.param("model.safetensors", None, id="no model"),
        pytest.param("thumbs", None, id="no pictures"),
        pytest.param("eval.json", "classes", id="interrupted before anything was measured"),
    ],
)
def test_sections_without_data_are_left_out(tmp_path: Path, missing: str, gone: str | None) -> None:
    run = make_run(tmp_path / "run", hardness=2)
    (run / missing).rename(tmp_path / "elsewhere")

    page = check_harmless(write_report(run).read_text())

    ids = {attributes.get("id") for tag, attributes in page.elements if tag == "section"}
    assert {"summary", "reproduce"} <= ids
    assert len(ids) >= 8 if missing == "split.csv" else len(ids) >= 7
    assert gone not in ids


@pytest.mark.parametrize(
    ("suffixes", "words"),
    [(40, None), (41, "and 1 more suffix"), (1240, "and 1,200 more suffixes")],
)
def test_suffixes_beyond_the_longest_list_are_counted(
    tmp_path: Path, suffixes: int, words: str | None
) -> None:
    run = make_run(tmp_path / "run")
    audit = json.loads((run / "audit.json").read_text())
    audit["unused"] = unused_files({f".x{i:04}": 1 for i in range(suffixes)})
    (run / "audit.json").write_text(json.dumps(audit))

    text = check_harmless(write_report(run).read_text()).text

    assert ".x0039" in text
    assert ".x0040" not in text
    assert words in text if words else "more suffix" not in text


def test_notes_on_the_folder_are_shown_as_text_and_older_runs_have_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    path = run / "audit.json"
    audit = json.loads(path.read_text())

    path.write_text(json.dumps(audit | {"notes": ["2 images in subfolders of <b>x</b> are used"]}))
    page = check_harmless(write_report(run).read_text())
    path.write_text(json.dumps({key: audit[key] for key in audit.keys() - {"notes", "unused"}}))
    older = check_harmless(write_report(run).read_text())

    assert "2 images in subfolders of <b>x</b> are used" in page.text
    assert "Notes on the folder" not in older.text


def test_a_failed_run_still_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(json.dumps(ENVIRONMENT | {"status": "failed"}))

    page = check_harmless(write_report(tmp_path).read_text())

    assert "The run has no results: its status is “failed”." in page.text


@pytest.mark.parametrize(
    ("name", "change", "caution"),
    [
        (
            "environment.json",
            {"status": "interrupted"},
            "interrupted; these are the results of the best",
        ),
        ("environment.json", {"status": "running"}, "the results may be incomplete"),
        ("eval.json", {"selected_on_validation": True, "epochs": 9}, "Epoch 1 of 20 was selected"),
    ],
)
def test_the_page_warns_of_optimistic_results(
    tmp_path: Path, name: str, change: dict[str, Any], caution: str
) -> None:
    run = make_run(tmp_path / "run")
    (run / name).write_text(json.dumps(json.loads((run / name).read_text()) | change))

    assert caution in check_harmless(write_report(run).read_text()).text


def test_epochs_make_training_curves(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", epochs=True)

    page = check_harmless(write_report(run).read_text())

    labels = [a["aria-label"] for tag, a in page.elements if tag == "svg" and "aria-label" in a]
    assert {"Loss by epoch", "Accuracy by epoch"} <= {*labels}
    assert "Training curves" in page.text


@pytest.mark.parametrize("selected", [True, False])
def test_the_page_says_how_the_epoch_was_selected(tmp_path: Path, selected: bool) -> None:
    run = make_run(tmp_path / "run", epochs=True)
    results = json.loads((run / "eval.json").read_text())
    changed = {**results, "best_epoch": 2, "selected_on_validation": selected}
    (run / "eval.json").write_text(json.dumps(changed))

    text = check_harmless(write_report(run).read_text()).text

    how = ", the best on the validation images: the lowest loss among" * selected
    assert f"The saved weights come from epoch 2{how or '.'}" in text


def test_epochs_of_several_stages_are_numbered_consecutively(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", epochs=True)
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text() * 2)

    curves = epochs_section(read_run(run))

    assert curves is not None
    assert [row[0] for row in curves.rows] == [1, 2, 3, 4, 5, 6]


def test_the_page_of_a_run_without_label_check_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('freeze = "head"', 'freeze = "blocks:2"'))

    page = check_harmless(write_report(run).read_text())

    assert "vitft check also finds probable label errors" in page.text


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (None, "to the validation images."),
        (48, "images and the cross-validated predictions for 48 training images."),
    ],
)
def test_the_page_states_on_which_images_the_temperature_rests(
    tmp_path: Path, more: int | None, text: str
) -> None:
    run = read_run(make_run(tmp_path / "run"))
    calibration = run.results["calibration"]
    assert calibration is not None
    if more is not None:
        calibration["cross_validated"] = more

    section = confidence_section(run)

    assert section is not None
    assert text in section.text


def test_a_thousand_classes_show_confused_pairs_instead_of_a_matrix(
    tmp_path: Path,
) -> None:
    names = [f"class {i:04}" for i in range(1000)]
    run = make_run(tmp_path / "run", names, per_class=3, held_back=1, hardness=1)

    path = write_report(run)

    page = check_harmless(path.read_text())
    assert "The most confused pairs of classes" in page.text
    assert not any(a.get("class") == "matrix" for _, a in page.elements)
    assert path.stat().st_size < 3_000_000


def test_a_thousand_validation_images_stay_under_three_megabytes(tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(10)]
    run = make_run(tmp_path / "run", names, per_class=110, held_back=100, hardness=2.5)
    for file in (run / "thumbs").iterdir():  # as large as a busy photo makes them
        file.write_bytes(file.read_bytes() + bytes(6000))

    assert 500_000 < write_report(run).stat().st_size < 3_000_000


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (None, "The second picture shows the relevance"),
        (2, "The second picture of the first 2 shows the relevance"),
        (1, "The second picture of the first one shows the relevance"),
        (0, None),
    ],
)
def test_the_page_states_which_mistakes_have_a_relevance_map(
    tmp_path: Path, kept: int | None, words: str | None
) -> None:
    run = make_run(tmp_path / "run", hardness=3.0)
    wrong = [p.sha256 for p in read_run(run).predictions if not p.is_correct]
    assert len(wrong) > 2
    maps = [run / "thumbs" / thumb_name(digest, attention=True) for digest in wrong]
    for path in maps if kept is not None else []:
        path.unlink()
    for path in maps[: kept or 0]:
        path.write_bytes((run / "thumbs" / thumb_name(wrong[0])).read_bytes())

    page = write_report(run).read_text()

    assert ("The second picture" in page) is (words is not None)
    assert words is None or words in page


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", epochs=True)

    first, second = write_report(run).read_bytes(), write_report(run).read_bytes()

    assert first == second


def test_every_cell_of_the_matrix_is_a_labelled_button(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", hardness=3)

    page = check_harmless(write_report(run).read_text())

    cells = [a for tag, a in page.elements if tag == "button" and "data-cell" in a]
    cards = [a["data-cell"] for tag, a in page.elements if tag == "figure" and "data-cell" in a]
    assert all(a["type"] == "button" and " images of " in (a["aria-label"] or "") for a in cells)
    wrong = {a["data-cell"] for a in cells if "classified correctly" not in (a["aria-label"] or "")}
    assert wrong
    assert wrong <= {*cards}


# advice ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_split", [False, True])
def test_advice_on_copies_suggests_grouping_only_where_the_split_is_drawn(
    tmp_path: Path, own_split: bool
) -> None:
    run = make_run(tmp_path / "run", hardness=1.6, seed=1)
    audit = json.loads((run / "audit.json").read_text())
    (run / "audit.json").write_text(json.dumps(audit | {"own_split": own_split}))

    first = advise(read_run(run))[0]

    assert first.what.startswith("Retrain without duplicates")
    assert ("--group-duplicates" in first.why) is not own_split
    assert ("the split is that of your data" in first.why) is own_split


def test_copies_of_test_images_are_not_reported_as_training_images_in_the_validation(
    tmp_path: Path,
) -> None:
    path = make_run(tmp_path / "run", hardness=1.6, seed=1)
    audit = json.loads((path / "audit.json").read_text())
    (group, *_) = audit["duplicates"]
    for member, part in zip(group["members"], ("train", "test"), strict=False):
        member["split"] = part
    (path / "audit.json").write_text(
        json.dumps(audit | {"duplicates": [group | {"across_split": True, "kind": "near"}]})
    )

    assert not [one for one in advise(read_run(path)) if "duplicates" in one.what]
    text = check_harmless(write_report(path).read_text()).text
    assert "in training and test" in text
    assert "make the test accuracy too high" in text
    assert "across training and validation" not in text


def test_a_page_says_what_its_audit_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    results = json.loads((path / "eval.json").read_text())

    def text(**changes: Any) -> str:
        (path / "eval.json").write_text(json.dumps(results | changes))
        return check_harmless(write_report(path).read_text()).text

    crossed = results["cross_validation"]
    assert "Labels were" not in text()
    sample = {"cross_validation": crossed | {"of": crossed["images"] + 1}}
    assert "near-duplicates were not searched for" in text(**sample)
    del results["cross_validation"]
    assert "Labels were not checked, because there are too few images per class." in text()


def test_advice_states_how_certain_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", hardness=1.6, seed=1)

    advice = advise(read_run(run))

    texts = [f"{step.what} {step.why}" for step in advice]
    (more,) = (text for text in texts if text.startswith("Twice as many images"))
    assert "about 6.0 points" in more
    assert "extrapolated" in more
    (few,) = (text for text in texts if text.startswith("To measure the accuracy"))
    assert "With 12 images" in few
    assert texts[0].startswith("Retrain without duplicates")


def test_labels_that_the_fixes_of_the_run_keep_need_no_review(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    found = read_run(run).audit["mislabels"]
    before = [step.what for step in advise(read_run(run))]
    fixes = tmp_path / "fixes.csv"
    fixes.write_text("".join(["path,action\n", *(f"{one['path']},keep\n" for one in found)]))
    settings = read_toml(run / "config.toml")
    digest = hashlib.sha256(fixes.read_bytes()).hexdigest()
    settings["data"] |= {"fixes": str(fixes), "fixes_digest": digest}
    (run / "config.toml").write_text(to_toml(config_from_table(settings)))

    after = [step.what for step in advise(read_run(run))]

    assert [what for what in before if what not in after] == ["Review the label of 1 image."]


def test_a_flat_learning_curve_suggests_a_command_that_trains_more_layers(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    results = json.loads((path / "eval.json").read_text())
    curve = [{"images": n, "top1": 0.8} for n in (6, 12, 24)]
    results["cross_validation"] |= {"curve": curve, "gain_from_twice": None}
    (path / "eval.json").write_text(json.dumps(results))

    (step,) = (one for one in advise(read_run(path)) if one.command)

    assert step.what.startswith("Do not expect much from more images")
    assert step.command.endswith("--weights demo --freeze blocks:2")


def with_spots(run: Path, **spots: float) -> Run:
    """Read the run with these recalls on 60 cross-validated images per class."""
    figures = json.loads((run / "eval.json").read_text())
    figures["cross_validation"] |= {
        "top1": 0.85,
        "weak_spots": [
            {"class": n, "recall": r, "images": 60, "taken_for": None} for n, r in spots.items()
        ],
    }
    (run / "eval.json").write_text(json.dumps(figures))
    return read_run(run)


def test_the_class_with_the_lowest_cross_validated_recall_is_the_one_to_collect(
    tmp_path: Path,
) -> None:
    run = with_spots(make_run(tmp_path / "run", per_class=60, held_back=12), rose=0.6, daisy=0.9)

    (step,) = (a for a in advise(run) if "rose" in a.what)

    assert step.what == "If you collect more images, start with rose."
    assert "Its recall is 60% on 60 images in cross-validation, clearly below" in step.why


@pytest.mark.parametrize(("left", "named"), [(8, True), (19, True), (20, False)])
def test_a_class_with_far_fewer_images_is_named_before_the_one_with_the_lowest_recall(
    tmp_path: Path, left: int, named: bool
) -> None:
    path = make_run(tmp_path / "run", per_class=62, held_back=6)
    rows = (path / "split.csv").read_text().splitlines()
    few = [row for row in rows if row.startswith("0/")][:left]
    kept = [row for row in rows if not row.startswith("0/") or row in few]
    (path / "split.csv").write_text("\n".join(kept) + "\n")

    advice = advise(with_spots(path, rose=0.6, daisy=0.9))

    (step,) = (one for one in advice if "collect" in one.what.lower())
    assert ("daisy" in step.what) == named
    if named:
        assert step.what == f"Collect images of daisy ({left}) first."
        assert "half of the classes have at least 62 images" in step.why
        assert "measured on 6 validation images only" in step.why


def test_an_uncertain_order_of_the_classes_is_stated(tmp_path: Path) -> None:
    run = with_spots(make_run(tmp_path / "run", per_class=60, held_back=12), rose=0.83, daisy=0.9)

    (step,) = (a for a in advise(run) if "rose" in a.what)

    assert step.what == "If you collect more images, start with rose."
    assert "may be due to chance" in step.why


def test_the_lowest_of_many_recalls_may_be_low_by_chance() -> None:
    low = ClassRecall("8", 27 / 34, 34, "34 validation images", (0.63, 0.9), 0.9549)
    less = ClassRecall("8", 30 / 34, 34, "34 validation images", (0.73, 0.953), 0.9549)

    assert compared_with_accuracy(low, 10).startswith("clearly below")
    assert compared_with_accuracy(less, 10) == (
        "with a 95% interval of 73 to 95%. The lowest of 10 recalls can be as low as this by "
        "chance."
    )


def test_a_model_no_better_than_guessing_should_not_be_used(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    figures = json.loads((run / "eval.json").read_text())
    del figures["cross_validation"]
    (run / "eval.json").write_text(json.dumps(figures | {"balanced_interval": [0.2, 0.5]}))

    assert advise(read_run(run))[0].what == "Do not use this model yet."


def at_chance(run: Path, *, weights: str = "none", of: int = 30) -> Path:
    """Rewrite a run of three classes so that it predicts poppy for `of` of 30 images."""
    table = json.loads((run / "eval.json").read_text())
    matrix = [[0, 10, 0], [0, 10, 0], [30 - of, of - 20, 0]]
    chance = {"confusion": matrix, "top1": 1 / 3, "top1_interval": [0.19, 0.51]}
    chance["balanced_interval"] = [0.19, 0.51]
    (run / "eval.json").write_text(json.dumps(table | chance))
    settings = run / "config.toml"
    settings.write_text(settings.read_text().replace('"demo"', f'"{weights}"'))
    return run


@pytest.mark.parametrize(
    ("weights", "of", "lead", "advice"),
    [
        pytest.param(
            "none",
            30,
            "distinguish 3 classes (daisy, poppy and rose), but it always predicts poppy",
            (
                "train longer or start from pretrained weights.",
                "It always predicts poppy. The 95%",
            ),
            id="always",
        ),
        pytest.param(
            "demo",
            29,
            "but it predicts poppy for 97% of the validation images",
            ("use more images or other weights", "It predicts poppy for 97% of the"),
            id="nearly always, from pretrained weights",
        ),
        pytest.param(
            "none",
            25,
            "but it is not measurably better than guessing",
            ("Do not use this model yet.", "The 95% interval of its balanced accuracy (19.0"),
            id="several classes, at chance",
        ),
    ],
)
def test_a_model_at_chance_level_is_called_so_and_ranks_no_classes(
    tmp_path: Path, weights: str, of: int, lead: str, advice: tuple[str, str]
) -> None:
    run = at_chance(make_run(tmp_path / "run", epochs=True), weights=weights, of=of)

    page = check_harmless(write_report(run).read_text())

    assert lead in page.text
    assert "Do not use this model yet" in page.text
    assert advice[0] in page.text
    assert advice[1] in page.text
    for untrue in ("This model distinguishes", "Weakest class", "start with", "Compare images"):
        assert untrue not in page.text


# files of a run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "is_shown"),
    [
        (b"\xff\xd8\xff" + bytes(39_997), True),
        (b"\xff\xd8\xff" + bytes(39_998), False),
        (b"\x89PNG", False),
    ],
    ids=["40 kB", "larger", "no JPEG"],
)
def test_a_thumbnail_is_a_small_jpeg(tmp_path: Path, content: bytes, *, is_shown: bool) -> None:
    run = read_run(make_run(tmp_path / "run"))
    sha256 = run.predictions[0].sha256
    (run.path / "thumbs" / thumb_name(sha256)).write_bytes(content)

    assert (run.thumbnail(sha256) != "") is is_shown
    assert run.thumbnail(sha256, attention=True).startswith("data:image/jpeg;base64,")
    assert run.thumbnail("0" * 64) == ""


def test_thumbnails_are_embedded_until_the_page_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = (read_run(make_run(tmp_path / name)) for name in ("run", "other"))
    digests = [one.sha256 for one in run.predictions]
    size = len(run.thumbnail(digests[0]))
    (run.path / "thumbs" / thumb_name(digests[1])).unlink()

    def embedded(budget: int) -> list[bool]:
        monkeypatch.setattr("vitft.report.run_files.MAX_EMBEDDED", budget)
        thumbnails = Thumbnails([run, other])
        return [thumbnails.get(sha256) != "" for sha256 in digests[:4]]

    assert embedded(10**6) == [True] * 4  # of the other run where the first has none
    assert embedded(2 * size) == [True, True, False, False]
    assert embedded(2 * size + 1) == [True, True, True, False]
    assert Thumbnails([run, other]).of_path(run.rows[0].path)
    assert Thumbnails([run, other]).of_path("unknown.jpg") == ""


def test_the_model_of_a_run_is_known_by_its_card_digest_and_size(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))

    assert (run.digest, run.parameters) == ("ef" * 32, 24)
    assert run.card is not None
    assert [value for _, value in digests(run)] == [
        "ef" * 32, "cd" * 32, "ab" * 32, "apache-2.0",
    ]  # fmt: skip
    assert environment_rows(run) == [
        ("device", "cpu"),
        ("precision", "fp32"),
        ("python", "3.11.7"),
        ("system", "Linux x86_64"),
        ("vitft", "0.1.0"),
        ("torch", "2.15.0"),
    ]
    earlier: Any = {**run.environment, "earlier": ["torch 2.14"]}
    assert ("before it was resumed", "torch 2.14") in environment_rows(
        replace(run, environment=earlier)
    )
    (run.path / "model.safetensors").unlink()
    gone = read_run(run.path)
    assert (gone.card, gone.digest, gone.parameters, digests(gone)) == (None, "", 0, [])


# colours and numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probability", "text"),
    [(0.873, "87%"), (0.004, "<\u00a01%"), (1.0, ">\u00a099%"), (0.999, ">\u00a099%")],
)
def test_probabilities_are_whole_percentages_that_do_not_break(
    probability: float, text: str
) -> None:
    assert unbroken_percent(probability) == text


def test_probabilities_stand_in_the_findings_of_a_page(tmp_path: Path) -> None:
    page = check_harmless(write_report(make_run(tmp_path / "run")).read_text())

    assert "10%" in page.text  # of the given label
    assert "80%" in page.text  # of the suggested one
    assert "None" not in page.text


def test_every_colour_that_charts_and_cells_use_is_defined_in_both_schemes() -> None:
    style = palette.style_sheet()

    used = {*re.findall(r"var\(--([\w-]+)\)", style)}
    light, dark = (
        {*re.findall(r"--([\w-]+):", part)} for part in style.split("@media screen and")[:2]
    )
    assert used <= light
    assert used <= dark
    assert {"accent", "second", "ink", "right-0", "right-5", "wrong-5"} <= used
    assert ".f-accent{fill:var(--accent)}.s-accent{stroke:var(--accent)}" in style


def test_shades_go_evenly_from_faint_to_the_strongest() -> None:
    theme = {"ground": "#ffffff", "bad": "#000000"}

    found = palette.shades(theme, "bad", 0.5)

    levels = [int(shade[1:3], 16) for shade in found]
    steps = [a - b for a, b in itertools.pairwise(levels)]
    assert levels[0] == round(255 * (1 - 0.3 * 0.5))
    assert levels[-1] == 128  # half black
    assert max(steps) - min(steps) <= 1
    assert min(steps) > 0
    assert palette.blend("#ff0080", "#0000ff", 0.25) == "#4000df"


# safety ------------------------------------------------------------------------------------------


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    names = {
        i * 10 + k: HOSTILE[(i + k) % 40].replace("/", "\u2044") for i in range(40) for k in (0, 1)
    }
    names = {number: f"{name} {number}" for number, name in names.items()}
    for part in (HOSTILE, HOSTILE[:20], HOSTILE[20:]):  # pairs, and twice a matrix
        run = make_run(tmp_path / f"run {len(part)} {part[0][1]}", part, hardness=3, names=names)
        (run / "config.toml").write_text(
            '[data]\npath = "</script><img src=x onerror=alert(1)>"\n[weights]\nname = "<b>"\n'
        )

        html = write_report(run).read_text()

        page = check_harmless(html)
        assert "49" not in page.words.get("h1", [""])[0]
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e\u200b\ufeff]", html)
        if "<svg onload=alert(1)>" in part:
            assert "<svg onload=alert(1)>" in page.text
            assert "{{ 7 * 7 }}" not in part or "{{ 7 * 7 }}" in page.text


def test_a_run_is_found_by_its_folder_or_a_file_in_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")

    assert find_run(str(run)) == find_run(str(run / "model.safetensors")) == run
    with pytest.raises(RunError, match="is not a run directory"):
        find_run(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("eval.json", b"{", RunError),
        ("eval.json", b"[]", RunError),
        ("class_indices.json", b'{"0": "daisy", "2": "rose"}', RunError),
        ("class_indices.json", b'{"0": "daisy"}', RunError),
        ("split.csv", b"path\n", RunError),
        ("validation.npz", b"PK\x03\x04", RunError),
        ("validation.npz", b"", RunError),
        ("metrics.jsonl", b"{]\n", RunError),
        ("config.toml", b"=", RunError),
        ("model.safetensors", b"\xff" * 8, RunError),
        ("model.safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00[]", RunError),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(
    tmp_path: Path, name: str, content: bytes, kind: type[VitftError]
) -> None:
    run = make_run(tmp_path / "run")
    (run / name).write_bytes(content)

    with pytest.raises(kind) as caught:
        write_report(run)

    assert name.partition(".")[0].replace("class_indices", "") in caught.value.problem
    assert not (run / "report.html").exists()


def test_logits_of_another_split_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    np.savez(run / "validation.npz", logits=np.zeros((5, 3), np.float32))

    with pytest.raises(RunError, match=r"of shape \(12, 3\); the shape is \(5, 3\)"):
        write_report(run)


def test_a_log_cut_off_by_a_crash_is_read_up_to_there(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", epochs=True)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "tra')

    assert [line["epoch"] for line in read_run(run).log] == [1, 2, 3]


def test_only_small_jpegs_are_embedded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", hardness=3)
    for number, file in enumerate(sorted((run / "thumbs").iterdir())):
        file.write_bytes(
            b"<svg onload=alert(1)>" if number % 2 else file.read_bytes() + bytes(50_000)
        )

    page = check_harmless(write_report(run).read_text())

    assert not any(tag == "img" for tag, _ in page.elements)
    assert "no thumbnail" in page.text


def test_a_page_needs_no_torch(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other", seed=1)
    code = (
        "import sys\nfrom vitft.cli.main import main\n"
        f"assert main(['report', '--run', {str(run)!r}]) == 0\n"
        f"runs = [{str(run)!r}, {str(other)!r}]\n"
        f"assert main(['compare', *runs, '--out', {str(tmp_path / 'c')!r}]) == 0\n"
        "assert not {'torch', 'timm', 'torchvision'} & set(sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False
    )

    assert done.returncode == 0, done.stderr
    assert f"report: {run}/report.html" in done.stdout


def test_the_command_writes_to_out_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = make_run(tmp_path / "run"), tmp_path / "page.html"

    assert main(["report", "--run", str(run), "--out", str(page)]) == 0
    assert main(["report", "--run", str(run), "--out", str(page)]) == 5

    assert "already exists" in capsys.readouterr().err
    assert not (run / "report.html").exists()
    assert main(["report", "--run", str(run), "--out", str(tmp_path / "no" / "page.html")]) == 5
    assert main(["report", "--run", str(tmp_path)]) == 5


# appearance --------------------------------------------------------------------------------------


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21.

    Source: WCAG 2.2, "relative luminance" and "contrast ratio".
    """
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, from 0 to 1."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in palette.channels(colour)
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_graphics_have_enough_contrast(theme: str) -> None:
    colours = {"light": palette.LIGHT, "dark": palette.DARK}[theme]

    for ground in palette.BACKGROUNDS:
        for name in palette.TEXT:
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        for name in palette.GRAPHIC:
            assert contrast(colours[name], colours[ground]) >= 3, (name, ground)
    for meaning in ("accent", "bad"):
        for shade in palette.shades(colours, meaning, palette.STRONGEST[theme]):
            assert contrast(colours["ink"], shade) >= 4.5, shade


def test_black_on_white_has_the_largest_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # known value


def test_the_style_sheet_has_no_colours_of_its_own() -> None:
    text = (Path(palette.__file__).parent / "templates" / "page.css").read_text()

    assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?=[;, )])|rgb|hsl|url\(|@import", text)


def points_of(svg: str) -> list[tuple[float, float]]:
    """Return the points of all lines of a chart."""
    paths = re.findall(r'<path d="M ([^"A]+)"', svg)
    pairs = [pair.split() for path in paths for pair in path.split(" L ")]
    return [(float(x), float(y)) for x, y in pairs]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6], ids=str)
@pytest.mark.parametrize("count", [1, 2, 40])
def test_every_chart_stays_within_its_picture(scale: float, count: int) -> None:
    xs, ys = list(range(1, count + 1)), [scale * (1 + i % 7) for i in range(count)]

    drawn = [
        charts.epoch_chart('a "label" <b>', xs, ys, ys, y="y"),
        charts.penalty_chart("p", xs, [0.5 + i / 100 for i in range(count)], selected=1),
        charts.learning_curve_chart("l", [(x, 0.9) for x in xs], extrapolated=(2 * count, 0.95)),
    ]

    for chart in drawn:
        points = points_of(chart)
        assert all(0 <= x <= svg.WIDTH and 0 <= y <= svg.HEIGHT for x, y in points)
        assert chart.count("</text>") >= 4  # two titles, and a value along each axis
        assert "style" not in chart
    assert 'aria-label="a &quot;label&quot; &lt;b&gt;"' in drawn[0]


@pytest.mark.parametrize(
    ("low", "high", "integer", "ticks"),
    [
        pytest.param(0.884, 0.951, False, [0.9, 0.92, 0.94], id="shares"),
        pytest.param(0.9, 12.1, True, [2, 4, 6, 8, 10, 12], id="epochs"),
        pytest.param(0.95, 2.05, True, [1, 2], id="two epochs"),
        pytest.param(-0.1, 0.1, False, [-0.1, -0.05, 0, 0.05, 0.1], id="around zero"),
        pytest.param(2.4e-6, 2.6e-6, False, [2.4e-6, 2.45e-6, 2.5e-6, 2.55e-6, 2.6e-6], id="small"),
    ],
)
def test_ticks_are_round(low: float, high: float, integer: bool, ticks: list[float]) -> None:
    assert svg.round_ticks(low, high, integer=integer) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("epochs", "ticks"),
    [
        pytest.param(range(1, 21), [5, 10, 15, 20], id="a round number"),
        pytest.param(range(1, 19), [5, 10, 15, 18], id="the last epoch after the last round one"),
        pytest.param(range(1, 17), [5, 10, 16], id="two ticks too close"),
        pytest.param([1], [1], id="a single epoch"),
        pytest.param([1, 2, 3], [1, 2, 3], id="few epochs"),
    ],
)
def test_an_axis_of_epochs_ends_with_a_tick_at_the_last_epoch(
    epochs: range | list[int], ticks: list[float]
) -> None:
    assert svg.epoch_ticks(list(epochs)) == pytest.approx(ticks)


def test_overlapping_tick_labels_are_left_out() -> None:
    penalties = [10.0**-k for k in range(5)] + [3 * 10.0**-k for k in range(1, 5)]

    svg = charts.penalty_chart("p", penalties, [0.9] * 9, selected=1.0)

    shown = [float(t) for t in re.findall(r'text-anchor="middle" class="f-ink">([\d.e-]+)<', svg)]
    assert 0.0001 in shown
    assert 0.0003 not in shown


# reproduction ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="as it comes"),
        pytest.param({"train": {"freeze": "blocks:2"}, "optim": {"epochs": 3}}, id="two blocks"),
        pytest.param({"train": {"freeze": "none", "augment": "crop"}}, id="everything"),
        pytest.param({"train": {"freeze": "head,blocks:1"}}, id="in stages"),
        pytest.param({"optim": {"solver": "adamw", "lr": 0.5, "batch_size": 8}}, id="steps"),
        pytest.param({"optim": {"l2": 0.25, "class_weights": True}}, id="a penalty"),
        pytest.param(
            {"weights": {"image_size": [96, 64], "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]}},
            id="numbers in lists",
        ),
        pytest.param({"train": {"cache": "my cache; rm -rf ~"}, "data": {"seed": 7}}, id="spaces"),
    ],
)
def test_the_command_on_the_page_gives_the_same_settings(settings: dict[str, Any]) -> None:
    sections = {"data": {"path": "my photos"}, "weights": {"name": "demo"}}
    table = {
        name: sections.get(name, {}) | settings.get(name, {}) for name in {*sections, *settings}
    }
    config = config_from_table(table)

    command = command_of(tomllib.loads(to_toml(config)))

    program, *arguments = shlex.split(command)
    assert program == "vitft"
    read_back = merge_settings({}, named_settings(build_parser().parse_args(arguments)))
    assert config_from_table(read_back) == config


def test_the_command_leaves_out_settings_without_effect() -> None:
    config = config_from_table({"data": {"path": "photos"}, "weights": {"name": "demo"}})
    table = tomllib.loads(to_toml(config))
    table["optim"]["batch_size"] = 32  # the default that earlier versions wrote for every run

    assert command_of(table) == "vitft finetune --data photos --weights demo"


def test_settings_of_another_version_give_no_command() -> None:
    assert command_of({"data": {"path": "x"}, "future": {"key": 1}}) == ""
    assert command_of({"data": "x"}) == ""


def test_the_confusions_of_cross_validation_are_shown_where_they_rest_on_more_images(
    tmp_path: Path,
) -> None:
    plain = make_run(tmp_path / "plain", per_class=20, held_back=5)
    run = with_cross_validated(make_run(tmp_path / "run", per_class=20, held_back=5), wrong=4)
    trained = with_cross_validated(make_run(tmp_path / "trained"), wrong=4)
    results = (trained / "eval.json").read_text().replace('"best_epoch": 1', '"best_epoch": 2')
    (trained / "eval.json").write_text(results)

    pages = [write_report(one).read_text() for one in (plain, run, trained)]

    assert ["The same in cross-validation" in page for page in pages] == [False, True, False]
    assert "The same in cross-validation: 60 images" in pages[1]
    section = pages[1].partition("The same in cross-validation")[2]
    cells = re.findall(r'class="cell fixed [\w-]+" title="([^"]+)">(\d+)<', section)
    assert sorted(int(number) for _, number in cells) == [4, 16, 20, 20]
    assert [text for text, number in cells if number == "4"] == [
        "4 of 20 images of rose classified as daisy"
    ]
