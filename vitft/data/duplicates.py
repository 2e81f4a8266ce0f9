"""Detection of near-duplicates: recompressed, resized, brightened or slightly cropped copies.

Pairs of images are filtered in three steps, from coarse to fine: by the distance of their 64-bit
perceptual hashes, by the correlation of their brightness planes, and by the residual after fitting
one plane to the other with a small shift, stretch and brightness change. The colours must also be
similar. Recoloured copies are not detected, and mirrored and rotated ones only among new images
that are compared with known ones (`turned`).

Notation: n images, m pairs; the shape of `fingerprints` is (n, FINGERPRINT_BYTES).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

# perceptual fingerprint of an image, for finding near-duplicates and faulty photos ----------------

_BRIGHTNESS_SIDE, _COLOUR_SIDE = 32, 8
"""Sides, in cells, of the brightness plane and of the two colour planes (Cb and Cr)."""
_SHRUNK_SIDE = 256  # longer side in pixels to which larger images are shrunk
_TILES = 4  # per side; only the sharpest counts, because a blurred background is not a fault
_TINY_PX = 32  # shorter side below which an image counts as tiny (two patches of most ViTs)
_BLANK = 2.0  # standard deviation of every plane below which an image is blank, in levels of 255
BLANK_REMARK = "blank: one uniform colour"
"""Remark on a blank image, in `vitft check` and in the notes on predictions."""
_BLURRY = 0.12
"""Sharpness below which an image counts as blurry. Of 667 real photos, none but the blank ones were
below 0.197. After a Gaussian blur of 4 pixels (out of 256), 99% were below the threshold."""

_BRIGHTNESS, _COLOUR = _BRIGHTNESS_SIDE * _BRIGHTNESS_SIDE, 2 * _COLOUR_SIDE * _COLOUR_SIDE
FINGERPRINT_BYTES = _BRIGHTNESS + _COLOUR + 4

_ByteRows = np.ndarray[Any, np.dtype[np.uint8]]
_Planes = np.ndarray[Any, np.dtype[np.float32]]


def fingerprint_of(image: Image.Image) -> _ByteRows:
    """Return the brightness, Cb, Cr and sharpness of an upright RGB image: (FINGERPRINT_BYTES,)."""
    scale = min(1.0, _SHRUNK_SIDE / max(image.size))
    size = tuple(max(1, round(side * scale)) for side in image.size)
    small = image.resize((size[0], size[1]), Image.Resampling.BOX) if scale < 1 else image
    bright, *colours = small.convert("YCbCr").split()
    cells = _plane_cells(bright, *colours)
    sharp = np.array([_sharpness(np.asarray(bright, np.float32))], "<f4").view(np.uint8)
    return np.concatenate([*cells, sharp])


def _plane_cells(bright: Image.Image, *colours: Image.Image) -> list[_ByteRows]:
    """Return the cell means of the planes Y, Cb and Cr: (_BRIGHTNESS,), (_COLOUR / 2,) twice."""
    planes = ((bright, _BRIGHTNESS_SIDE), *((colour, _COLOUR_SIDE) for colour in colours))
    return [
        np.asarray(plane.resize((side, side), Image.Resampling.BOX)).ravel()
        for plane, side in planes
    ]


def turned(fingerprint: _ByteRows) -> list[_ByteRows]:
    """Return the fingerprints of an image, rotated four times, then of its mirror image."""
    planes = [
        fingerprint[:_BRIGHTNESS].reshape(1, _BRIGHTNESS_SIDE, _BRIGHTNESS_SIDE),
        fingerprint[_BRIGHTNESS:-4].reshape(2, _COLOUR_SIDE, _COLOUR_SIDE),
    ]
    return [
        np.concatenate(
            [*(np.rot90(p[..., ::step], k, (1, 2)).ravel() for p in planes), fingerprint[-4:]]
        )
        for step in (1, -1)
        for k in range(4)
    ]


def _sharpness(grey: _Planes) -> float:
    """Return the standard deviation of the Laplacian in the sharpest tile of a grey image (H, W).

    It is divided by that of all grey levels. Source: Pech-Pacheco et al. 2000, "Diatom autofocusing
    in brightfield microscopy".
    """
    if min(grey.shape) < _TILES + 2:
        return 1.0  # too small to measure, and reported as tiny anyway
    middle = grey[1:-1, 1:-1]
    edges = 4 * middle - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
    tiles = (tile for rows in np.array_split(edges, _TILES) for tile in np.array_split(rows, 4, 1))
    return max(float(tile.std()) for tile in tiles) / max(1.0, float(grey.std()))


def _brightness(fingerprints: _ByteRows) -> _Planes:
    """Return the brightness planes (n, 32, 32) of fingerprints (n, FINGERPRINT_BYTES)."""
    cells = fingerprints[:, :_BRIGHTNESS].astype(np.float32)
    return cells.reshape(-1, _BRIGHTNESS_SIDE, _BRIGHTNESS_SIDE)


def _colour(fingerprints: _ByteRows) -> _Planes:
    """Return the colour planes of fingerprints (n, FINGERPRINT_BYTES) as rows (n, _COLOUR)."""
    return fingerprints[:, _BRIGHTNESS : _BRIGHTNESS + _COLOUR].astype(np.float32)


def is_blank(fingerprints: _ByteRows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return, for each fingerprint (n, FINGERPRINT_BYTES), whether its image is blank: (n,)."""
    bright = _brightness(fingerprints).reshape(len(fingerprints), _BRIGHTNESS)
    planes = (bright, *np.split(_colour(fingerprints), 2, axis=1))
    return np.max([plane.std(axis=1) for plane in planes], axis=0) < _BLANK


