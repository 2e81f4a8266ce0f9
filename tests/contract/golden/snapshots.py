"""Texts of the golden runs: what changes from call to call left out, and numbers with a tolerance.

Only numbers with a decimal point, an exponent or a percent sign have a tolerance: counts are exact.
Two of them are equal if they differ by at most `relative` of the larger one, by one unit of the
last printed digit, or by 2e-5: so much differs between CPUs, because heads that are only compared
are not solved to convergence.
"""

import difflib
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from syrupy.data import Snapshot, SnapshotCollection
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.location import PyTestLocation

NUMBER = re.compile(
    r"(?<![\w.])[-−+]?(?:\d[\d,]*\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|\d+(?= ?%))(?!\w)"
)

VARYING = [
    (r"\d[\d,.]*( \w+/s\b)", r"N\1"),
    # the lines of slow steps: these, and those of the next pattern but one
    (r"^(?:fitting|cross-validating|comparing|evaluating|searching for) [^:\n]*\n", ""),
    (r"\b(in|takes?|took|after|about) <?\d[\d.]*( ?(?:ms|s|min|h|seconds|minutes)\b)", r"\1 N s"),
    (r"^.*(?:about N s left|still running after N s|: \d+/\d+ .*N \w+/s)\n", ""),
    (r"\b(?:\d+ minutes?|less than a minute) (old|ago)", r"N minutes \1"),
    (r"^(\s+\d+/\d+ .*?) +\d[\d.]* s\b", r"\1 N s"),  # an epoch
    (r"\b20\d\d-?\d\d-?\d\d[T -]\d\d:?\d\d(:?\d\d)?(\+\d\d:\d\d|Z| UTC)?", "DATE"),
    (r"\b20\d\d-\d\d-\d\d\b", "DATE"),
    (r"\b[0-9a-f]{12,}\b", "HEX"),
    (r"sha256-[\w+/=]+", "HEX"),
    (r"base64,[\w+/=]+", "base64,..."),
    (r"\b(vitft|torch|timm|NumPy|numpy|Pillow|onnxruntime|transformers|onnx|openvino|Python|python)"
     r"( ?[:=]*>?=? ?\"?)\d[\w.+]*", r"\1\2VERSION"),
    (r"^(?:<dd>)?\d+\.\d+\.\d+[\w.+]*", "VERSION"),
    (r"^(Linux|Darwin) \w+$", "SYSTEM"),
    (r"\b[\d,]+ MiB\b", "N MiB"),
    (r"\bcpu \([^)]*\)", "cpu (...)"),
    (r"(\d\.\de[+-]\d\d +\d+) +[\d.]+ +[\d.]+$", r"\1 N N"),  # rates of an export
    (r"\b(?:0\.0e\+00|\d\.\d+e-(?:0[5-9]|[1-9]\d))\b", "TINY"),  # rounding errors of float32
]  # fmt: skip
"""Patterns of what changes from call to call, machine to machine or version to version."""


def scrub(text: str, folder: Path) -> str:
    """Return a text without blanks at line ends and what changes from call to call."""
    for place in {str(folder), str(folder.resolve())}:
        text = text.replace(place, "TMP")
    text = re.sub(r"[^\s\"'<>]*/vitft-\w{8}\b", "TMP", text)
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip() + "\n"


def settled(new: str, old: str, relative: float) -> str:
    """Return `new` with its lines that equal a line of `old`, up to the tolerance, as they were."""
    lines, before = new.splitlines(), old.splitlines()
    forms = [skeleton(line) for line in before], [skeleton(line) for line in lines]
    matcher = difflib.SequenceMatcher(None, *forms, autojunk=False)
    same = [(0, 0, len(lines))] if forms[0] == forms[1] else matcher.get_matching_blocks()
    for first, start, size in same:
        for number in range(size):
            if is_close(lines[start + number], before[first + number], relative):
                lines[start + number] = before[first + number]
    return "\n".join(lines) + "\n"


def skeleton(line: str) -> str:
    """Return a line with its numbers replaced and its blanks and rules as one."""
    return re.sub(r"([ ─━-])\1+", r"\1", NUMBER.sub("\0", line))


def is_close(line: str, old: str, relative: float) -> bool:
    """Return whether the numbers of two lines with the same skeleton are equal."""
    for one, other in zip(NUMBER.findall(line), NUMBER.findall(old), strict=True):
        a, b = (float(text.replace("−", "-").replace(",", "")) for text in (one, other))
        digits = max(
            len(re.sub(r"e.*|.*\.", "", text)) if "." in text else 0 for text in (one, other)
        )
        unit = 0.0 if "e" in one + other else 10.0**-digits
        if abs(a - b) > max(relative * max(abs(a), abs(b)), unit * 1.01, 2e-5):
            return False
    return True


class TextExtension(SingleFileSnapshotExtension):
    """One text file per reader in the folder of a run: `__snapshots__/RUN/READER.txt`."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"
    relative = 2e-2

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        return settled(serialized_data, snapshot_data, self.relative) == snapshot_data

    def diff_lines(self, serialized_data: Any, snapshot_data: Any) -> Iterator[str]:
        new = settled(serialized_data, snapshot_data, self.relative)
        lines = difflib.unified_diff(snapshot_data.splitlines(), new.splitlines(), n=1, lineterm="")
        yield from list(lines)[2:]

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        name = test_location.nodename.partition("[")[2].rstrip("]")
        return str(Path(test_location.filepath).parent / "__snapshots__" / name)

    @classmethod
    def get_file_basename(cls, *, test_location: PyTestLocation, index: int | str) -> str:  # noqa: ARG003
        return str(index)

    def read_snapshot_collection(self, *, snapshot_location: str) -> SnapshotCollection:
        collection = SnapshotCollection(location=snapshot_location)
        path = Path(snapshot_location)
        collection.add(Snapshot(name=f"test_run[{path.parent.name}][{path.stem}]"))
        return collection

    @classmethod
    def matches_test_location(
        cls, *, test_location: PyTestLocation, snapshot_location: str
    ) -> bool:
        return str(Path(snapshot_location).parent) == cls.dirname(test_location=test_location)


class PageText(HTMLParser):
    """The text of an HTML page as a reader meets it: one line per block, and what pictures say."""

    INLINE = re.compile("a|abbr|b|bdi|br|code|em|i|small|span|strong|sub|sup|time")
    SAID = ("aria-label", "alt", "title", "placeholder", "value", "href", "download")

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = [""]
        self.silent = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style") or ("aria-label", "Settings") in attrs:
            self.silent = tag
        if not self.INLINE.fullmatch(tag):
            self.lines.append("#" * int(tag[1]) + " " if re.fullmatch("h[1-6]", tag) else "")
        said = [f"{name}={v}" for name, v in attrs if name in self.SAID and v and "data:" not in v]
        self.lines[-1] += f"[{', '.join(said)}] " if said else ""

    def handle_endtag(self, tag: str) -> None:
        if tag == self.silent:
            self.silent = ""
        if not self.INLINE.fullmatch(tag):
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.lines[-1] += data


def page_text(markup: str) -> str:
    """Return the text of an HTML page."""
    parser = PageText()
    parser.feed(markup)
    lines = (" ".join(line.split()) for line in parser.lines)
    return "\n".join(line for line in lines if line)


def drawn_markup(markup: str) -> str:
    """Return the markup of a page without styles, scripts and embedded files, one line a tag."""
    markup = re.sub(r"<(script|style)\b.*?</\1>", "", markup, flags=re.DOTALL)
    return re.sub(r"(?<=>)\s*(?=<(?!/))", "\n", markup)
