"""Terms of the licences of weights."""

import pytest

from vitft.models.card import Provenance
from vitft.models.licences import Terms, licence_terms, marked_licence, obligation
from vitft.models.pretrained.weights import descended

LICENCES: list[tuple[str, Terms]] = [
    ("apache-2.0", "open"),
    ("MIT", "open"),
    *((name, "open") for name in (
        "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "unlicense", "mpl-2.0", "ISC",
    )),
    ("cc-by-nc-4.0", "non-commercial"),
    ("CC-BY-NC-SA-4.0", "non-commercial"),
    ("seer-license", "non-commercial"),
    ("research-non-commercial", "non-commercial"),
    ("cc-by-sa-4.0", "own terms"),
    ("not stated", "not stated"),
    ("Unknown", "not stated"),
    ("fair-noncommercial-research-license", "non-commercial"),
    ("apple-amlr", "non-commercial"),
    ("dinov3-license", "own terms"),
    ("nvidia-open-model-license", "own terms"),
    ("apple-ascl", "own terms"),
    ("unknown", "not stated"),
    ("see https://huggingface.co/a/b", "not stated"),
    ("", "not stated"),
]  # fmt: skip


@pytest.mark.parametrize(("licence", "terms"), LICENCES)
def test_the_terms_of_the_licences_in_timms_registry(licence: str, terms: Terms) -> None:
    assert licence_terms(licence) == terms


def test_licences_with_terms_are_marked_and_bind_fine_tuned_models() -> None:
    assert marked_licence("dinov3-license") == "dinov3-license (own terms)"
    assert marked_licence("cc-by-nc-4.0") == "cc-by-nc-4.0 (non-commercial)"
    assert marked_licence("mit") == "mit"
    assert marked_licence("unknown") == "unknown"
    assert "include the text of their licence" in obligation("dinov3-license")
    assert "forbid commercial use" in obligation("cc-by-nc-4.0")
    assert obligation("apache-2.0") == ""
    assert obligation("unknown") == ""


@pytest.mark.parametrize("licence", ["cc-by-nc-4.0", "dinov3-license"])
def test_a_licence_travels_through_two_fine_tunings(licence: str) -> None:
    base: Provenance = {"name": "timm:base", "licence": licence}

    once = descended({"name": "run", "source": "run"}, base)
    twice = descended({"name": "run-2", "source": "run-2"}, once)

    assert (twice["licence"], twice["from"]) == (licence, "timm:base")
