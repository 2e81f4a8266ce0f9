"""Numbers and lists in messages."""

from collections.abc import Iterable


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 image`, `1,200 images` or `2 entries`."""
    many = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else many}"


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return the first `most` names, and how many more there are."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
