"""Terms of the licences of weights."""

import pytest

from vitft.models import Provenance, descended


@pytest.mark.parametrize("licence", ["cc-by-nc-4.0", "dinov3-license"])
def test_a_licence_travels_through_two_fine_tunings(licence: str) -> None:
    base: Provenance = {"name": "timm:base", "licence": licence}

    once = descended({"name": "run", "source": "run"}, base)
    twice = descended({"name": "run-2", "source": "run-2"}, once)

    assert (twice["licence"], twice["from"]) == (licence, "timm:base")
