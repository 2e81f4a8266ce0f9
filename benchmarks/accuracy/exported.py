"""Exported folders opened by their tools, each in a process that does not import vitft.

    python -m benchmarks.accuracy.exported --run RUN [--images 240]

The run is exported for timm, transformers, ONNX and torch.export; every tool reads the validation photos
with its own preprocessing where it has one, and predicts image by image. Printed for each are the
largest difference of a logit from vitft's, the changed classes, and the distance of both from the same model
in float64. Exits with 1 if a class or a label differs, or a logit by more than 1e-5 of the largest one.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

START = """
import json, sys
from PIL import Image
folder, photos = sys.argv[1], json.loads(sys.stdin.read())
def opened(path): return Image.open(path).convert("RGB")
"""
TIMM_VIEW = """
import timm, torch
from timm.data import create_transform, resolve_data_config
about = json.loads(sys.argv[2])
view = create_transform(**resolve_data_config(about))
def inputs(path): return view(opened(path))[None]
"""
"""timm's transform; also for the graphs, whose inputs are normalised pixels."""
TOOLS = {
    "timm": TIMM_VIEW
    + """
model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
labels = model.pretrained_cfg["label_names"]
with torch.inference_mode(): rows = [model(inputs(p))[0].tolist() for p in photos]
""",
    "transformers": """
from transformers import pipeline
ask = pipeline("image-classification", folder, top_k=None, function_to_apply="none")
labels = [ask.model.config.id2label[i] for i in sorted(ask.model.config.id2label)]
said = [{row["label"]: row["score"] for row in ask(opened(p))} for p in photos]
rows = [[row[label] for label in labels] for row in said]
""",
    "onnx": TIMM_VIEW
    + """
import onnxruntime
session = onnxruntime.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
labels = json.loads(session.get_modelmeta().custom_metadata_map["vitft"])["classes"]
rows = [session.run(None, {"pixels": inputs(p).numpy()})[0][0].tolist() for p in photos]
""",
    "torch-export": TIMM_VIEW
    + """
facts = {"vitft.json": ""}
program = torch.export.load(folder + "/model.pt2", extra_files=facts).module()
labels = json.loads(facts["vitft.json"])["classes"]
with torch.inference_mode(): rows = [program(inputs(p))[0].tolist() for p in photos]
""",
}
END = "\nprint(json.dumps([labels, rows, 'vitft' in sys.modules]))"


def predict_with(name: str, home: Path, photos: list[str]) -> tuple[list[str], Any]:
    """Return labels and logits (n, C) of a tool in a fresh process."""
    about = json.loads((home / "timm" / "config.json").read_text())["pretrained_cfg"]
    command = [sys.executable, "-W", "ignore", "-c", START + TOOLS[name] + END, str(home / name)]
    done = subprocess.run(
        [*command, json.dumps(about)],
        input=json.dumps(photos), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    labels, rows, imports_vitft = json.loads(done.stdout.splitlines()[-1])
    assert not imports_vitft
    return labels, rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True)
    parser.add_argument("--images", type=int, default=240)
    args = parser.parse_args()

    import numpy as np
    import torch

    from vitft.config.run import read_toml
    from vitft.data.image_table import Images
    from vitft.data.images import open_image
    from vitft.export import export_run
    from vitft.export.formats.base import normalised_input
    from vitft.export.plan import plan_export
    from vitft.export.trained import load_trained
    from vitft.system.rundir import RunDir

    run = Path(args.run)
    manifest = Images.from_csv(RunDir(run).split, read_toml(run / "config.toml")["data"]["path"])
    step = max(1, len(manifest.val) // args.images)
    photos = [str(manifest.locate(row)) for row in manifest.val[::step][: args.images]]
    trained = load_trained(args.run)
    exact = copy.deepcopy(trained.model).double()
    ours, truth = [], []
    with torch.inference_mode():
        for path in photos:
            pixels = torch.from_numpy(
                normalised_input(trained.card.transform, open_image(path))[None]
            )
            ours.append(trained.model(pixels)[0].numpy())
            truth.append(exact(pixels.double())[0].numpy())
    mine, right = np.array(ours), np.array(truth)
    largest, is_fine = float(np.abs(right).max()), True
    print(f"{len(photos)} photos, largest logit {largest:.2f}; vitft from float64: "
          f"{np.abs(mine - right).max():.1e}, allowed {1e-5 * largest:.1e}")  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "all"
        export_run(args.run, plan_export([*TOOLS], str(home), images=8))
        for name in TOOLS:
            labels, rows = predict_with(name, home, photos)
            theirs = np.array(rows)
            off = float(np.abs(theirs - mine).max())
            changed = int((theirs.argmax(1) != mine.argmax(1)).sum())
            is_same = labels == [*trained.card.classes]
            is_fine = is_fine and is_same and not changed and off <= 1e-5 * max(1.0, largest)
            print(f"{name:13} from vitft {off:.1e}, from float64 {np.abs(theirs - right).max():.1e}, "
                  f"{changed} changed, labels {'equal' if is_same else 'DIFFER'}", flush=True)  # fmt: skip
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
