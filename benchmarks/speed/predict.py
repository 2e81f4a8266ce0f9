"""`vitft predict` compared with timm's inference and transformers' pipeline.

    python -m benchmarks.speed.predict throughput --data DIR [--images 4000] [--run RUN] [--repeats 3]
    python -m benchmarks.speed.predict cold --data DIR [--model vit_base_patch16_224] [--repeats 5]
    python -m benchmarks.speed.predict load [--model vit_base_patch16_224] [--repeats 7]

All have the same architecture and 5 classes, and take turns, each in a fresh process. Weights are random
unless --run names trained ones (random ones give many close calls, which bf16 recomputes in float32);
the head of RUN must read one block (`--set train.head_blocks=1`), as timm's does.

`throughput` counts from the loaded model to the last written prediction, in wall time and in CPU time of
the process and its workers (the fairer measure on a machine that does other work, too):

    vitft         `Predictor.answers` and `Rows`, as the command runs them
    timm          the loop of its inference.py: create_dataset, create_loader, autocast, softmax, topk
    transformers  pipeline("image-classification") on a list of paths, in batches
    int8          the graph that `vitft export --int8` writes, in onnxruntime, with vitft's decoding

timm and transformers compute in float32 by default, so bf16 is compared with both of their precisions.

`cold` is the wall time of a whole process for one image; `load` builds the model from its file in a
process in which everything is imported. Ratios are ratios of medians; the range over repeats is printed.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.timing import (
    cpu_seconds,
    interleave,
    median_range,
    run_contestant,
    run_process,
)
from vitft.data.sources import expand

CLASSES = 5
TOOLS = ("vitft", "timm", "transformers")
BATCH = {"timm": 64, "transformers": 16}
"""Images per batch: the fastest of 16, 32 and 64 for each."""


def prepare(home: Path, model: str, run: str | None, *, int8: bool) -> None:
    """Write a model for each tool, with the same weights for timm and vitft."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    from vitft.data.transforms import EvalTransform
    from vitft.models.card import Card
    from vitft.models.checkpoint import save_checkpoint
    from vitft.models.registry import create_model
    from vitft.predict.torch_engine import Predictor

    torch.manual_seed(0)
    ours = create_model(model, num_classes=CLASSES).eval()
    ours.head.weight.data.normal_(std=0.1)
    if run is not None:
        ours = Predictor.from_run(run, device="cpu").model
    config = ours.config
    transform = EvalTransform(image_size=config.image_size)
    names = tuple(f"class {i}" for i in range(CLASSES))
    card = Card(architecture=config, transform=transform, classes=names)
    save_checkpoint(home / "model.safetensors", ours.state_dict(), card)
    torch.save(ours.state_dict(), home / "timm.pth")
    theirs = ViTForImageClassification(
        ViTConfig(
            hidden_size=config.width, num_hidden_layers=config.depth, num_attention_heads=config.heads,
            intermediate_size=int(config.width * config.mlp_ratio), image_size=config.image_size[0],
            patch_size=config.patch_size[0], num_labels=CLASSES,
        )
    )  # fmt: skip
    theirs.save_pretrained(home / "transformers")
    ViTImageProcessor(
        size={"height": config.image_size[0], "width": config.image_size[1]}
    ).save_pretrained(home / "transformers")
    if int8:
        from vitft.export.formats.onnx import Int8Format
        from vitft.export.plan import ExportPlan
        from vitft.export.trained import load_trained

        (home / "int8").mkdir()
        plan = ExportPlan(formats=(), out=home, with_preprocessing=True)
        Int8Format(load_trained(str(home)), plan).write(home / "int8")


def photos(data: Path, count: int) -> list[str]:
    """Return `count` paths, repeating the photos of a folder in random order."""
    files = [
        file for file in expand([str(data)]) if file.lower().endswith((".jpg", ".jpeg", ".png"))
    ]
    random.Random(0).shuffle(files)
    return [*islice(cycle(files), count)]


# ---- throughput, in a child process


class Stopwatch:
    """Wall and CPU seconds since it was made, children that have ended included."""

    def __init__(self) -> None:
        self.begun = time.perf_counter(), cpu_seconds()

    def passed(self) -> tuple[float, float]:
        return time.perf_counter() - self.begun[0], cpu_seconds() - self.begun[1]


Measured = tuple[tuple[float, float], int]
"""Wall and CPU seconds, and the number of answers."""


def ours(home: Path, folder: Path, precision: str) -> Measured:
    from vitft.data.sources import sources
    from vitft.predict.engine import Pipeline
    from vitft.predict.postprocess import Postprocess
    from vitft.predict.rows import RowFormat, Tally, text_lines
    from vitft.predict.torch_engine import Predictor

    predictor = Predictor.from_run(
        str(home), device="cpu", precision="bf16" if precision == "bf16" else "fp32"
    )
    engine = in_onnxruntime(home, predictor) if precision == "int8" else predictor
    with (home / f"rows-{precision}.jsonl").open("w") as file:
        watch, tally = Stopwatch(), Tally()
        pipeline = Pipeline(engine, Postprocess(outputs=predictor.outputs))
        rows = tally.counting(pipeline.predict(sources([str(folder)])))
        file.writelines(f"{line}\n" for line in text_lines(RowFormat("jsonl"), rows))
    return watch.passed(), tally.rows


