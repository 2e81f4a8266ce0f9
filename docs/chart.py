"""Draw docs/speed.svg: time and accuracy of fine-tuning a head, beside other tools.

    python docs/chart.py

The figures are those of benchmarks/notebook/speed.md, "How fast is a run beside other tools",
which states commands, data and machine; a test finds each of them there. Nothing is measured here.
"""

import math
from html import escape
from pathlib import Path

RACES = (
    ("vitft", 10.5, 97.1),
    ("tutorial's loop", 205.1, 92.9),
    ("Trainer", 221.1, 93.8),
    ("fastai", 427.9, 93.3),
)
"""Seconds of the whole process and accuracy in %, of each tool."""
VALIDATION = 240
"""Number of validation images."""

WIDTH, HEIGHT, TOP, ROW = 860, 232, 44, 36
STYLE = """
text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-weight:600}.small{font-size:11.5px;fill:#59636e}.axis{stroke:#d1d9e0;stroke-width:1}
.ours{fill:#0969da}.other{fill:#afb8c1}.bar{stroke-width:2}.ours.bar{stroke:#0969da}
.other.bar{stroke:#818b98}.end{text-anchor:end}.middle{text-anchor:middle}.page{fill:#fff}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.axis{stroke:#3d444d}
.ours{fill:#58a6ff}.ours.bar{stroke:#58a6ff}.other{fill:#656c76}.other.bar{stroke:#9198a1}
.page{fill:#0d1117}}
""".replace("\n", "")


def wilson(percent: float, images: int) -> tuple[float, float]:
    """Return the 95% Wilson interval of an accuracy, in percent."""
    rate, z = percent / 100, 1.96
    scale = 1 + z * z / images
    centre = (rate + z * z / (2 * images)) / scale
    half = z * math.sqrt(rate * (1 - rate) / images + z * z / (4 * images * images)) / scale
    return 100 * (centre - half), 100 * (centre + half)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return an SVG text at a place in pixels."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def bars() -> list[str]:
    """Draw the left half: seconds of each tool as bars that start at zero."""
    faster = RACES[1][1] / RACES[0][1]
    claim = f"{faster:.0f} times faster than the next of the three (seconds, less is better)"
    parts = [text(16, 26, claim, "title")]
    scale = 250 / max(seconds for _, seconds, _ in RACES)
    for index, (name, seconds, _) in enumerate(RACES):
        y = TOP + ROW * index
        kind = "ours" if name == "vitft" else "other"
        times = "" if name == "vitft" else f"  ({seconds / RACES[0][1]:.0f}x)"
        parts.append(text(108, y + 17, name, "end"))
        parts.append(
            f'<rect x="116" y="{y}" width="{seconds * scale:.1f}" height="24" rx="3" '
            f'class="{kind}"/>'
        )
        inside = seconds * scale > 150
        x = 116 + seconds * scale + (-8 if inside else 8)
        parts.append(text(x, y + 17, f"{seconds:.3g} s{times}", "end" if inside else ""))
    words = (
        "ViT-Tiny/16, pretrained, 960 + 240 photos of flowers, ten epochs or the equivalent, "
        "whole process, 2 cores, one run each."
    )
    return [*parts, text(16, 222, words, "small")]


def points() -> list[str]:
    """Draw the right half: accuracy of each tool with its 95% interval."""
    left, right, low, high = 480, 790, 88.0, 100.0

    def place(percent: float) -> float:
        return left + (right - left) * (percent - low) / (high - low)

    parts = [text(left - 10, 26, "Accuracy of one split (95% interval, more is better)", "title")]
    bottom = TOP + ROW * len(RACES)
    for percent in (90, 95, 100):
        x = place(percent)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" class="axis"/>')
        parts.append(text(x, bottom + 14, f"{percent}%", "small middle"))
    for index, (name, _, percent) in enumerate(RACES):
        y = TOP + ROW * index + 12
        ends = [place(end) for end in wilson(percent, VALIDATION)]
        kind = "ours" if name == "vitft" else "other"
        parts.append(
            f'<line x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y}" y2="{y}" class="{kind} bar"/>'
            f'<circle cx="{place(percent):.1f}" cy="{y}" r="6" class="{kind}"/>'
        )
        parts.append(text(right + 14, y + 5, f"{percent}%"))
    return parts


def chart() -> str:
    """Return the whole picture."""
    words = "Time and accuracy of fine-tuning a head: " + ", ".join(
        f"{name} {seconds:.3g} s, {percent}%" for name, seconds, percent in RACES
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(words)}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" rx="8" class="page"/>'
        f"{''.join(bars())}{''.join(points())}</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("speed.svg").write_text(chart())
