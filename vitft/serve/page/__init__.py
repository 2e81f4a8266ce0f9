"""Web page for uploading images: an HTML document that may connect only to its own server.

The HTML contains no class or file names. The script inserts them later, as text.
"""

from collections.abc import Mapping
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
    return assemble_page(
        read_asset(HERE, "page.html"),
        css=cards_style() + read_asset(HERE, "page.css"),
        script=cards_script() + read_asset(HERE, "page.js"),
        values={"max_bytes": str(max_bytes), "explains": str(explains).lower()},
        images="blob: data:",
    )


def assemble_page(
    html: str, *, css: str, script: str, images: str, values: Mapping[str, str] | None = None
) -> ServedPage:
    """Return a page with its policy, which allows only this style sheet and script.

    `images` are the sources of images that it allows. `values` is HTML for further placeholders in
    the HTML, such as `{css}`, by name.
    """
    for name, value in {"css": css, "script": script, **(values or {})}.items():
        html = html.replace(f"{{{name}}}", value)
    policy = (
        f"default-src 'none'; style-src {digest_source(css)}; script-src {digest_source(script)}; "
        f"img-src {images}; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return ServedPage(html, policy)
