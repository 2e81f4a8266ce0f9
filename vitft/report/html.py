"""Rendering of pages to single HTML files that make no requests and run only their own script.

The template engine escapes every value except the charts, the style sheet and the script. Control
characters are shown as escape sequences. The content security policy blocks all requests, style
attributes and scripts except the page's own script, which is allowed by its digest. So even an
unescaped script in a class or file name could not run.
"""

import base64
import functools
import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.report.palette import style_sheet
from vitft.system.console import visible
from vitft.system.text import interval, percent, points, whole_percent

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, view: Mapping[str, object]) -> str:
    """Return the page rendered from a template with the values of a view.

    The template marks the charts in the view as trusted; they must be SVG from the module `svg`.
    """
    from markupsafe import Markup

    css = (TEMPLATES / "page.css").read_text(encoding="utf-8") + style_sheet()
    script = "\n".join(
        (TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.js", "decisions.js")
    )
    policy = (  # allows only this style sheet, this script and embedded images
        f"default-src 'none'; style-src {digest_source(css)}; script-src {digest_source(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    markup = {"css": Markup(css), "script": Markup(script), "svg": Markup}
    page = template_engine().get_template(template)
    return page.render(**view, **markup, policy=policy, version=version("vitft"))


@functools.cache
def template_engine() -> "Environment":
    """Return the template engine, which escapes every value that is not trusted markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    engine = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters |= {
        "interval": interval,
        "percent": percent,
        "points": points,
        "whole_percent": _unbroken_percent,
    }
    return engine


def _unbroken_percent(probability: float | None) -> str:
    """Return a whole percentage; the space in `< 1%` does not break the line."""
    return whole_percent(probability).replace(" ", "\N{NO-BREAK SPACE}")


def _printable(value: Any) -> Any:  # noqa: ANN401 - any template value
    """Escape control characters in text; return numbers and trusted markup unchanged."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return visible(value)
    return value


def digest_source(text: str) -> str:
    """Return the CSP source expression that allows an inline style or script by its digest."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
