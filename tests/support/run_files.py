"""Finished runs written as files, as `vitft/system/rundir.py` lists them; nothing is trained."""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save

from vitft.config import config_from_table, to_toml
from vitft.data import EvalTransform, Images, Row
from vitft.metrics import Outputs, classification_metrics
from vitft.models import Card, ViTConfig
from vitft.predict import read_split, thumb_name
from vitft.system import RunDir

FLOWERS = ("daisy", "poppy", "rose")

# 40 names that have broken pages, terminals, spreadsheets or templates somewhere.
HOSTILE = (
    "<script>alert(1)</script>", "</script><script>alert(1)//", "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>",
    "<iframe src=javascript:alert(1)>", "<a href='javascript:alert(1)'>x</a>",
    "javascript:alert(1)", "data:text/html,<script>alert(1)</script>", '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='", "`onclick=alert(1)`", '"><script>alert(1)</script>',
    "'><svg/onload=alert(1)>", "<!--<script>alert(1)", "--><script>alert(1)</script>",
    "]]><script>alert(1)</script>", "<![CDATA[<script>alert(1)</script>]]>",
    "&lt;script&gt;alert(1)&lt;/script&gt;", "&#60;script&#62;alert(1)",
    "\\u003cscript\\u003ealert(1)", "{{ 7 * 7 }}", "{% raw %}{{ config }}", "${alert(1)}",
    "#{alert(1)}", "<style>*{display:none}</style>", "<base href=//example.org>",
    "<meta http-equiv=refresh content=0>", "<form action=//example.org><button>", "$\\frac{1}{0$",
    "=cmd|' /C calc'!A0", "+1+1", "-1-1", "@SUM(A1)", "\x1b]0;owned\x07", "\x1b[2J\x1b[31mred",
    "two\nlines\r\n<b>", "gpj.\u202eexe", "\ufeffzero\u200bwidth",
)  # fmt: skip


def make_run(
    path: Path,
    classes: Sequence[str] = FLOWERS,
    *,
    per_class: int = 10,
    held_back: int = 4,
    hardness: float = 1.0,
    seed: int = 0,
    names: Mapping[int, str] | None = None,
    epochs: bool = False,
) -> Path:
    """Write a finished run of random scores, of which `held_back` images of each class validate.

    The spread of the scores is `hardness`, against a lead of 2 for the right class. Images are the
    same for every seed; `names` has file names by their number.
    """
    rows = [
        Row(
            f"{i}/{(names or {}).get(i * per_class + k, f'{k:03}.jpg')}",
            i,
            "val" if k < held_back else "train",
            hashlib.sha256(f"{i} {k}".encode()).hexdigest(),
        )
        for i in range(len(classes))
        for k in range(per_class)
    ]
    truth = np.array([row.label for row in rows if row.split == "val"])
    random = np.random.default_rng(seed)
    logits = random.normal(0, hardness, (len(truth), len(classes))).astype(np.float32)
    logits[np.arange(len(truth)), truth] += 2
    path.mkdir(parents=True)
    run = RunDir(path)
    settings = {"data": {"path": "photos/flowers"}, "weights": {"name": "demo"}}
    run.write("config.toml", to_toml(config_from_table(settings)))
    Images(path, tuple(classes), tuple(rows)).write(run.split)
    run.write("class_indices.json", json.dumps(dict(enumerate(classes))))
    np.savez(path / "validation.npz", logits=logits)
    run.write_json("eval.json", figures(logits, truth, classes))
    run.write_json("environment.json", ENVIRONMENT)
    run.write_json("audit.json", audit(rows, classes))
    for line in EPOCHS if epochs else PENALTIES:
        run.log(line)
    card = Card(
        architecture=ViTConfig(image_size=(16, 16), patch_size=(4, 4), depth=2),
        transform=EvalTransform(image_size=(16, 16)),
        weights={"name": "demo", "licence": "apache-2.0", "sha256": "ab" * 32},
        split="cd" * 32,
    )
    metadata = {"vitft.card": card.to_json(), "vitft.sha256": "ef" * 32}
    run.model.write_bytes(save({"head.weight": np.zeros((3, 8), np.float32)}, metadata=metadata))
    thumbs(path, [row.sha256 for row in rows if row.split == "val"])
    return path


