"""Style sheet and script of pages on which a person chooses images and reads predictions.

They are used by the page of the server (`serve.page`) and the page of `export --html`
(`export.page`). Each page appends its own script, which defines how an image is classified.
"""

from pathlib import Path

from vitft.report.palette import colour_scheme

CARDS = Path(__file__).parent


def cards_style() -> str:
    """Return the style sheet, with the colours for light and dark mode."""
    return colour_scheme() + read_asset(CARDS, "cards.css")


def cards_script() -> str:
    """Return the script that queues the chosen images and shows their predictions."""
    return read_asset(CARDS, "cards.js")


def read_asset(folder: Path, name: str) -> str:
    """Return the text of a file in the folder of a page."""
    return (folder / name).read_text(encoding="utf-8")
