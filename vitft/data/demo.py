"""Drawings of flowers: a small labelled dataset for trying vitft without a download.

The five kinds of flower differ only in shape: colours, backgrounds, light, size, position and
clutter are sampled from the same ranges. The bundled weights were not trained on these drawings.
Points of a bloom are in units of its radius, with y pointing down.
"""

import contextlib
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from vitft.config.sections import DataSpec
from vitft.system.errors import RunError
from vitft.system.files import atomic_folder, writing

log = logging.getLogger(__name__)

DEMO_FOLDER = Path("demo_flowers")  # path relative to the current folder

_Colour = tuple[int, ...]  # red, green, blue
_Outline = np.ndarray[Any, np.dtype[np.float64]]  # (n, 2), x and y
_Rng = np.random.Generator
_Box = tuple[float, float, float, float]  # left, top, right, bottom

SUPERSAMPLING = 2
_QUALITY = 88
PETALS: tuple[_Colour, ...] = (
    (250, 246, 238), (252, 206, 40), (244, 132, 32), (214, 36, 40), (240, 116, 152),
    (196, 48, 132), (134, 80, 190), (248, 196, 170),
)  # fmt: skip
CORE_COLOURS: tuple[_Colour, ...] = (
    (240, 184, 32), (92, 54, 24), (40, 26, 36), (150, 160, 60), (214, 120, 40),
)  # fmt: skip
_GROUND_COLOURS: tuple[_Colour, ...] = (
    (128, 178, 224), (60, 104, 52), (150, 186, 96), (126, 94, 64), (222, 206, 176), (70, 74, 96),
    (236, 170, 150), (196, 196, 200), (28, 44, 36), (196, 150, 60),
)  # fmt: skip
_GREENS: tuple[_Colour, ...] = ((70, 124, 52), (104, 140, 66), (52, 92, 60))
_BRIGHT: _Colour = (255, 255, 255)
_NIGHT: _Colour = (20, 14, 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bloom:
    """One flower head: position, rotation and colours."""

    brush: ImageDraw.ImageDraw
    rng: _Rng
    centre: tuple[float, float]  # in pixels of the enlarged canvas, like the radius
    radius: float
    turn: float  # rotation in radians
    tilt: float  # ratio of height to width: 1 is the front view
    petal: _Colour
    core: _Colour
    drawn: list[tuple[float, float]] = field(default_factory=list)
    """All of the bloom's points drawn so far, in pixels of the enlarged canvas."""

    def place(self, points: _Outline) -> list[tuple[float, float]]:
        """Convert points of the bloom to pixel positions on the canvas, and add them to `drawn`."""
        x, y = points[:, 0] * self.radius, points[:, 1] * self.radius * self.tilt
        cos, sin = math.cos(self.turn), math.sin(self.turn)
        left, top = self.centre
        placed = list(zip(left + x * cos - y * sin, top + x * sin + y * cos, strict=True))
        self.drawn.extend(placed)
        return placed

    def fill(self, points: _Outline, colour: _Colour, edge: _Colour | None = None) -> None:
        """Fill a closed shape, with a thin outline if `edge` is given."""
        outline = self.place(points)
        self.brush.polygon(outline, fill=colour)
        if edge is not None:
            width = max(1, round(self.radius / 45))
            self.brush.line([*outline, outline[0]], fill=edge, width=width)

    def shaded(self, points: _Outline, colour: _Colour, *, spread: float = 0.4) -> None:
        """Fill a closed shape with a gradient that gets brighter towards the middle."""
        middle = points.mean(axis=0)
        for scale in (1.0, 0.72, 0.42):
            dark, light = _tint(colour, _NIGHT, 0.2), _tint(colour, _BRIGHT, 0.3)
            tone = _tint(dark, light, (1 - scale) * spread * 3)
            edge = _tint(colour, _NIGHT, 0.55) if scale == 1.0 else None
            self.fill(middle + (points - middle) * scale, tone, edge)

    def dots(self, points: _Outline, radius: float, colour: _Colour) -> None:
        """Draw a small disc of `radius` (in units of the bloom's radius) at each point."""
        half = max(1.0, radius * self.radius)
        for x, y in self.place(points):
            self.brush.ellipse((x - half, y - half, x + half, y + half), fill=colour)

    def jitter(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))


