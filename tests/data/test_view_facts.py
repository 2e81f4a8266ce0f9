"""How much of the images a view shows."""

import pytest

from vitft.data.transforms import EvalTransform, Fit
from vitft.data.view_facts import describe_view, measure_view


def test_mean_and_least_are_over_all_images() -> None:
    facts = measure_view(EvalTransform(crop=1.0), [(400, 300), (300, 300), (100, 400)])

    assert facts is not None
    assert facts["shown"] == pytest.approx((0.75 + 1 + 0.25) / 3, abs=0.005)
    assert facts["least_shown"] == pytest.approx(0.25, abs=0.005)
    assert facts["image_size"] == (224, 224)


def test_without_images_there_is_nothing_to_say() -> None:
    assert measure_view(EvalTransform(), []) is None


@pytest.mark.parametrize(("fit", "is_part"), [("crop", True), ("pad", False), ("squash", False)])
def test_the_way_to_see_all_is_named_only_where_much_is_cut(fit: Fit, is_part: bool) -> None:
    crop = 0.9 if is_part else 1.0
    facts = measure_view(EvalTransform(fit=fit, crop=crop), [(640, 480)])
    assert facts is not None

    text = describe_view(facts)

    assert ("use vitft finetune --fit pad or --fit squash" in text) is is_part
    assert f"{fit} {crop:g}) shows {'61%' if is_part else '100%'} of" in text


@pytest.mark.parametrize(
    ("shown", "least", "text"),
    [
        (0.75, 0.5, "75% of an image's area on average (at least 50%); to train on all of it,"),
        (0.751, 0.751, "75% of an image's area on average"),
        (0.761, 0.759, "76% of an image's area on average"),
    ],
)
def test_more_is_advised_up_to_three_quarters(shown: float, least: float, text: str) -> None:
    facts = describe_view({"image_size": (192, 256), "fit": "crop", "crop": 0.875,
                           "shown": shown, "least_shown": least})  # fmt: skip

    expected = f"the model's view (192 x 256 pixels, crop 0.875) shows {text}"
    assert facts.startswith(expected) if "train" in text else facts == expected
