"""The small run that the campaigns disturb: its data, its command and its result."""

import importlib
import json
import shutil
from pathlib import Path

import torch

from tests.conftest import draw_folder
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import load_checkpoint, save_checkpoint, state_digest
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.report import html

LATE = (
    "torch._dynamo",
    "timm.data",
    "rich.console",
    "rich.progress",
    "rich.table",
    html.__name__,
)
"""Modules that a run imports only when it needs them; torch's optimisers import the first."""
AUGMENTED = ("--train", "all", "--set", "train.drop_path=0.1", "--set", "train.cutmix=1.0")
TWO_STAGES = ("--train", "head,all", "--set", "train.drop_path=0.1")
TRAINING = ("--batch-size", "8", "--lr", "0.01", "--set", "optim.ema=0.9")


def prepare(home: Path, *, per_class: int = 20, width: int = 96, depth: int = 4) -> None:
    """Draw an image folder, write a small backbone and import what every child would import."""
    for name in LATE:
        importlib.import_module(name)
    draw_folder(home / "data", per_class=per_class)
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(16, 16), patch_size=(4, 4), width=width, depth=depth, heads=4, num_classes=0
    )
    card = Card(architecture=config, transform=EvalTransform(image_size=(16, 16)))
    save_checkpoint(home / "w.safetensors", VisionTransformer(config).state_dict(), card)


def command(home: Path, out: Path, *options: str) -> list[str]:
    """Return the words that start the run, or resume it once it can be resumed."""
    if has_begun(out):
        return ["finetune", "--resume", str(out)]
    data = ["--data", str(home / "data"), "--weights", str(home / "w.safetensors")]
    return ["finetune", *data, *options, "--out", str(out)]


def has_begun(out: Path) -> bool:
    """Return whether a run was stopped late enough to be resumed."""
    return (out / "split.csv").exists() and (out / "class_indices.json").exists()


def clear_unbegun(out: Path) -> None:
    """Remove the folder of a run that was stopped before it could be resumed."""
    if not has_begun(out):
        shutil.rmtree(out, ignore_errors=True)


def result(run: Path) -> tuple[str, str, str]:
    """Return what must equal the undisturbed run: weights with their card, log and metrics."""
    metrics = json.loads((run / "eval.json").read_text())
    metrics.pop("seconds")
    state, card = load_checkpoint(run / "model.safetensors")
    return state_digest(str(card), state), (run / "metrics.jsonl").read_text(), json.dumps(metrics)


def missing(out: Path, names: list[str]) -> list[str]:
    """Return the files of an undisturbed run that this one lacks.

    report.html does not count: it can be written again at any time.
    """
    return [name for name in names if name != "report.html" and not (out / name).exists()]
