"""Run an ONNX graph with onnxruntime, and check it.

vitft export --onnx --out plain
pip install onnxruntime
python run_onnxruntime.py plain/model.onnx [reference.npz]
"""

import json
import sys

import onnxruntime
from compare import compare


def main(graph: str, reference: str = "") -> None:
    """Print the classes of a graph, and compare it with the run."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    described = json.loads(session.get_modelmeta().custom_metadata_map["vitft"])
    print(f"{len(described['classes'])} classes, input {described['input']['layout']}")
    if reference:
        if [node.name for node in session.get_inputs()] != ["pixels"] or "uint8" in str(
            session.get_inputs()[0].type
        ):
            sys.exit(
                "only a graph without --with-resize and --with-preprocessing can be compared with "
                "the reference"
            )
        compare(
            lambda image: session.run(["logits"], {"pixels": image})[0],
            reference,
            client=f"onnxruntime {onnxruntime.__version__}",
        )


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
