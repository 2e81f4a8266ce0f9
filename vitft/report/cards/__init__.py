"""Style sheet and script for pages on which users choose images and see predictions.

They are used by the page of the server (`serve.page`) and the page of `export --html`
(`export/page`). Each page appends its own script, which defines how an image is classified. The
page of `vitft label` (`serve.label`) uses only `elements_script`.
"""

from pathlib import Path

from vitft.report.html import colour_scheme

_CARDS = Path(__file__).parent


def cards_style() -> str:
    """Return the style sheet, with the colours for light and dark mode."""
    return colour_scheme() + read_asset(_CARDS, "cards.css")


def elements_script() -> str:
    """Return the script that creates elements with text in which every character is visible."""
    return read_asset(_CARDS, "elements.js")


def cards_script() -> str:
    """Return the script that queues the chosen images and shows their predictions."""
    return elements_script() + read_asset(_CARDS, "cards.js")


def read_asset(folder: Path, name: str) -> str:
    """Return the text of a file in the folder of a page."""
    return (folder / name).read_text(encoding="utf-8")
