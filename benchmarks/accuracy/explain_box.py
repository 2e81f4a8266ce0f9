"""How much of an explanation lies on the object: drawn flowers with known boxes, method by method.

    python -m benchmarks.accuracy.explain_box --run RUN [RUN ...] [--images 200] [--methods ...]

Three tests, on pictures that no run was trained on:

whole    One flower picture. The fraction of a map inside the boxes of the flowers, relative to the fraction
         of the area that the boxes cover (lift, chance 1). AUC is the probability that a patch inside
         ranks above one outside (chance 0.5). Flowers are in the middle, so `centre`, a Gaussian that
         ignores the picture, scores well here: a lower score does not speak for a method.
corner   The flower picture fills one quarter, the other three are backgrounds with clutter and without
         flowers. `centre` is at chance.
kinds    Four kinds of flower in one picture, one of which is the target: the fraction of the map in its
         quarter. Chance is 0.25, which a map that ignores the class cannot exceed.

The targets are the kinds among the classes of the run, which may be fewer than five.

`vit-explain` is the rule of github.com/jacobgil/vit-explain, written anew from its description: heads
fused, the weakest entries of the whole map set to zero (but never the first), averaged with the identity,
columns divided by row sums, the class token's row of the product.

Models of timm have no attention to read: only `relevance` and `centre` are compared for them.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from vitft.data.demo import FLOWERS_BY_KIND, background, flower_scene, photographed, scatter
from vitft.explain.attribution import explain, trace_attention
from vitft.explain.heatmaps import Method
from vitft.models.card import Card
from vitft.models.checkpoint import build_model, load_checkpoint
from vitft.models.find import find_model
from vitft.models.timm_model import Model, TimmModel
from vitft.models.vit import VisionTransformer

FIRST = 1001
"""Number of the first picture; lower ones may be training images."""
SIZE = 128
Maps = np.ndarray
Explain = Callable[[Any, Tensor, Tensor], Maps]


def ours(**options: object) -> Explain:
    return lambda model, pixels, target: explain(model, pixels, Method(**options), target)[0]  # type: ignore[arg-type]


@torch.no_grad()
def vit_explain(model: VisionTransformer, pixels: Tensor, fusion: str, discard: float) -> Maps:
    fuse = {"mean": lambda a: a.mean(1), "max": lambda a: a.amax(1), "min": lambda a: a.amin(1)}[
        fusion
    ]
    answers = []
    for image in pixels:
        product = torch.eye(model.config.num_prefix + model.config.grid[0] * model.config.grid[1])
        for maps, _ in trace_attention(model, model.embed(image[None])):
            fused = fuse(maps)[0]
            weakest = (
                fused.flatten()
                .topk(int(fused.numel() * discard), largest=False, sorted=False)
                .indices
            )
            fused.flatten()[weakest[weakest != 0]] = 0
            half = (fused + torch.eye(len(fused))) / 2
            product = (half / half.sum(dim=-1)) @ product
        answers.append(product[0, model.config.num_prefix :].unflatten(0, model.config.grid))
    return torch.stack(answers).numpy()


def centre(model: Model, pixels: Tensor, _: Tensor) -> Maps:
    rows, columns = grid_of(model)
    y, x = np.linspace(-1, 1, rows)[:, None], np.linspace(-1, 1, columns)
    return np.broadcast_to(np.exp(-2 * (x**2 + y**2)), (len(pixels), rows, columns))


def grid_of(model: Model) -> tuple[int, int]:
    """Return the numbers of rows and columns of a model's maps."""
    if not isinstance(model, TimmModel):
        return model.config.grid
    rows, columns = explain(model, model.blank(1), Method())[0].shape[1:]
    return rows, columns


METHODS: dict[str, Explain] = {
    "relevance": ours(),
    "rollout mean": ours(name="rollout"),
    "rollout mean, discard 0.9": ours(name="rollout", discard=0.9),
    "rollout max": ours(name="rollout", fusion="max"),
    "rollout max, discard 0.9": ours(name="rollout", fusion="max", discard=0.9),
    "rollout min, discard 0.9": ours(name="rollout", fusion="min", discard=0.9),
    "attention, last block": ours(name="attention"),
    **{
        f"vit-explain {f} 0.9": lambda m, p, _, f=f: vit_explain(m, p, f, 0.9)
        for f in ("mean", "max", "min")
    },
    "centre": centre,
}


def on_grid(card: Card, picture: Image.Image, grid: tuple[int, int]) -> Maps:
    """Return the fraction of each patch that a mask covers, after the model's own transform."""
    view = card.transform.pixels(picture.convert("RGB"))[..., 0] / 255
    return view.reshape(grid[0], view.shape[0] // grid[0], grid[1], view.shape[1] // grid[1]).mean(
        (1, 3)
    )


CORNERS = ((0, 0), (SIZE, 0), (0, SIZE), (SIZE, SIZE))