def _daisy(bloom: Bloom) -> None:
    """Draw many narrow, blunt petals around a small disc."""
    count = int(bloom.rng.integers(11, 19))
    width, length = bloom.jitter(0.8, 1.1) * 1.9 / count, bloom.jitter(0.9, 1.05)
    for k in bloom.rng.permutation(count):
        angle = math.tau * k / count + bloom.jitter(-0.08, 0.08)
        outline = _leaf(length * bloom.jitter(0.88, 1.04), width, belly=1.7)
        bloom.shaded(_rotate(outline, angle), bloom.petal)
    _button(bloom, bloom.jitter(0.2, 0.3), seeds=24)


def _sunflower(bloom: Bloom) -> None:
    """Draw two rows of short, pointed petals around a wide disc of seeds."""
    count = int(bloom.rng.integers(14, 22))
    for row, tone in ((1.0, _tint(bloom.petal, _NIGHT, 0.2)), (0.92, bloom.petal)):
        for k in range(count):
            angle = math.tau * (k + row * 5) / count + bloom.jitter(-0.1, 0.1)
            outline = _leaf(row * bloom.jitter(0.9, 1.05), 2.0 / count, belly=1.15)
            bloom.shaded(_rotate(outline, angle), tone)
    _button(bloom, bloom.jitter(0.46, 0.58), seeds=110)


def _poppy(bloom: Bloom) -> None:
    """Draw four to six broad, crumpled petals with dark bases, and a ring of stamens."""
    count = int(bloom.rng.integers(4, 7))
    for k in range(count):
        angle = math.tau * k * (2 if count % 2 else 1) / count + bloom.jitter(-0.15, 0.15)
        outline = _leaf(bloom.jitter(0.88, 1.02), bloom.jitter(3.9, 4.8) / count, belly=2.0)
        waves = 1 + 0.035 * np.sin(np.arange(len(outline)) * bloom.jitter(0.9, 1.6))
        bloom.shaded(_rotate(outline * waves[:, None], angle), bloom.petal, spread=0.3)
        bloom.fill(_rotate(_leaf(0.42, 0.2, belly=1.4), angle), _tint(bloom.core, _NIGHT, 0.5))
    ring = _disc(bloom.jitter(0.22, 0.3), points=22)
    bloom.dots(ring * bloom.rng.uniform(0.8, 1.15, (22, 1)), 0.03, _tint(bloom.core, _NIGHT, 0.6))
    bloom.fill(_disc(0.13), _tint(bloom.core, (150, 170, 90), 0.5), _NIGHT)


def _rose(bloom: Bloom) -> None:
    """Draw rings of overlapping round petals around a closed centre."""
    reach, start = 1.0, bloom.jitter(0, math.tau)
    for ring in range(5):
        count = (6, 5, 5, 4, 3)[ring]
        tone = _tint(bloom.petal, _NIGHT, 0.07 * ring)
        for k in range(count):
            angle = start + math.tau * k / count + bloom.jitter(-0.15, 0.15)
            out, size = reach * 0.46, reach * bloom.jitter(0.5, 0.58)
            outline = _shift(_disc(size, squash=bloom.jitter(0.95, 1.15)), out, 0)
            bloom.fill(
                _rotate(outline, angle), _tint(tone, _BRIGHT, 0.22), _tint(tone, _NIGHT, 0.5)
            )
            bloom.fill(_rotate(_shift(_disc(size * 0.88), out * 0.86, 0), angle), tone)
        start += math.pi / count
        reach *= bloom.jitter(0.7, 0.76)
    sweep = np.linspace(0.0, 1.0, 30)[:, None]
    spiral = 0.2 * sweep * _unit(start + sweep[:, 0] * 10)
    width = max(1, round(bloom.radius / 22))
    bloom.brush.line(bloom.place(spiral), fill=_tint(bloom.petal, _NIGHT, 0.6), width=width)


