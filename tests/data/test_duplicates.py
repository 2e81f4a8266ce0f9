"""Detection of near-duplicates and of faulty photos."""

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps

from tests.support.pictures import encoded, read, scene
from vitft.data.duplicates import connected_components, copies_among, group_names, near_pairs
from vitft.data.fingerprint import FINGERPRINT_BYTES, fingerprint_of, is_blank, quality_remarks


def sketches(*images: Image.Image) -> np.ndarray:
    return np.stack([fingerprint_of(image) for image in images])


def trimmed(image: Image.Image) -> Image.Image:
    width, height = image.size
    return image.crop((round(0.02 * width), 0, width, round(0.98 * height)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda im: read(encoded(im, 60)), id="encoded again"),
        pytest.param(lambda im: im.resize((80, 60)), id="half the size"),
        pytest.param(lambda im: im.resize((320, 240)), id="twice the size"),
        pytest.param(trimmed, id="trimmed edges"),
        pytest.param(lambda im: read(encoded(trimmed(im).resize((90, 70)), 60)), id="all of it"),
        pytest.param(lambda im: im.point([round(0.9 * v) for v in range(256)] * 3), id="darker"),
    ],
)
def test_a_copy_is_recognised_after(change: Callable[[Image.Image], Image.Image]) -> None:
    scenes = [scene(seed) for seed in range(8)]

    found = near_pairs(sketches(*scenes, *(change(image) for image in scenes)))

    assert found == [(seed, seed + 8) for seed in range(8)]


def test_different_images_are_not_duplicates() -> None:
    assert near_pairs(sketches(*(scene(seed) for seed in range(150)))) == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(ImageOps.mirror, id="mirrored"),
        pytest.param(ImageOps.flip, id="upside down"),
        pytest.param(ImageOps.invert, id="inverted"),
        pytest.param(lambda im: Image.merge("RGB", im.split()[::-1]), id="other colours"),
    ],
)
def test_another_image_with_the_same_shapes_is_not_a_duplicate(
    change: Callable[[Image.Image], Image.Image],
) -> None:
    image = scene(3)

    assert near_pairs(sketches(image, change(image))) == []


def test_blank_images_are_not_duplicates_of_each_other() -> None:
    blank = sketches(*(Image.new("RGB", (40, 40), (level,) * 3) for level in (0, 128, 255)))

    assert is_blank(blank).all()
    assert near_pairs(blank) == []
    assert copies_among(blank, [(0, 1)]) == []


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_images_have_no_pairs(count: int) -> None:
    assert near_pairs(np.zeros((count, FINGERPRINT_BYTES), np.uint8)) == []
    assert copies_among(np.zeros((count, FINGERPRINT_BYTES), np.uint8), []) == []


def test_pairs_are_found_wherever_they_lie_in_the_table() -> None:
    some = [scene(seed, (64, 48)) for seed in range(60)]
    filler = np.random.default_rng(0).integers(0, 256, (2100, FINGERPRINT_BYTES), dtype=np.uint8)
    filler[:, -4:] = 0
    copies = sketches(*(read(encoded(image)) for image in some))

    found = near_pairs(np.concatenate([sketches(*some), filler, copies]))

    assert found == [(i, i + 2160) for i in range(60)]  # across three tiles of 1024


def test_a_film_of_one_scene_is_one_group() -> None:
    still = fingerprint_of(scene(1))
    film = np.stack([still] * 200)

    groups = connected_components(200, near_pairs(film))

    assert set(groups) == {0}


def test_groups_are_named_by_their_first_member_and_single_images_have_none() -> None:
    names = group_names(["a", "b", "c", "d", "e"], [(1, 3), (3, 4)])

    assert names == {"b": "b", "d": "b", "e": "b"}


def test_faulty_photos_get_remarks() -> None:
    sharp, tall = scene(2), scene(4, (31, 64))
    soft = sharp.resize((512, 384)).filter(ImageFilter.GaussianBlur(12))

    found = [
        quality_remarks(fingerprint_of(image), *image.size)
        for image in (sharp, soft, Image.new("RGB", (99, 99), "teal"), tall)
    ]

    assert found == [[], ["blurry"], ["blank: one uniform colour"], ["tiny: 31x64 pixels"]]


def test_the_smallest_image_has_a_fingerprint() -> None:
    assert fingerprint_of(Image.new("RGB", (1, 1))).shape == (FINGERPRINT_BYTES,)
    assert fingerprint_of(scene(1).resize((3000, 2))).shape == (FINGERPRINT_BYTES,)
