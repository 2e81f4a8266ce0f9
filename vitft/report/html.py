"""Rendering of pages to single HTML files that make no requests and run only their own script.

One template engine serves the pages and the texts (READMEs, programs, sentences). In pages it
escapes every value except the charts, the style sheet and the script, and shows control characters
as escape sequences. The content security policy blocks all requests, style
attributes and scripts except the page's own script, which is allowed by its digest. So even an
unescaped script in a class or file name could not run.
"""

import base64
import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.system.console import visible
from vitft.system.imports import version
from vitft.system.text import count, interval, percent, points, whole_percent

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.nodes import EvalContext


# colours of the pages in light and dark mode, named by meaning ------------------------------------

_COLOURS = {
    "ground": ("#ffffff", "#101418"),
    "panel": ("#f4f6f8", "#1a2026"),
    "ink": ("#1c2126", "#e8ebee"),
    "muted": ("#535c66", "#a7b0ba"),
    "line": ("#cfd6dd", "#39434d"),
    "accent": ("#0a58a8", "#74b3f5"),
    "second": ("#a8470a", "#f2a36b"),
    "good": ("#17692f", "#6fd08c"),
    "bad": ("#b3261e", "#ff9086"),
}
LIGHT, DARK = ({name: both[i] for name, both in _COLOURS.items()} for i in (0, 1))

SHADES = (13, 18, 24, 30, 36, 42)
"""Percentages of the colour in the shades behind the numbers of a matrix, which have the colour
`ink`; the remainder is the background."""


def _css_variables(theme: Mapping[str, str]) -> str:
    """Return a theme's colours as CSS custom properties."""
    return " ".join(f"--{name}: {value};" for name, value in theme.items())


def _colour_scheme(*, prints_light: bool = False) -> str:
    """Return CSS rules that define the colours of a page for light and dark mode."""
    scheme, media = ("", "screen and ") if prints_light else ("color-scheme: light dark; ", "")
    return (
        f":root {{ {scheme}{_css_variables(LIGHT)} }}\n"
        f"@media {media}(prefers-color-scheme: dark) {{ :root {{ {_css_variables(DARK)} }} }}\n"
    )


def _colour_classes() -> str:
    """Return CSS classes for the fills and strokes of charts and for the shades of cells."""
    rules = [f".f-{key}{{fill:var(--{key})}}.s-{key}{{stroke:var(--{key})}}" for key in LIGHT]
    for meaning, colour in (("right", "accent"), ("wrong", "bad")):
        mixed = f"background:color-mix(in srgb,var(--ground),var(--{colour})"
        rules += [f".{meaning}-{i}{{{mixed} {share}%)}}" for i, share in enumerate(SHADES)]
    return "".join(f"{rule}\n" for rule in rules)


_TEMPLATES, _CARDS = (Path(__file__).parent / name for name in ("templates", "cards"))
_DARK_NOTEBOOKS = (  # JupyterLab and Notebook 7, VS Code, Colab
    'body[data-jp-theme-light="false"] .vitft',
    "body.vscode-dark .vitft",
    "html[theme=dark] .vitft",
)
"""CSS selectors that match an output cell in a notebook with a dark theme."""


def render(template: str, view: Mapping[str, object]) -> Iterator[bytes]:
    """Yield the parts of the page rendered from a template with the values of a view.

    The template marks the charts in the view as trusted; they must be SVG of the module `charts`.
    """
    from markupsafe import Markup

    css = _asset(_TEMPLATES, "page.css") + _colour_scheme(prints_light=True) + _colour_classes()
    script = "\n".join(_asset(_TEMPLATES, name) for name in ("page.js", "decisions.js"))
    policy = (  # allows only this style sheet, this script and embedded images
        f"default-src 'none'; style-src {digest_source(css)}; script-src {digest_source(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    markup = {"css": Markup(css), "script": Markup(script), "svg": Markup}
    values = {**view, **markup, "policy": policy, "version": version("vitft")}
    parts = _template_engine().get_template(template).generate(values)
    return (part.encode() for part in parts)


def filled(template: str, **values: Any) -> str:  # noqa: ANN401 - any template values
    """Return the text of a template; only values in those named `NAME.html.j2` are escaped."""
    return _template_engine().get_template(template).render(**values)


@functools.cache
def _template_engine() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_eval_context

    @pass_eval_context
    def printable(context: "EvalContext", value: Any) -> Any:  # noqa: ANN401 - any template value
        """Escape control characters in text on pages, but not in trusted markup."""
        is_text = isinstance(value, str) and not hasattr(value, "__html__")
        return visible(value) if is_text and context.autoescape else value

    engine = Environment(
        loader=FileSystemLoader([_TEMPLATES, _TEMPLATES.parents[1] / "export" / "programs"]),
        autoescape=lambda name: ".html." in (name or ""),
        undefined=StrictUndefined,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.policies["json.dumps_kwargs"] = {"sort_keys": False}
    engine.globals["count"] = count
    engine.filters |= {
        "interval": interval,
        "percent": percent,
        "points": points,
        # The space in `< 1%` does not break the line.
        "whole_percent": lambda value: whole_percent(value).replace(" ", "\N{NO-BREAK SPACE}"),
    }
    return engine


def digest_source(text: str) -> str:
    """Return the CSP source expression that allows an inline style or script by its digest."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# pages on which users choose images: those of the server, of `label` and of `export --html` -------


def page_parts(folder: Path, *, cards: bool = True) -> tuple[str, str, str]:
    """Return the HTML, the style sheet and the script of a page, which are files in its folder.

    The colours and the script that creates elements, in whose text every character is visible, are
    in front. With `cards`, so is what queues the chosen images and shows their predictions.
    """
    html, css, script = (_asset(folder, f"page.{kind}") for kind in ("html", "css", "js"))
    shared = [_asset(_CARDS, f"cards.{kind}") if cards else "" for kind in ("css", "js")]
    elements = _asset(_CARDS, "elements.js")
    return html, _colour_scheme() + shared[0] + css, elements + shared[1] + script


# results in the output cells of notebooks ---------------------------------------------------------


def notebook_part(part: str, **view: object) -> str:
    """Return the markup of the template `notebook_<part>.html.j2`, with its style sheet."""
    from markupsafe import Markup

    own, page = (_asset(_TEMPLATES, name) for name in ("notebook.css", "page.css"))
    css = (
        f".vitft {{ {_css_variables(LIGHT)} }}\n"
        f"{', '.join(_DARK_NOTEBOOKS)} {{ {_css_variables(DARK)} }}\n"
        f".vitft.vitft {{\n{page}{_colour_classes()}}}\n{own}"
    )
    return filled(f"notebook_{part}.html.j2", **view, css=css, svg=Markup)


def _asset(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")
