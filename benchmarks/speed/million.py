"""`vitft predict` over a very long list: peak memory, time per file, SIGKILL halfway and resume.

    python -m benchmarks.speed.million [--files 1000000] [--real 200] [--run RUN]

The list repeats a few hundred small pictures; one entry in a thousand is missing, and by default the model
is tiny (16 pixels, 2 blocks), so that everything around the model is measured. The command runs
undisturbed, then killed after half of its output and resumed, then with a tenth of the list, whose
peak memory should be the same. Exits with 1 if the bytes differ.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from benchmarks.timing import Process, wait_for


def tiny_run(home: Path) -> None:
    """Write a model whose forward pass costs almost nothing."""
    import torch

    from vitft.data.transforms import EvalTransform
    from vitft.models.card import Card
    from vitft.models.checkpoint import save_checkpoint
    from vitft.models.vit import VisionTransformer
    from vitft.models.vit_config import ViTConfig

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(16, 16), patch_size=(8, 8), width=32, depth=2, heads=2, num_classes=3
    )
    model = VisionTransformer(config)
    model.head.weight.data.normal_()
    card = Card(
        architecture=config, transform=EvalTransform(image_size=(16, 16)), classes=("a", "b", "c")
    )
    save_checkpoint(home / "model.safetensors", model.state_dict(), card)


def write_list(home: Path, files: int, real: int) -> list[Path]:
    """Write the list and a list of its first tenth."""
    from PIL import Image

    random = np.random.default_rng(0)
    (home / "photos").mkdir()
    for i in range(real):
        picture = Image.fromarray(random.integers(0, 256, (20, 24, 3), np.uint8))
        picture.save(home / "photos" / f"{i}.jpg", quality=90)
    names = islice(cycle(range(real)), files)
    lists = [home / "list.txt", home / "tenth.txt"]
    with lists[0].open("w") as whole, lists[1].open("w") as tenth:
        for i, k in enumerate(names):
            line = f"photos/{k}.jpg\n" if i % 1000 != 999 else f"photos/missing {i}.jpg\n"
            whole.write(line)
            if i < files // 10:
                tenth.write(line)
    return lists


def predict(run: str, source: Path, out: Path, *options: str, kill_at: int = 0) -> Process:
    """Run the command in a process of its own; kill it once it has written `kill_at` bytes."""
    command = [sys.executable, "-m", "vitft", "predict", "--run", run, "--list", str(source),
               "--out", str(out), "--device", "cpu", *options]  # fmt: skip
    begin = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    part = out.with_name(f"{out.name}.part")
    while (
        kill_at
        and process.poll() is None
        and not (part.exists() and part.stat().st_size >= kill_at)
    ):
        time.sleep(0.02)
    if kill_at:
        process.send_signal(signal.SIGKILL)
    return wait_for(process, begin)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--real", type=int, default=200)
    parser.add_argument("--run")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--format", choices=("jsonl", "csv"), default="jsonl")
    args = parser.parse_args()
    if args.make is not None:
        tiny_run(args.make)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        # In a process of its own: a child's peak memory counts from that of its parent.
        subprocess.run(
            [sys.executable, "-m", "benchmarks.speed.million", "--make", temporary], check=True
        )
        run = args.run or temporary
        source, tenth = write_list(home, args.files, args.real)
        whole, cut = home / f"whole.{args.format}", home / f"cut.{args.format}"

        some = predict(run, tenth, home / f"tenth.{args.format}")
        done = predict(run, source, whole)
        killed = predict(run, source, cut, kill_at=whole.stat().st_size // 2)
        left = cut.with_name(f"{cut.name}.part").stat().st_size
        resumed = predict(run, source, cut, "--resume")

        same = whole.read_bytes() == cut.read_bytes()
        rows = sum(1 for _ in whole.open("rb")) - (args.format == "csv")
        per_file = (done.wall_s - some.wall_s) / (args.files - args.files // 10)
        print(f"{args.files:,} files: {done.wall_s:.1f} s, {1e6 * per_file:.0f} us per additional file, "
              f"{rows:,} rows, exit code {done.code}")  # fmt: skip
        print(
            f"peak memory {done.peak_mib:.0f} MiB; with a tenth of the files {some.peak_mib:.0f} MiB"
        )
        print(f"killed after {killed.wall_s:.1f} s with {left / whole.stat().st_size:.0%} of the bytes, "
              f"exit code {killed.code}; resumed in {resumed.wall_s:.1f} s, {resumed.peak_mib:.0f} MiB")  # fmt: skip
        print("equal bytes" if same else "DIFFERENT BYTES")
        return 0 if same and rows == args.files and killed.code == -signal.SIGKILL else 1


if __name__ == "__main__":
    sys.exit(main())
