"""Run an ONNX graph with onnxruntime, and check it.

vitft export --onnx --out export
pip install onnxruntime
python run_onnxruntime.py export/model.onnx [reference.npz]
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
        compare(
            lambda image: session.run(["logits"], {"pixels": image})[0],
            reference,
            client=f"onnxruntime {onnxruntime.__version__}",
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
