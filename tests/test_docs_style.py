"""README and guides are easy to read: short sentences, no semicolons, the field's words."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MEAN_WORDS = 15
LONG_WORDS = 30
LONG_SENTENCES = 0.05
"""Largest fraction of the sentences of a page that have more words than LONG_WORDS."""
INSTEAD = {
    r"of --": "the option as an adjective or a verb: `--int8` writes, the `--int8` graph",
    r"that of|those of": "a compound, or the noun again",
    r"refus(e|es|ed|al)": "not supported, rejected, or fails with an error, and what to do instead",
    r"says so|states it|named as such": "the message itself",
    r"bit by bit|bit for bit": "bit-identical",
    r"pictures?": "image, figure or screenshot",
    r"solved head|solved heads": "a head that is fitted, or logistic regression",
    r"(head|model)s? (that )?reads? (six|several|up to|the last)": "features from N blocks",
    r"data audit|audits?(?!\.json)": "check",
    r"told|answered with": "print, log, report",
    r"the person who|whoever": "you",
    r"foretells?|promises what": "predict, estimate",
}
"""Words that a guide avoids, and what to write in their place."""


def units(page: str) -> Iterator[tuple[str, bool]]:
    """Yield paragraphs and list items, then cells of tables (True), without code and markup."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page, flags=re.M | re.S)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"</?\w[^>]*>", "", text)
    paragraph: list[str] = []
    for line in chain(text.splitlines(), [""]):
        item = re.match(r"\s*(- |\d+\. )", line)
        if item or not line.strip() or line.startswith(("|", "#", "    ")):
            if paragraph:
                yield " ".join(paragraph), False
            paragraph = []
        if line.startswith("|"):
            yield from ((cell.strip(), True) for cell in re.split(r"(?<!\\)\|", line) if cell)
        elif item:
            paragraph = [line[item.end() :].strip()]
        elif line.strip() and not line.startswith(("#", "    ")):
            paragraph.append(line.strip())


def sentences(unit: str) -> list[str]:
    """Split a paragraph; a code span counts as one word."""
    text = re.sub(r"`[^`]*`", "Code", unit).replace("*", "")
    text = re.sub(r"\b(e\.g|i\.e|al|vs)\.", r"\1", text)
    return [
        part for part in re.split(r"(?<=[.!?:])[\")]?\s+(?=[A-Z0-9\"(+-]|vitft|timm)", text) if part
    ]


def lengths(page: str) -> tuple[list[int], list[int]]:
    """Return the words of each sentence of the prose, and of each sentence in tables."""
    of_prose: list[int] = []
    of_tables: list[int] = []
    for unit, is_cell in units(page):
        found = [len(sentence.split()) for sentence in sentences(unit)]
        (of_tables if is_cell else of_prose).extend(found)
    return of_prose, of_tables


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_short_sentences(page: Path) -> None:
    of_prose, of_tables = lengths(page.read_text())
    too_long = [words for words in of_prose + of_tables if words > LONG_WORDS]

    assert mean(of_prose) <= MEAN_WORDS
    assert len(too_long) <= LONG_SENTENCES * len(of_prose)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_semicolons_and_none_of_the_words_to_avoid(page: Path) -> None:
    found = []
    for unit, _ in units(page.read_text()):
        text = re.sub(r"`(--)?[^`]*`", r"\1", unit)
        found += [f"a semicolon: {text}"] if ";" in text else []
        found += [
            f"{match[0]!r} (better: {better}): {text}"
            for word, better in INSTEAD.items()
            if (match := re.search(rf"\b({word})(?!\w)", text, re.IGNORECASE))
        ]

    assert not found, "\n".join(found)
