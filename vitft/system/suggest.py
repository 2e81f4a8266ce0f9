"""Known names that were probably meant by an unknown one."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(
    name: str, known: Iterable[str], *, cutoff: float = 0.7, inside: bool = False, most: int = 1
) -> list[str]:
    """Return the known names that were probably meant, the most similar ones first.

    Case does not matter, and neither does the kind of separator.

    Args:
        name: The unknown name.
        known: The names to choose from.
        cutoff: Minimum ratio of difflib. With 0, the most similar names are returned in any case.
        inside: Whether to prefer names that contain `name`: those that begin with it, then the
            shortest ones. Other names follow only without a cutoff.
        most: Maximum number of names to return.
    """
    wanted, by_form = form(name), {form(other): other for other in reversed([*known])}
    forms = [*reversed(by_form)]
    longer = [other for other in forms if inside and len(wanted) > 2 and wanted in other]
    longer.sort(key=lambda other: (not other.startswith(wanted), len(other)))
    near = [] if longer and cutoff else get_close_matches(wanted, forms, n=most, cutoff=cutoff)
    return [by_form[one] for one in dict.fromkeys([*longer, *near])][:most]


def form(name: str) -> str:
    """Return a name without differences in case and in the kind of separator."""
    return name.casefold().replace("_", "-").replace(" ", "-")
