"""Convert a torch.export program to LiteRT (formerly TensorFlow Lite), and check it.

vitft export --torch-export --out program
pip install litert-torch
python to_litert.py program/model.pt2 model.tflite [reference.npz]
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import litert_torch
import torch
from compare import compare


def main(program: str, out: str, reference: str = "") -> None:
    """Write `out`, which takes one image, and the class names beside it."""
    files = {"vitft.json": ""}
    exported = torch.export.load(program, extra_files=files)
    described = json.loads(files["vitft.json"])
    channels = len(described["transform"]["mean"])
    example = torch.zeros(1, channels, *described["transform"]["image_size"])
    model = litert_torch.convert(exported.module(), (example,))
    model.export(out)
    Path(out).with_suffix(".txt").write_text("\n".join(described["classes"]) + "\n")
    print(f"{out}: {Path(out).stat().st_size / 1e6:.1f} MB")
    if reference:
        check(out, reference)


def check(path: str, reference: str) -> None:
    """Run the written file with the LiteRT runtime, as an application does."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=1)
    runner = interpreter.get_signature_runner()
    (name,) = runner.get_input_details()
    (output,) = runner.get_output_details()
    compare(
        lambda image: runner(**{name: image})[output],
        reference,
        client=f"LiteRT {version('ai-edge-litert')}",
    )


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
