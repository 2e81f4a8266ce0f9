"""Record commands in a terminal and write docs/terminal.svg, an animated picture of them.

    python docs/terminal.py        # needs the extra `docs`, no network

The commands really run, in a new folder and with an empty cache, on drawn flowers and the bundled
weights. Only three things differ from what a terminal shows: typing is added, pauses longer than
`LONGEST_PAUSE_S` are shortened, and the name of the temporary folder is written as ~.
"""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pyte

COMMANDS = (
    "vitft finetune --data demo --weights demo",
    "vitft predict demo_flowers/*/0003.jpg",
    "vitft export --safetensors",
)
COLUMNS, LINES = 100, 16
"""Size of the window, in characters. Nothing is lost when it scrolls: the picture scrolls too."""
LONGEST_PAUSE_S = 0.7
TYPING_S, REST_S, END_S = 0.035, 1.6, 5.0
"""Time per typed character, after a command, and at the end."""
FRAME_S = 0.08
"""Shortest time that a line is shown."""

FONT_PX, CELL_PX, LINE_PX, MARGIN_PX, BAR_PX = 14, 8.4, 19, 16, 30
COLOURS = {
    "default": "#d6dbe3",
    "black": "#5c6675",
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
}

Span = tuple[int, str, str, bool]
"""Column, text, colour and whether it is bold."""


@dataclass(frozen=True)
class Shown:
    """A line of the terminal and the time for which it looked like this, in seconds."""

    line: int
    spans: tuple[Span, ...]
    start: float
    end: float