def _tulip(bloom: Bloom) -> None:
    """Draw a closed cup in side view: three pointed petals in front of two others."""
    wide, open_ = bloom.jitter(0.36, 0.46), bloom.jitter(0.08, 0.3)
    back, front = _tint(bloom.petal, _NIGHT, 0.3), bloom.petal
    up = -math.pi / 2
    petals = [(-0.5, 0.9, back), (0.5, 0.9, back), (-1.0, 1.0, front), (1.0, 1.0, front)]
    for side, high, tone in petals:
        outline = _rotate(_leaf(1.72 * high * bloom.jitter(0.95, 1.03), wide, belly=0.9), up)
        outline = _shift(_rotate(outline, side * open_), side * wide * 0.62, 0.85)
        bloom.shaded(outline, tone, spread=0.3)
    outline = _rotate(_leaf(bloom.jitter(1.45, 1.6), wide * 1.08, belly=0.85), up)
    bloom.shaded(_shift(outline, 0, 0.95), _tint(front, _BRIGHT, 0.08))


FLOWERS_BY_KIND: Mapping[str, Callable[[Bloom], None]] = {
    "daisy": _daisy, "poppy": _poppy, "rose": _rose, "sunflower": _sunflower, "tulip": _tulip,
}  # fmt: skip


def draw_demo(folder: Path, *, per_class: int = 60, seed: int = 0, size: int = 128) -> None:
    """Write a small image folder with five kinds of flower: `folder/<kind>/0001.jpg` and so on.

    Each image depends only on the seed, the kind, the number and the size.
    """
    for kind in FLOWERS_BY_KIND:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(1, per_class + 1):
            picture = flower_scene(kind, number, seed=seed, size=size)[0]
            picture.save(folder / kind / f"{number:04d}.jpg", quality=_QUALITY)


def flower_scene(
    kind: str, number: int, *, seed: int = 0, size: int = 128
) -> tuple[Image.Image, list[_Box]]:
    """Return an image and the bounding boxes of its blooms (without the stems), in pixels."""
    rng = np.random.default_rng([seed, list(FLOWERS_BY_KIND).index(kind), number])
    side = size * SUPERSAMPLING
    canvas = background(rng, side)
    brush = ImageDraw.Draw(canvas)
    scatter(brush, rng, side, count=int(rng.integers(2, 9)))
    petal, core = varied(rng, PETALS), varied(rng, CORE_COLOURS)
    boxes: list[_Box] = []
    for radius in sorted(rng.uniform(0.17, 0.42, rng.choice([1, 1, 1, 2, 3]))):
        x, y = rng.uniform(0.28, 0.72, 2) * side
        is_upright = kind == "tulip"  # drawn in side view; the other kinds at any angle
        bloom = Bloom(
            brush=brush,
            rng=rng,
            centre=(x, y),
            radius=radius * side * (0.85 if is_upright else 1),
            turn=rng.normal(0, 0.35) if is_upright else rng.uniform(0, math.tau),
            tilt=rng.uniform(0.85, 1.1) if is_upright else rng.uniform(0.62, 1.0),
            petal=petal,
            core=core,
        )
        stem(bloom, side)
        FLOWERS_BY_KIND[kind](bloom)
        across, down = (np.array(axis) / SUPERSAMPLING for axis in zip(*bloom.drawn, strict=True))
        boxes.append((across.min(), down.min(), across.max(), down.max()))
    scatter(brush, rng, side, count=int(rng.integers(0, 4)))
    return photographed(canvas.resize((size, size), Image.Resampling.BOX), rng), boxes


def _button(bloom: Bloom, radius: float, *, seeds: int) -> None:
    """Draw the disc of a composite flower with its seeds on a spiral (Vogel 1979)."""
    bloom.shaded(_disc(radius), bloom.core)
    order = np.arange(seeds, dtype=np.float64)
    turns = order * math.pi * (3 - math.sqrt(5))
    spots = radius * 0.92 * np.sqrt(order / seeds)[:, None] * _unit(turns)
    bloom.dots(spots, radius * 0.05, _tint(bloom.core, _NIGHT, 0.5))


