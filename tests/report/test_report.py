"""The page of a run: its contents, its safety with any name, and its layout."""

import json
import math
import re
import shlex
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.run_files import ENVIRONMENT, EPOCHS, HOSTILE, make_run
from vitft.cli.finetune import named_settings
from vitft.cli.main import build_parser
from vitft.config import config_from_table, merge_settings, to_toml
from vitft.messages import compared_with_accuracy
from vitft.metrics import ClassEstimate, wilson_interval
from vitft.predict import thumb_name
from vitft.report import command_of, digest_source, html, read_run, write_report
from vitft.system import RunError

WORDS = """
html head meta title link style body script header footer nav main section a p h1 h2 h3 dl div dt dd
ol li ul strong small span figure img figcaption details summary fieldset legend label input select
option noscript bdi br pre code button table thead tbody tr th td svg g path defs use clippath rect
text

lang charset http-equiv content name rel href class id alt src title scope type role hidden tabindex
aria-label aria-sort aria-hidden data-cell data-file data-suggested data-table data-root value
data-value data-fold data-label viewbox x y width height preserveaspectratio d transform clip-path
fill stroke opacity font-size text-anchor stroke-width stroke-dasharray fill-opacity
"""
"""Elements, and attributes, that pages consist of."""
ELEMENTS, ATTRIBUTES = ({*part.split()} for part in WORDS.split("\n\n"))


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


def test_a_failed_run_still_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(json.dumps(ENVIRONMENT | {"status": "failed"}))

    page = check_harmless(write_report(tmp_path).read_text())

    assert "The run has no results: its status is “failed”." in page.text


def test_a_thousand_classes_show_confused_pairs_instead_of_a_matrix(tmp_path: Path) -> None:
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


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", epochs=True)

    first, second = write_report(run).read_bytes(), write_report(run).read_bytes()

    assert first == second


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


def test_logits_of_another_split_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    np.savez(run / "validation.npz", logits=np.zeros((5, 3), np.float32))

    with pytest.raises(RunError, match=r"logits is not valid; its shape is \(5, 3\)"):
        write_report(run)


def test_a_log_cut_off_by_a_crash_is_read_up_to_there(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", epochs=True)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "tra')

    assert [line["epoch"] for line in read_run(run).log] == [1, 2, 3]


@pytest.mark.parametrize(("epochs", "circles"), [(24, 2 * 24 + 2), (25, 0)])
def test_curves_of_many_epochs_have_no_circles(tmp_path: Path, epochs: int, circles: int) -> None:
    run = make_run(tmp_path / "run")
    lines = [EPOCHS[0] | {"epoch": number} for number in range(1, epochs + 1)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    curves = write_report(run).read_text().partition('aria-label="Loss by epoch"')[2]

    assert curves.partition("</svg>")[0].count("A 3 3 0 1 0") == 2 * circles  # two arcs each


@pytest.mark.parametrize(
    ("interval", "gain"),
    [
        ([0.02, 0.18], "would gain about +10.0 points (+2.0 to +18.0) on 1,200 training images"),
        ([0.0, 0.2], "would give no clear gain: +10.0 points (+0.0 to +20.0)"),
    ],
)
def test_a_page_lists_what_a_time_budget_tried(
    tmp_path: Path, interval: list[float], gain: str
) -> None:
    run = make_run(tmp_path / "run")
    trial = {"layers": "blocks:2", "epochs": 3, "images": 16, "held_out": 8, "seconds": 1.0}
    trial |= {"top1": 0.75, "loss": 0.5, "error": 0.1, "head_top1": 0.5, "head_loss": 0.75}
    budget = {"seconds": 9.0, "used": 8.0, "skipped": [], "chosen": "blocks:2", "epochs": 3}
    found = json.loads((run / "eval.json").read_text())
    budget["trials"] = [trial | {"final_seconds": 2.0}]
    scores = {"top1": 0.9, "usual_top1": 0.8, "images": 1200, "relative_time": 2.345}
    weights = {"weights": "dinov2", "image_size": [16, 16], "chosen": False, **scores}
    budget["weights"] = weights | {"gain_interval": interval}
    budget["skipped"] = [{"layers": "all", "seconds_needed": 61.0}]
    (run / "eval.json").write_text(json.dumps(found | {"budget": budget}))

    text = " ".join(check_harmless(write_report(run).read_text()).text.split())

    assert "on 16 of the training images: accuracy 75.0% on 8 held-out images" in text
    assert f"he weights dinov2 {gain}" in text
    assert "raining all layers was not tried: this needs about --budget 2m" in text
    assert "he run trained the last 2 blocks for 3 epochs" in text


# appearance --------------------------------------------------------------------------------------


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21.

    Source: WCAG 2.2, "relative luminance" and "contrast ratio".
    """
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, from 0 to 1."""
    parts = [c / 255 for c in bytes.fromhex(colour[1:])]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_graphics_have_enough_contrast(theme: str) -> None:
    colours = {"light": html.LIGHT, "dark": html.DARK}[theme]

    for ground in ("ground", "panel"):
        for name in ("ink", "muted", "accent", "second", "good", "bad"):  # `line` only separates
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for meaning in ("accent", "bad"):
        pairs = [bytes.fromhex(colours[name][1:]) for name in (meaning, "ground")]
        for share in html.SHADES:
            mixed = (
                round((share * a + (100 - share) * b) / 100) for a, b in zip(*pairs, strict=True)
            )
            assert contrast(colours["ink"], f"#{bytes(mixed).hex()}") >= 4.5, share


# reproduction ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="as it comes"),
        pytest.param({"train": {"layers": "blocks:2"}, "optim": {"epochs": 3}}, id="two blocks"),
        pytest.param({"train": {"layers": "all", "augment": "crop"}}, id="everything"),
        pytest.param({"train": {"layers": "head,blocks:1"}}, id="in stages"),
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


# weak classes ------------------------------------------------------------------------------------


def a_recall(recall: float, images: int) -> ClassEstimate:
    """Return a recall of class a."""
    bounds = wilson_interval(round(recall * images), images)
    return ClassEstimate(name="a", value=recall, interval=bounds, images=images, kind="validation")


def test_a_low_recall_is_clear_if_it_is_too_unlikely_for_any_of_the_classes() -> None:
    worst = a_recall(20 / 30, 30)
    # the probability of at least 10 wrong predictions of 30 at an error of 10%
    tail = sum(math.comb(30, k) * 0.1**k * 0.9 ** (30 - k) for k in range(10, 31))
    many = int(0.05 / tail)

    assert many > 10
    assert "clearly below" in compared_with_accuracy(worst, 0.9, many)
    assert f"The lowest of {many + 1} recalls" in compared_with_accuracy(worst, 0.9, many + 1)


def test_a_recall_whose_interval_reaches_the_accuracy_may_be_low_by_chance() -> None:
    reaching = replace(a_recall(0.5, 100), interval=(0.4, 0.6))

    assert "due to chance" in compared_with_accuracy(reaching, 0.6, 2)
    assert "chance" not in compared_with_accuracy(reaching, 0.65, 2)
