"""What `--help` shows besides the options: commands by task, examples, and a page to read."""

from dataclasses import dataclass, field

_COMMANDS = """
start:
demo  train, predict and export on drawn flowers, offline  docs/first_hour.md
data  download public image datasets  docs/data.md
  vitft data fetch flower_photos  download 3,670 photos
prepare images:
label  label images on a web page, the most informative ones first  docs/label.md
  vitft label photos --classes cat,dog  start, or continue where you stopped
  vitft finetune --data labels.csv  train on the answers
check  find label errors, duplicates, leakage and unreadable files  docs/fix_labels.md
  vitft check photos  write check.html and fixes.csv
  vitft check photos --run runs/latest  check with the split of a run
  vitft finetune --data photos --fixes fixes.csv  train with the fixes
train:
finetune  train a classifier from image folders and pretrained weights  docs/training.md
  vitft finetune --data photos  train a head on pretrained features
  vitft finetune --data photos --train blocks:4  also train the last four blocks
  vitft finetune --data photos --budget 10m  spend ten minutes on more layers
  vitft finetune --resume runs/latest  continue a run that was stopped
weights  list, inspect and download pretrained weights  docs/weights.md
  vitft weights list  show recommended weights
  vitft weights show vit_tiny_patch16_224  describe one of them
recipes  list recipes: tested settings with their results  docs/training.md
  vitft recipes  list all recipes
  vitft finetune --data photos --recipe lora  train with a recipe
zeroshot  write a classifier from class names alone, with CLIP or SigLIP  docs/zeroshot.md
  vitft zeroshot photos --classes cat,dog --weights hf:google/siglip-base-patch16-224  start
  vitft predict photos --run zeroshot  use it like any other model
study  compare pretrained weights on a few images per class  docs/study.md
  vitft study --data photos --weights demo none  compare weights with random weights
understand the results:
report  write the HTML report of a run  docs/results.md
  vitft report --charts charts  write the charts as SVG files
evaluate  evaluate a trained model on labelled images  docs/predict.md#evaluate
  vitft evaluate --data photos  evaluate the latest run
  vitft evaluate --data photos --out measured  also write eval.json
compare  compare runs on the validation images they share  docs/predict.md#compare-runs
  vitft compare runs/a runs/b  test whether one run is better
explain  show which image regions a model uses  docs/explain.md
  vitft explain photo.jpg  draw what the predicted class rests on
  vitft explain photo.jpg --class rose  explain another class
  vitft explain --model  draw the filters and attention distances
use the model:
predict  predict the classes of images  docs/predict.md
  vitft predict photo.jpg  classify an image with the latest run
  vitft predict photos --out rows.csv  classify a folder, one row per image
  vitft predict photos --precision 0.99  mark doubtful predictions as not sure
  vitft predict photos --run export  use another run or an export
embed  compute embeddings of images, and find similar images  docs/predict.md#embeddings
  vitft embed photos --out vectors.parquet  write one vector per image
  vitft embed photos --near photo.jpg  print the most similar images
  vitft embed photos --weights vit_tiny_patch16_224 --out vectors.npz  without a run
serve  serve a trained model over HTTP, with a web page for uploading images  docs/serve.md
  vitft serve  open http://127.0.0.1:8000/ in a browser
export  export a trained model to other formats  docs/export.md
  vitft export --onnx  export the latest run for ONNX Runtime
  vitft export --safetensors --timm  write two formats
  vitft export --html  write a page that classifies images offline
  vitft export --push-to-hub me/flowers  upload to the Hugging Face Hub
clean up:
cache  list or delete cached features  docs/commands.md#weights-and-cache
  vitft cache clean --to-gb 5  keep the 5 GB that were used last
"""
"""By task: the commands, each with its help, its page and at most four examples."""


@dataclass(frozen=True, slots=True)
class _Guide:
    """One-line help of a command, the page that describes it, and examples with what they do."""

    summary: str
    page: str
    examples: dict[str, str] = field(default_factory=dict)


def _groups() -> dict[str, dict[str, _Guide]]:
    """Return the guides of the commands by task."""
    groups: dict[str, dict[str, _Guide]] = {}
    group: dict[str, _Guide] = {}
    for line in _COMMANDS.strip().split("\n"):
        match line.strip().split("  "):
            case [title]:
                groups[title.removesuffix(":")] = group = {}
            case [example, does]:
                [*group.values()][-1].examples[example] = does
            case [name, summary, page]:
                group[name] = _Guide(summary, page)
    return groups


COMMAND_GROUPS = _groups()
"""Guides by task and command."""
MODULES = {"cache": "resources", "compare": "report", "data": "resources", "recipes": "resources",
           "weights": "resources", "zeroshot": "embed"}  # fmt: skip
"""Modules of commands that share one; other commands have a module of their name."""
GUIDES = {name: guide for group in COMMAND_GROUPS.values() for name, guide in group.items()}
GUIDES[""] = _Guide("", "docs/index.md")  # of `vitft --help`
