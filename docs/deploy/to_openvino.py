"""Convert an ONNX graph to OpenVINO's own format, and check it.

vitft export --onnx --out plain
pip install openvino
python to_openvino.py plain/model.onnx model.xml [reference.npz]
"""

import json
import sys
from pathlib import Path

import openvino
from compare import compare


def main(graph: str, out: str, reference: str = "") -> None:
    """Write `out` and, beside it, the weights (.bin); the class names stay in the model."""
    core = openvino.Core()
    model = core.read_model(graph)
    classes = json.loads(model.get_rt_info(["framework", "vitft"]).astype(str))["classes"]
    openvino.save_model(model, out, compress_to_fp16=False)  # the default, float16, rounds weights
    size = sum(Path(out).with_suffix(suffix).stat().st_size for suffix in (".xml", ".bin"))
    print(f"{out}: {size / 1e6:.1f} MB, {len(classes)} classes")
    if reference:
        if model.input(0).get_any_name() != "pixels" or "u8" in str(model.input(0).element_type):
            sys.exit(
                "only a graph without --with-resize and --with-preprocessing can be compared with "
                "the reference"
            )
        # Without the hint, some processors compute in 16 bits.
        compiled = core.compile_model(out, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        version = openvino.get_version().split("-")[0]
        compare(lambda image: compiled(image)[0], reference, client=f"OpenVINO {version}")


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
