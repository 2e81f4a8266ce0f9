"""Colours of the pages in light and dark mode, named by meaning.

Text has a contrast ratio of at least 4.5:1 on every background where it appears. For the lines and
markers of charts, the ratio is at least 3:1 (WCAG 2.2, 1.4.3 and 1.4.11). The tests verify both.
"""

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "ground": "#ffffff",
    "panel": "#f4f6f8",
    "ink": "#1c2126",
    "muted": "#535c66",
    "line": "#cfd6dd",
    "accent": "#0a58a8",
    "second": "#a8470a",
    "good": "#17692f",
    "bad": "#b3261e",
}
DARK: Mapping[str, str] = {
    "ground": "#101418",
    "panel": "#1a2026",
    "ink": "#e8ebee",
    "muted": "#a7b0ba",
    "line": "#39434d",
    "accent": "#74b3f5",
    "second": "#f2a36b",
    "good": "#6fd08c",
    "bad": "#ff9086",
}
TEXT, BACKGROUNDS = ("ink", "muted", "accent", "second", "good", "bad"), ("ground", "panel")
GRAPHIC = ("muted", "accent", "second", "good", "bad")
"""Colours of meaningful lines, markers and bars; `line` is used only for separators."""

NUM_SHADES = 6
"""Number of background shades for matrix cells; their text has the colour `ink`."""
STRONGEST = {"light": 0.42, "dark": 0.5}
"""Fraction of the colour in the strongest shade; the rest is the background."""


def _blend(colour: str, ground: str, fraction: float) -> str:
    """Return a mixture of two colours as `#rrggbb`; `fraction` is the proportion of `colour`."""
    pairs = zip(channels(colour), channels(ground), strict=True)
    mixed = (round(255 * (fraction * a + (1 - fraction) * b)) for a, b in pairs)
    return "#" + "".join(f"{value:02x}" for value in mixed)


def channels(colour: str) -> tuple[float, ...]:
    """Return the red, green and blue values of `#rrggbb`, each from 0 to 1."""
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def shades(theme: Mapping[str, str], colour: str, strongest: float) -> list[str]:
    """Return the shades of a colour on the background of the theme, from faintest to strongest."""
    steps = [strongest * (0.3 + 0.7 * i / (NUM_SHADES - 1)) for i in range(NUM_SHADES)]
    return [_blend(theme[colour], theme["ground"], step) for step in steps]


def css_variables(name: str, theme: Mapping[str, str]) -> str:
    """Return a theme's colours, and shades for right and wrong cells, as CSS custom properties."""
    lines = [f"--{key}: {value};" for key, value in theme.items()]
    for meaning, colour in (("right", "accent"), ("wrong", "bad")):
        steps = shades(theme, colour, STRONGEST[name])
        lines += [f"--{meaning}-{i}: {value};" for i, value in enumerate(steps)]
    return " ".join(lines)


def colour_scheme() -> str:
    """Return CSS rules that define the colours of a page for light and dark mode."""
    light, dark = css_variables("light", LIGHT), css_variables("dark", DARK)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )


def style_sheet() -> str:
    """Return the style sheet that defines the colours: light or dark on screen, light in print.

    It also contains the classes of `colour_classes`.
    """
    light, dark = css_variables("light", LIGHT), css_variables("dark", DARK)
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f"{colour_classes()}"
    )


def colour_classes() -> str:
    """Return CSS classes for the fills and strokes of charts and for the shades of cells."""
    rules = [f".f-{key}{{fill:var(--{key})}}.s-{key}{{stroke:var(--{key})}}" for key in LIGHT]
    for meaning in ("right", "wrong"):
        rules += [f".{meaning}-{i}{{background:var(--{meaning}-{i})}}" for i in range(NUM_SHADES)]
    return "".join(f"{rule}\n" for rule in rules)
