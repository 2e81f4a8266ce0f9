"""Drawn figures, pictures and images as numbers, against reviewed texts in `__snapshots__`.

`make snapshots` writes the texts again, as those of the golden runs. A figure is described as it
was handed to matplotlib to be saved; a picture by its size and the brightness of a coarse grid.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import ArrayLike
from PIL import Image
from syrupy.assertion import SnapshotAssertion

from tests.contract.golden.snapshots import TextExtension, scrub
from tests.contract.rows import draw, expand, run
from vitft.data import draw_demo
from vitft.report import distance_png

WEIGHTS = "--weights ../w.safetensors --device cpu"
FP32 = "--cache none --set train.precision=fp32"


def done(line: str) -> None:
    code, printed = run(line.split())
    assert code == 0, printed


def numbers(values: ArrayLike, digits: int = 2) -> str:
    flat: Any = np.ma.filled(np.ma.asarray(values, dtype=float), np.nan).ravel()
    return " ".join(f"{value:.{digits}f}" for value in flat[:60])


def cells(path: Path, columns: int = 8, rows: int = 8) -> Iterator[str]:
    """Size of a picture and the brightness (0 to 100) of its parts."""
    with Image.open(path) as picture:
        yield f"--- {path.name} {picture.format} {picture.mode} {picture.size}"
        grey = picture.convert("L").resize((columns, rows), Image.Resampling.BOX)
        means = np.asarray(picture.convert("RGB"), dtype=float).mean(axis=(0, 1))
    yield f"mean colour {numbers(means / 2.55, 1)}"
    yield from (numbers(row / 2.55, 1) for row in np.asarray(grey, dtype=float))


def figure_lines(figure: Figure) -> Iterator[str]:
    """What a figure shows: texts, scales, ticks, lines, areas and images of each of its axes."""
    figure.draw_without_rendering()
    yield f"figure {numbers(figure.get_size_inches(), 1)}"
    width, height = figure.bbox.size
    texts: list[Any] = figure.findobj(Text)
    for text in texts:
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent()
            place = numbers([box.x0 / width, box.y0 / height])
            look = f"{text.get_fontsize():.1f} pt, {text.get_color()}"
            yield f"text {text.get_text()!r} at {place}, {look}"
    for axes in figure.get_axes():
        sides = [
            f"{side} {numbers([*spine.get_edgecolor(), spine.get_linewidth()], 1)}"
            for side, spine in axes.spines.items()
            if spine.get_visible()
        ]
        place = numbers(axes.get_position().bounds)
        yield f"axes at {place}, {axes.get_xscale()}, sides {sides}, shown {axes.axison}"
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks, minor = axis.get_majorticklocs(), axis.get_minorticklocs()
            kinds = axis.get_major_ticks(), axis.get_minor_ticks()
            grids = [any(tick.gridline.get_visible() for tick in kind) for kind in kinds]
            yield f"limits {numbers(limits)} ticks {numbers(ticks)} / {numbers(minor)} {grids}"
        for line in axes.lines:
            look = f"{line.get_color()} {line.get_linestyle()} {line.get_marker()}"
            sizes = numbers([line.get_linewidth(), line.get_markersize()])
            x, y = numbers(line.get_xdata(orig=False)), numbers(line.get_ydata(orig=False))
            yield f"line {x} | {y} | {look} {sizes}"
        for area in axes.collections:
            points = [numbers(path.get_extents().get_points()) for path in area.get_paths()]
            offsets, colours = numbers(area.get_offsets()), numbers(area.get_facecolor())
            yield f"area {points} {offsets} {colours}"
        for patch in axes.patches:
            look = f"{numbers(patch.get_edgecolor())} {patch.get_fill()}"
            yield f"patch {numbers(patch.get_extents().get_points(), 1)} {look}"
        for image in axes.images:
            values: Any = np.ma.asarray(image.get_array(), dtype=float)
            if values.ndim == 3 and values.max() <= 1:  # the sign of a component is arbitrary
                values = abs(values - values.mean())
            some = values[:: -(-len(values) // 6), :: -(-values.shape[1] // 6)]
            range_ = numbers([*image.get_extent(), *image.get_clim()])
            yield f"image {values.shape} {range_} {image.get_cmap().name}: {numbers(some)}"


def figures() -> Iterator[str]:
    """Figures of `explain --model`, `explain --patches`, `study`, `compare` and uneven heads."""
    for path in expand("set/cat/{0-5}.jpg") + expand("set/dog/{0-5}.jpg"):
        draw(Path(path), 40, 32)
    saved: list[str] = []
    save = Figure.savefig

    def savefig(figure: Figure, *args: Any, **options: Any) -> None:
        saved.extend([f"--- savefig {options.get('dpi')}", *figure_lines(figure)])
        save(figure, *args, **options)

    with mock.patch.object(Figure, "savefig", savefig):
        done(f"explain --model set/cat/0.jpg {WEIGHTS} --out ../m")
        done(f"explain --patches set/cat/0.jpg {WEIGHTS} --out ../p")
        done(f"study --data set {WEIGHTS} --shots 1 3 --seeds 2 --out ../s --cache none")
        for name in ("a", "b"):
            done(
                f"finetune --data set {WEIGHTS} {FP32} --train blocks:1 --epochs 2 --out ../{name}"
            )
        done("compare ../a ../b --out ../c.png")
        distance_png(np.array([[1, 5], [2, 4], [6, 7]], np.float32), 1, 9.0, "m")
    yield from saved


def demo_flowers() -> Iterator[str]:
    """Flowers of `--data demo`, of two seeds."""
    for seed in (0, 1):
        draw_demo(Path(f"demo{seed}"), per_class=4, seed=seed, size=64)
        for path in sorted(Path(f"demo{seed}").glob("*/*")):
            yield f"seed {seed} {path.parent.name}"
            yield from cells(path, 4, 4)


def exports() -> Iterator[str]:
    """Pictures of a hub page, overlays, and test vectors of the preprocessing."""
    for path in expand("set/cat/{0-9}.jpg") + expand("set/dog/{0-9}.jpg"):
        draw(Path(path), 40, 32)
    hub = "--push-to-hub me/pets --dry-run --licence mit --image-licence cc0-1.0"
    done(f"finetune --data set {WEIGHTS} --out ../run {FP32}")
    done("explain set/cat/0.jpg --run ../run --out ../x --legend --device cpu")
    options = "--method attention --legend --size 700 --device cpu"
    done(f"explain set/dog/0.jpg --run ../run --out ../x/a {options}")
    done(f"export --safetensors --run ../run --out ../hub {hub}")
    pictures = Path("../hub/confusion.png"), Path("../hub/examples.jpg")
    for picture in (*sorted(Path("../x").rglob("*.png")), *pictures):
        yield from cells(picture)
    done("export --preprocessing --run ../run --out ../pre")
    for file in sorted(Path("../pre").rglob("*")):
        if file.suffix in (".pixels", ".view", ".tensor"):
            content = file.read_bytes()
            head = content.partition(b"\n")[0].decode() if file.suffix == ".pixels" else ""
            kind = np.float32 if file.suffix == ".tensor" else np.uint8
            values = np.frombuffer(content[len(head) + bool(head) :], kind).astype(float)
            spread = numbers([values.mean(), values.std(), values.min(), values.max()])
            exact = f"crc {crc32(content)}" if file.suffix == ".pixels" else ""
            yield f"{file.name} {head} {values.size}: {spread} {exact}"


DRAWN: Mapping[str, Callable[[], Iterator[str]]] = {
    "figures": figures, "demo-flowers": demo_flowers, "exports": exports,
}  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="the texts have paths of other systems")
@pytest.mark.parametrize("name", DRAWN)
def test_run(name: str, snapshot: SnapshotAssertion, home: Path) -> None:
    recorded = snapshot.use_extension(TextExtension)
    text = scrub("\n".join(DRAWN[name]()), home)
    assert recorded(name="shown") == text, "\n".join(recorded.get_assert_diff())
