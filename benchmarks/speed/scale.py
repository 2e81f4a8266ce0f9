"""Processor time and memory of whole commands as the number of images grows.

    python -m benchmarks.speed.scale [--images 2500 10000 40000] [--classes 10] [--distinct 2000]

The folders hold distinct drawn images, and links to them in the same class once there are more; identical
files are computed once, as always. The model is tiny (16 pixels, 2 blocks), so that everything around it is
measured. Printed are, for each command, processor seconds, peak memory, the exponent between the last
two sizes (1 is linear), and what an additional image costs.
"""

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.timing import Process, wait_for


def tiny_weights(path: Path) -> None:
    """Write a backbone whose forward pass costs almost nothing."""
    import torch

    from vitft.data.transforms import EvalTransform
    from vitft.models.card import Card
    from vitft.models.checkpoint import save_checkpoint
    from vitft.models.vit import VisionTransformer
    from vitft.models.vit_config import ViTConfig

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(16, 16), patch_size=(8, 8), width=32, depth=2, heads=2, num_classes=0
    )
    card = Card(architecture=config, transform=EvalTransform(image_size=(16, 16)))
    save_checkpoint(path, VisionTransformer(config).state_dict(), card)


def draw_images(folder: Path, distinct: int, classes: int) -> list[Path]:
    """Write small JPEG files whose colour depends on their class, and return their paths."""
    from PIL import Image

    random = np.random.default_rng(0)
    hues = random.integers(60, 196, (classes, 3))
    folder.mkdir()
    paths = []
    for i in range(distinct):
        coarse = hues[i % classes] + random.normal(0, 40, (6, 8, 3))
        picture = Image.fromarray(np.clip(coarse, 0, 255).astype(np.uint8)).resize((64, 48))
        paths.append(folder / f"{i}.jpg")
        picture.save(paths[-1], quality=85)
    return paths


def link_folder(folder: Path, images: int, classes: int, real: list[Path]) -> None:
    """Make a folder with `images` links to the files, in a folder per class."""
    for k in range(classes):
        (folder / f"class {k:04}").mkdir(parents=True)
    for i in range(images):
        target = real[i % len(real)]
        (folder / f"class {i % len(real) % classes:04}" / f"{i:07}.jpg").hardlink_to(target)


def run(home: Path, *words: str) -> Process:
    """Run a vitft command in `home`, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "vitft", *words]
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    done = wait_for(process, begun)
    assert done.code == 0, command
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[2500, 10_000, 40_000])
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--distinct", type=int, default=2000)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if len(args.images) < 2:
        parser.error("two numbers of images are compared: --images 10000 100000")
    if args.make is not None:  # in a process of its own: a child's peak counts from its parent's
        tiny_weights(args.make)
        return
    found: dict[str, list[Process]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        weights = home / "tiny.safetensors"
        module = [sys.executable, "-m", "benchmarks.speed.scale", "--make", str(weights)]
        subprocess.run(module, check=True)
        real = draw_images(home / "real", args.distinct, args.classes)
        for images in args.images:
            link_folder(home / f"data{images}", images, args.classes, real)
            data, out = f"data{images}", f"run{images}"
            given = ("--data", data, "--weights", str(weights), "--out", out)
            commands = {
                "finetune": ("finetune", *given, "--set", f"train.cache={home / 'cache'}"),
                "report": ("report", "--run", out),
                "evaluate": ("evaluate", "--run", out, "--data", data, "--out", f"{out}e"),
                "check": ("check", data, "--out", f"check{images}"),
                "predict": ("predict", data, "--run", out, "--out", f"{out}.csv"),
            }
            for name, words in commands.items():
                found.setdefault(name, []).append(run(home, *words))
    sizes = args.images
    print(f"| {args.classes} classes | " + " | ".join(f"{n:,}" for n in sizes), end="")
    print(" | exponent | an additional image |")
    for name, costs in found.items():
        times = " | ".join(f"{c.cpu_s:.1f} s, {c.peak_mib:,.0f} MiB" for c in costs)
        one, two = costs[-2:]
        more = sizes[-1] - sizes[-2]
        exponent = math.log(two.cpu_s / one.cpu_s) / math.log(sizes[-1] / sizes[-2])
        each = f"{1000 * (two.cpu_s - one.cpu_s) / more:.2f} ms, {1024 * (two.peak_mib - one.peak_mib) / more:.1f} KiB"
        print(f"| {name} | {times} | {exponent:.2f} | {each} |")


if __name__ == "__main__":
    main()
