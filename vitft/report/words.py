"""Shares, intervals and counts as text, the same everywhere on a page."""

from collections.abc import Iterable, Sequence

Interval = Sequence[float] | None
GLUE = "\N{NO-BREAK SPACE}"
PER_CENT = f"{GLUE}%"


def percent(share: float | None, digits: int = 1) -> str:
    """`94.6 %`, or a dash where nothing is known."""
    return "–" if share is None else f"{100 * share:.{digits}f}{PER_CENT}"


def sure(share: float | None) -> str:
    """A probability in whole percent; `< 1 %` and `> 99 %` where rounding would say certain."""
    if share is None or round(share, 2) not in (0.0, 1.0):
        return percent(share, 0)
    return f"<{GLUE}1{PER_CENT}" if share < 0.5 else f">{GLUE}99{PER_CENT}"


def interval(bounds: Interval, digits: int = 1) -> str:
    """`91.0 to 96.8 %`, or nothing."""
    if not bounds:
        return ""
    return f"{100 * bounds[0]:.{digits}f} to {100 * bounds[1]:.{digits}f}{PER_CENT}"


def points(difference: float) -> str:
    """A difference of shares with its sign: `+2.1 points`."""
    return f"{100 * difference:+.1f} points".replace("-", "\N{MINUS SIGN}")


def count(number: int, thing: str, things: str = "") -> str:
    """`1 image`, `1,200 images`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def listing(names: Iterable[str], most: int = 6) -> str:
    """`a, b and c`, or `a, b, c and 12 more`."""
    every = list(names)
    if len(every) > most + 1:
        every = [*every[:most], f"{len(every) - most:,} more"]
    return " and ".join([", ".join(every[:-1]), every[-1]]) if len(every) > 1 else "".join(every)