def in_onnxruntime(home: Path, predictor: Any) -> Any:
    """Return an engine that computes logits with the 8-bit graph, one core per worker."""
    import numpy as np
    import onnxruntime

    from vitft.predict.postprocess import Scores

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        home / "int8" / "model.onnx", options, providers=["CPUExecutionProvider"]
    )

    class Int8:
        def __getattr__(self, name: str) -> Any:
            return getattr(predictor, name)

        def start(self, views: Any) -> Callable[[], Scores]:
            logits = session.run(["logits"], {"pixels": views})[0]
            return lambda: Scores(logits, np.empty((len(views), 0), np.float32))

    return Int8()


def timm_s(home: Path, folder: Path, precision: str, model: str) -> Measured:
    import timm
    import torch
    from timm.data import create_dataset, create_loader, resolve_data_config

    net = timm.create_model(
        model, num_classes=CLASSES, checkpoint_path=str(home / "timm.pth")
    ).eval()
    config = resolve_data_config({}, model=net)
    watch = Stopwatch()
    dataset = create_dataset(root=str(folder), name="", split="validation", class_map="")
    loader = create_loader(
        dataset, batch_size=BATCH["timm"], use_prefetcher=False, num_workers=2,
        device=torch.device("cpu"), img_dtype=torch.float32, **config,
    )  # fmt: skip
    answers: list[Any] = []
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with torch.inference_mode():
        for pixels, _ in loader:
            with autocast:
                output = net(pixels)
            share, index = output.float().softmax(-1).topk(1)
            answers += zip(share[:, 0].tolist(), index[:, 0].tolist(), strict=True)
    lines = [
        json.dumps([name, *answer])
        for name, answer in zip(dataset.filenames(), answers, strict=True)
    ]
    (home / "timm.jsonl").write_text("\n".join(lines))
    return watch.passed(), len(lines)


def transformers_s(home: Path, folder: Path, precision: str) -> Measured:
    import torch
    from transformers import pipeline

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    classify = pipeline(
        "image-classification", str(home / "transformers"), dtype=dtype, device="cpu"
    )
    watch = Stopwatch()
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    found = classify(paths, batch_size=BATCH["transformers"], num_workers=2, top_k=1)
    lines = [json.dumps([path, answer]) for path, answer in zip(paths, found, strict=True)]
    (home / "transformers.jsonl").write_text("\n".join(lines))
    return watch.passed(), len(lines)


def child(args: argparse.Namespace) -> None:
    home, folder = Path(args.home), Path(args.folder)
    if args.tool == "vitft":
        measured = ours(home, folder, args.precision)
    elif args.tool == "timm":
        measured = timm_s(home, folder, args.precision, args.model)
    else:
        measured = transformers_s(home, folder, args.precision)
    print(json.dumps(measured))


def throughput(args: argparse.Namespace, home: Path) -> None:
    folder = home / "photos" / "all"
    folder.mkdir(parents=True)
    for i, path in enumerate(photos(args.data, args.images)):
        (folder / f"{i:06}.jpg").symlink_to(Path(path).resolve())
    kinds = [
        (tool, dtype)
        for dtype in args.precisions
        for tool in (TOOLS if dtype != "int8" else TOOLS[:1])
    ]
    walls: dict[tuple[str, str], list[float]] = {kind: [] for kind in kinds}
    cpus: dict[tuple[str, str], list[float]] = {kind: [] for kind in kinds}
    for _ in range(args.repeats):
        for tool, dtype in kinds:
            words = ["child", "--tool", tool, "--precision", dtype, "--home", str(home)]
            words += ["--folder", str(folder.parent), "--model", args.model]
            (wall, cpu), count = run_contestant("benchmarks.speed.predict", *words)
            assert count == args.images, (tool, count)
            walls[tool, dtype].append(count / wall)
            cpus[tool, dtype].append(count / cpu)
            print(f"  {tool:12} {dtype}  {count / wall:7.1f} images/s  {1000 * cpu / count:6.1f} ms of CPU per image",
                  flush=True)  # fmt: skip
    show("images/s", walls)
    show("images per CPU second", cpus)
    for mine, theirs in (("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32"), ("int8", "bf16")):
        if {mine, theirs} <= {*args.precisions}:
            for unit, found in (("wall", walls), ("CPU", cpus)):
                best = max(statistics.median(found[tool, theirs]) for tool in TOOLS[1:])
                ratio = statistics.median(found["vitft", mine]) / best
                print(f"vitft {mine} / the better peer in {theirs}, by {unit} time: {ratio:.2f}")
    if "fp32" in args.precisions:
        for dtype in ("bf16", "int8"):
            if dtype in args.precisions:
                print_agreement(home, dtype)