def is_blank_view(view: _ByteRows) -> bool:
    """Return whether a preprocessed RGB image (H, W, 3) is blank, as in `is_blank`."""
    sample = view[::8, ::8].mean(axis=2)  # a cell averages out noise of up to this many levels
    if sample.std() > 2 * _BLANK * max(1.0, max(view.shape) / _BRIGHTNESS_SIDE):
        return False
    cells = _plane_cells(*Image.fromarray(view).convert("YCbCr").split())
    return max(float(plane.std()) for plane in cells) < _BLANK


def quality_remarks(fingerprint: _ByteRows, width: int, height: int) -> list[str]:
    """Return remarks on the quality of a training image, such as `tiny: 20x31 pixels`."""
    remarks = []
    if min(width, height) < _TINY_PX:
        remarks.append(f"tiny: {width}x{height} pixels")
    if is_blank(fingerprint[None])[0]:
        remarks.append(BLANK_REMARK)
    elif float(fingerprint[-4:].view("<f4")[0]) < _BLURRY:
        remarks.append("blurry")
    return remarks


# detection of near-duplicates: recompressed, resized, brightened or slightly cropped copies -------

_HASH_SIDE = 8  # number of frequencies per axis, starting at the lowest: 8 x 8 = 64 bits
_HASH_BITS, _CORRELATION, _UNEXPLAINED, _COLOUR_LEVELS = 16, 0.7, 0.05, 6.0
"""Limits for copies: number of bits in which the hashes differ, correlation of the brightness
planes, fraction of unexplained variance, and mean difference of the colour planes in levels.

Of 1,600 copies of real photos (JPEG quality 60 to 95, scaled by 0.5 to 0.9, up to 3% cropped from
each edge), all differed in at most 16 bits (99% in at most 10), correlated by at least 0.81 and
differed by at most 4.4 levels, and 99.5% left at most 0.024 unexplained. Of 100,000 pairs of
different photos, 40 differed in at most 16 bits. Photos that only look similar left at least 0.07.
"""
_HASH_TILE = 1024  # number of hashes in a tile. The hashes of two tiles are compared at a time.
MAX_SEARCHED = 100_000  # images of a run among which near-duplicates are searched, in 1 GB
MAX_ALL_PAIRS = 50_000
"""Maximum number of images for which all pairs of hashes are compared. For more images, only pairs
that a table finds are compared (see `similar_codes`), so the time grows linearly."""
TABLES, _TABLE_BITS, _WINDOW = 48, 12, 32
"""Number of tables; maximum number of bits in which the pairs found may differ; number of following
entries with which each entry is compared. A pair that differs in 6 bits is found with a probability
of 99.9%, in 8 bits with 97% or more and in 10 bits with 81% or more, unless many are similar."""
_MAX_COMPARISONS = 32  # fine ones per image; a video frame may resemble a thousand others
_PAIR_BATCH = 1024

_Vectors = np.ndarray[Any, np.dtype[Any]]
_IndexPair = tuple[int, int]


def near_pairs(fingerprints: _Vectors) -> list[_IndexPair]:
    """Return the index pairs (i < j) of near-duplicate images, ignoring blank images.

    Among more than `MAX_ALL_PAIRS` images, a few percent of the pairs are missed (see `TABLES`).
    """
    usable = np.flatnonzero(~is_blank(fingerprints))
    known = fingerprints[usable]
    codes, small, tint = _hashes(known), _standard(known), _colour(known)
    compared = np.zeros(len(usable), np.int64)
    found: list[_IndexPair] = []
    search = candidates if len(codes) <= MAX_ALL_PAIRS else similar_codes
    for rows, columns in search(codes):
        similar = np.einsum("mi,mi->m", small[rows], small[columns]) >= _CORRELATION
        similar[similar] = _have_like_colours(tint[rows[similar]], tint[columns[similar]])
        similar &= np.minimum(compared[rows], compared[columns]) < _MAX_COMPARISONS
        rows, columns = rows[similar], columns[similar]
        np.add.at(compared, rows, 1)
        np.add.at(compared, columns, 1)
        same = _are_copies(known[rows], known[columns])
        found += zip(usable[rows[same]].tolist(), usable[columns[same]].tolist(), strict=True)
    return sorted(found)


