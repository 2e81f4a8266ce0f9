"""Draw docs/speed.svg: time and accuracy of fine-tuning a head, beside other tools.

    python docs/chart.py

The figures are those of docs/experiments.md, "Frozen fine-tuning, whole processes", which states
commands, data and machine; a test finds each of them there. Nothing is measured here.
"""

import math
from html import escape
from pathlib import Path

TIMES = (("vitft", 10.2), ("tutorial's loop", 118.3), ("Trainer", 125.8), ("fastai", 201.2))
"""Seconds, 400 + 100 photos, ViT-Tiny, ten epochs or the equivalent, two cores."""
ACCURACIES = (("vitft", 18.3, 95.4), ("tutorial's loop", 285.0, 93.8))
"""Seconds and accuracy in %, 960 + 240 photos and pretrained weights."""
VALIDATION = 240

WIDTH, HEIGHT = 860, 232
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
    parts = [text(16, 26, "Seconds until the result (less is better)", "title")]
    scale = 250 / max(seconds for _, seconds in TIMES)
    for index, (name, seconds) in enumerate(TIMES):
        y = 44 + 36 * index
        kind = "ours" if name == "vitft" else "other"
        times = "" if name == "vitft" else f"  ({seconds / TIMES[0][1]:.1f}x)"
        parts.append(text(108, y + 17, name, "end"))
        parts.append(
            f'<rect x="116" y="{y}" width="{seconds * scale:.1f}" height="24" rx="3" '
            f'class="{kind}"/>'
        )
        inside = seconds * scale > 150
        x = 116 + seconds * scale + (-8 if inside else 8)
        parts.append(text(x, y + 17, f"{seconds:.0f} s{times}", "end" if inside else ""))
    parts.append(
        text(16, 206, "ViT-Tiny/16, 400 + 100 photos, ten epochs or the equivalent,", "small")
    )
    parts.append(text(16, 222, "whole process, 2 cores, medians of 3 runs", "small"))
    return parts


def points() -> list[str]:
    """Draw the right half: accuracy with its interval against seconds, on a log scale."""
    left, right, top, bottom = 510, 836, 44, 172
    low, high = 88.0, 100.0

    def place(seconds: float, percent: float) -> tuple[float, float]:
        x = left + (right - left) * math.log(seconds / 10) / math.log(100)
        return x, bottom - (bottom - top) * (percent - low) / (high - low)

    parts = [text(470, 26, "Accuracy (more is better) against seconds", "title")]
    for percent in (90, 95, 100):
        _, y = place(10, percent)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="axis"/>')
        parts.append(text(left - 8, y + 4, f"{percent}%", "small end"))
    for seconds in (10, 30, 100, 300, 1000):
        x, _ = place(seconds, low)
        parts.append(text(x, bottom + 16, f"{seconds} s", "small middle"))
    for name, seconds, percent in ACCURACIES:
        x, y = place(seconds, percent)
        ends = [place(seconds, end)[1] for end in wilson(percent, VALIDATION)]
        kind = "ours" if name == "vitft" else "other"
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}" '
            f'class="{kind} bar"/><circle cx="{x:.1f}" cy="{y:.1f}" r="6" class="{kind}"/>'
        )
        side, end = (12, "") if kind == "ours" else (-12, "end")
        down = 0 if kind == "ours" else 20
        parts.append(text(x + side, y - 2 + down, f"{name}: {percent}%", end))
        parts.append(text(x + side, y + 13 + down, f"{seconds:.0f} s", f"small {end}"))
    parts.append(
        text(470, 206, "ViT-Tiny/16, pretrained, 960 + 240 photos; 95% intervals.", "small")
    )
    parts.append(text(470, 222, "The accuracy of Trainer and fastai was not measured.", "small"))
    return parts


def chart() -> str:
    """Return the whole picture."""
    words = "Time of fine-tuning a head: " + ", ".join(f"{name} {s:.0f} s" for name, s in TIMES)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(words)}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" rx="8" class="page"/>'
        f"{''.join(bars())}{''.join(points())}</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("speed.svg").write_text(chart())
