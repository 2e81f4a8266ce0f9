"""The colours of a page by what they mean, for light and dark, for its style sheet and its tests.

Text keeps a contrast of 4.5:1 to everything it stands on, lines and dots of charts 3:1
(WCAG 2.2, 1.4.3 and 1.4.11); a test computes both.
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
TEXT = ("ink", "muted", "accent", "second", "good", "bad")
"""Colours that words are written in."""
GROUNDS = ("ground", "panel")
"""Colours that they stand on."""
GRAPHIC = ("muted", "accent", "second", "good", "bad")
"""Colours of lines, dots and bars that carry meaning; `line` only separates."""

SHADES = 6
"""Steps of a shaded cell; its text is `ink`."""
STRONGEST = {"light": 0.42, "dark": 0.5}
"""Share of the meaning's colour in the strongest shade; the rest is the ground."""


def mixed(colour: str, ground: str, share: float) -> str:
    """`share` of one colour over another."""
    parts = zip(channels(colour), channels(ground), strict=True)
    return "#" + "".join(f"{round(255 * (share * a + (1 - share) * b)):02x}" for a, b in parts)


def channels(colour: str) -> tuple[float, ...]:
    """`#rrggbb` as red, green and blue from 0 to 1."""
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def shades(theme: Mapping[str, str], colour: str, strongest: float) -> list[str]:
    """From a hint of a colour to its strongest shade."""
    steps = [strongest * (0.3 + 0.7 * i / (SHADES - 1)) for i in range(SHADES)]
    return [mixed(theme[colour], theme["ground"], step) for step in steps]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, from 1 to 21.

    Source: WCAG 2.2, "relative luminance" and "contrast ratio".
    """
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance from 0 to 1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(colour)]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def variables(name: str, theme: Mapping[str, str]) -> str:
    """A theme as CSS custom properties."""
    lines = [f"--{key}: {value};" for key, value in theme.items()]
    for meaning, colour in (("right", "accent"), ("wrong", "bad")):
        steps = shades(theme, colour, STRONGEST[name])
        lines += [f"--{meaning}-{i}: {value};" for i, value in enumerate(steps)]
    return " ".join(lines)


def classes() -> str:
    """One class per meaning for fills and strokes of charts, and per shade for cells."""
    rules = [f".f-{key}{{fill:var(--{key})}}.s-{key}{{stroke:var(--{key})}}" for key in LIGHT]
    for meaning in ("right", "wrong"):
        rules += [f".{meaning}-{i}{{background:var(--{meaning}-{i})}}" for i in range(SHADES)]
    return "\n".join(rules)


def style() -> str:
    """The colour part of the style sheet; paper is light."""
    light, dark = variables("light", LIGHT), variables("dark", DARK)
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{classes()}\n"
    )