class KnownImages:
    """Fingerprints (n, FINGERPRINT_BYTES) of known images, for comparison with new images."""

    def __init__(self, fingerprints: _Vectors) -> None:
        self.rows = np.flatnonzero(~is_blank(fingerprints)) if len(fingerprints) else np.arange(0)
        self.fingerprints = fingerprints[self.rows]
        self.codes, self.small = _hashes(self.fingerprints), _standard(self.fingerprints)
        self.tint = _colour(self.fingerprints)

    def copies_of(self, fingerprint: _Vectors) -> list[int]:
        """Return the indices of the near-duplicates of a new image, given its fingerprint."""
        one = fingerprint[None]
        if not len(self.rows) or is_blank(one)[0]:
            return []
        near = np.flatnonzero(np.bitwise_count(self.codes ^ _hashes(one)[0]) <= _HASH_BITS)
        alike = self.small[near] @ _standard(one)[0]
        alike[~_have_like_colours(self.tint[near], _colour(one))] = 0
        near = near[np.argsort(-alike, kind="stable")[:_MAX_COMPARISONS]]
        near = near[self.small[near] @ _standard(one)[0] >= _CORRELATION]
        same = _are_copies(self.fingerprints[near], np.repeat(one, len(near), axis=0))
        found: list[int] = self.rows[near[same]].tolist()
        return found


def _hashes(fingerprints: _Vectors) -> _Vectors:
    """Return the perceptual hash of each fingerprint: (n,), uint64.

    Each bit indicates whether the cosine coefficient of one low frequency is above the median.
    Source: Zauner 2010, "Implementation and benchmarking of perceptual image hash functions".
    """
    cell = np.arange(_BRIGHTNESS_SIDE) + 0.5
    waves = np.cos(np.pi / _BRIGHTNESS_SIDE * np.arange(_HASH_SIDE)[:, None] * cell)  # (8, SIDE)
    found = np.empty(len(fingerprints), np.uint64)
    for begin in range(0, len(fingerprints), _PAIR_BATCH):
        part = _brightness(fingerprints[begin : begin + _PAIR_BATCH])
        waved = (waves @ part @ waves.T).reshape(len(part), -1)  # (b, 64)
        middle = np.median(waved[:, 1:], axis=1, keepdims=True)  # excludes the mean brightness
        bits = np.packbits(waved > middle, axis=1)
        found[begin : begin + _PAIR_BATCH] = bits.view(np.uint64)[:, 0]
    return found


def candidates(codes: _Vectors) -> Iterator[tuple[_Vectors, _Vectors]]:
    """Yield index arrays i < j (m,) of the hashes (n,) that differ in at most `_HASH_BITS` bits."""
    for top in range(0, len(codes), _HASH_TILE):
        for left in range(top, len(codes), _HASH_TILE):
            different = codes[top : top + _HASH_TILE, None] ^ codes[None, left : left + _HASH_TILE]
            rows, columns = np.nonzero(np.bitwise_count(different) <= _HASH_BITS)
            rows, columns = rows + top, columns + left
            below = rows < columns
            rows, columns = rows[below], columns[below]
            for begin in range(0, len(rows), _PAIR_BATCH):
                yield rows[begin : begin + _PAIR_BATCH], columns[begin : begin + _PAIR_BATCH]


def similar_codes(codes: _Vectors) -> Iterator[tuple[_Vectors, _Vectors]]:
    """Yield most index pairs (i < j) of hashes (n,) that differ in at most `_TABLE_BITS` bits.

    In each table, the bits are put in a different random order, and the hashes are sorted. Each is
    compared with the following ones as long as the first bits, about log2(n), are equal.

    Source: Charikar 2002, "Similarity estimation techniques from rounding algorithms", section 3
    (search by sorted permutations).
    """
    count, random = len(codes), np.random.default_rng(0)
    shift = np.uint64(64 - max(16, count.bit_length() - 3))
    bits = np.unpackbits(codes[:, None].view(np.uint8), axis=1)  # (n, 64)
    found = np.empty(0, np.int64)  # i * n + j
    for _ in range(TABLES):
        pairs = [found]
        order = random.permutation(64)
        packed = np.ascontiguousarray(np.packbits(bits[:, order], axis=1))
        keys = packed.view(">u8")[:, 0].astype(np.uint64)
        places = np.argsort(keys, kind="stable")
        keys = keys[places]
        for step in range(1, min(_WINDOW, count - 1) + 1):
            different = keys[step:] ^ keys[:-step]
            near = np.flatnonzero(
                (different >> shift == 0) & (np.bitwise_count(different) <= _TABLE_BITS)
            )
            one, other = places[near], places[near + step]
            pairs.append(np.minimum(one, other) * count + np.maximum(one, other))
        found = np.unique(np.concatenate(pairs))
    for begin in range(0, len(found), _PAIR_BATCH):
        rows, columns = np.divmod(found[begin : begin + _PAIR_BATCH], count)
        yield rows, columns


