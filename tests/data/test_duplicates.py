"""Detection of near-duplicates."""

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.support.pictures import encoded, read, scene
from vitft.data import KnownImages, fingerprint_of, near_pairs, similar_codes


def sketches(*images: Image.Image) -> np.ndarray:
    return np.stack([fingerprint_of(image) for image in images])


def trimmed(image: Image.Image) -> Image.Image:
    width, height = image.size
    return image.crop((round(0.02 * width), 0, width, round(0.98 * height)))


def stretched(image: Image.Image, across: float, down: float) -> Image.Image:
    x, y = round(across * image.width), round(down * image.height)
    return image.crop((x, y, image.width - x, image.height - y)).resize(image.size)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda im: stretched(im, 0.04, 0.0), id="4% narrower"),
        pytest.param(lambda im: stretched(im, 0.0, 0.04), id="4% lower"),
        pytest.param(lambda im: stretched(im, 0.03, 0.02), id="without all edges"),
        pytest.param(lambda im: read(encoded(im, 60)), id="encoded again"),
        pytest.param(lambda im: im.resize((80, 60)), id="half the size"),
        pytest.param(lambda im: im.resize((320, 240)), id="twice the size"),
        pytest.param(trimmed, id="trimmed edges"),
        pytest.param(lambda im: read(encoded(trimmed(im).resize((90, 70)), 60)), id="all of it"),
        pytest.param(lambda im: im.point([round(0.9 * v) for v in range(256)] * 3), id="darker"),
    ],
)
def test_a_copy_is_recognised_after(change: Callable[[Image.Image], Image.Image]) -> None:
    scenes = [scene(seed) for seed in range(24)]

    found = near_pairs(sketches(*scenes, *(change(image) for image in scenes)))

    assert found == [(seed, seed + 24) for seed in range(24)]


def test_a_copy_is_recognised_in_noise_that_smoothing_removes() -> None:
    image, noise = scene(33), np.random.default_rng(0).normal(0, 83, (120, 160, 3))
    copy = Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))

    assert near_pairs(sketches(image, copy)) == [(0, 1)]


def test_known_images_find_the_same_copies_as_pairs() -> None:
    scenes = [scene(seed) for seed in range(40)]
    changed = [read(encoded(trimmed(image), 60)) for image in scenes[::4]]
    blank = Image.new("RGB", (160, 120), (200, 10, 10))
    known = KnownImages(sketches(blank, *scenes))

    found = [known.copies_of(fingerprint_of(image)) for image in (*changed, blank, scene(99))]

    assert found == [*([1 + i] for i in range(0, 40, 4)), [], []]
    assert KnownImages(sketches(blank)[:0]).copies_of(sketches(scenes[0])[0]) == []


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

    assert near_pairs(blank) == []


def test_pairs_are_found_wherever_they_lie_in_the_table() -> None:
    some = [scene(seed, (64, 48)) for seed in range(60)]
    known, copies = sketches(*some), sketches(*(read(encoded(image)) for image in some))
    filler = np.random.default_rng(0).integers(0, 256, (2100, known.shape[1]), dtype=np.uint8)
    filler[:, -4:] = 0

    found = near_pairs(np.concatenate([known, filler, copies]))

    assert found == [(i, i + 2160) for i in range(60)]  # across three tiles of 1024


def test_a_film_of_one_scene_is_one_group() -> None:
    still = fingerprint_of(scene(1))
    film = np.stack([still] * 200)

    pairs = near_pairs(film)

    assert {later for _, later in pairs} == {*range(1, 200)}  # each is a copy of an earlier one


def test_tables_find_nearly_all_pairs_that_differ_in_few_bits() -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 2**64, 4000, dtype=np.uint64)
    for i in range(400):  # the codes 3,600 to 3,999 differ from the first 400 in 1 to 8 bits
        flipped = random.choice(64, 1 + i % 8, replace=False)
        codes[3600 + i] = codes[i] ^ np.bitwise_or.reduce(np.uint64(1) << flipped.astype(np.uint64))

    found = [
        pair for rows, columns in similar_codes(codes) for pair in zip(rows, columns, strict=True)
    ]

    assert len(found) == len(set(found))
    assert all(i < j and np.bitwise_count(codes[i] ^ codes[j]) <= 12 for i, j in found)
    assert sum((i, 3600 + i) in set(found) for i in range(400)) >= 396
