"""Fine-tuning of a head on frozen features, whole processes: vitft, a tutorial's loop, Trainer, fastai.

    python -m benchmarks.speed.frozen --data DIR [--model vit_tiny_patch16_224] [--repeats 3]
        [--train 400] [--val 100] [--epochs 10] [--measured 2] [--peers ours tutorial trainer fastai]
        [--precision auto]

Every contestant is a fresh process with the same images (a folder of links), the same split and the same
weights (random unless --weights names a file). The contestants take turns, `repeats` times, and medians are
printed. vitft runs completely, with an empty feature cache. A peer measures `--measured` whole epochs
(training and validation) after its start; its seconds for `--epochs` are start + epochs x mean epoch, so
with --measured equal to --epochs nothing is extrapolated. With --part N, the tutorial's loop, whose epoch
takes minutes with a large model, runs N batches of one epoch and of its validation: an epoch is then the
seconds to the first batch of each (the workers start), plus the seconds per image of the following
batches times the other images, plus one checkpoint. The output states this.
--precision is that of vitft. Peers run as their users run them: float32, batch 8, two workers.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.folders import link_images
from benchmarks.other_tools import (
    TRAINER_OPTIONS,
    collate,
    freeze_all_but_head,
    image_folders,
    load_backbone,
    trainer_accuracy,
    trainer_model,
)
from benchmarks.timing import run_contestant, run_vitft

STARTED = time.perf_counter()


def make_weights(model: str, path: Path) -> None:
    """Write random weights with timm's names, which every contestant loads."""
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(timm.create_model(model, num_classes=1000).state_dict(), path)


def report(epochs: list[float], ready: float, accuracy: float) -> None:
    """Print a contestant's results as the last line of its output."""
    print(json.dumps({"start": ready, "epochs": epochs, "accuracy": accuracy}))


# ---------------------------------------------------------------------------- contestants


def extrapolated(marks: list[float], batch: int, images: int) -> float:
    """Return the seconds of a pass over `images`, extrapolated from some of its batches.

    Args:
        marks: Time at which the pass began, and at which each batch ended.
        batch: Images per batch.
        images: Images of the whole pass.
    """
    first = marks[1] - marks[0]
    each = (marks[-1] - marks[1]) / (batch * (len(marks) - 2))
    return first + each * (images - batch)


