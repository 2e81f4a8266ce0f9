"""Formatting of numbers, lists, rows and errors as text for messages, tables and pages."""

import contextlib
import csv
import io
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any


def labelled(label: str, text: str) -> str:
    """Return a line of a command's screen: a label, such as `Model`, and a text beside it."""
    return f"{label:<11}{text}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction as a percentage, such as `94.6%`, or a dash for None.

    Only 1 is 100%: a fraction that would be rounded up to it is rounded down.
    """
    if fraction is None:
        return "–"
    step = 10.0 ** -(digits + 2)
    fraction = 1 - step if 1 - step < fraction < 1 - 1e-6 else fraction
    return f"{100 * fraction:.{digits}f}%"


def requested_percent(fraction: float) -> str:
    """Return a fraction that a user chose as a percentage, such as `95%` or `99.99%`."""
    return f"{100 * fraction:g}%"


def whole_percent(probability: float | None) -> str:
    """Return a whole percentage, `< 1%` or `> 99%` in place of 0% and 100%, or a dash for None."""
    if probability is None or round(probability, 2) not in (0.0, 1.0):
        return percent(probability, 0)
    return "< 1%" if probability < 0.5 else "> 99%"


def is_scaled(temperature: float | None) -> bool:
    """Return whether a temperature is not displayed as 1.00; None stands for several of them."""
    return temperature is None or f"{temperature:.2f}" != "1.00"


def is_measurable(fraction: float) -> bool:
    """Return whether a nonnegative fraction is not rounded to 0.0%."""
    return fraction >= 0.0005


_MIN_CALIBRATION_IMAGES = 20
"""Minimum number of images for a calibration error to be shown. Of fewer images, one changes the
accuracy by more than 5 points; even if all are right, up to 3 / 20 may be wrong in truth (the 95%
bound), so a small error would be false comfort."""


def not_calibrated(results: Mapping[str, Any]) -> str:
    """Return why the calibration error of some results is not shown, or an empty string."""
    if results["images"] < _MIN_CALIBRATION_IMAGES:
        return "too few images to measure the calibration error"
    has_interval = results["calibration"]["ece_interval"] is not None
    return "" if has_interval else "too few groups to measure the calibration error"


def percent_or_bound(fraction: float, bounds: Sequence[float] | None) -> str:
    """Format a nonnegative fraction; one that is too small to be measured as `< upper bound`."""
    return (
        f"< {percent(bounds[1])}" if bounds and not is_measurable(fraction) else percent(fraction)
    )


def interval(bounds: Sequence[float] | None, digits: int = 1) -> str:
    """Return `91.0 to 96.8%` for bounds given as fractions, or an empty string for None."""
    if not bounds:
        return ""
    return f"{percent(bounds[0], digits)[:-1]} to {100 * bounds[1]:.{digits}f}%"


def points(difference: float) -> str:
    """Return a difference between two fractions in percentage points, such as `+2.1`."""
    return f"{100 * difference:+.1f}".replace("-", "\N{MINUS SIGN}")


def count(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: `1 image`, `1,200 images`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def scored_images(results: Mapping[str, Any], kind: str = "image") -> str:
    """Return e.g. `40 images of 12 groups`, or without the groups if the images have none."""
    groups = f" of {count(results['groups'], 'group')}" if results.get("groups") else ""
    return count(results["images"], kind) + groups


def listing(names: Iterable[str], most: int = 6) -> str:
    """Join names as `a, b and c`, or as `a, b, c and 12 more` if there are more than `most` + 1."""
    every = list(names)
    if len(every) > most + 1:
        every = [*every[:most], f"{len(every) - most:,} more"]
    return " and ".join([", ".join(every[:-1]), every[-1]]) if len(every) > 1 else "".join(every)


def distinct_names(names: Sequence[str], marks: Iterable[object]) -> tuple[str, ...]:
    """Return the names, with a mark appended to each that is repeated."""
    uses = Counter(names)
    return tuple(
        name if uses[name] == 1 else f"{name} ({mark})"
        for name, mark in zip(names, marks, strict=False)
    )


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit, such as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def parse_duration(text: str) -> float | None:
    """Return the seconds in a duration such as `90s`, `10m` or `2h`, or None if invalid."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else None