def stem(bloom: Bloom, side: int) -> None:
    """Draw a bent stem, usually with leaves, from the bloom to the lower edge."""
    rng = bloom.rng
    green = varied(rng, _GREENS)
    left, top = bloom.centre
    foot = left + rng.normal(0, 0.18) * side
    along = np.linspace(0, 1, 12)
    path_x = left + (foot - left) * along**2
    path_y = top + (side * 1.05 - top) * along
    width = max(2, round(bloom.radius * 0.09))
    bloom.brush.line(list(zip(path_x, path_y, strict=True)), fill=green, width=width)
    for _ in range(int(rng.integers(0, 4))):
        at = int(rng.integers(4, 11))
        angle = rng.choice([-1, 1]) * rng.uniform(0.3, 1.2) - math.pi / 2
        outline = _leaf(bloom.radius * rng.uniform(0.5, 1.2), bloom.radius * 0.16, belly=1.0)
        shape = _shift(_rotate(outline, angle), path_x[at], path_y[at])
        fill = _tint(green, _BRIGHT, rng.uniform(0, 0.2))
        bloom.brush.polygon([(x, y) for x, y in shape], fill=fill)


def background(rng: _Rng, side: int) -> Image.Image:
    """Return a blurred background: a gradient of two colours, clouds, and discs or bars."""
    first = np.array(varied(rng, _GROUND_COLOURS))
    second = np.array(varied(rng, _GROUND_COLOURS + PETALS))
    slope = np.linspace(0, 1, 32)
    ramp = slope[:, None] * math.cos(angle := rng.uniform(-1, 1)) + slope * math.sin(angle)
    clouds = rng.normal(0, rng.uniform(4, 22), (32, 32, 3 if rng.random() < 0.3 else 1))
    pixels = first + (second - first) * np.clip(ramp, 0, 1)[..., None] + clouds
    ground = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    ground = ground.resize((side, side), Image.Resampling.BICUBIC)
    brush = ImageDraw.Draw(ground)
    for _ in range(int(rng.integers(0, 16))):
        x, y, r = rng.uniform((0, 0, 0.02), (1, 1, 0.14)) * side
        brush.ellipse((x - r, y - r, x + r, y + r), fill=varied(rng, PETALS + _GROUND_COLOURS))
    for _ in range(int(rng.choice([0, 0, 5, 12]))):
        x, lean, width = rng.uniform((0, -0.3, 0.01), (1, 0.3, 0.05)) * side
        colour = varied(rng, _GROUND_COLOURS)
        brush.line((x, side, x + lean, rng.uniform(0, 0.7) * side), colour, max(1, round(width)))
    return ground.filter(ImageFilter.GaussianBlur(side * rng.uniform(0.004, 0.03)))


def scatter(brush: ImageDraw.ImageDraw, rng: _Rng, side: int, *, count: int) -> None:
    """Draw clutter: blades, loose petals and pebbles in random colours."""
    for _ in range(count):
        colour = varied(rng, _GROUND_COLOURS + PETALS)
        shape = _leaf(*rng.uniform((0.06, 0.01), (0.3, 0.05)), belly=rng.uniform(0.8, 1.6))
        if rng.random() < 0.4:
            shape = _disc(rng.uniform(0.01, 0.05), squash=rng.uniform(0.5, 1))
        spot = rng.uniform(0, 1, 2)
        placed = (_rotate(shape, rng.uniform(0, math.tau)) + spot) * side
        brush.polygon([(x, y) for x, y in placed], fill=colour)