def whole(number: int, known: Sequence[str]) -> tuple[Image.Image, Image.Image, str]:
    """Return a picture, the mask of its flowers, and their kind, one of `known`."""
    kind = known[number % len(known)]
    picture, boxes = flower_scene(kind, FIRST + number // len(known), size=SIZE)
    mask = Image.new("L", picture.size)
    for box in boxes:
        ImageDraw.Draw(mask).rectangle(box, fill=255)
    return picture, mask, kind


def corner(number: int, known: Sequence[str]) -> tuple[Image.Image, Image.Image, str]:
    flower, inside, kind = whole(number, known)
    picture, mask = Image.new("RGB", (2 * SIZE, 2 * SIZE)), Image.new("L", (2 * SIZE, 2 * SIZE))
    for k, at in enumerate(CORNERS):
        random = np.random.default_rng([9, number, k])
        ground = background(random, SIZE)
        scatter(ImageDraw.Draw(ground), random, SIZE, count=8)
        picture.paste(photographed(ground, random), at)
    at = CORNERS[np.random.default_rng([8, number]).integers(4)]
    picture.paste(flower, at)
    mask.paste(inside, at)
    return picture, mask, kind


def kinds(number: int, known: Sequence[str]) -> tuple[Image.Image, Image.Image, str]:
    random = np.random.default_rng([7, number])
    order = random.permutation(len(FLOWERS_BY_KIND))[:4]
    picture, mask = Image.new("RGB", (2 * SIZE, 2 * SIZE)), Image.new("L", (2 * SIZE, 2 * SIZE))
    for k, at in enumerate(CORNERS):
        picture.paste(
            flower_scene(list(FLOWERS_BY_KIND)[order[k]], FIRST + 500 + number, size=SIZE)[0], at
        )
    asked = int(random.choice([k for k in range(4) if list(FLOWERS_BY_KIND)[order[k]] in known]))
    left, top = CORNERS[asked]
    mask.paste(255, (left, top, left + SIZE, top + SIZE))
    return picture, mask, list(FLOWERS_BY_KIND)[order[asked]]


def inputs(
    card: Card, grid: tuple[int, int], scene: Callable, count: int
) -> tuple[Tensor, Maps, Tensor]:
    """Return pixels, the fraction of each patch that the mask covers, and classes of `count` scenes."""
    views, covers, classes = [], [], []
    for number in range(count):
        picture, mask, kind = scene(number, card.classes)
        views.append(torch.from_numpy(card.transform.pixels(picture)))
        covers.append(on_grid(card, mask, grid))
        classes.append(card.classes.index(kind))
    return card.transform.normalise(torch.stack(views)), np.stack(covers), torch.tensor(classes)


def auc(values: Maps, cover: Maps) -> float:
    inside, outside = values[cover >= 0.5], values[cover < 0.5]
    if not len(inside) or not len(outside):
        return float("nan")
    above = (inside[:, None] > outside).mean() + 0.5 * (inside[:, None] == outside).mean()
    return float(above)


def mean_interval(values: np.ndarray) -> str:
    """Format the mean and half the width of its 95% interval."""
    known = values[np.isfinite(values)]
    return f"{known.mean():.3f} ± {1.96 * known.std(ddof=1) / np.sqrt(len(known)):.3f}"


def compare(run: str, count: int, methods: list[str]) -> None:
    state, card = load_checkpoint(find_model(run))
    floats = {k: t.float() if t.is_floating_point() else t for k, t in state.items()}
    model = build_model(floats, card.architecture)
    grid = grid_of(model)
    if isinstance(model, TimmModel):
        methods = methods or ["relevance", "centre"]
    sets = {f.__name__: inputs(card, grid, f, count) for f in (whole, corner, kinds)}
    print(f"\n{Path(run).name}: {card.weights.get('name')}, grid {grid}, {count} images")
    for name, (pixels, cover, target) in sets.items():
        with torch.no_grad():
            right = torch.cat([model(p).argmax(-1) for p in pixels.split(16)]) == target
        print(
            f"  {name}: {right.float().mean():.1%} correct, the target covers {mean_interval(cover.mean((1, 2)))}"
        )
    print(
        f"{'':<26}{'whole inside':>15}{'lift':>6}{'AUC':>15}{'corner inside':>16}{'lift':>6}{'AUC':>15}{'kinds':>15}"
    )
    for name, method in METHODS.items():
        if methods and name not in methods:
            continue
        row = f"{name:<26}"
        for which, (pixels, cover, target) in sets.items():
            maps = np.asarray(method(model, pixels, target), np.float64) + 1e-12
            inside = (maps / maps.sum((1, 2), keepdims=True) * cover).sum((1, 2))
            row += f"{mean_interval(inside):>{16 if which == 'corner' else 15}}"
            if which != "kinds":
                ranked = np.array([auc(m, c) for m, c in zip(maps, cover, strict=True)])
                row += f"{inside.mean() / cover.mean():>6.2f}{mean_interval(ranked):>15}"
        print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", nargs="+", required=True)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--methods", nargs="*", default=[], help=f"some of: {', '.join(METHODS)}")
    args = parser.parse_args()
    for run in args.run:
        compare(run, args.images, args.methods)


if __name__ == "__main__":
    main()
