"""Largest difference between vitft's logits and timm's, for every architecture in the registry.

    python -m benchmarks.accuracy.parity                        # minutes
    python -m benchmarks.accuracy.parity --only tiny small      # sizes or names
    python -m benchmarks.accuracy.parity --weights DIR --data DIR   # ViT-Tiny with real weights, on photos
    python -m benchmarks.accuracy.parity --small     # every architecture of timm that opens, 32 wide, two blocks

Random weights, float32, CPU, at the architecture's size and at another. Exits with 1 above 1e-5 for plain
models and 1e-4 for hybrids and DINOv2, above 1e-6 for small models, or if the class of a photo differs.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from timm.data import create_transform

from benchmarks.accuracy.tags import is_counted
from tests.conftest import random_timm
from tests.models.test_stem import random_hybrid
from tests.models.test_timm_families import GRIDS, translated
from vitft import load_pretrained
from vitft.models.checkpoint import build_model
from vitft.models.registry import architecture_config, architecture_names
from vitft.models.vit_config import ViTConfig

DINO = [f"vit_{size}_patch14{reg}_dinov2" for size in ("small", "base") for reg in ("", "_reg4")]


def limit_of(config: ViTConfig) -> float:
    return 1e-4 if config.stem is not None or config.layer_scale else 1e-5


def pair(name: str, image_size: tuple[int, int] | None) -> tuple[Any, ViTConfig]:
    """Return timm's model with random weights, and our configuration of the same architecture."""
    if name in DINO:
        registers = 4 if "reg4" in name else 0
        plain = architecture_config(f"vit_{name.split('_')[1]}_patch14_518")
        config = replace(plain, layer_scale=1e-5, registers=registers,
                         prefix_positions=not registers, num_classes=10)  # fmt: skip
        config = replace(config, image_size=image_size or config.image_size)
        options = {"init_values": 1e-5, "reg_tokens": registers, "no_embed_class": bool(registers)}
        known = f"vit_{name.split('_')[1]}_patch14_224"
        return random_timm(known, config.image_size, **options), config
    config = replace(architecture_config(name), num_classes=10)
    config = replace(config, image_size=image_size or config.image_size)
    make = random_timm if config.stem is None else random_hybrid
    return make(name, config.image_size), config


@torch.no_grad()
def difference(theirs: Any, config: ViTConfig) -> tuple[float, float]:
    """Return the largest |ours - timm| and the largest |timm|, over two random images."""
    ours = build_model(theirs.state_dict(), config)
    images = torch.randn(2, 3, *config.image_size, generator=torch.Generator().manual_seed(1))
    expected = theirs(images)
    return float((ours(images) - expected).abs().max()), float(expected.abs().max())


@torch.no_grad()
def photos(folder: Path, data: Path) -> int:
    """Compare the classes of photos; return 1 if one differs."""
    theirs = timm.create_model("vit_tiny_patch16_224").eval()
    theirs.load_state_dict(load_file(folder / "model.safetensors"))
    half = (0.5, 0.5, 0.5)
    view = create_transform((3, 224, 224), crop_pct=0.9, mean=half, std=half,
                            interpolation="bicubic")  # fmt: skip
    ours, report = load_pretrained(folder)
    files = sorted(data.glob("*/*.jpg"))
    changed, largest = [], 0.0
    for path in files:
        with Image.open(path, formats=["JPEG"]) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        pixels = torch.from_numpy(report.transform.pixels(upright))[None]
        mine, other = ours(report.transform.normalise(pixels)), theirs(view(upright)[None])
        largest = max(largest, float((mine - other).abs().max()))
        if mine.argmax() != other.argmax():
            changed.append(path.name)
    print(f"{len(files)} photos, largest logit difference {largest:.1e}, "
          f"{len(changed)} with another class {changed[:5]}")  # fmt: skip
    return int(bool(changed) or not files)


@torch.no_grad()
def small_networks(wanted: list[str]) -> int:
    """Compare small versions of timm's published architectures; return 1 if one is above 1e-6."""
    tags = (name.partition(".")[0] for name in timm.list_pretrained())
    names = sorted({name for name in tags if is_counted(name) and (not wanted or name in wanted)})
    compared, equal, above = set[str](), 0, 0
    for name in names:
        for grid in GRIDS:
            try:
                theirs, ours, images = translated(name, grid)
            except (AssertionError, AttributeError):  # parts that vitft's own model lacks
                break
            largest = float((ours(images) - theirs(images)).abs().max())
            compared.add(name)
            equal += largest == 0
            above += largest > 1e-6
            print(f"{name:<45}{grid[0]}x{grid[1]} patches{largest:>10.1e}", flush=True)
    print(f"{len(compared)} architectures at two sizes: {equal} comparisons equal to the last bit, "
          f"{above} above 1e-6")  # fmt: skip
    return int(above > 0 or not compared)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="sizes or architectures")
    parser.add_argument("--weights", type=Path, help="folder with timm's vit_tiny_patch16_224")
    parser.add_argument("--data", type=Path, help="folder of photos")
    parser.add_argument("--small", action="store_true", help="small versions of timm's models")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.small:
        return small_networks(args.only)
    if args.weights and args.data:
        return photos(args.weights, args.data)
    wanted = args.only
    failed = 0
    print(f"torch {torch.__version__}\n{'architecture':<30}{'pixels':>10}{'max |diff|':>12}"
          f"{'limit':>8}{'max |logit|':>13}{'s':>7}")  # fmt: skip
    for name in [*architecture_names(), *DINO]:
        if wanted and name.split("_")[1] not in wanted and name not in wanted:
            continue
        patch = 14 if name in DINO else architecture_config(name).patch_size[0]
        for image_size in (None, (6 * patch, 9 * patch)):
            start = time.perf_counter()
            theirs, config = pair(name, image_size)
            largest, scale = difference(theirs, config)
            failed += largest > limit_of(config)
            shown = f"{config.image_size[0]}x{config.image_size[1]}"
            seconds = time.perf_counter() - start
            print(f"{name:<30}{shown:>10}{largest:>12.1e}{limit_of(config):>8.0e}{scale:>13.2f}"
                  f"{seconds:>7.1f}", flush=True)  # fmt: skip
    print(f"above the limit: {failed}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
