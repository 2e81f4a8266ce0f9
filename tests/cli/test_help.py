"""What `--help` and the page of all options say, for every command."""

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitft.cli.guide import GUIDES
from vitft.cli.main import build_parser
from vitft.cli.parser import Parser

DOCS = Path(__file__).parents[2] / "docs"


def parsers(parser: Parser) -> Iterator[Parser]:
    """Yield a parser and those of all its commands."""
    yield parser
    for command in parser.commands.values():
        yield from parsers(command)


ALL = [pytest.param(parser, id=parser.prog) for parser in parsers(build_parser())]


@pytest.mark.parametrize("parser", ALL)
def test_an_option_is_described_by_one_short_sentence(parser: Parser) -> None:
    for action in parser.shown_actions():
        text = parser.help_of(action).partition(" (default")[0]
        assert len(text.split()) <= 20, text
        assert ";" not in text


@pytest.mark.parametrize(
    "command", [words for guide in GUIDES.values() for words in guide.examples]
)
def test_an_example_has_known_options_and_valid_values(command: str) -> None:
    _, unknown = build_parser().parse_known_args(command.split()[1:])

    assert not unknown


@pytest.mark.parametrize("parser", ALL)
def test_the_help_has_at_most_four_examples_and_names_an_existing_page(parser: Parser) -> None:
    guide = GUIDES[parser.prog.partition(" ")[2].partition(" ")[0]]

    assert len(guide.examples) <= 4
    assert (DOCS.parent / guide.page.partition("#")[0]).is_file()
    assert parser.format_help().endswith(f"More in {guide.page}.\n")


def test_the_page_of_options_is_current() -> None:
    page = runpy.run_path(str(DOCS / "reference.py"))["options_page"]

    assert page() == (DOCS / "options.md").read_text()  # otherwise: make docs
