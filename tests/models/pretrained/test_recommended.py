"""The estimated time of a pass with recommended weights, by which the default is chosen."""

import pytest

from vitft.models import Recommendation


@pytest.mark.parametrize(
    ("images", "gmacs", "speed", "seconds"),
    [
        (6_000, 3.0, 100.0, 300),
        (6_000, 1.0, 100.0, 100),
        (1, 0.6, 1.0, 1),
        (1, 0.6, 3000.0, 1 / 3e3),
    ],
)
def test_a_model_runs_at_60_percent_of_the_speed_of_a_product(
    images: int, gmacs: float, speed: float, seconds: float
) -> None:
    weights = Recommendation(name="any", tier="fast", megabytes=1, gmacs=gmacs)

    assert weights.seconds(images, speed) == pytest.approx(seconds)
