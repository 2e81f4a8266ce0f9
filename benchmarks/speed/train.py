"""Steps of full fine-tuning: vitft, timm's and transformers' models on the same pixels.

    python -m benchmarks.speed.train --repeats 3 --steps 8

Each variant is a process of its own that builds a random ViT-Ti/16, takes two warm-up steps and then
measures whole steps: forward, loss, backward, AdamW. The peers' steps are those of timm's train.py and
of transformers' Trainer without data loading, logging and evaluation, which cost them more. Repeats are
interleaved; medians, ratios and peak memory are printed.
"""

import argparse
import json
import resource
import statistics
import time
from functools import partial
from typing import Any

from benchmarks.timing import interleave, run_contestant

VARIANTS = [
    f"{tool} {kind}" for tool in ("timm", "transformers", "vitft") for kind in ("fp32", "bf16")
]


def pixels_and_labels(batch: int, classes: int) -> tuple[Any, Any]:
    """Return the images that all variants use."""
    import torch

    random = torch.Generator().manual_seed(0)
    return torch.randn(batch, 3, 224, 224, generator=random), torch.randint(
        0, classes, (batch,), generator=random
    )


def peer_step(library: str, precision: str, batch: int) -> Any:
    """Return a step as users of timm or transformers write it."""
    import torch

    if library == "timm":
        import timm

        model: Any = timm.create_model("vit_tiny_patch16_224", num_classes=5)
    else:
        from transformers import ViTConfig, ViTForImageClassification

        shape = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3}
        model = ViTForImageClassification(ViTConfig(**shape, intermediate_size=768, num_labels=5))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    pixels, labels = pixels_and_labels(batch, 5)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            output = model(pixels)
            logits = output if library == "timm" else output.logits
            loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def our_step(precision: str, batch: int) -> Any:
    """Return a step of vitft's training loop."""
    from vitft.config.sections import OptimSpec
    from vitft.features.cut import cut_model
    from vitft.models.registry import create_model
    from vitft.training.loop import Batch, Trainer

    model = create_model("vit_tiny_patch16_224", num_classes=5)
    spec = OptimSpec(solver="adamw", lr=5e-4, weight_decay=0.05, batch_size=batch, epochs=1)
    suffix = cut_model(model, "all").suffix
    trainer = Trainer(suffix, spec, steps_per_epoch=1000, precision=precision)
    pixels, labels = pixels_and_labels(batch, 5)
    return lambda: trainer.step(Batch(pixels, labels))


def child(variant: str, batch: int, steps: int) -> None:
    """Measure one variant and print the result as JSON."""
    import torch

    torch.manual_seed(0)
    library, precision = variant.split()
    step = (
        our_step(precision, batch) if library == "vitft" else peer_step(library, precision, batch)
    )
    for _ in range(2):
        step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": statistics.median(times), "peak_mib": peak}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.variant:
        child(args.variant, args.batch, args.steps)
        return
    words = ["--batch", str(args.batch), "--steps", str(args.steps), "--variant"]
    jobs = {n: partial(run_contestant, "benchmarks.speed.train", *words, n) for n in VARIANTS}
    found = interleave(jobs, args.repeats)
    speeds = {name: [args.batch / row["seconds"] for row in rows] for name, rows in found.items()}
    middle = {name: statistics.median(values) for name, values in speeds.items()}
    print(
        f"ViT-Ti/16, batch {args.batch}, {args.repeats} interleaved repeats of {args.steps} steps"
    )
    print(f"{'':20} images/s (lowest to highest)   of timm fp32  of timm bf16  peak MiB")
    for name, values in speeds.items():
        peak = statistics.median(row["peak_mib"] for row in found[name])
        print(
            f"{name:20} {middle[name]:6.1f} ({min(values):.1f} to {max(values):.1f})"
            f"{'':8}{middle[name] / middle['timm fp32']:8.2f}x"
            f"{middle[name] / middle['timm bf16']:12.2f}x {peak:10.0f}"
        )


if __name__ == "__main__":
    main()
