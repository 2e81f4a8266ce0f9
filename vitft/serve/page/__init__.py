"""The page to drop images on: one HTML file, with a policy that lets it talk to its server only.

Class and file names reach it as JSON and are shown as text; nothing of them is in the HTML.
"""

from dataclasses import dataclass
from pathlib import Path

from vitft.report.html import source
from vitft.report.palette import DARK, LIGHT, variables

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Page:
    """HTML and the Content-Security-Policy that goes with it."""

    html: str
    policy: str


def build_page(*, max_bytes: int, explains: bool) -> Page:
    """The page for a server with this limit, and with or without overlays."""
    css = colours() + read("page.css")
    script = read("page.js")
    html = (
        read("page.html")
        .replace("{css}", css)
        .replace("{script}", script)
        .replace("{max_bytes}", str(max_bytes))
        .replace("{explains}", str(explains).lower())
    )
    policy = (
        f"default-src 'none'; style-src {source(css)}; script-src {source(script)}; "
        "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return Page(html, policy)


def read(name: str) -> str:
    """A file of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


def colours() -> str:
    """The reports' colours, for light and dark."""
    light, dark = variables("light", LIGHT), variables("dark", DARK)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
