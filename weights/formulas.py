"""Labelled images drawn from formulas: any number of classes, without photos or flowers.

A class is a vector of parameters drawn from its number. Its images share the parameters up to a
small jitter and differ in position, size, rotation, tilt, colours, background, clutter, light and
noise, so that only the form identifies the class. A second label may determine the figure's colour.
The bundled weights are trained on these images.

Sources: Kataoka et al. 2020, "Pre-training without Natural Images",
https://arxiv.org/abs/2101.08515 (fractals as labelled images); Kataoka et al. 2022, "Replacing
Labeled Real-image Datasets with Auto-generated Contours", https://arxiv.org/abs/2206.09132 (nested
radial contours; contours are what a ViT learns from). The parameter ranges, the two other families
and the backgrounds are this project's own.

A class is a vector of parameters drawn from its number; its images share the parameters up to a
small jitter and differ in place, size, turn, tilt, colours, ground, clutter, light and noise, so
that only the form tells the class. A second label may decide the figure's colour. The bundled
weights are trained on them (`weights/`).

Sources: Kataoka et al. 2020, "Pre-training without Natural Images",
https://arxiv.org/abs/2101.08515 (fractals as labelled images); Kataoka et al. 2022, "Replacing
Labeled Real-image Datasets with Auto-generated Contours", https://arxiv.org/abs/2206.09132 (nested
radial contours; contours are what a ViT learns from). The parameter ranges, the two further
families and the grounds are ours.
"""

import colorsys
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

Array = np.ndarray[Any, np.dtype[np.float64]]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Rng = np.random.Generator

SUPERSAMPLING = 2
CONTRAST = 110.0  # least distance of figure and ground, of the 441 between black and white
GROUND_CELLS = 12
DARK = 0.25
HUES = 6
COLOURS = HUES + 1
"""Kinds of colour: around red, yellow, green, cyan, blue and magenta, and nearly grey."""
MANY = 200  # more dots than this are single pixels of the final image


class Stroke(NamedTuple):
    """One part of a figure, in a square from -1 to 1."""

    points: Array
    """(n, 2), x and y."""
    tone: float
    """Mix of the figure's two colours, from 0 (the first) to 1 (the second)."""
    width: float
    """Line width as a fraction of the figure's radius; 0 fills the outline, negative values draw
    dots."""


def formula_image(
    label: int,
    instance: int,
    *,
    size: int,
    wild: float = 1.0,
    colour: int | None = None,
    seed: int = 0,
) -> Pixels:
    """Draw one image of a class, (size, size, 3); the arguments determine every pixel.

    Args:
        label: Number of the class, from 0; every number is a class.
        instance: Number of the image in its class, from 0.
        size: Side in pixels.
        wild: Amount of variation, from 0 (upright and large on a dark background) to 1.
        colour: Kind of the figure's first colour, below `COLOURS`; None for any.
        seed: Another seed gives other classes.
    """
    own = np.random.default_rng([seed, 1, label, instance])
    side = size * SUPERSAMPLING
    canvas, ground = paint_ground(own, side, wild)
    brush = ImageDraw.Draw(canvas)
    scatter(brush, own, side, wild)
    near, far = contrasting(own, ground, colour), contrasting(own, ground)
    radius = (0.44 + wild * own.uniform(-0.2, 0.08)) * side
    matrix, centre = placement(own, wild)
    for stroke in figure(label, own, seed=seed):
        spots = stroke.points @ matrix * radius + centre * side
        ink(brush, spots, stroke.width * radius, near + (far - near) * stroke.tone)
    return photographed(canvas.resize((size, size), Image.Resampling.BOX), own, wild)


def figure(label: int, own: Rng, *, seed: int = 0) -> list[Stroke]:
    """Return the strokes of one image of a class; `own` jitters them."""
    traits = np.random.default_rng([seed, 0, label])
    strokes = FAMILIES[label % len(FAMILIES)](traits, own)
    points = np.concatenate([stroke.points for stroke in strokes])
    low, high = points.min(axis=0), points.max(axis=0)
    middle, half = (low + high) / 2, max(1e-6, float((high - low).max()) / 2)
    return [stroke._replace(points=(stroke.points - middle) / half) for stroke in strokes]


def contours(traits: Rng, own: Rng) -> list[Stroke]:
    """Return nested closed curves whose radius is a sum of waves over the angle."""
    angle = np.linspace(0, math.tau, 120, endpoint=False)
    radius = np.ones_like(angle)
    for order in range(int(traits.integers(1, 4))):
        lobes = round(float(np.exp(traits.uniform(0, math.log(20 if order == 0 else 8)))))
        height = traits.uniform(0.08, 0.42) / (1 + order) * own.uniform(0.85, 1.15)
        wave = np.cos(lobes * angle + traits.uniform(0, math.tau))
        radius += height * np.sign(wave) * np.abs(wave) ** traits.uniform(0.4, 2.0)
    radius /= radius.max()
    rings, shrink = int(traits.integers(1, 7)), traits.uniform(0.5, 0.86)
    twist, width = traits.uniform(0, 0.7), traits.choice([0, 0, 0, 0.03, 0.08])
    is_striped = traits.random() < 0.5
    strokes = []
    for ring in range(rings):
        curve = radius[:, None] * shrink**ring * unit(angle + ring * twist)
        curve = np.concatenate([curve, curve[:1]])
        tone = float(ring % 2) if is_striped else ring / max(1, rings - 1)
        strokes.append(Stroke(curve + own.normal(0, 0.006, curve.shape), tone, width))
    return strokes


