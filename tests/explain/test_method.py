"""Attribution methods: their options, the titles of their maps and the errors of wrong choices."""

from typing import Any

import pytest
from PIL import Image

from vitft.explain.heatmaps import enlarged
from vitft.explain.method import MIN_SIDE_PX, Method, check_picture_side, chosen_method
from vitft.system.errors import UsageError


@pytest.mark.parametrize(
    ("method", "title"),
    [
        pytest.param(Method(), "relevance", id="relevance"),
        pytest.param(Method(name="rollout"), "rollout, mean of heads", id="rollout"),
        pytest.param(
            Method(name="rollout", fusion="max", discard=0.9),
            "rollout, max of heads, 90% discarded",
            id="discard",
        ),
        pytest.param(Method(name="attention"), "attention, block 11, mean of heads", id="last"),
        pytest.param(
            Method(name="attention", block=0, head=0), "attention, block 0, head 0", id="first"
        ),
        pytest.param(
            Method(name="attention", block=3, fusion="min"),
            "attention, block 3, min of heads",
            id="fusion",
        ),
    ],
)
def test_a_map_of_twelve_blocks_is_titled_by_what_it_shows(method: Method, title: str) -> None:
    assert method.title(12) == title


@pytest.mark.parametrize("discard", [0.0, 0.999])
def test_any_fraction_below_one_can_be_discarded(discard: float) -> None:
    assert Method(name="rollout", discard=discard).discard == discard


@pytest.mark.parametrize("discard", [-0.001, 1.0, float("nan")])
def test_fractions_outside_0_1_cannot_be_discarded(discard: float) -> None:
    with pytest.raises(UsageError, match=f"invalid discard {discard}"):
        Method(name="rollout", discard=discard)


def test_without_a_name_the_method_is_relevance_with_the_defaults() -> None:
    options = {"fusion": None, "discard": None, "block": None, "head": None}

    assert chosen_method(None, options) == Method(name="relevance")
    assert chosen_method("rollout", options) == Method(name="rollout", fusion="mean", discard=0.0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rollout", {"fusion": "max", "discard": 0.5}),
        ("attention", {"block": 0, "head": 0}),
        ("attention", {"block": 2, "fusion": "min"}),
    ],
)
def test_options_that_have_an_effect_are_taken(name: str, options: dict[str, Any]) -> None:
    assert chosen_method(name, options) == Method(name=name, **options)


@pytest.mark.parametrize(
    ("name", "options", "about", "message"),
    [
        ("rollout", {"block": 0}, None, "--block has no effect with --method rollout.*\n.*remove"),
        ("rollout", {"head": 0}, None, "--head has no effect with --method rollout"),
        ("attention", {"discard": 0.0}, None, "--discard has no effect .*\n.*--method rollout$"),
        (None, {"fusion": "max"}, None, "no effect .*\n.*--method rollout or --method attention$"),
        ("rollout", {}, "rose", "--class has no effect .*\n.*--method relevance$"),
        ("rollout", {}, "", "--class has no effect"),
        ("attention", {"fusion": "max", "head": 0}, None, "--fusion combines all heads"),
        ("rollout", {"depth": 3}, None, "unknown option 'depth'\n.*fusion, discard, block, head$"),
        ("rollout", {"hed": 3, "fusoin": 1}, None, "unknown option 'hed'\n.*use head$"),
    ],
)
def test_options_without_an_effect_are_refused(
    name: str | None, options: dict[str, Any], about: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        chosen_method(name, options, about=about)


def test_relevance_takes_a_class() -> None:
    assert chosen_method("relevance", {}, about="rose") == Method()


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("Grad-CAM", "use one of relevance, rollout, attention (relevance is the closest to Grad-"),
        ("attn", "use one of relevance, rollout, attention (attention is the closest to attn)"),
        ("abnar", "use one of relevance, rollout, attention (rollout is the closest to abnar)"),
        ("ROLOUT", "did you mean rollout? Use one of relevance, rollout, attention"),
        ("relevant", "did you mean relevance? Use one of"),
        (
            "attend",
            "use one of relevance, rollout, attention",
        ),  # 10 of 15 letters are alike, below 70%
        ("heat", "use one of relevance, rollout, attention"),
    ],
)
def test_an_unknown_method_is_answered_with_the_one_that_was_meant(name: str, fix: str) -> None:
    with pytest.raises(UsageError, match=f"unknown method '{name}'") as caught:
        Method(name=name)

    assert caught.value.fix.startswith(fix)
    assert ("closest" in caught.value.fix) == ("closest" in fix)


def test_an_unknown_fusion_is_not_answered_with_a_method() -> None:
    with pytest.raises(UsageError, match="unknown fusion 'attn'") as caught:
        Method(name="rollout", fusion="attn")

    assert caught.value.fix == "use one of mean, max, min"


@pytest.mark.parametrize("side", [None, 1, 224, 4096])
def test_pictures_have_sides_of_1_to_4096_pixels(side: int | None) -> None:
    check_picture_side(side)


def test_a_picture_has_by_default_a_shorter_side_of_at_least_224_pixels() -> None:
    assert MIN_SIDE_PX == min(enlarged(Image.new("RGB", (1, 3))).size) == 224


@pytest.mark.parametrize("side", [-5, 0, 4097])
def test_other_sides_of_pictures_are_refused(side: int) -> None:
    with pytest.raises(UsageError, match=f"invalid --size {side}\n.*from 1 to 4096"):
        check_picture_side(side)
