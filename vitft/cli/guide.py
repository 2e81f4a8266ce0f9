"""What `--help` shows besides the options: commands by task, examples, and a page to read."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class _Guide:
    """Examples of a command, and the page that describes it."""

    page: str
    examples: Mapping[str, str] = field(default_factory=dict)
    """Mapping from a command to what it does."""


COMMAND_GROUPS: Mapping[str, Mapping[str, str]] = {
    "start": {
        "demo": "train, predict and export on drawn flowers, offline",
        "data": "download public image datasets",
    },
    "prepare images": {
        "label": "label images on a web page, the most informative ones first",
        "check": "find label errors, duplicates, leakage and unreadable files",
    },
    "train": {
        "finetune": "train a classifier from image folders and pretrained weights",
        "weights": "list, inspect and download pretrained weights",
        "recipes": "list recipes: tested settings with their results",
        "study": "compare pretrained weights on a few images per class",
    },
    "understand the results": {
        "report": "write the HTML report of a run",
        "evaluate": "evaluate a trained model on labelled images",
        "compare": "compare runs on the validation images they share",
        "explain": "show which image regions a model uses",
    },
    "use the model": {
        "predict": "predict the classes of images",
        "serve": "serve a trained model over HTTP, with a web page for uploading images",
        "export": "export a trained model to other formats",
    },
    "clean up": {"cache": "list or delete cached features"},
}
"""One-line help for each command, by task. `add_NAME` in `cli.NAME` adds a command's options."""

GUIDES: Mapping[str, _Guide] = {
    "": _Guide("docs/index.md"),
    "finetune": _Guide(
        "docs/training.md",
        {
            "vitft finetune --data photos": "train a head on pretrained features",
            "vitft finetune --data photos --train blocks:4": "also train the last four blocks",
            "vitft finetune --data photos --budget 10m": "spend ten minutes on more layers",
            "vitft finetune --resume runs/latest": "continue a run that was stopped",
        },
    ),
    "check": _Guide(
        "docs/fix_labels.md",
        {
            "vitft check photos": "write check.html and fixes.csv",
            "vitft check photos --run runs/latest": "check with the split of a run",
            "vitft finetune --data photos --fixes fixes.csv": "train with the fixes",
        },
    ),
    "data": _Guide("docs/data.md", {"vitft data fetch flower_photos": "download 3,670 photos"}),
    "predict": _Guide(
        "docs/predict.md",
        {
            "vitft predict photo.jpg": "classify an image with the latest run",
            "vitft predict photos --out rows.csv": "classify a folder, one row per image",
            "vitft predict photos --precision 0.99": "mark doubtful predictions as not sure",
            "vitft predict photos --run export": "use another run or an export",
        },
    ),
    "explain": _Guide(
        "docs/explain.md",
        {
            "vitft explain photo.jpg": "draw what the predicted class rests on",
            "vitft explain photo.jpg --class rose": "explain another class",
            "vitft explain --model": "draw the filters and attention distances",
        },
    ),
    "evaluate": _Guide(
        "docs/predict.md#evaluate",
        {
            "vitft evaluate --data photos": "evaluate the latest run",
            "vitft evaluate --data photos --out measured": "also write eval.json",
        },
    ),
    "export": _Guide(
        "docs/export.md",
        {
            "vitft export --onnx": "export the latest run for ONNX Runtime",
            "vitft export --safetensors --timm": "write two formats",
            "vitft export --html": "write a page that classifies images offline",
            "vitft export --push-to-hub me/flowers": "upload to the Hugging Face Hub",
        },
    ),
    "serve": _Guide("docs/serve.md", {"vitft serve": "open http://127.0.0.1:8000/ in a browser"}),
    "label": _Guide(
        "docs/label.md",
        {
            "vitft label photos --classes cat,dog": "start, or continue where you stopped",
            "vitft finetune --data labels.csv": "train on the answers",
        },
    ),
    "weights": _Guide(
        "docs/weights.md",
        {
            "vitft weights list": "show recommended weights",
            "vitft weights show vit_tiny_patch16_224": "describe one of them",
        },
    ),
    "recipes": _Guide(
        "docs/training.md",
        {
            "vitft recipes": "list all recipes",
            "vitft finetune --data photos --recipe lora": "train with a recipe",
        },
    ),
    "cache": _Guide(
        "docs/commands.md#weights-and-cache",
        {"vitft cache clean --to-gb 5": "keep the 5 GB that were used last"},
    ),
    "report": _Guide(
        "docs/results.md", {"vitft report --charts charts": "write the charts as SVG files"}
    ),
    "compare": _Guide(
        "docs/predict.md#compare-runs",
        {"vitft compare runs/a runs/b": "test whether one run is better"},
    ),
    "study": _Guide(
        "docs/study.md",
        {"vitft study --data photos --weights demo none": "compare weights with random weights"},
    ),
    "demo": _Guide("docs/first_hour.md"),
}
"""Guides by command; that of `vitft --help` has an empty name."""
