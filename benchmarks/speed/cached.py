"""The feature cache: warm runs, killed passes, and training behind the cut.

python -m benchmarks.speed.cached --data DIR --weights FILE [--checks warm kill blocks] [--images 4000]

warm    a second run with other hyperparameters over `--images` images, beside a process that only
        imports what finetune imports
kill    SIGKILL at 20 random moments of the pass, each time followed by another run; the rows in the
        end, bit for bit, against those of an undisturbed cache
blocks  --train blocks:2 on cached features, and through the ordinary loop that runs the whole model
        in each epoch, in float32 without augmentation: losses and seconds
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.folders import link_images
from benchmarks.timing import run_vitft
from vitft.data.scan import scan
from vitft.data.transforms import eval_view
from vitft.features.cut import cut_model
from vitft.features.extract import Extractor, inspect_dataset
from vitft.models.pretrained.load import load_pretrained


def finetune(data: Path, weights: Path, cache: Path, out: Path, *more: str) -> float:
    """Return the seconds of `vitft finetune` as a whole process."""
    paths = [
        "--data",
        str(data),
        "--weights",
        str(weights),
        "--cache",
        str(cache),
        "--out",
        str(out),
    ]
    return run_vitft("finetune", *paths, *more)


def many(data: Path, into: Path, count: int) -> Path:
    """Write `count` different files: the images repeated, with a few bytes after their end."""
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
            if line.startswith("training:"):  # printed just before the pass
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
        view = eval_view(report.transform)
        checked = inspect_dataset(
            scan(data), max_pixels=10**8, allow_bad=True, extractor=extractor, view=view
        )
        rows[name] = extractor.rows([file.sha256 for file in checked.rows], view)
        computed[name] = extractor.computed
    left = list((into / "killed").rglob(".*.rows*"))
    print(
        f"| SIGKILL | {killed} of 20 killed in the pass | {computed['killed']} of {len(rows['killed'])} "
        f"rows left to compute | bit-identical: {torch.equal(rows['killed'], rows['undisturbed'])} | "
        f"temporary files left: {len(left)} |"
    )


UNCUT = """
import sys
import vitft.features.extract
from vitft.cli.main import main
from vitft.features.cut import cut_model
vitft.features.extract.cut_model = lambda model, _: cut_model(model, "none")
sys.exit(main(sys.argv[1:]))
"""
"""vitft, running the whole model in each epoch whatever is frozen."""


def blocks(data: Path, weights: Path, into: Path, epochs: int = 5) -> None:
    words = ["finetune", "--data", str(data), "--weights", str(weights), "--train", "blocks:2"]
    words += ["--epochs", str(epochs), "--batch-size", "16", "--lr", "1e-4"]
    words += ["--set", "train.precision=fp32", "--set", "optim.weight_decay=0.0"]
    begun = time.perf_counter()
    command = [sys.executable, "-c", UNCUT, *words, "--out", str(into / "ordinary")]
    subprocess.run(command, check=True, capture_output=True)
    ordinary_s = time.perf_counter() - begun
    cut_s = run_vitft(*words, "--out", str(into / "cut"), "--cache", str(into / "blocks"))
    lines = [
        (into / name / "metrics.jsonl").read_text().splitlines() for name in ("cut", "ordinary")
    ]
    losses = [[json.loads(line)["train_loss"] for line in each] for each in lines]
    worst = max(abs(a - b) for a, b in zip(*losses, strict=True))
    print(f"| blocks:2, {epochs} epochs | cut {cut_s:.1f} s | ordinary loop {ordinary_s:.1f} s | "
          f"{ordinary_s / cut_s:.1f}x | losses {losses[0][0]:.4f} ... {losses[0][-1]:.4f}, "
          f"largest difference {worst:.1e} |")  # fmt: skip


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
            link_images(args.data, into / "small", 200, 0)
            blocks(into / "small" / "train", args.weights, into)
        if "warm" in args.checks:
            warm(args.data, args.weights, into, args.images)


if __name__ == "__main__":
    main()
