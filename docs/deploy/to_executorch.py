"""Convert a torch.export program to ExecuTorch with the XNNPACK backend, and check it.

vitft export --torch-export --out program
pip install executorch
python to_executorch.py program/model.pt2 model.pte [reference.npz]
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from compare import compare
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime


def main(program: str, out: str, reference: str = "") -> None:
    """Write `out`, which takes one image, and the class names beside it."""
    files = {"vitft.json": ""}
    exported = torch.export.load(program, extra_files=files)
    described = json.loads(files["vitft.json"])
    channels = len(described["transform"]["mean"])
    example = torch.zeros(1, channels, *described["transform"]["image_size"])
    single = torch.export.export(exported.module(), (example,))  # for one image
    lowered = to_edge_transform_and_lower(single, partitioner=[XnnpackPartitioner()])
    Path(out).write_bytes(lowered.to_executorch().buffer)
    Path(out).with_suffix(".txt").write_text("\n".join(described["classes"]) + "\n")
    print(f"{out}: {Path(out).stat().st_size / 1e6:.1f} MB")
    if reference:
        method = Runtime.get().load_program(out).load_method("forward")
        compare(
            lambda image: method.execute([torch.from_numpy(image)])[0].numpy(),
            reference,
            client=f"ExecuTorch {version('executorch')}",
        )


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
