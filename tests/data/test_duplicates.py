"""Detection of near-duplicates."""

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.support.pictures import encoded, read, scene
from vitft.data import duplicates
from vitft.data.duplicates import (
    TABLE_BITS,
    KnownImages,
    are_copies,
    connected_components,
    copies_among,
    near_pairs,
    similar_codes,
)
from vitft.data.fingerprint import (
    BRIGHTNESS,
    BRIGHTNESS_SIDE,
    FINGERPRINT_BYTES,
    fingerprint_of,
    is_blank,
)


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


def test_known_images_find_the_same_copies_as_pairs() -> None:
    scenes = [scene(seed) for seed in range(40)]
    changed = [read(encoded(trimmed(image), 60)) for image in scenes[::4]]
    blank = Image.new("RGB", (160, 120), (200, 10, 10))
    known = KnownImages(sketches(blank, *scenes))

    found = [known.copies_of(fingerprint_of(image)) for image in (*changed, blank, scene(99))]

    assert found == [*([1 + i] for i in range(0, 40, 4)), [], []]
    assert (
        KnownImages(np.empty((0, FINGERPRINT_BYTES), np.uint8)).copies_of(sketches(blank)[0]) == []
    )


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


# ---- the limits


def flat(pictures: np.ndarray) -> np.ndarray:
    """Fingerprints (n, FINGERPRINT_BYTES) of grey brightness pictures (n, 32, 32)."""
    found = np.zeros((len(pictures), FINGERPRINT_BYTES), np.uint8)
    found[:, :BRIGHTNESS] = np.rint(pictures).reshape(len(pictures), BRIGHTNESS)
    found[:, BRIGHTNESS:-4] = 128
    return found


def explained_by(first: np.ndarray, second: np.ndarray) -> float:
    """Fraction of the variance of `second` that `first`, shifted and stretched, explains."""
    height, width = first.shape
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    down, right = np.gradient(first)
    parts = [first, np.ones_like(first), down, right, down * y, right * x]
    inner = [part[1:-1, 1:-1].ravel() for part in parts]
    target = second[1:-1, 1:-1].ravel()
    fitted = np.stack(inner, axis=1) @ np.linalg.lstsq(np.stack(inner, axis=1), target)[0]
    return float(1 - np.var(target - fitted) / np.var(target))


def smoothed(picture: np.ndarray) -> np.ndarray:
    """1-2-1 weights along both axes, without the edges."""
    weights = np.array([1, 2, 1]) / 4
    once = np.apply_along_axis(np.convolve, 0, picture, weights, "valid")
    return np.apply_along_axis(np.convolve, 1, once, weights, "valid")


def test_copies_explain_at_least_95_percent_of_each_others_variance() -> None:
    random = np.random.default_rng(0)
    shape = (BRIGHTNESS_SIDE, BRIGHTNESS_SIDE)
    coarse = np.asarray(
        Image.fromarray(random.normal(size=(6, 6)).astype(np.float32)).resize(shape)
    )
    noise = random.normal(size=shape)
    strengths = np.linspace(0, 1.2, 121)[:, None, None]
    pictures = flat(128 + 30 * (coarse + strengths * noise))
    planes = pictures[:, :BRIGHTNESS].reshape(-1, *shape).astype(float)
    first = smoothed(planes[0])
    explained = np.array(
        [max(explained_by(first, smoothed(p)), explained_by(smoothed(p), first)) for p in planes]
    )

    found = are_copies(np.repeat(pictures[:1], len(pictures), axis=0), pictures)

    assert found.tolist() == (explained >= 0.95).tolist()
    assert np.sort(np.abs(explained - 0.95))[:2].max() < 0.003  # one on each side of the limit
    assert 20 < found.sum() < 100


# ---- groups


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
    assert all(i < j and np.bitwise_count(codes[i] ^ codes[j]) <= TABLE_BITS for i, j in found)
    assert sum((i, 3600 + i) in set(found) for i in range(400)) >= 396


def test_copies_are_found_in_large_sets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = [scene(seed) for seed in range(8)]
    monkeypatch.setattr(duplicates, "MAX_ALL_PAIRS", 3)

    found = near_pairs(sketches(*scenes, *(read(encoded(image, 60)) for image in scenes)))

    assert found == [(seed, seed + 8) for seed in range(8)]
