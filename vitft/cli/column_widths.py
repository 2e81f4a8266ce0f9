"""Widths of the columns of a table that is wider than the terminal."""

from collections.abc import Collection, Mapping, Sequence

_GAP = 2
"""Number of spaces between columns."""
_MIN_TEXT = 16
"""Width to which a text column is shortened before another column is left out."""


def column_widths(
    natural: Sequence[int], width: int, *, shorten: Sequence[int], drop: Sequence[int]
) -> dict[int, int]:
    """Return the widths of the columns that are shown, by index, in order.

    The result may still be wider than the terminal, if nothing is left to shorten or leave out.

    Args:
        natural: Width of the widest cell of each column, in characters.
        width: Width of the terminal, in characters.
        shorten: Columns whose text may be cut, the least important first.
        drop: Columns that may be left out if that is not enough, the least important first.
    """
    shown = dict(enumerate(natural))
    for dropped in range(len(drop) + 1):
        shown = {i: size for i, size in enumerate(natural) if i not in drop[:dropped]}
        for i in shorten:
            excess = table_width(shown) - width
            if i in shown and excess > 0:
                shown[i] = max(min(shown[i], _MIN_TEXT), shown[i] - excess)
        if table_width(shown) <= width:
            break
    return shown


def wrapped_widths(
    headings: Mapping[int, str], content: Sequence[int], width: int, *, whole: Collection[int]
) -> dict[int, int]:
    """Return the widths of the columns of a table whose headings and text may be wrapped, by index.

    Headings are broken only between words. The result is empty if the table does not need to be
    wrapped, or if it is wider than the terminal even then.

    Args:
        headings: Headings of the columns that are shown, by index.
        content: Width of the widest cell of each column, in characters, without the heading.
        width: Width of the terminal, in characters.
        whole: Columns whose cells are not wrapped if the others can give way.
    """
    natural = {i: max(len(name), content[i]) for i, name in headings.items()}
    if table_width(natural) <= width:
        return {}
    words = {i: max(map(len, name.split()), default=0) for i, name in headings.items()}
    text = {i: max(words[i], min(natural[i], _MIN_TEXT)) for i in natural}
    cells = {i: max(words[i], content[i]) if i in whole else text[i] for i in natural}
    found = next((least for least in (cells, text, words) if table_width(least) <= width), {})
    for i in sorted(found, key=lambda i: i not in whole):
        found[i] = min(natural[i], found[i] + width - table_width(found))
    return found


def table_width(widths: dict[int, int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(widths.values()) + _GAP * (len(widths) - 1)
