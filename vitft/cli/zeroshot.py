"""`vitft zeroshot`: write a classifier from class names alone, without labelled images."""

import argparse
import sys
from typing import Any

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.config.sections import TrainSpec
from vitft.models.pretrained.text import PROMPTS
from vitft.predict.embeddings import list_images
from vitft.predict.zero_shot import check_zero_shot, write_zero_shot
from vitft.system.imports import heavy_imports
from vitft.system.text import count, labelled, shell_join


@Command(
    "zeroshot",
    """
images IMAGE ...  image file, folder, pattern in quotes, or list of paths (.txt, .csv or -)
--classes A,B,...  class names, separated by commas
--weights NAME  CLIP or SigLIP with its text tower: hf:OWNER/NAME or a folder
--prompt TEXT  text with {} for the class name (may be repeated)
--out DIR := zeroshot  new folder for the model
--cache
--device
""",
    description="Write a classifier from class names alone. The text tower of CLIP or SigLIP turns "
    "the names into a linear head. Unlabelled images set the scale of its probabilities. The "
    "accuracy stays unknown until you measure it on labelled images.",
)
def _zeroshot_command(args: argparse.Namespace) -> int:
    """Write the model, and print what it is and how to measure its accuracy."""
    classes = [name.strip() for name in (args.classes or "").split(",") if args.classes]
    prompts = args.prompt or PROMPTS
    out = check_zero_shot(args.weights or "", classes, prompts, args.out)
    images = list_images(args.images, sys.stdin.buffer if sys.stdin else None)
    named = {k: v for k in ("cache", "device") if (v := getattr(args, k)) is not None}
    with heavy_imports():
        import torch  # noqa: F401

    options: Any = {"classes": classes, "prompts": prompts, "out": out, "train": TrainSpec(**named)}
    path = write_zero_shot(images, weights=args.weights, **options)
    output.result(labelled("Wrote", f"{path}, {count(len(classes), 'class', 'classes')}"))
    output.result(labelled("Accuracy", "not measured: no labelled image was used"))
    words = ["vitft", "predict", *args.images, "--run", str(out)]
    output.result(labelled("Next", shell_join(words)))
    return 0
