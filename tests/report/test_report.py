"""The page of a run: its contents, its safety with any name, and its layout."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.limits import HANG_S
from tests.support.run_files import ENVIRONMENT, HOSTILE, make_run
from vitft.cli.finetune import named_settings
from vitft.cli.main import build_parser, main
from vitft.config import config_from_table, merge_settings, to_toml
from vitft.predict import thumb_name
from vitft.report import (
    charts,
    command_of,
    digest_source,
    palette,
    read_run,
    svg,
    write_report,
)
from vitft.system import RunError, VitftError

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


def test_a_failed_run_still_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(json.dumps(ENVIRONMENT | {"status": "failed"}))

    page = check_harmless(write_report(tmp_path).read_text())

    assert "The run has no results: its status is “failed”." in page.text


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


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", epochs=True)

    first, second = write_report(run).read_bytes(), write_report(run).read_bytes()

    assert first == second


# advice ------------------------------------------------------------------------------------------


def at_chance(run: Path, *, weights: str = "none", of: int = 30) -> Path:
    """Rewrite a run of three classes so that it predicts poppy for `of` of 30 images."""
    table = json.loads((run / "eval.json").read_text())
    del table["cross_validation"]
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
            ("Do not use this model yet.", "The 95% CI of its balanced accuracy (19.0"),
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


# colours and numbers ---------------------------------------------------------------------------


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