def parse_time(text: str) -> datetime | None:
    """Return the time in a text in the format of ISO 8601 or EXIF, or None if it is another one.

    A year or a month means its beginning. The result has a time zone only if the text has one.
    Dates in the years 1 and 9999 are null values of other programs.
    """
    plain = re.sub(r"^(\d{4})[:/](\d\d)[:/](\d\d)(?!\d)", r"\1-\2-\3", text.strip())
    if found := re.fullmatch(r"(\d{4})(-\d\d)?", plain):
        plain = f"{found[1]}{found[2] or '-01'}-01"
    with contextlib.suppress(ValueError):
        time = datetime.fromisoformat(plain)
        return time if datetime.min.year < time.year < datetime.max.year else None
    return None


def duration_fix(text: str) -> str:
    """Return what to write in place of an invalid duration: a number gets a unit."""
    is_number = re.fullmatch(r"\d+(\.\d+)?", text.strip()) and float(text) > 0
    return f"{text.strip()}m for minutes, or e.g. 90s or 2h" if is_number else "e.g. 90s, 10m or 2h"


def shell_quote(word: str) -> str:
    """Quote a word of a command to be copied into a terminal, if necessary.

    On Windows, double quotes are used: all shells support them, and paths cannot contain them. A
    name that begins with a hyphen gets the prefix `./`, not to be read as an option.
    """
    if word.startswith("-") and not re.match(r"--[a-z]|-[a-z]$", word):  # not an option
        word = f"./{word}"
    if os.name != "nt":
        return shlex.quote(word)
    return f'"{word}"' if re.search(r"[^\w@:./\\+=-]", word) or not word else word


def shell_join(words: Iterable[str]) -> str:
    """Return the words of a command, quoted for a terminal where necessary."""
    return " ".join(map(shell_quote, words))


def describe_os_error(error: OSError) -> str:
    """Return the reason for an operating-system error, such as `permission denied`."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def csv_line(cells: Sequence[object]) -> str:
    """Return a CSV row without a line ending, with formulas escaped (OWASP; CWE-1236)."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow([escape_formula(str(c)) for c in cells])
    return buffer.getvalue().removesuffix("\r\n")


def escape_formula(cell: str) -> str:
    """Prefix a cell with an apostrophe if a spreadsheet would evaluate it; numbers stay."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    with contextlib.suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"


def unescape_formula(cell: str) -> str:
    """Return a cell without the apostrophe of `escape_formula`, if it has one."""
    return cell[1:] if escape_formula(cell[1:]) == cell else cell


def format_size(sides: tuple[int, int]) -> str:
    """Return a size as text: one number for a square, otherwise height and width, e.g. 224x192."""
    return str(sides[0]) if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"


def p_equation(p: float) -> str:
    """Return an equation or inequality for a p-value, e.g. `p = 0.012` or `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


# redaction of passwords and tokens from URLs in anything that is shown or written -----------------

_LOGIN = re.compile(
    r"([a-z][a-z0-9+.-]*://)(?:[^\s/?#]*|[^\s/?#@]*:(?!\d*[/?#])[^\s@]*)@", re.IGNORECASE
)
"""User name and password before the host. The password may contain a slash: if a colon is
not followed by a port number, the text after it must be a password."""
_PARAMETER = re.compile(
    r"([?&;](?:[\w.-]*(?:token|secret|passw(?:or)?d|signature|credential|api[_-]?key)|sig|pwd)=)"
    r"[^&#;\s'\"]+",
    re.IGNORECASE,
)
"""Query parameters that contain secrets, such as the signature of a signed URL."""


def redacted(text: str) -> str:
    """Return text with passwords, user names and tokens in URLs replaced by `***`."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(r"\1***", _LOGIN.sub(r"\1***@", text))
