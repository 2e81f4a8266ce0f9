"""Everything that a family of timm's plain ViTs is promised, checked on small networks.

    python -m benchmarks.accuracy.families              # minutes
    python -m benchmarks.accuracy.families --only vit_small_plus_patch16_dinov3

One network per family (tests/models/test_timm_families.py), 64 wide with four blocks, random weights, 2x4
patches, two images. Printed are largest differences from vitft's own `forward`, relative to the largest logit:

timm     timm's forward
maps     logits by way of the attention maps; rows: of their sums from 1 (not relative)
blocks   prefix and suffix of `blocks:2`
lora     adapters with random weights, before and after they are merged
numpy    the NumPy engine
onnx     exported and opened by onnxruntime; int8: the same with 8-bit matrices
program  exported by torch.export and opened
export   exported for timm and opened by timm; `-` if timm has no such model

Exits with 1 if a difference is above its limit: 1e-6 for timm, 1e-4 for graphs, 0.1 for int8, else 1e-5.
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tests.models.test_timm_families import FAMILIES, translated
from vitft.config.sections import TrainSpec
from vitft.data.transforms import EvalTransform
from vitft.explain.attribution import attention_maps
from vitft.export.formats.base import ExportFormat
from vitft.export.formats.onnx import Int8Format, OnnxFormat, TorchExportFormat
from vitft.export.formats.timm import TimmFormat
from vitft.export.plan import ExportPlan
from vitft.export.trained import TrainedRun
from vitft.features.cut import cut_model
from vitft.models.card import Card
from vitft.models.numpy_vit import NumpyModel
from vitft.models.trainable import add_adapters, merge_adapters
from vitft.models.vit import VisionTransformer

FORMATS: dict[str, type[ExportFormat]] = {
    "onnx": OnnxFormat,
    "int8": Int8Format,
    "program": TorchExportFormat,
    "export": TimmFormat,
}
LIMITS = {"timm": 1e-6, "onnx": 1e-4, "int8": 0.1, "program": 1e-4}
"""Largest difference that is accepted, by column; 1e-5 for the others."""


def exported(model: VisionTransformer, images: Tensor) -> dict[str, float | None]:
    """Return the largest difference of a logit by export format; None if the format refuses."""
    transform = EvalTransform(image_size=model.config.image_size)
    card = Card(architecture=model.config, transform=transform, classes=("a", "b", "c"))
    expected = model(images).numpy()
    found: dict[str, float | None] = {}
    for name, kind in FORMATS.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            trained = TrainedRun(folder, model.state_dict(), card)
            form = kind(trained, ExportPlan(formats=(), out=folder))
            if form.obstacle():
                found[name] = None
                continue
            form.write(folder)
            found[name] = float(np.abs(form.open(folder).logits(images.numpy()) - expected).max())
    return found


def merged(model: VisionTransformer, images: Tensor) -> float:
    """Return the largest difference of a logit that merging adapters makes; changes the model."""
    before = model(images)
    add_adapters(model, TrainSpec(layers="lora", lora_rank=4))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.normal_(std=0.1)
    adapted = model(images)
    merge_adapters(model)
    assert (adapted - before).abs().max() > 0.01  # the adapters do something
    return float((model(images) - adapted).abs().max())


@torch.no_grad()
def measure(name: str) -> dict[str, float | None]:
    """Return the largest difference of each column for one family."""
    width = 96 if name == "vit_giant_patch14_reg4_dinov2" else 64  # hidden sizes must be even
    theirs, ours, images = translated(name, width=width, depth=4)
    expected = ours(images)
    maps, by_maps = attention_maps(ours, images)
    cut = cut_model(ours, "blocks:2")
    assert cut.prefix is not None
    twin = NumpyModel(ours.config, {k: t.numpy() for k, t in ours.state_dict().items()})
    pixels = np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())
    numpy = torch.from_numpy(twin.classify(twin.features(pixels)))
    found: dict[str, float | None] = {
        "timm": float((theirs(images) - expected).abs().max()),
        "maps": float((by_maps - expected).abs().max()),
        "blocks": float((cut.suffix(cut.prefix(images)) - expected).abs().max()),
        "numpy": float((numpy - expected).abs().max()),
        **exported(ours, images),
        "lora": merged(ours, images),  # last, because it changes the model
    }
    largest = float(expected.abs().max())
    relative = {key: None if value is None else value / largest for key, value in found.items()}
    return relative | {"rows": max(float((rows.sum(dim=-1) - 1).abs().max()) for rows in maps)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=FAMILIES, metavar="NAME")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    failed = 0
    for number, name in enumerate(args.only):
        row = measure(name)
        if not number:
            print(f"{'family':<40}" + "".join(f"{column:>9}" for column in row))
        shown = ("-" if value is None else f"{value:.0e}" for value in row.values())
        above = [c for c, v in row.items() if v is not None and not v <= LIMITS.get(c, 1e-5)]
        failed += bool(above)
        print(f"{name:<40}" + "".join(f"{text:>9}" for text in shown), *above, flush=True)
    print(f"{len(args.only)} families, {failed} above a limit")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