def record(command: str, folder: Path) -> Iterator[tuple[float, str]]:
    """Run a command in a terminal of its own and yield what it writes, with the pause before it."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "TERM": "xterm-256color", "VITFT_CACHE": str(folder / ".cache")}
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **settings},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    ) as process:
        os.close(follower)
        last = time.monotonic()
        while True:
            try:
                written = os.read(leader, 65536)
            except OSError:  # the terminal is closed: the command has ended
                break
            now = time.monotonic()
            yield now - last, written.decode(errors="replace").replace(str(folder), "~")
            last = now
    os.close(leader)
    if process.returncode != 0:
        raise SystemExit(f"{command} ended with {process.returncode}")


def play(folder: Path) -> Iterator[tuple[float, str]]:
    """Yield the text of the whole session with the time at which it appears."""
    clock = 0.3
    for command in COMMANDS:
        yield clock, "\x1b[32m$\x1b[0m "
        for letter in command:
            clock += TYPING_S
            yield clock, letter
        clock += TYPING_S
        yield clock, "\r\n"
        for pause, text in record(command, folder):
            clock += min(pause, LONGEST_PAUSE_S)
            yield clock, text
        clock += REST_S
    yield clock + END_S, ""


def spans_of(screen: pyte.Screen, line: int) -> tuple[Span, ...]:
    """Join the characters of a line that look alike; blanks at the end are left out."""
    spans: list[Span] = []
    row = screen.buffer[line]
    for column in range(screen.columns):
        char = row[column]
        look = (char.fg, char.bold)
        if spans and spans[-1][2:] == look:
            first, text, *_ = spans[-1]
            spans[-1] = (first, text + char.data, *look)
        else:
            spans.append((column, char.data, *look))
    return tuple(span for span in spans if span[1].strip())


def shown_lines(session: list[tuple[float, str]]) -> tuple[list[Shown], list[tuple[float, int]]]:
    """Return what each line shows and when, and the first visible line at each time."""
    screen = pyte.Screen(COLUMNS, 400)
    stream = pyte.Stream(screen)
    current: dict[int, tuple[tuple[Span, ...], float]] = {}
    lines: list[Shown] = []
    tops = [(0.0, 0)]
    end = session[-1][0]
    for index, (clock, text) in enumerate(session):
        stream.feed(text)
        following = session[index + 1][0] if index + 1 < len(session) else end + 1
        if following - clock < FRAME_S and following - end_of_frame(clock) < 0:
            continue
        for line in sorted(screen.dirty | {*current}):
            spans = spans_of(screen, line)
            before, since = current.get(line, ((), 0.0))
            if spans != before:
                if before:
                    lines.append(Shown(line, before, since, clock))
                current[line] = (spans, clock)
        screen.dirty.clear()
        top = max(0, screen.cursor.y + 1 - LINES)
        if top != tops[-1][1]:
            tops.append((clock, top))
    lines += [Shown(line, spans, since, end) for line, (spans, since) in current.items() if spans]
    return lines, tops


def end_of_frame(clock: float) -> float:
    """Return the end of the frame that a moment belongs to."""
    return (clock // FRAME_S + 1) * FRAME_S


def drawn(shown: Shown, name: str) -> str:
    """Return a line as SVG text; every run of characters is as wide as its cells."""
    y = shown.line * LINE_PX + FONT_PX
    parts = []
    for column, text, colour, bold in shown.spans:
        cut = text.rstrip()
        column += len(cut) - len(cut.lstrip())
        cut = cut.lstrip()
        fill = COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else COLOURS["default"])
        weight = ' font-weight="600"' if bold else ""
        tint = f' fill="{fill}"' if fill != COLOURS["default"] else ""
        parts.append(
            f'<text x="{column * CELL_PX:.1f}" y="{y}" textLength="{len(cut) * CELL_PX:.1f}"'
            f"{tint}{weight}>{escape(cut)}</text>"
        )
    return f'<g class="{name}">{"".join(parts)}</g>'


def picture(lines: list[Shown], tops: list[tuple[float, int]], end: float) -> str:
    """Return the animated SVG; without animation it shows the last moment."""
    width, height = COLUMNS * CELL_PX + 2 * MARGIN_PX, LINES * LINE_PX + 2 * MARGIN_PX + BAR_PX
    rules, groups = [], []
    for index, shown in enumerate(lines):
        since, until = 100 * shown.start / end, 100 * shown.end / end
        last = until >= 100
        frames = f"0%{{visibility:hidden}}{since:.3f}%{{visibility:visible}}"
        frames += "" if last else f"{until:.3f}%{{visibility:hidden}}"
        still = "" if last else "visibility:hidden;"
        rules.append(f"@keyframes k{index}{{{frames}}}")
        rules.append(f".l{index}{{{still}animation:k{index} {end:.2f}s step-end infinite}}")
        groups.append(drawn(shown, f"l{index}"))
    scroll = "".join(
        f"{100 * clock / end:.3f}%{{transform:translateY({-top * LINE_PX}px)}}"
        for clock, top in tops
    )
    top = tops[-1][1] * LINE_PX
    style = (
        "text{white-space:pre}"
        f"@keyframes scroll{{{scroll}}}"
        f".page{{transform:translateY(-{top}px);animation:scroll {end:.2f}s step-end infinite}}"
        + "".join(rules)
        + "@media (prefers-reduced-motion:reduce){g{animation:none!important}}"
    )
    fonts = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
    lights = "".join(
        f'<circle cx="{MARGIN_PX + 6 + 20 * i}" cy="{BAR_PX / 2 + 2:.0f}" r="5.5" fill="{fill}"/>'
        for i, fill in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="'
        f'{escape("; ".join(COMMANDS))}">'
        f"<style>{style}</style>"
        f'<rect width="100%" height="100%" rx="10" fill="#161b22"/>{lights}'
        f'<svg x="{MARGIN_PX}" y="{MARGIN_PX + BAR_PX - 4}" width="{COLUMNS * CELL_PX:.0f}" '
        f'height="{LINES * LINE_PX}" overflow="hidden">'
        f'<g class="page" font-family="{fonts}" font-size="{FONT_PX}" fill="{COLOURS["default"]}">'
        f"{''.join(groups)}</g></svg></svg>\n"
    )


def main() -> None:
    """Record the session and write the picture beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        session = list(play(Path(folder)))
    lines, tops = shown_lines(session)
    target = Path(__file__).with_suffix(".svg")
    target.write_text(picture(lines, tops, session[-1][0]))
    print(f"{target.name}: {session[-1][0]:.0f} s, {len(lines)} lines")


if __name__ == "__main__":
    main()
