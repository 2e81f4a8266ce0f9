"""Finds pictures that are the same but for compression, size, a trimmed edge or brightness.

Three sieves, each finer: a 64-bit perceptual hash of every pair, the correlation of the brightness
pictures, and what remains of one picture after the best small shift, stretch and change of
brightness of the other. Mirrored, turned and recoloured copies (also in black and white) are not
found: the same shirt in another colour is another picture.

Letters: n pictures, m pairs; `sketches` are (n, SKETCH_BYTES), see `sketches`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vitft.data.fingerprint import SIDE, brightness, colour, is_blank

HASH_SIDE = 8
"""Lowest frequencies per side that the hash looks at: 64 bits."""
HASH_BITS = 16
"""Bits in which the hashes of copies differ at most. Of 1,600 copies of real photos (JPEG quality
60 to 95, 0.5 to 0.9 of the size, up to 3 % off each edge) 99 % differed in 10 or fewer, none in
more than these; of 100,000 pairs of different photos 40 differ as little."""
CORRELATION = 0.7
"""Of the brightness pictures, at least; the lowest of the same copies was 0.81."""
REMAINDER = 0.05
"""Share of the variance left unexplained, at most: 0.024 for 99.5 % of those copies, 0.07 and more
for photos that only look alike."""
COLOUR_LEVELS = 6.0
"""Mean difference of the colour pictures in levels of 255, at most; 4.4 for the worst copy."""
TILE = 1024
"""Hashes of so many pictures are compared with as many others at a time."""
MOST = 32
"""Fine comparisons per picture; in a film every picture is like a thousand others."""
BATCH = 1024

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[int, int]


def near_pairs(sketches: Array) -> list[Pair]:
    """Index pairs (i < j) of pictures that are copies of one another; blank ones have no copies.

    Every pair is compared, as 64-bit words: 100,000 pictures take about a minute of one core.
    """
    told = np.flatnonzero(~is_blank(sketches))
    codes, small, tint = hashes(sketches[told]), standard(sketches[told]), colour(sketches[told])
    compared = np.zeros(len(told), np.int64)
    found: list[Pair] = []
    for rows, columns in candidates(codes):
        alike = np.einsum("mi,mi->m", small[rows], small[columns]) >= CORRELATION
        alike[alike] = unlike_colour(tint[rows[alike]], tint[columns[alike]]) <= COLOUR_LEVELS
        few = alike & ((compared[rows] < MOST) | (compared[columns] < MOST))
        rows, columns = rows[few], columns[few]
        np.add.at(compared, rows, 1)
        np.add.at(compared, columns, 1)
        same = are_copies(sketches[told[rows]], sketches[told[columns]])
        found += zip(told[rows[same]].tolist(), told[columns[same]].tolist(), strict=True)
    return sorted(found)


def copies_among(sketches: Array, pairs: Sequence[Pair]) -> list[Pair]:
    """Those of some pairs that are copies of one another."""
    if not pairs:
        return []
    blank = is_blank(sketches)
    rows, columns = np.array(pairs).T
    same = are_copies(sketches[rows], sketches[columns]) & ~blank[rows] & ~blank[columns]
    return [pair for pair, is_same in zip(pairs, same.tolist(), strict=True) if is_same]


def hashes(sketches: Array) -> Array:
    """The perceptual hash of each sketch, (n,) uint64.

    One bit per low frequency: whether its cosine coefficient is above the median of all.
    Source: Zauner 2010, "Implementation and benchmarking of perceptual image hash functions".
    """
    cell = np.arange(SIDE) + 0.5
    waves = np.cos(np.pi / SIDE * np.arange(HASH_SIDE)[:, None] * cell)  # (8, SIDE)
    found = np.empty(len(sketches), np.uint64)
    for begin in range(0, len(sketches), BATCH):
        part = brightness(sketches[begin : begin + BATCH])
        waved = (waves @ part @ waves.T).reshape(len(part), -1)  # (b, 64)
        middle = np.median(waved[:, 1:], axis=1, keepdims=True)  # the mean brightness says nothing
        bits = np.packbits(waved > middle, axis=1)
        found[begin : begin + BATCH] = bits.view(np.uint64)[:, 0]
    return found


def candidates(codes: Array) -> Iterator[tuple[Array, Array]]:
    """Indices (m,) and (m,), the first the smaller, of pairs whose hashes (n,) are close."""
    for top in range(0, len(codes), TILE):
        for left in range(top, len(codes), TILE):
            unlike = codes[top : top + TILE, None] ^ codes[None, left : left + TILE]
            rows, columns = np.nonzero(np.bitwise_count(unlike) <= HASH_BITS)
            rows, columns = rows + top, columns + left
            below = rows < columns
            rows, columns = rows[below], columns[below]
            for begin in range(0, len(rows), BATCH):
                yield rows[begin : begin + BATCH], columns[begin : begin + BATCH]


def standard(sketches: Array) -> Array:
    """The brightness pictures at half the size, as rows of mean 0 and length 1: (n, cells)."""
    half = SIDE // 2
    found = np.empty((len(sketches), half * half), np.float32)
    for begin in range(0, len(sketches), BATCH):
        part = brightness(sketches[begin : begin + BATCH])
        cells = part.reshape(-1, half, 2, half, 2).mean(axis=(2, 4)).reshape(len(part), -1)
        cells -= cells.mean(axis=1, keepdims=True)
        cells /= np.maximum(1e-6, np.linalg.norm(cells, axis=1, keepdims=True))
        found[begin : begin + BATCH] = cells
    return found


def are_copies(first: Array, second: Array) -> Array:
    """Which of m pairs of sketches show the same picture in the same colours, (m,)."""
    same = np.zeros(len(first), bool)
    for begin in range(0, len(first), BATCH):
        one, other = first[begin : begin + BATCH], second[begin : begin + BATCH]
        bright = smooth(brightness(one)), smooth(brightness(other))
        left = np.minimum(remainder(*bright), remainder(*reversed(bright)))
        unlike = unlike_colour(colour(one), colour(other))
        same[begin : begin + BATCH] = (left <= REMAINDER) & (unlike <= COLOUR_LEVELS)
    return same


def unlike_colour(first: Array, second: Array) -> Array:
    """Mean difference in levels of m pairs of colour pictures, (m,)."""
    return np.abs(first - second).mean(axis=1)


def smooth(pictures: Array) -> Array:
    """Pictures (m, s, s) with 1-2-1 weights along both sides: (m, s - 2, s - 2)."""
    tall = pictures[:, :-2] + 2 * pictures[:, 1:-1] + pictures[:, 2:]
    return (tall[:, :, :-2] + 2 * tall[:, :, 1:-1] + tall[:, :, 2:]) / 16


def remainder(first: Array, second: Array) -> Array:
    """Share of the variance of `second` (m, s, s) that a slightly changed `first` does not explain.

    To first order in the change: least squares on the picture itself, a constant, its two slopes
    (a shift) and the slopes times the place (a stretch). A trimmed edge is a shift and a stretch
    of less than a cell. Source of the linearised match: Lucas and Kanade 1981.
    """
    side = first.shape[1]
    place = np.linspace(-1, 1, side, dtype=np.float32)[1:-1]
    down = (first[:, 2:, 1:-1] - first[:, :-2, 1:-1]) / 2
    right = (first[:, 1:-1, 2:] - first[:, 1:-1, :-2]) / 2
    itself, wanted = first[:, 1:-1, 1:-1], second[:, 1:-1, 1:-1]
    parts = (
        itself, np.ones_like(itself), down, right, down * place[:, None], right * place,
    )  # fmt: skip
    known = np.stack(parts, axis=1).reshape(len(first), len(parts), -1)  # (m, 6, cells)
    target = wanted.reshape(len(first), 1, -1)
    known = known / np.maximum(1e-6, np.linalg.norm(known, axis=2, keepdims=True))  # of one order
    square = known @ known.mT + 1e-6 * np.eye(len(parts), dtype=np.float32)
    left = target - np.linalg.solve(square, known @ target.mT).mT @ known
    return left.var(axis=(1, 2)) / np.maximum(1e-6, target.var(axis=(1, 2)))


def group_names(digests: Sequence[str], pairs: Iterable[Pair]) -> dict[str, str]:
    """For every digest that is a copy of another one, the name of its group: the first of them."""
    roots = joined(len(digests), pairs)
    sizes = Counter(roots)
    return {
        digest: digests[root]
        for digest, root in zip(digests, roots, strict=True)
        if sizes[root] > 1
    }


def joined(count: int, pairs: Iterable[Pair]) -> list[int]:
    """For each of `count` things the smallest one that it is linked to, through any number."""
    root = list(range(count))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for one, other in pairs:
        low, high = sorted((find(one), find(other)))
        root[high] = low
    return [find(i) for i in range(count)]