def fractal(traits: Rng, own: Rng) -> list[Stroke]:
    """Return the attractor of two to four random affine maps as a cloud of dots."""
    maps = int(traits.integers(2, 5))
    stretch = traits.uniform(0.35, 0.85, (maps, 2))
    turn, skew = traits.uniform(0, math.tau, maps), traits.uniform(-0.6, 0.6, maps)
    shift = traits.uniform(-1, 1, (maps, 2)) + own.normal(0, 0.04, (maps, 2))
    cos, sin = np.cos(turn) * stretch[:, 0], np.sin(turn) * stretch[:, 1]
    matrices = np.array([[cos, -sin + skew * 0.3], [sin, cos]]).transpose(2, 0, 1)  # (maps, 2, 2)
    matrices *= np.minimum(1, 0.8 / np.linalg.norm(matrices, 2, axis=(1, 2)))[:, None, None]
    points, tracks = np.zeros((160, 2)), []
    for step in range(22):
        chosen = own.integers(0, maps, len(points))
        points = np.einsum("nij,nj->ni", matrices[chosen], points) + shift[chosen]
        if step >= 8:
            tracks.append(points)
    cloud = np.concatenate(tracks)
    return [Stroke(cloud[:1100], 1.0, -0.02), Stroke(cloud[1100:], 0.0, -0.02)]


def woven(traits: Rng, own: Rng) -> list[Stroke]:
    """Return a closed curve of two rotating vectors, such as a Lissajous figure or a trochoid."""
    time = np.linspace(0, math.tau, 240)
    first, second = traits.integers(1, 8, 2)
    share, phase = traits.uniform(0.25, 0.75), traits.uniform(0, math.tau)
    share = float(np.clip(share + own.normal(0, 0.03), 0.1, 0.9))
    if traits.random() < 0.5:
        curve = np.stack([np.cos(first * time), np.cos(second * time + phase)], axis=1)
    else:
        curve = share * unit(first * time) + (1 - share) * unit(-second * time + phase)
    width = traits.choice([0.08, 0.13, 0.22])
    half = len(curve) // 2
    if traits.random() < 0.3:
        return [Stroke(curve, 0.0, 0), Stroke(curve, 1.0, width / 2)]
    return [Stroke(curve[: half + 1], 0.0, width), Stroke(curve[half:], 1.0, width)]


def branches(traits: Rng, own: Rng) -> list[Stroke]:
    """Return a line that branches repeatedly with the same angles and length ratio."""
    forks, depth = int(traits.integers(2, 4)), int(traits.integers(3, 5))
    spread, lean = traits.uniform(0.25, 1.3), traits.uniform(-0.3, 0.3)
    share, trunk = traits.uniform(0.55, 0.85), traits.uniform(0.3, 0.7)
    thick, is_tipped = traits.uniform(0.12, 0.3), traits.random() < 0.5
    spread *= own.uniform(0.9, 1.1)
    tips = [(np.array([0.0, 1.0]), -math.pi / 2)]
    strokes = []
    for level in range(depth):
        grown = []
        for foot, heading in tips:
            end = foot + trunk * share**level * unit(np.array(heading))
            line = np.stack([foot, end])
            strokes.append(Stroke(line, level / depth, thick * 0.7**level))
            turns = np.linspace(-spread, spread, forks) + lean + own.normal(0, 0.06, forks)
            grown += [(end, heading + float(turn)) for turn in turns]
        tips = grown
    if is_tipped:
        strokes.append(
            Stroke(np.array([foot for foot, _ in tips]), 1.0, -traits.uniform(0.06, 0.14))
        )
    return strokes


# Contours carry most of the transfer, so most classes are contours.
FAMILIES: tuple[Callable[[Rng, Rng], list[Stroke]], ...] = (
    contours,
    fractal,
    contours,
    woven,
    contours,
    branches,
)


def placement(own: Rng, wild: float) -> tuple[Array, Array]:
    """Return a rotation and tilt to multiply from the right, and a centre relative to the side."""
    turn, axis = wild * own.uniform(-math.pi, math.pi), own.uniform(0, math.tau)
    squeeze = np.diag([1.0, 1 - wild * own.uniform(0, 0.35)])
    centre = 0.5 + wild * own.uniform(-0.18, 0.18, 2)
    return rotation(turn - axis) @ squeeze @ rotation(axis), centre