def print_agreement(home: Path, dtype: str) -> None:
    answers = [
        [json.loads(line)["classes"][0] for line in (home / f"rows-{d}.jsonl").open()]
        for d in ("fp32", dtype)
    ]
    same = sum(a["class"] == b["class"] for a, b in zip(*answers, strict=True))
    print(f"{dtype} predicts the class of fp32 for {same} of {len(answers[0])} images")


def show(unit: str, values: dict[Any, list[float]]) -> None:
    for key, found in values.items():
        name = " ".join(key) if isinstance(key, tuple) else key
        print(f"{name:24} median {median_range(found, '8.3f')} {unit}")


# ---- cold start

TIMM = """
import sys, torch, timm
from PIL import Image
name, weights, image, classes = sys.argv[1:]
model = timm.create_model(name, num_classes=int(classes), checkpoint_path=weights).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
with torch.inference_mode():
    shares = model(transform(Image.open(image).convert("RGB"))[None]).softmax(-1)
print(shares.max().item(), shares.argmax().item())
"""
PIPELINE = """
import sys
from transformers import pipeline
print(pipeline("image-classification", sys.argv[1], device="cpu")(sys.argv[2], top_k=1))
"""


def cold(args: argparse.Namespace, home: Path) -> None:
    image = photos(args.data, 1)[0]
    vitft = [sys.executable, "-m", "vitft", "predict", "--run", str(home), "--device", "cpu"]
    commands = {
        "vitft numpy": [*vitft, "--engine", "numpy", image],
        "vitft torch": [*vitft, "--engine", "torch", image],
        "timm": [
            sys.executable,
            "-c",
            TIMM,
            args.model,
            str(home / "timm.pth"),
            image,
            str(CLASSES),
        ],
        "transformers": [sys.executable, "-c", PIPELINE, str(home / "transformers"), image],
        "import torch": [sys.executable, "-c", "import torch"],
        "import numpy, PIL": [sys.executable, "-c", "import numpy, PIL.Image"],
    }
    jobs = {name: partial(run_process, command) for name, command in commands.items()}
    interleave(jobs, 1)  # fills the page cache
    found = interleave(jobs, args.repeats)
    for i, unit in enumerate(("s wall", "s cpu", "MiB peak"), 1):
        show(unit, {name: [row[i] for row in rows] for name, rows in found.items()})
    medians = {name: statistics.median(row.wall_s for row in rows) for name, rows in found.items()}
    pairs = ("vitft torch", "timm"), ("vitft torch", "transformers"), ("vitft numpy", "timm")
    for one, other in pairs:
        print(f"{one} / {other}: {medians[one] / medians[other]:.3f}")


# ---- loading


def milliseconds(job: Callable[[], object]) -> float:
    begin = time.perf_counter()
    job()
    return 1000 * (time.perf_counter() - begin)


def load(args: argparse.Namespace, home: Path) -> None:
    import timm
    import torch
    from safetensors import safe_open

    from vitft.models.checkpoint import build_model, load_checkpoint

    path = home / "model.safetensors"
    config = load_checkpoint(path)[1].architecture

    def ours_unverified() -> object:
        with safe_open(path, framework="pt") as file:
            return build_model({name: file.get_tensor(name) for name in file.keys()}, config)  # noqa: SIM118

    def ours_verified() -> object:
        return build_model(load_checkpoint(path)[0], config)

    def theirs() -> object:
        model = timm.create_model(args.model, num_classes=CLASSES)
        model.load_state_dict(torch.load(home / "timm.pth", weights_only=True))
        return model

    jobs = {"map and build": ours_unverified, "and check the sha256": ours_verified,
            "init, torch.load, copy": theirs}  # fmt: skip
    interleave(jobs, 1)
    found = interleave(
        {name: partial(milliseconds, job) for name, job in jobs.items()}, args.repeats
    )
    show("ms", found)
    peer = statistics.median(found["init, torch.load, copy"])
    for name in ("map and build", "and check the sha256"):
        print(f"{name}: 1/{peer / statistics.median(found[name]):.1f} of init, torch.load, copy")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("throughput", "cold", "load", "child", "prepare"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--model")
    parser.add_argument("--run", help="a trained run of 5 classes and of --model, for its weights")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], help="fp32 bf16 int8")
    for name in ("--tool", "--precision", "--home", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what == "child":
        return child(args)
    if args.what == "prepare":
        return prepare(Path(args.home), args.model, args.run, int8="int8" in args.precisions)
    if args.data is None and args.what != "load":
        parser.error("--data DIR: a folder of photos")
    args.model = args.model or (
        "vit_tiny_patch16_224" if args.what == "throughput" else "vit_base_patch16_224"
    )
    args.repeats = args.repeats or {"throughput": 3, "cold": 5, "load": 7}[args.what]
    with tempfile.TemporaryDirectory() as temporary:
        # In a process of its own: a child's peak memory counts from that of its parent.
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.speed.predict", "prepare"]
        command += ["--run", args.run] if args.run else []
        command += ["--home", temporary, "--model", args.model, "--precisions", *args.precisions]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        {"throughput": throughput, "cold": cold, "load": load}[args.what](args, Path(temporary))
    return None


if __name__ == "__main__":
    main()
