"""Explanations of timm models where the evidence is known: a textured square in noise.

    python -m benchmarks.accuracy.explain_square [--models NAME ...] [--side 64] [--images 200] [--steps 300]

An image is noise with one square, 3/8 of its side, at a random place; the class is the square's texture (stripes
along rows, stripes along columns, checkerboard). Each network is trained from scratch on new images in each step,
until 95% of the last 320 were classified correctly. Printed are the images of another set that are classified
correctly, and for those the fraction of the explanation inside the square, with 95% intervals, and this fraction
relative to the area that the square covers (lift, chance 1).
"""

import argparse
import re

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.explain.attribution import explain
from vitft.explain.method import Method
from vitft.models.pretrained.load import load_backbone

MODELS = ["resnet18", "convnext_atto", "swin_tiny_patch4_window7_224"]
PERIOD = 8
BATCH = 32
RATE = 5e-4


def squares(count: int, side: int, seed: int) -> tuple[Tensor, np.ndarray, Tensor]:
    """Return images (n, 3, S, S), masks (n, S, S) and classes (n,)."""
    random = np.random.default_rng(seed)
    images = random.normal(0, 1, (count, side, side)).astype(np.float32)
    masks = np.zeros((count, side, side), bool)
    classes = np.arange(count) % 3
    size = 3 * side // 8
    rows, columns = np.mgrid[:size, :size] // (PERIOD // 2) % 2
    for image, mask, kind in zip(images, masks, classes, strict=True):
        top, left = random.integers(0, side - size + 1, 2)
        texture = (rows, columns, rows ^ columns)[kind] * 4.0 - 2
        image[top : top + size, left : left + size] = texture + random.normal(0, 0.5, (size, size))
        mask[top : top + size, left : left + size] = True
    pixels = torch.from_numpy(images)[:, None].expand(-1, 3, -1, -1)
    return pixels, masks, torch.from_numpy(classes)


def train(model: nn.Module, side: int, most: int) -> int:
    """Train a model until 95% of the last 320 images were classified correctly; return the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    right: list[float] = []
    model.train()
    for step in range(most):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20)
        pixels, _, classes = squares(BATCH, side, seed=1000 + step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(pixels)
        optimizer.zero_grad()
        F.cross_entropy(logits.float(), classes).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        right.append(float((logits.argmax(-1) == classes).float().mean()))
        if len(right) >= 10 and np.mean(right[-10:]) >= 0.95:
            break
    model.eval()
    return len(right)


def interval(values: np.ndarray) -> str:
    """Format the mean and half the width of its 95% interval."""
    return f"{values.mean():.3f} ± {1.96 * values.std(ddof=1) / np.sqrt(len(values)):.3f}"


def measure(name: str, side: int, count: int, most: int) -> str:
    """Return one row of the table."""
    torch.manual_seed(0)
    model, _ = load_backbone(f"random:timm:{name}", num_classes=3, image_size=side)
    for key, parameter in model.named_parameters():
        if re.search(r"gamma$|layer_scale", key):  # almost zero, so that blocks would learn late
            parameter.data.fill_(1)
    steps = train(model, side, most)
    pixels, masks, classes = squares(count, side, seed=1)
    inside, right = [], []
    for part, mask, target in zip(
        pixels.split(16), np.split(masks, range(16, count, 16)), classes.split(16), strict=True
    ):
        found = explain(model, part, Method(), target)
        maps = torch.from_numpy(found.values)[:, None].float()
        fine = F.interpolate(maps, size=(side, side), mode="nearest")[:, 0].numpy() + 1e-12
        inside.append((fine * mask).sum((1, 2)) / fine.sum((1, 2)))
        right.append(found.logits.argmax(-1) == target.numpy())
    correct, area = np.concatenate(right), masks.mean((1, 2))[0]
    values = np.concatenate(inside)[correct]
    grid = "x".join(map(str, found.values.shape[1:]))
    return f"| {name}, {grid} | {steps} | {correct.mean():.0%} | {interval(values)} | {values.mean() / area:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300, help="most steps of training")
    args = parser.parse_args()
    print("| model, map | steps | correct | inside the square | lift |")
    for name in args.models:
        print(measure(name, args.side, args.images, args.steps), flush=True)


if __name__ == "__main__":
    main()
