"""The documentation: the site builds, its links lead somewhere, and the table of faults is true."""

import os
import re
import runpy
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.children import ended

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning, e.g. of a broken link or a page that is in no menu, fails."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = ended(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_every_link_of_the_site_leads_to_a_file_and_a_heading_of_it(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html") if path.name != "404.html"}
    broken = []
    for page, text in pages.items():
        for link in re.findall(r'\b(?:href|src)="([^"]*)"', text):
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (
                anchor and target in pages and f'id="{anchor}"' not in pages[target]
            ):
                broken.append(f"{page.relative_to(site)}: {link}")

    assert len(pages) > 30
    assert not broken


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"(http[^\"]*)", page.read_text()
        )
        assert not [url for url in loaded if "squidfunk" not in url], page  # the generator's name


def test_the_search_finds_every_page(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()

    assert '"location":"fix_labels/"' in index
    assert "post-norm" in index.lower()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_lists_and_tables_stand_apart_from_the_text_before_them(page: Path) -> None:
    """Otherwise the site, unlike GitHub, shows them as text."""
    lines = re.sub(r"```.*?```", "", page.read_text(), flags=re.S).splitlines()

    for above, line in pairwise(lines):
        starts = re.match(r"(- |\d+\. |\|)", line)
        if starts and above.strip() and not re.match(r"(- |\d+\. |\||\s)", above):
            pytest.fail(f"needs an empty line above it: {line}")


def test_every_figure_of_the_chart_is_recorded_in_the_notebook() -> None:
    chart = runpy.run_path(str(ROOT / "docs" / "chart.py"))
    page = (ROOT / "benchmarks" / "notebook" / "speed.md").read_text()

    for _, seconds, percent in chart["RACES"]:
        assert re.search(rf"\| {seconds} \|.*\| {percent} \|", page)
    assert chart["chart"]() == (ROOT / "docs" / "speed.svg").read_text()


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=["README.md", *IDS])
def test_addresses_in_commands_are_quoted_where_a_shell_would_expand_them(page: Path) -> None:
    commands = re.findall(
        r"^(?: {4}|\$ )((?:curl|wget) .*)$|`((?:curl|wget) [^`]*)`", page.read_text(), re.M
    )
    for command in ("".join(pair) for pair in commands):
        outside = re.sub(r"'[^']*'|\"[^\"]*\"", "", command)
        assert not re.search(r"://\S*[?&*\[]", outside), command


def test_the_glossary_is_sorted_and_has_the_words_of_the_lesson() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^- \*\*(.+?)\*\*: ", text, re.MULTILINE)

    assert words == sorted(words, key=lambda word: word.casefold().replace(" ", ""))
    assert {*words} >= {
        *("Batch", "Epoch", "Logit", "Loss", "Query, key, value", "Residual connection", "Seed"),
        *("Softmax", "Relevance", "Label smoothing", "Warm-up", "MLP", "Layer norm"),
        "Pretrained weights",
    }


FAULTS = (ROOT / "maintainers" / "faults.md").read_text()
ROWS = re.findall(r"^\| (\d+\.\d+) \| (.+?) \| (.+?) \| (.+) \|$", FAULTS, flags=re.MULTILINE)


def test_the_table_has_every_row_in_order() -> None:
    sections = [34, 15, 27, 17, 12, 9, 10, 19, 28]

    expected = [f"{s}.{i}" for s, number in enumerate(sections, 1) for i in range(1, number + 1)]

    assert [row[0] for row in ROWS] == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_a_test_or_the_reason_why_there_is_none(row: tuple[str, ...]) -> None:
    proof = row[3]
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", proof)

    tables = re.findall(r"`(contract/[\w/]+\.toml)`", proof)

    assert tests or tables or "no test: " in proof
    for path, name in tests:
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), name
    for table in tables:
        assert (ROOT / "tests" / table).is_file()
    for campaign in re.findall(r"`(benchmarks/[\w/]+\.py)`", proof):
        assert (ROOT / campaign).is_file()
