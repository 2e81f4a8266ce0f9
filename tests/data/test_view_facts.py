"""How much of the images a view shows."""

import pytest

from vitft.data.transforms import EvalTransform
from vitft.data.view_facts import measure_view


def test_mean_and_least_are_over_all_images() -> None:
    facts = measure_view(EvalTransform(crop=1.0), [(400, 300), (300, 300), (100, 400)])

    assert facts is not None
    assert facts["shown"] == pytest.approx((0.75 + 1 + 0.25) / 3, abs=0.005)
    assert facts["least_shown"] == pytest.approx(0.25, abs=0.005)
    assert facts["image_size"] == (224, 224)