def tutorial(model_name: str, data: Path, weights: Path, epochs: int, part: int = 0) -> None:
    """Run the flower tutorial's loop: only the head trains, SGD, a checkpoint per epoch."""
    import timm
    import torch
    from torch.utils.data import DataLoader
    from torchvision import transforms

    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    centre = [transforms.Resize(256), transforms.CenterCrop(224)]
    loaders = {
        part: DataLoader(images, batch_size=8, shuffle=part == "train", num_workers=2)
        for part, images in image_folders(data, crop, centre).items()
    }
    model = timm.create_model(model_name, num_classes=len(loaders["train"].dataset.classes))
    freeze_all_but_head(load_backbone(model, weights))
    optimizer = torch.optim.SGD(model.head.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-5)
    criterion = torch.nn.CrossEntropyLoss()
    ready, taken, accuracy = time.perf_counter() - STARTED, [], 0.0
    for _ in range(epochs):
        begin = time.perf_counter()
        marks: dict[str, list[float]] = {"train": [begin], "val": []}
        model.train()
        for images, labels in islice(loaders["train"], part or None):
            criterion(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            marks["train"].append(time.perf_counter())
        model.eval()
        right = 0
        marks["val"].append(time.perf_counter())
        with torch.no_grad():
            for images, labels in islice(loaders["val"], part or None):
                right += int((model(images).argmax(1) == labels).sum())
                marks["val"].append(time.perf_counter())
        accuracy = right / len(loaders["val"].dataset) if not part else float("nan")
        saving = time.perf_counter()
        torch.save(model.state_dict(), data.parent / "tutorial.pth")
        end = time.perf_counter()
        sizes = {name: len(loader.dataset) for name, loader in loaders.items()}
        passes = [extrapolated(marks[name], 8, sizes[name]) for name in marks] if part else []
        taken.append(sum(passes) + end - saving if part else end - begin)
    report(taken, ready, accuracy)


def trainer(model_name: str, data: Path, weights: Path, epochs: int) -> None:
    """Run transformers' Trainer on a ViT whose backbone is frozen by hand."""
    import timm
    from torchvision import transforms
    from transformers import Trainer, TrainingArguments

    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    centre = [transforms.Resize(224), transforms.CenterCrop(224)]
    sets = image_folders(data, crop, centre)
    vit = timm.create_model(model_name, num_classes=len(sets["train"].classes))
    marks: list[float] = []

    def metrics(output: Any) -> dict[str, float]:
        marks.append(time.perf_counter())
        return trainer_accuracy(output)

    job = Trainer(
        model=trainer_model(freeze_all_but_head(load_backbone(vit, weights))),
        args=TrainingArguments(
            output_dir=str(data.parent / "trainer"),
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            num_train_epochs=epochs,
            eval_strategy="epoch",
            save_strategy="epoch",
            learning_rate=1e-3,
            dataloader_num_workers=2,
            **TRAINER_OPTIONS,
        ),
        train_dataset=sets["train"],
        eval_dataset=sets["val"],
        data_collator=collate,
        compute_metrics=metrics,
    )
    ready = time.perf_counter()
    job.train()
    taken = [b - a for a, b in zip([ready, *marks[:-1]], marks, strict=True)]
    accuracy = [row["eval_accuracy"] for row in job.state.log_history if "eval_accuracy" in row]
    report(taken, ready - STARTED, accuracy[-1])


def fastai(model_name: str, data: Path, weights: Path, epochs: int) -> None:
    """Run fastai's vision_learner on timm's model: freeze(), one-cycle schedule."""
    from fastai.vision.all import (
        Callback,
        ImageDataLoaders,
        RandomResizedCrop,
        accuracy,
        vision_learner,
    )

    loaders = ImageDataLoaders.from_folder(
        data, train="train", valid="val", item_tfms=RandomResizedCrop(224), bs=8, num_workers=2
    )
    learner = vision_learner(loaders, model_name, metrics=accuracy, pretrained=False)
    load_backbone(learner.model[0].model, weights)
    marks: list[float] = []

    class Clock(Callback):
        def after_epoch(self) -> None:
            marks.append(time.perf_counter())

    learner.freeze()
    ready = time.perf_counter()
    with learner.no_bar():
        learner.fit_one_cycle(epochs, cbs=Clock())
    taken = [b - a for a, b in zip([ready, *marks[:-1]], marks, strict=True)]
    report(taken, ready - STARTED, float(learner.recorder.values[-1][-1]))


# ---------------------------------------------------------------------------- comparison


def run_ours(data: Path, weights: Path, into: Path, *settings: str) -> dict[str, Any]:
    """Run `vitft finetune` as a user does, with an empty feature cache."""
    out, cache = into / "run", into / "cache"
    for folder in (out, cache):
        shutil.rmtree(folder, ignore_errors=True)
    words = ["--data", str(data), "--weights", str(weights), "--out", str(out)]
    seconds = run_vitft("finetune", *words, "--cache", str(cache), *settings)
    figures = json.loads((out / "eval.json").read_text())
    return {"seconds": seconds, "accuracy": figures["top1"], "start": None, "epoch": None}


def run_peer(name: str, args: argparse.Namespace, data: Path, weights: Path) -> dict[str, Any]:
    """Run one peer in a process of its own."""
    words = ["--contestant", name, "--data", str(data), "--weights", str(weights)]
    words += ["--model", args.model, "--measured", str(args.measured), "--part", str(args.part)]
    figures = run_contestant("benchmarks.speed.frozen", *words)
    epoch = statistics.mean(figures["epochs"])
    seconds = figures["start"] + epoch * args.epochs
    return {**figures, "seconds": seconds, "epoch": epoch}


OURS = {
    "ours": [],
    "ours, 1 more view": ["--views", "1"],
    "ours, 10 fresh crops": ["--set", "train.augment=crop", "--set", "optim.epochs=10",
                             "--set", "optim.batch_size=8"],
}  # fmt: skip


def compare(args: argparse.Namespace) -> None:
    """Run all contestants in turn and print the table."""
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        link_images(args.data, into / "data", args.train, args.val)
        weights = args.weights or into / "model.safetensors"
        if not args.weights:
            make_weights(args.model, weights)
        names = [*(["ours", "ours, 1 more view"] if "ours" in args.peers else []),
                 *(p for p in args.peers if p not in ("ours", "fresh"))]  # fmt: skip
        for repeat in range(args.repeats):
            fresh = ["ours, 10 fresh crops"] if "fresh" in args.peers and repeat == 0 else []
            for name in [*names, *fresh]:
                if name in OURS:
                    precision = ["--set", f"train.precision={args.precision}"]
                    outcome = run_ours(into / "data", weights, into, *precision, *OURS[name])
                else:
                    outcome = run_peer(name, args, into / "data", weights)
                results.setdefault(name, []).append(outcome)
                print(f"  {name}: {outcome['seconds']:.1f} s", file=sys.stderr, flush=True)
    base = statistics.median(r["seconds"] for r in results["ours"])
    print(f"{args.model}, {args.train} + {args.val} images, {args.epochs} epochs' worth, "
          f"{args.repeats} repeats, medians")  # fmt: skip
    if args.part:
        print(f"the tutorial's epoch is extrapolated from {args.part} batches of 8 images of training and "
              "as many of validation; its accuracy is unknown")  # fmt: skip
    print("| contestant | whole process s (each) | ratio | start s | epoch s | accuracy |")
    print("|---|---|---|---|---|---|")
    for name, runs in results.items():
        seconds = [r["seconds"] for r in runs]
        middle = statistics.median(seconds)
        each = ", ".join(f"{s:.1f}" for s in seconds)
        start = "" if runs[0]["start"] is None else f"{runs[0]['start']:.1f}"
        epoch = "" if runs[0]["epoch"] is None else f"{runs[0]['epoch']:.1f}"
        print(f"| {name} | {middle:.1f} ({each}) | {middle / base:.1f}x | {start} | {epoch} | "
              f"{100 * runs[-1]['accuracy']:.1f} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--train", type=int, default=400)
    parser.add_argument("--val", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--measured", type=int, default=2)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="+", default=["ours", "tutorial", "trainer", "fastai"])
    parser.add_argument("--precision", choices=["auto", "bf16", "fp32"], default="auto")
    parser.add_argument("--contestant", choices=["tutorial", "trainer", "fastai"])
    args = parser.parse_args()
    if (
        not args.contestant
        and args.part
        and (args.part < 3 or {"trainer", "fastai"} & {*args.peers})
    ):
        parser.error("--part needs at least 3 batches, and no other peer than the tutorial")
    if args.contestant == "tutorial":
        tutorial(args.model, args.data, args.weights, args.measured, args.part)
    elif args.contestant:
        globals()[args.contestant](args.model, args.data, args.weights, args.measured)
    else:
        compare(args)


if __name__ == "__main__":
    main()
