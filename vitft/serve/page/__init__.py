"""Web page for uploading images: an HTML document that may connect only to its own server.

The HTML contains no class or file names. The script inserts them later, as text.
"""

from dataclasses import dataclass
from pathlib import Path

from vitft.report.cards import cards_script, cards_style, read_asset
from vitft.report.html import digest_source

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class ServedPage:
    """HTML of the page, and the Content-Security-Policy to send with it."""

    html: str
    policy: str


def build_page(*, max_bytes: int, explains: bool) -> ServedPage:
    """Return the page for uploads of at most `max_bytes`, with or without relevance overlays."""
    css, script = cards_style(), cards_script() + read_asset(HERE, "page.js")
    html = (
        read_asset(HERE, "page.html")
        .replace("{css}", css)
        .replace("{script}", script)
        .replace("{max_bytes}", str(max_bytes))
        .replace("{explains}", str(explains).lower())
    )
    policy = (
        f"default-src 'none'; style-src {digest_source(css)}; script-src {digest_source(script)}; "
        "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return ServedPage(html, policy)
