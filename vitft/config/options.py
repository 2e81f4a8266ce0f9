"""The options of `vitft finetune` and the settings they stand for."""

import argparse
from collections.abc import Sequence
from typing import Any


class Joined(argparse.Action):
    """An option that may be given several times: its values with commas."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


# option, the setting it stands for, how it is read, and its help
FINETUNE_OPTIONS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    (
        "--data",
        "data.path",
        {"metavar": "DIR"},
        "image folder, one sub-folder per class; .npz, torchvision:CIFAR10; or demo",
    ),
    (
        "--weights",
        "weights.name",
        {"metavar": "NAME"},
        "catalogue name or weight file; demo; none to start from scratch",
    ),
    (
        "--freeze",
        "train.freeze",
        {"metavar": "WHAT"},
        "what trains: head, pre_logits, blocks:N, lora, none; or in turn: head,none",
    ),
    ("--epochs", "optim.epochs", {"type": int, "metavar": "N"}, "passes over the training images"),
    ("--batch-size", "optim.batch_size", {"type": int, "metavar": "N"}, "images per step"),
    ("--lr", "optim.lr", {"type": float, "metavar": "X"}, "peak learning rate"),
    (
        "--image-size",
        "weights.image_size",
        {"type": int, "nargs": "+", "metavar": "PX"},
        "side, or height and width; default: the weights' own",
    ),
    (
        "--pre-logits",
        "weights.pre_logits",
        {"metavar": "keep|drop"},
        "the Linear + Tanh before the head",
    ),
    ("--mean", "weights.mean", {"type": float, "nargs": "+", "metavar": "X"}, "channel means"),
    ("--std", "weights.std", {"type": float, "nargs": "+", "metavar": "X"}, "their deviations"),
    ("--split", "data.split", {"metavar": "random|reference"}, "how images are held back"),
    ("--fixes", "data.fixes", {"metavar": "CSV"}, "decisions on images, from `vitft check`"),
    ("--views", "train.views", {"type": int, "metavar": "K"}, "cached augmented views"),
    ("--cache", "train.cache", {"metavar": "DIR"}, "folder of cached features, or none"),
    ("--device", "train.device", {"metavar": "DEVICE"}, "auto, cpu, cuda, cuda:1, mps"),
    ("--solver", "optim.solver", {"metavar": "lbfgs|sgd|adamw"}, "how the weights are found"),
    (
        "--tracker",
        "train.tracker",
        {"metavar": "NAME", "action": Joined},
        "tell tensorboard, mlflow or wandb, too, how it goes; may be given several times",
    ),
)