ENVIRONMENT = {
    "status": "finished",
    "device": "cpu",
    "precision": "fp32",
    "python": "3.11.7",
    "system": "Linux x86_64",
    "packages": {"vitft": "0.1.0", "torch": "2.15.0"},
}
PENALTIES = [
    {"l2": 1.0, "cv_loss": 0.7, "cv_top1": 0.7},
    {"l2": 0.1, "cv_loss": 0.5, "cv_top1": 0.8},
]
EPOCHS = [
    {
        "epoch": i,
        "lr": 0.01,
        "first_loss": 1.0,
        "train_loss": 1 / i,
        "train_top1": 1 - 0.5 / i,
        "val_loss": 1.2 / i,
        "val_top1": 1 - 0.6 / i,
    }
    for i in range(1, 4)
]


def figures(logits: Any, truth: Any, classes: Sequence[str]) -> dict[str, Any]:
    """What evaluate writes, of the parts that pages read."""
    return {
        **classification_metrics(
            torch.from_numpy(logits), torch.from_numpy(truth), Outputs.of(classes)
        ),
        "loss_interval": [0.4, 0.6],
        "l2": 0.1,
        "best_epoch": 1,
        "epochs": 1,
        "selected_on_validation": False,
        "seconds": 1.5,
        "calibration": {
            "ece": 0.03,
            "ece_interval": [0.01, 0.08],
            "ece_binned": 0.05,
            "ece_before": 0.06,
            "note": None,
            "temperature": 1.3,
            "bins": [
                {"low": 0.3, "high": 0.6, "images": 5, "confidence": 0.5, "accuracy": 0.4},
                {"low": 0.6, "high": 1.0, "images": 7, "confidence": 0.8, "accuracy": 0.9},
            ],
        },
        "cross_validation": {
            "images": 30,
            "of": 30,
            "top1": 0.8,
            "top1_interval": [0.62, 0.9],
            "balanced": 0.8,
            "balanced_interval": [0.62, 0.9],
            "classes": 3,
            "majority": 0.34,
            "curve": [
                {"images": 6, "top1": 0.6, "top1_interval": [0.4, 0.8]},
                {"images": 12, "top1": 0.7, "top1_interval": [0.5, 0.8]},
                {"images": 24, "top1": 0.8, "top1_interval": [0.62, 0.9]},
            ],
            "gain_from_twice": 0.06,
            "gain_interval": [0.01, 0.1],
            "weak_spots": [],
        },
    }


def audit(rows: Sequence[Row], classes: Sequence[str]) -> dict[str, Any]:
    """A finding of each kind."""
    first, last = rows[0], rows[-1]
    members = [
        {"path": row.path, "label": classes[row.label], "split": row.split} for row in (first, last)
    ]
    return {
        "images": len(rows),
        "unused": [],
        "notes": [],
        "bad": [{"path": "0/broken.jpg", "reason": "empty file"}],
        "odd": [{"path": first.path, "reason": "rotated by EXIF"}],
        "duplicates": [
            {"kind": "exact", "members": members, "across_split": True, "labels_differ": True}
        ],
        "mislabels": [
            {
                "path": first.path,
                "label": classes[first.label],
                "suggested": classes[-1],
                "given_probability": 0.1,
                "suggested_probability": 0.8,
            }
        ],
        "imbalance": {"largest": [classes[0], 10], "smallest": [classes[0], 10], "ratio": 1.0},
    }


def thumbs(path: Path, digests: Sequence[str]) -> None:
    """A small grey JPEG for each image, and the same as its attention."""
    buffer = io.BytesIO()
    Image.new("RGB", (112, 84), (90, 120, 90)).save(buffer, format="JPEG")
    (path / "thumbs").mkdir()
    for sha256 in digests:
        (path / "thumbs" / thumb_name(sha256)).write_bytes(buffer.getvalue())
        (path / "thumbs" / thumb_name(sha256, attention=True)).write_bytes(buffer.getvalue())


def with_cross_validated(run: Path, *, wrong: int) -> Path:
    """Add cross-validated predictions, of which those for the last `wrong` images are wrong."""
    rows = read_split(run).rows
    right = np.array([row.label for row in rows])
    predicted = np.where(np.arange(len(rows)) < len(rows) - wrong, right, (right + 1) % 3)
    with np.load(run / "validation.npz") as file:
        logits = file["logits"]
    np.savez(run / "validation.npz", logits=logits, cross_validated=predicted)
    return run