def ink(brush: ImageDraw.ImageDraw, spots: Array, width: float, colour: Array) -> None:
    """Draw one stroke; `spots` and `width` are in pixels, with the sign conventions of `Stroke`."""
    outline = [(x, y) for x, y in spots.tolist()]
    fill = rounded(colour)
    if width == 0:
        brush.polygon(outline, fill=fill, outline=rounded(colour * 0.55))
    elif width > 0:
        brush.line(outline, fill=fill, width=max(1, round(width)))
    elif len(outline) > MANY:
        for x, y in ((0, 0), (1, 0), (0, 1), (1, 1)):
            brush.point((spots + np.array([x, y])).ravel().tolist(), fill=fill)
    else:
        half = max(1.0, -width)
        for x, y in outline:
            brush.ellipse((x - half, y - half, x + half, y + half), fill=fill)


def paint_ground(own: Rng, side: int, wild: float) -> tuple[Image.Image, Array]:
    """Return a gradient of two colours with clouds and blurred discs, and its mean colour."""
    first, second = own.uniform(10, 245, (2, 3))
    if own.random() > wild:  # dark, for bright figures
        first, second = first * DARK, second * DARK
    slope = np.linspace(0, 1, GROUND_CELLS)
    angle = own.uniform(0, math.tau)
    ramp = 0.5 + 0.5 * ((slope[:, None] - 0.5) * math.cos(angle) + (slope - 0.5) * math.sin(angle))
    second = first + (second - first) * own.random()
    clouds = own.normal(0, own.uniform(0, 25 * wild), (GROUND_CELLS, GROUND_CELLS, 1))
    cells = np.clip(first + (second - first) * ramp[..., None] + clouds, 0, 255)
    ground = Image.fromarray(cells.astype(np.uint8))
    ground = ground.resize((side, side), Image.Resampling.BICUBIC)
    if own.random() < 0.8 * wild:
        brush = ImageDraw.Draw(ground)
        for _ in range(int(own.integers(1, 9))):
            x, y, r = own.uniform((0, 0, 0.02), (1, 1, 0.16)) * side
            brush.ellipse((x - r, y - r, x + r, y + r), fill=rounded(own.uniform(0, 255, 3)))
        ground = ground.filter(ImageFilter.BoxBlur(side * own.uniform(0.005, 0.03)))
    return ground, cells.mean(axis=(0, 1))


def scatter(brush: ImageDraw.ImageDraw, own: Rng, side: int, wild: float) -> None:
    """Draw clutter that belongs to no class: a few polygons and lines."""
    count = int(own.integers(0, 8)) if own.random() < wild else 0
    for _ in range(count):
        spot, reach = own.uniform(0, 1, 2), own.normal(0, 0.06, (3, 2))
        corners = ((spot + reach) * side).tolist()
        fill = rounded(own.uniform(0, 255, 3))
        if own.random() < 0.5:
            brush.polygon([(x, y) for x, y in corners], fill=fill)
        else:
            start, end = own.uniform(0, side, (2, 2)).tolist()
            brush.line([*start, *end], fill=fill, width=int(own.integers(1, 5)))


def contrasting(own: Rng, ground: Array, kind: int | None = None) -> Array:
    """Return a colour that contrasts with the background; of a given kind, if that is possible."""
    low = 120 if ground.max() < 255 * DARK else 0
    colour = ground
    for _ in range(100):
        colour = own.uniform(low, 255, 3) if kind is None else colour_of(own, kind)
        if np.linalg.norm(colour - ground) >= CONTRAST:
            return colour
    return colour


def colour_of(own: Rng, kind: int) -> Array:
    """Return a colour of one of the `COLOURS` kinds."""
    if kind == HUES:
        hue, saturation, value = own.uniform((0, 0, 0.4), (HUES, 0.15, 1))
    else:
        hue, saturation, value = own.uniform((kind - 0.35, 0.4, 0.4), (kind + 0.35, 1, 1))
    return 255 * np.array(colorsys.hsv_to_rgb(hue / HUES % 1, saturation, value))


def photographed(picture: Image.Image, own: Rng, wild: float) -> Pixels:
    """Add light from one side, exposure and noise."""
    size = picture.width
    across = np.linspace(-1, 1, size, dtype=np.float32)
    angle, strength = own.uniform(0, math.tau), own.uniform(0, 0.3)
    light = across * np.float32(math.cos(angle)) + across[:, None] * np.float32(math.sin(angle))
    pixels = np.asarray(picture, np.float32) * (1 + np.float32(strength) * light)[..., None]
    pixels *= np.float32(own.uniform(0.7, 1.2))
    noise = own.standard_normal((size, size, 3), dtype=np.float32)
    pixels += noise * np.float32(own.uniform(0, 14 * wild))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def unit(angles: Array) -> Array:
    """Return points on the unit circle."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def rotation(angle: float) -> Array:
    """Return a 2x2 rotation to multiply from the right of row vectors."""
    cos, sin = math.cos(angle), math.sin(angle)
    return np.array([[cos, sin], [-sin, cos]])


def rounded(colour: Array) -> tuple[int, int, int]:
    """Return a colour as Pillow expects it."""
    red, green, blue = (int(channel) for channel in colour.clip(0, 255).tolist())
    return red, green, blue