def photographed(picture: Image.Image, rng: _Rng) -> Image.Image:
    """Apply side light, a colour cast, a change of exposure, noise and, sometimes, slight blur."""
    if rng.random() < 0.4:
        picture = picture.filter(ImageFilter.GaussianBlur(picture.width / 128 * rng.uniform(0, 1)))
    pixels = np.asarray(picture, np.float64) / 255
    across = np.linspace(-1, 1, picture.width)
    angle = rng.uniform(0, math.tau)
    light = across * math.cos(angle) + across[:, None] * math.sin(angle)
    pixels *= (1 + rng.uniform(0, 0.28) * light)[..., None] * rng.uniform(0.65, 1.2)
    pixels = np.clip(pixels * rng.uniform(0.86, 1.14, 3), 0, 1) ** rng.uniform(0.8, 1.25)
    pixels += rng.normal(0, rng.uniform(0.005, 0.05), pixels.shape)
    return Image.fromarray((np.clip(pixels, 0, 1) * 255).round().astype(np.uint8))


def _leaf(length: float, width: float, *, belly: float) -> _Outline:
    """Return the outline of a petal along +x, widest near the base if `belly` is below 1."""
    along = np.linspace(0, 1, 13)
    half = width / 2 * np.sin(math.pi * along**belly) ** 0.75
    upper = np.stack([along * length, half], axis=1)
    return np.concatenate([upper, (upper * (1, -1))[-2:0:-1]])


def _disc(radius: float, *, squash: float = 1.0, points: int = 28) -> _Outline:
    """Return a circle around the origin, or an ellipse `squash` times as wide as it is high."""
    return radius * _unit(np.linspace(0, math.tau, points, endpoint=False)) * (squash, 1.0)


def _unit(angles: np.ndarray[Any, np.dtype[np.float64]]) -> _Outline:
    """Return the points on the unit circle at the given angles, in radians."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _rotate(points: _Outline, angle: float) -> _Outline:
    """Rotate points about the origin by an angle in radians."""
    cos, sin = math.cos(angle), math.sin(angle)
    return points @ np.array([[cos, sin], [-sin, cos]])


def _shift(points: _Outline, right: float, down: float) -> _Outline:
    return points + np.array([right, down])


def _tint(colour: _Colour, other: _Colour, fraction: float) -> _Colour:
    """Blend `colour` with a fraction (0 to 1) of `other`."""
    return tuple(round(a + (b - a) * fraction) for a, b in zip(colour, other, strict=True))


def varied(rng: _Rng, palette: tuple[_Colour, ...]) -> _Colour:
    """Return a random colour close to one in the palette."""
    shift = rng.normal(0, 14, 3)
    base = palette[int(rng.integers(len(palette)))]
    return tuple(int(min(255, max(0, b + s))) for b, s in zip(base, shift, strict=True))


def demo_data(spec: DataSpec) -> DataSpec:
    """Replace `--data demo` with a folder of drawn flowers, which is created if necessary."""
    if spec.path != "demo":
        return spec
    if not DEMO_FOLDER.exists():
        log.info(f"creating flower images in {DEMO_FOLDER}/")
        try:
            with atomic_folder(DEMO_FOLDER) as unfinished, writing(DEMO_FOLDER):
                draw_demo(unfinished)
        except RunError:
            if not DEMO_FOLDER.exists():  # otherwise, another command was faster
                raise
    elif {file.relative_to(DEMO_FOLDER).as_posix() for file in DEMO_FOLDER.glob("*/*")} != {
        f"{kind}/{number:04}.jpg" for kind in FLOWERS_BY_KIND for number in range(1, 61)
    }:
        log.warning(
            f"images were added to {DEMO_FOLDER}/ or removed since it was drawn, so results differ "
            "from the documentation. If you delete this folder, it is drawn again"
        )
    return replace(spec, path=str(DEMO_FOLDER))


@contextlib.contextmanager
def temporary_demo_data(spec: DataSpec) -> Iterator[DataSpec]:
    """Yield the settings with `demo` replaced by a folder of flowers, a temporary one if needed."""
    if spec.path != "demo" or DEMO_FOLDER.exists():
        yield demo_data(spec)
        return
    with tempfile.TemporaryDirectory() as folder:
        draw_demo(place := Path(folder) / DEMO_FOLDER)
        yield replace(spec, path=str(place))
