"""View and template to one HTML file that loads nothing and runs nothing but its own script.

Every value is escaped by the template engine, and hidden characters in it become visible ones.
The content policy forbids every request, every style attribute and every script but the one
whose digest it names, so that a name that slipped through could still do nothing.
"""

import base64
import functools
import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.report.palette import style
from vitft.system.console import visible

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def environment() -> "Environment":
    """Templates that escape everything."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def shown(value: Any) -> Any:  # noqa: ANN401 - whatever a template names
    """Text as it may be shown; our own markup as it is."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return visible(value)
    return value


def render(template: str, view: Mapping[str, Any]) -> str:
    """The page of a view; charts in it are SVG of `vector`."""
    from markupsafe import Markup

    css = (TEMPLATES / "page.css").read_text(encoding="utf-8") + style()
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    return (
        environment()
        .get_template(template)
        .render(
            **view,
            css=Markup(css),
            script=Markup(script),
            policy=policy(css, script),
            version=version("vitft"),
            svg=Markup,
        )
    )


def policy(css: str, script: str) -> str:
    """The content policy: nothing from anywhere, but this style, this script, embedded images."""
    return (
        f"default-src 'none'; style-src {source(css)}; script-src {source(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def source(text: str) -> str:
    """A text as a source expression: its digest."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