def _standard(fingerprints: _Vectors) -> _Vectors:
    """Return the brightness planes at half size as rows with mean 0 and norm 1: (n, cells)."""
    half = _BRIGHTNESS_SIDE // 2
    found = np.empty((len(fingerprints), half * half), np.float32)
    for begin in range(0, len(fingerprints), _PAIR_BATCH):
        part = _brightness(fingerprints[begin : begin + _PAIR_BATCH])
        cells = part.reshape(-1, half, 2, half, 2).mean(axis=(2, 4)).reshape(len(part), -1)
        cells -= cells.mean(axis=1, keepdims=True)
        cells /= np.maximum(1e-6, np.linalg.norm(cells, axis=1, keepdims=True))
        found[begin : begin + _PAIR_BATCH] = cells
    return found


def _are_copies(first: _Vectors, second: _Vectors) -> _Vectors:
    """Return, for each of m pairs of fingerprints, whether the images are copies: (m,), bool."""
    bright = _smooth_121(_brightness(first)), _smooth_121(_brightness(second))
    left = np.minimum(_unexplained_variance(*bright), _unexplained_variance(*reversed(bright)))
    return (left <= _UNEXPLAINED) & _have_like_colours(_colour(first), _colour(second))


def _have_like_colours(first: _Vectors, second: _Vectors) -> _Vectors:
    """Return, for each pair of colour planes, whether they differ little on average: (m,)."""
    return np.abs(first - second).mean(axis=1) <= _COLOUR_LEVELS


def _smooth_121(pictures: _Vectors) -> _Vectors:
    """Smooth planes (m, s, s) with 1-2-1 weights along both axes: (m, s - 2, s - 2)."""
    tall = pictures[:, :-2] + 2 * pictures[:, 1:-1] + pictures[:, 2:]
    return (tall[:, :, :-2] + 2 * tall[:, :, 1:-1] + tall[:, :, 2:]) / 16


def _unexplained_variance(first: _Vectors, second: _Vectors) -> _Vectors:
    """Return the fraction of the variance of `second` (m, s, s) that `first` does not explain.

    The fit is linearised (Lucas and Kanade 1981): `second` is regressed on `first`, a constant, the
    slopes of `first` along both axes (a shift), and each slope times the position (a stretch).
    Slight cropping shifts and stretches the plane by less than a cell.
    """
    side = first.shape[1]
    place = np.linspace(-1, 1, side, dtype=np.float32)[1:-1]
    down = (first[:, 2:, 1:-1] - first[:, :-2, 1:-1]) / 2
    right = (first[:, 1:-1, 2:] - first[:, 1:-1, :-2]) / 2
    itself, wanted = first[:, 1:-1, 1:-1], second[:, 1:-1, 1:-1]
    parts = (
        itself, np.ones_like(itself), down, right, down * place[:, None], right * place,
    )  # fmt: skip
    cells = place.size**2
    known = np.stack(parts, axis=1).reshape(len(first), len(parts), cells)  # (m, 6, cells)
    target = wanted.reshape(len(first), 1, cells)
    known = known / np.maximum(1e-6, np.linalg.norm(known, axis=2, keepdims=True))  # unit norms
    square = known @ known.mT + 1e-6 * np.eye(len(parts), dtype=np.float32)
    left = target - np.linalg.solve(square, known @ target.mT).mT @ known
    return left.var(axis=(1, 2)) / np.maximum(1e-6, target.var(axis=(1, 2)))


def group_names(digests: Sequence[str], pairs: Iterable[_IndexPair]) -> dict[str, str]:
    """Map the digests of duplicates to the name of their group, which is its first digest."""
    root = list(range(len(digests)))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for one, other in pairs:
        low, high = sorted((find(one), find(other)))
        root[high] = low
    roots = [find(i) for i in range(len(digests))]
    sizes = Counter(roots)
    groups = zip(digests, roots, strict=True)
    return {digest: digests[i] for digest, i in groups if sizes[i] > 1}
