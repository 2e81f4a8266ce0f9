"""What the cache promises, measured on whole processes.

python -m benchmarks.speed.cached --data DIR --weights FILE [--checks warm kill blocks] [--images 4000]

warm    a second run with other hyper-parameters over `--images` images: seconds beside those of a
        process that only imports what finetune imports
kill    SIGKILL at 20 random moments of the pass, run again each time; the final rows against
        those of an undisturbed cache, bit for bit
blocks  --freeze blocks:2 through the cut and through the ordinary loop (the whole model, the
        frozen part in front run again each epoch), fp32, no augmentation: losses and seconds
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from vitft.config.run import config_from_table
from vitft.data.folder import scan
from vitft.features.cut import cut_model
from vitft.features.extract import Extractor, plain
from vitft.models.freeze import freeze_model
from vitft.models.pretrained import load_pretrained
from vitft.training.loop import Batch, fit


def finetune(data: Path, weights: Path, cache: Path, out: Path, *more: str) -> float:
    """Seconds of one whole process."""
    words = [
        "--data",
        str(data),
        "--weights",
        str(weights),
        "--cache",
        str(cache),
        "--out",
        str(out),
    ]
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "vitft", "finetune", *words, *more], check=True, capture_output=True
    )
    return time.perf_counter() - begin


def many(data: Path, into: Path, count: int) -> Path:
    """`count` different files: the images again and again, with a few bytes behind the end."""
    labels = sorted(p for p in data.iterdir() if p.is_dir())
    for label in labels:
        (into / label.name).mkdir(parents=True)
        images = sorted(label.glob("*.jpg"))
        for i in range(count // len(labels)):
            content = images[i % len(images)].read_bytes() + b"\0" * (i // len(images))
            (into / label.name / f"{i:05}.jpg").write_bytes(content)
    return into


def warm(data: Path, weights: Path, into: Path, count: int) -> None:
    folder, cache = many(data, into / "many", count), into / "warm"
    cold_s = finetune(folder, weights, cache, into / "cold")
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import vitft.training.run"], check=True)
    start_s = time.perf_counter() - begin
    print(f"cold run over {count} images: {cold_s:.1f} s; importing alone: {start_s:.1f} s")
    for name, more in {
        "l2 0.1": ["--set", "optim.l2=0.1"],
        "l2 chosen again": [],
        "adamw, 5 epochs": ["--set", "optim.solver=adamw", "--epochs", "5"],
        "sgd, 5 epochs": ["--set", "optim.solver=sgd", "--epochs", "5"],
    }.items():
        seconds = finetune(folder, weights, cache, into / name.replace(" ", "_"), *more)
        print(
            f"| warm, {name} | {seconds:.1f} s whole process | {seconds - start_s:.1f} s after start |"
        )


def kill(data: Path, weights: Path, into: Path) -> None:
    rng, killed = random.Random(0), 0
    words = ["--data", str(data), "--weights", str(weights), "--cache", str(into / "killed")]
    for attempt in range(20):
        child = subprocess.Popen(
            [sys.executable, "-m", "vitft", "finetune", *words, "--out", str(into / f"k{attempt}")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stderr is not None
        for line in child.stderr:
            if line.startswith("training head"):  # the pass begins now
                break
        time.sleep(rng.uniform(0, 4))
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            killed += 1
        child.wait()
    rows, computed = {}, {}
    model, report = load_pretrained(weights, num_classes=2)
    prefix = cut_model(model, "head").prefix
    assert prefix is not None
    for name in ("killed", "undisturbed"):
        extractor = Extractor(prefix, folder=into / name, precision="bf16", max_pixels=10**8)
        view = plain(report.transform)
        checked = extractor.examine(scan(data), view, allow_bad=True, progress=lambda _: None)
        rows[name] = extractor.rows([file.sha256 for file in checked.good], view)
        computed[name] = extractor.computed
    left = list((into / "killed").rglob(".*.rows*"))
    print(
        f"| SIGKILL | {killed} of 20 killed in the pass | {computed['killed']} of {len(rows['killed'])} "
        f"rows left to compute | bit-identical: {torch.equal(rows['killed'], rows['undisturbed'])} | "
        f"temporary files left: {len(left)} |"
    )


def blocks(data: Path, weights: Path, into: Path, epochs: int = 5) -> None:
    settings = ["--freeze", "blocks:2", "--epochs", str(epochs), "--batch-size", "16", "--lr", "1e-4",
                "--set", "train.precision=fp32", "--set", "optim.weight_decay=0.0"]  # fmt: skip
    cut_s = finetune(data, weights, into / "blocks", into / "cut", *settings)
    lines = (into / "cut" / "metrics.jsonl").read_text().splitlines()
    cut_losses = [json.loads(line)["train_loss"] for line in lines]
    # The ordinary loop: every batch goes through the whole model, in the same order.
    from vitft.data.split import Manifest
    from vitft.training.batches import Feed

    config = config_from_table(
        {
            "data": {"path": str(data)},
            "weights": {"name": str(weights)},
            "train": {"freeze": "blocks:2", "precision": "fp32"},
            "optim": {"epochs": epochs, "batch_size": 16, "lr": 1e-4, "weight_decay": 0.0},
        }
    )
    begin = time.perf_counter()
    manifest = Manifest.read(into / "cut" / "split.csv", data)
    model, report = load_pretrained(weights, num_classes=len(manifest.classes))
    freeze_model(model, "blocks:2")
    whole = cut_model(model, "none")
    feed = Feed(config=config, manifest=manifest, transform=report.transform, cut=whole,
                extractor=None, device=torch.device("cpu"))  # fmt: skip
    losses: list[float] = []
    total = [0.0, 0]

    def on_step(step: object) -> None:
        total[0] += step.loss * step.images  # type: ignore[attr-defined]
        total[1] += step.images  # type: ignore[attr-defined]

    def on_epoch(_: int) -> None:
        losses.append(total[0] / total[1])
        total[:] = [0.0, 0]
        model.eval()
        with torch.inference_mode():
            for batch in feed.validation()():
                model(batch.inputs)

    batches = feed.training()

    def unchanged(epoch: int) -> "list[Batch]":
        return batches(epoch)  # type: ignore[return-value]

    fit(model, unchanged, steps_per_epoch=-(-len(manifest.train) // 16), spec=config.optim,
        on_step=on_step, on_epoch=on_epoch)  # type: ignore[arg-type] # fmt: skip
    ordinary_s = time.perf_counter() - begin
    worst = max(abs(a - b) for a, b in zip(cut_losses, losses, strict=True))
    print(f"| blocks:2, {epochs} epochs | cut {cut_s:.1f} s (whole process) | ordinary loop "
          f"{ordinary_s:.1f} s (in process) | {ordinary_s / cut_s:.1f}x | losses {cut_losses[0]:.4f} ... "
          f"{cut_losses[-1]:.4f}, largest difference {worst:.1e} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--checks", nargs="+", default=["warm", "kill", "blocks"])
    parser.add_argument("--images", type=int, default=4000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        if "kill" in args.checks:
            kill(args.data, args.weights, into)
        if "blocks" in args.checks:
            small = into / "small"
            for label in sorted(p for p in args.data.iterdir() if p.is_dir()):
                (small / label.name).mkdir(parents=True)
                for image in sorted(label.iterdir())[:40]:
                    os.symlink(image.resolve(), small / label.name / image.name)
            blocks(small, args.weights, into)
        if "warm" in args.checks:
            warm(args.data, args.weights, into, args.images)


if __name__ == "__main__":
    main()
