"""A run on real photos compared with scikit-learn, and its validation metrics with `vitft predict`.

    python -m benchmarks.accuracy.agreement --run DIR --weights FOLDER

--run is a finished run of `vitft finetune` on an image folder with the default settings; --weights is the
folder with timm's model.safetensors from which it started. Printed are the run's accuracy and that of
scikit-learn's logistic regression on timm's own features of the same split (timm's transform, float32, C by
its own cross-validation); and how many photos `vitft predict` classifies correctly, next to eval.json.
(`exported` compares the exports.)
"""

import argparse
import json
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegressionCV
from sklearn.preprocessing import StandardScaler
from timm.data import create_transform

from vitft.config.run import read_toml
from vitft.data.image_table import Images
from vitft.predict.torch_engine import Predictor


def timm_outputs(model: torch.nn.Module, paths: list[str], **transform: object) -> torch.Tensor:
    view = create_transform(**transform)
    rows = []
    with torch.inference_mode():
        for i in range(0, len(paths), 16):
            batch = [view(Image.open(p).convert("RGB")) for p in paths[i : i + 16]]
            rows.append(model(torch.stack(batch)))
    return torch.cat(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    args = parser.parse_args()
    figures = json.loads((args.run / "eval.json").read_text())
    data = Path(read_toml(args.run / "config.toml")["data"]["path"])
    manifest = Images.from_csv(args.run / "split.csv", data)
    train, val = ([manifest.locate(r) for r in rows] for rows in (manifest.train, manifest.val))
    labels = {part: np.array([r.label for r in rows]) for part, rows in
              (("train", manifest.train), ("val", manifest.val))}  # fmt: skip
    view = {"input_size": (3, 224, 224), "crop_pct": 0.9, "interpolation": "bicubic",
            "mean": (0.5,) * 3, "std": (0.5,) * 3}  # fmt: skip

    backbone = timm.create_model(args.model, num_classes=1000).eval()
    backbone.load_state_dict(load_file(args.weights / "model.safetensors"))
    backbone.reset_classifier(0)
    features = {p: timm_outputs(backbone, paths, **view).numpy() for p, paths in
                (("train", train), ("val", val))}  # fmt: skip
    scaler = StandardScaler().fit(features["train"])
    reference = LogisticRegressionCV(
        Cs=10, cv=5, max_iter=2000, scoring="accuracy", use_legacy_attributes=False
    )
    reference.fit(scaler.transform(features["train"]), labels["train"])
    theirs = 100 * float(
        (reference.predict(scaler.transform(features["val"])) == labels["val"]).mean()
    )
    ours = 100 * figures["top1"]
    print(f"vitft {ours:.2f}%, scikit-learn on timm's features {theirs:.2f}%, difference {ours - theirs:+.2f} points, "
          f"{len(val)} validation images")  # fmt: skip

    predictor = Predictor.from_run(str(args.run))
    predicted = [p.classes[0] for p in predictor.stream(val)]
    names = [manifest.classes[i] for i in labels["val"]]
    right = sum(a == b for a, b in zip(predicted, names, strict=True))
    print(
        f"predict: {right} of {len(val)} correct; eval.json: {round(figures['top1'] * figures['images'])}"
    )


if __name__ == "__main__":
    main()
