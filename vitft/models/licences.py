"""Licence terms of pretrained weights, derived from the licence names on the hub."""

from typing import Literal

_Terms = Literal["open", "non-commercial", "own terms", "not stated"]

_OPEN_LICENCES = frozenset(
    {
        "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "unlicense",
        "mpl-2.0", "isc",
    }
)  # fmt: skip
"""Licences that allow any use and modification, and require attribution at most. They impose no
additional terms on models that are fine-tuned from the weights.
"""
_NON_COMMERCIAL = ("-nc", "noncommercial", "non-commercial", "apple-amlr", "seer-license")
"""Substrings of licence names that indicate a ban on commercial use. AMLR (Apple) and SEER are
research licences, although their names do not show it.
"""


def licence_terms(licence: str) -> _Terms:
    """Return the kind of a licence's terms, e.g. `own terms` for `dinov3-license`."""
    name = licence.lower()
    if name in ("", "unknown", "not stated") or name.startswith("see "):
        return "not stated"
    if any(part in name for part in _NON_COMMERCIAL):
        return "non-commercial"
    return "open" if name in _OPEN_LICENCES else "own terms"


def marked_licence(licence: str) -> str:
    """Return the name of a licence, with its terms in parentheses unless it is open or unknown."""
    terms = licence_terms(licence)
    return f"{licence} ({terms})" if terms in ("non-commercial", "own terms") else licence


def obligation(licence: str) -> str:
    """Return a sentence on what a licence requires of fine-tuned models, or an empty string."""
    if licence_terms(licence) == "non-commercial":
        return (
            "The terms of the pretrained weights also apply to this model and forbid commercial "
            "use."
        )
    if licence_terms(licence) == "own terms":
        return (
            "The terms of the pretrained weights also apply to this model: include the text of "
            "their licence when you distribute the model."
        )
    return ""
