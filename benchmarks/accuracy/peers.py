"""Other tools as contestants of `pareto`, each with the recipe that its users take.

    python -m benchmarks.accuracy.peers "timm, 5 epochs" --data DIR --weights FILE [--seed 0] [--work DIR]

A contestant starts from the weight file (a ViT-Tiny with timm's names), trains on DIR/train, looks at DIR/val
once after its last epoch, or as often as the tool insists, chooses nothing there, and prints accuracy and loss
as its last line. One thread, no workers for decoding, at 224 pixels. The recipes:

- scikit-learn: logistic regression on timm's features (pooled, float32, timm's evaluation transform, standardised),
  the best of ten C by five-fold cross-validation (`LogisticRegressionCV`, its defaults).
- fastai: `vision_learner(...).fine_tune(epochs)` with `Resize(224)`, `aug_transforms()` and all defaults, as in
  chapter 5 of its book and https://docs.fast.ai/tutorial.vision.html: one epoch for the head, then all layers.
- timm: all layers, AdamW with learning rate 1e-4 and weight decay 0.05, cosine schedule, batches of 32 and, from
  the defaults of its train.py, random crops from 8% of the area, flips, colour jitter 0.4, label smoothing 0.1;
  no mixup. (train.py is not in timm's package; this loop takes its parts from timm.)
- Trainer: transformers' Trainer with its defaults (3 epochs, learning rate 5e-5, linear schedule, batches of 8), or
  5 epochs with 2e-5 as in the README of transformers/examples/pytorch/image-classification; random crops and flips
  as in that example. The model is timm's, so that the weights are the same.
- lightly-train: `train_image_classification` with its defaults (AdamW with 3e-4, bf16-mixed, batches of 16, crops,
  flips, colour jitter), the steps of so many epochs and a warm-up over a tenth of them (by default 500 steps,
  more than there are); the weights by `model_args={"backbone_weights": ...}`.
- AutoGluon: `MultiModalPredictor(presets="medium_quality").fit()`, whose default is 20 epochs, or 5; not with a
  `time_limit`, which is by the clock and would depend on what else the machine does. The weights are a local folder in
  `model.timm_image.checkpoint_name`, with their mean and standard deviation. It divides train/ by itself
  into training and tuning and averages its best three checkpoints. Its precision is set to 32, because its
  default 16-mixed needs a GPU.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.other_tools import (
    TRAINER_OPTIONS,
    collate,
    image_folders,
    load_backbone,
    trainer_accuracy,
    trainer_model,
)

MODEL = "vit_tiny_patch16_224"
SIDE = 224


class Job(NamedTuple):
    """What every contestant gets: the folder with train/ and val/, weights, a seed, a folder for files."""

    data: Path
    weights: Path
    seed: int
    work: Path


Figures = dict[str, float]


def scored(logits: Any, labels: Any) -> Figures:
    """Return accuracy and loss of logits (n, C)."""
    import torch

    loss = float(torch.nn.functional.cross_entropy(logits, labels))
    return {"top1": float((logits.argmax(1) == labels).double().mean()), "loss": loss}


def evaluated(model: Any, images: Any, batch: int = 32) -> Figures:
    """Return accuracy and loss of a model on a data set of images and labels."""
    import torch
    from torch.utils.data import DataLoader

    model.eval()
    with torch.inference_mode():
        found = [(model(x), y) for x, y in DataLoader(images, batch_size=batch)]
    return scored(torch.cat([a for a, _ in found]), torch.cat([b for _, b in found]))


def timm_folders(job: Job, *, augment: bool) -> tuple[Any, Any]:
    """Return train/ and val/ with timm's transforms, those of train/ random if they augment."""
    from timm.data import create_transform
    from torchvision.datasets import ImageFolder

    given = {"input_size": SIDE, "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3}
    fixed = create_transform(**given, crop_pct=0.9)
    random = create_transform(**given, is_training=True, color_jitter=0.4)
    return (
        ImageFolder(str(job.data / "train"), random if augment else fixed),
        ImageFolder(str(job.data / "val"), fixed),
    )


def pretrained(job: Job, classes: int) -> Any:
    """Return timm's model with the weights and a new head."""
    import timm

    return load_backbone(timm.create_model(MODEL, num_classes=classes), job.weights)


def scikit_learn(job: Job) -> Figures:
    """Fit a logistic regression to features."""
    import numpy as np
    import torch
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.metrics import log_loss
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from torch.utils.data import DataLoader

    model = pretrained(job, 0).eval()
    train, val = timm_folders(job, augment=False)

    def features(images: Any) -> tuple[Any, Any]:
        with torch.inference_mode():
            rows = [model(x).numpy() for x, _ in DataLoader(images, batch_size=32)]
        return np.concatenate(rows), np.array(images.targets)

    head = LogisticRegressionCV(Cs=10, cv=5, max_iter=2000, use_legacy_attributes=False)
    classifier = make_pipeline(StandardScaler(), head).fit(*features(train))
    x, y = features(val)
    loss = log_loss(y, classifier.predict_proba(x), labels=classifier.classes_)
    return {"top1": float(classifier.score(x, y)), "loss": float(loss)}


def fastai(job: Job, epochs: int) -> Figures:
    """Fine-tune with fastai."""
    from fastai.vision.all import (
        ImageDataLoaders,
        Normalize,
        Resize,
        accuracy,
        aug_transforms,
        set_seed,
        vision_learner,
    )

    set_seed(job.seed)
    loaders = ImageDataLoaders.from_folder(
        job.data,
        train="train",
        valid="val",
        seed=job.seed,
        item_tfms=Resize(SIDE),
        batch_tfms=[*aug_transforms(), Normalize.from_stats([0.5] * 3, [0.5] * 3)],
        num_workers=0,
    )
    learner = vision_learner(loaders, MODEL, metrics=accuracy, pretrained=False, path=job.work)
    load_backbone(learner.model[0].model, job.weights)
    with learner.no_bar():
        learner.fine_tune(epochs)
    _, loss, top1 = learner.recorder.values[-1]
    return {"top1": float(top1), "loss": float(loss)}


def timm_loop(job: Job, epochs: int) -> Figures:
    """Fine-tune in a loop of timm's parts."""
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from torch.utils.data import DataLoader

    train, val = timm_folders(job, augment=True)
    model = pretrained(job, len(train.classes))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-4, weight_decay=0.05)
    loader = DataLoader(train, batch_size=32, shuffle=True)
    schedule, _ = create_scheduler_v2(
        optimizer, "cosine", num_epochs=epochs, step_on_epochs=False, updates_per_epoch=len(loader)
    )
    criterion, step = LabelSmoothingCrossEntropy(0.1), 0
    for _ in range(epochs):
        model.train()
        for images, labels in loader:
            criterion(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            schedule.step_update(step)
    return evaluated(model, val)


def trainer(job: Job, **arguments: Any) -> Figures:
    """Fine-tune with transformers' Trainer."""
    from torchvision import transforms
    from transformers import Trainer, TrainingArguments

    sets = image_folders(
        job.data,
        [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()],
        [transforms.Resize(SIDE), transforms.CenterCrop(SIDE)],
    )
    work = Trainer(
        model=trainer_model(pretrained(job, len(sets["train"].classes))),
        args=TrainingArguments(
            output_dir=str(job.work),
            seed=job.seed,
            save_strategy="no",
            **TRAINER_OPTIONS,
            **arguments,
        ),
        train_dataset=sets["train"],
        eval_dataset=sets["val"],
        data_collator=collate,
        compute_metrics=trainer_accuracy,
    )
    work.train()
    found = work.evaluate()
    return {"top1": found["eval_accuracy"], "loss": found["eval_loss"]}


def lightly_train(job: Job, epochs: int) -> Figures:
    """Fine-tune with lightly-train."""
    import lightly_train as lightly
    import torch
    from safetensors.torch import load_file

    names = sorted(p.name for p in (job.data / "train").iterdir())
    images = sum(1 for p in (job.data / "train").glob("*/*"))
    steps = epochs * (images // 16)
    torch.save(load_file(job.weights), job.work / "backbone.pt")
    lightly.train_image_classification(
        out=job.work / "run",
        data={
            "train": str(job.data / "train"),
            "val": str(job.data / "val"),
            "classes": dict(enumerate(names)),
        },
        model=f"timm/{MODEL}",
        steps=steps,
        seed=job.seed,
        num_workers=0,
        accelerator="cpu",
        model_args={
            "backbone_weights": str(job.work / "backbone.pt"),
            "lr_warmup_steps": steps // 10,
        },
        transform_args={
            "image_size": (SIDE, SIDE),
            "normalize": {"mean": (0.5,) * 3, "std": (0.5,) * 3},
        },
    )
    model = lightly.load_model(job.work / "run" / "exported_models" / "exported_last.pt")
    return lightly_figures(model, job, names)


def lightly_figures(model: Any, job: Job, names: list[str]) -> Figures:
    """Return accuracy and loss of lightly-train's model with the view of its validation."""
    from torchvision import transforms

    side = round(1.143 * SIDE)
    view = [transforms.Resize(side), transforms.CenterCrop(SIDE)]
    images = image_folders(job.data, view, view)["val"]
    assert images.classes == names
    model.forward = model.forward_backend
    return evaluated(model.float(), images)


def autogluon(job: Job, epochs: int) -> Figures:
    """Fine-tune with AutoGluon's MultiModalPredictor."""
    import pandas as pd
    import torch
    from autogluon.multimodal import MultiModalPredictor
    from safetensors.torch import load_file

    local = job.work / "weights"
    local.mkdir()
    tensors = load_file(job.weights)
    torch.save({k: v for k, v in tensors.items() if not k.startswith("head.")},
               local / "pytorch_model.bin")  # fmt: skip
    facts = {
        "architecture": MODEL,
        "num_features": tensors["norm.weight"].numel(),
        "pretrained_cfg": {"input_size": [3, SIDE, SIDE], "mean": [0.5] * 3, "std": [0.5] * 3},
    }
    (local / "config.json").write_text(json.dumps(facts))

    def table(part: str) -> Any:
        paths = sorted((job.data / part).glob("*/*"))
        return pd.DataFrame({"image": map(str, paths), "label": [p.parent.name for p in paths]})

    predictor = MultiModalPredictor(
        label="label",
        problem_type="multiclass",
        presets="medium_quality",
        path=str(job.work / "run"),
    )
    predictor.fit(
        table("train"),
        seed=job.seed,
        hyperparameters={
            "model.names": ["timm_image"],
            "model.timm_image.checkpoint_name": str(local),
            "model.timm_image.image_norm": "inception",
            "optim.max_epochs": epochs,
            "env.num_gpus": 0,
            "env.precision": 32,
            "env.num_workers": 0,
            "env.num_workers_inference": 0,
        },
    )
    found = predictor.evaluate(table("val"), metrics=["accuracy", "log_loss"])
    return {"top1": float(found["accuracy"]), "loss": abs(float(found["log_loss"]))}


CONTESTANTS: dict[str, Callable[[Job], Figures]] = {
    "scikit-learn": scikit_learn,
    "fastai, 1 epoch": partial(fastai, epochs=1),
    "fastai, 5 epochs": partial(fastai, epochs=5),
    "timm, 5 epochs": partial(timm_loop, epochs=5),
    "timm, 20 epochs": partial(timm_loop, epochs=20),
    "Trainer, 3 epochs": trainer,
    "Trainer, 5 epochs": partial(trainer, num_train_epochs=5, learning_rate=2e-5),
    "lightly-train, 5 epochs": partial(lightly_train, epochs=5),
    "AutoGluon, 5 epochs": partial(autogluon, epochs=5),
    "AutoGluon, 20 epochs": partial(autogluon, epochs=20),
}
"""The contestants by name; the tool is named before the comma."""


def tool(way: str) -> str:
    """Return the tool of a contestant."""
    return way.partition(",")[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("contestant", choices=list(CONTESTANTS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    work = Path(args.work or tempfile.mkdtemp())
    work.mkdir(parents=True, exist_ok=True)
    job = Job(args.data.absolute(), args.weights.resolve(), args.seed, work.resolve())
    os.chdir(work)  # some tools write logs where they are started
    figures = CONTESTANTS[args.contestant](job)
    shutil.rmtree(job.work)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
