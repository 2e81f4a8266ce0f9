"""Convert a torch.export program to Core ML, and check it where Core ML exists (macOS).

vitft export --torch-export --out program
pip install coremltools
python to_coreml.py program/model.pt2 model.mlpackage [reference.npz]
"""

import json
import platform
import sys
from pathlib import Path

import coremltools
import numpy as np
import torch
from compare import compare


def main(program: str, out: str, reference: str = "") -> None:
    """Write `out`, a package for iOS 16 or macOS 13 and later that takes one image."""
    files = {"vitft.json": ""}
    exported = torch.export.load(program, extra_files=files)
    described = json.loads(files["vitft.json"])
    channels = len(described["transform"]["mean"])
    example = torch.zeros(1, channels, *described["transform"]["image_size"])
    # For one image, in the basic operators that coremltools knows.
    single = torch.export.export(exported.module(), (example,)).run_decompositions({})
    model = coremltools.convert(
        single,
        inputs=[coremltools.TensorType(name="pixels", shape=example.shape, dtype=np.float32)],
        outputs=[coremltools.TensorType(name="logits", dtype=np.float32)],
        compute_precision=coremltools.precision.FLOAT32,  # the default, float16, changes logits
        minimum_deployment_target=coremltools.target.iOS16,
    )
    model.user_defined_metadata["classes"] = json.dumps(described["classes"])
    model.save(out)
    size = sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())
    print(f"{out}: {size / 1e6:.1f} MB")
    if reference and platform.system() != "Darwin":
        print("not compared: Core ML only runs on macOS and iOS")
    elif reference:
        compare(
            lambda image: model.predict({"pixels": image})["logits"],
            reference,
            client=f"Core ML on macOS {platform.mac_ver()[0]}",
        )


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
