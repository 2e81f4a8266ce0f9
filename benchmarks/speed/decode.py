"""Decoding and resizing on one core: vitft, the tutorial's transform and timm's, in thread seconds.

    python -m benchmarks.speed.decode --data DIR [--images 150] [--weights FILE]

"exact" is `EvalTransform.pixels` after `open_image`; "fast" is `EvalTransform.fast_view`, which the bf16 feature pass
uses. Each is compared with the peer that gives the same view: bilinear 256 (the tutorial's) and bicubic 248
(timm's), both cropped to 224. With --weights, the effect of "fast" on the logits is printed.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as tv

from benchmarks.timing import interleave
from vitft.data.images import open_image
from vitft.data.transforms import EvalTransform
from vitft.models.pretrained.load import load_pretrained

TUTORIAL = EvalTransform(crop=224 / 256, interpolation="bilinear")
TIMM = EvalTransform(crop=0.9, interpolation="bicubic")


def peer(side: int, mode: tv.InterpolationMode) -> Callable[[Path], Any]:
    view = tv.Compose(
        [
            tv.Resize(side, interpolation=mode),
            tv.CenterCrop(224),
            tv.ToTensor(),
            tv.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    return lambda path: view(Image.open(path).convert("RGB"))


def fast(transform: EvalTransform) -> Callable[[Path], Any]:
    def view(path: Path) -> Any:
        found = transform.fast_view(path.read_bytes(), max_pixels=10**8)
        return None if found is None else found[0]

    return view


def exact(transform: EvalTransform) -> Callable[[Path], Any]:
    return lambda path: transform.pixels(open_image(path))


def normalised(ways: list[Any]) -> float:
    """Return the seconds per image that normalising adds to ours (the peers' times include it).

    Batches are as large as those of the feature pass on a CPU.
    """
    batch = torch.from_numpy(np.stack(ways[:16]))
    TIMM.normalise(batch)
    begin = time.thread_time()
    for _ in range(20):
        TIMM.normalise(batch)
    return (time.thread_time() - begin) / 20 / len(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--images", type=int, default=150)
    args = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(args.data.rglob("*.jpg"))
    paths = paths[:: max(1, len(paths) // args.images)][: args.images]
    ways = {
        "tutorial: bilinear 256": peer(256, tv.InterpolationMode.BILINEAR),
        "ours exact, same view": exact(TUTORIAL),
        "ours fast, same view": fast(TUTORIAL),
        "timm: bicubic 248": peer(248, tv.InterpolationMode.BICUBIC),
        "ours exact, timm's view": exact(TIMM),
        "ours fast, timm's view": fast(TIMM),
    }

    def measure(way: Callable[[Path], Any]) -> float:
        begin = time.thread_time()
        for path in paths:
            way(path)
        return (time.thread_time() - begin) / len(paths)

    seconds = interleave({name: partial(measure, way) for name, way in ways.items()}, 5)
    quick = [ways["ours fast, timm's view"](path) for path in paths]
    kept = [
        (q, ways["ours exact, timm's view"](p))
        for q, p in zip(quick, paths, strict=True)
        if q is not None
    ]
    extra = normalised([q for q, _ in kept])
    print(f"{len(paths)} photos, one core, microseconds per image, medians of 5; ours plus {1e6 * extra:.0f} "
          "for normalising in batches")  # fmt: skip
    base = 0.0
    for name, values in seconds.items():
        us = 1e6 * (statistics.median(values) + (extra if name.startswith("ours") else 0))
        base = us if not name.startswith("ours") else base
        print(f"| {name} | {us:.0f} | {base / us:.2f}x |")
    worst = max(int(np.abs(a.astype(int) - b.astype(int)).max()) for a, b in kept)
    over = np.mean([(np.abs(a.astype(int) - b.astype(int)) > 1).mean() for a, b in kept])
    print(f"fast decoding for {len(kept)} of {len(paths)}; largest pixel difference {worst} of 255, "
          f"{100 * over:.4f}% of values differ by more than 1")  # fmt: skip
    if args.weights:
        model, report = load_pretrained(args.weights)
        with torch.inference_mode():
            a, b = (
                torch.cat([model(report.transform.normalise(torch.from_numpy(np.stack(part))))
                           for part in (side[i:i + 16] for i in range(0, len(side), 16))])
                for side in ([k[0] for k in kept], [k[1] for k in kept])
            )  # fmt: skip
        print(f"fp32 logits of {args.weights.name}: largest difference {(a - b).abs().max():.3f} (of a spread "
              f"of {a.std():.2f}), changed top-1 {int((a.argmax(1) != b.argmax(1)).sum())} of {len(a)}")  # fmt: skip


if __name__ == "__main__":
    main()
