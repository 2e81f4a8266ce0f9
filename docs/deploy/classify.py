"""Classify images with an ONNX graph, without vitft.

vitft export --onnx --with-resize
pip install onnxruntime numpy pillow
python classify.py export/model.onnx photo.jpg ...
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def open_rgb(path: str) -> np.ndarray:
    """Open an image as uint8 (height, width, 3), upright, with transparency on white."""
    image = Image.open(path)
    if image.mode == "F" or ";12" in str(image.tile):
        raise ValueError("floating-point and 12-bit images can only be opened by vitft itself")
    negative = getattr(image, "tag_v2", {}).get(262) == 0  # a TIFF in which 0 is white
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16-bit grey: keep the upper 8 bits
        values, transparent = np.asarray(image), image.info.get("transparency")
        greys = (values.clip(0, 65535) >> 8).astype(np.uint8)
        greys = 255 - greys if negative else greys
        image = Image.fromarray(np.where(values == transparent, 255, greys).astype(np.uint8))
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(layers, mask=layers.getchannel("A"))
    return np.asarray(image.convert("RGB"))


def main(graph: str, *photos: str) -> int:
    """Print the most probable class or, for several labels per image, the labels of each image.

    Returns the exit code: 3 if an image cannot be read, which is reported on stderr.
    """
    try:
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each problem
        sys.exit(f"cannot open {graph}: {error}")
    if [node.name for node in session.get_inputs()] != ["image"]:
        sys.exit("this program needs a graph made by vitft export --onnx --with-resize")
    described = json.loads(session.get_modelmeta().custom_metadata_map["vitft"])
    exit_code = 0
    for path in photos:
        try:
            pixels = open_rgb(path)[None]  # (1, height, width, 3)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            exit_code = 3
            continue
        logits = session.run(["logits"], {"image": pixels})[0][0]  # (classes,)
        if thresholds := described.get("thresholds"):  # of the labels
            probabilities = 1 / (1 + np.exp(-logits))
            found = np.flatnonzero(probabilities >= thresholds)
        else:
            probabilities = np.exp(logits - logits.max())
            probabilities /= probabilities.sum()
            found = [probabilities.argmax()]
        names = [f"{described['classes'][i]} {probabilities[i]:.1%}" for i in found]
        print(f"{path}: {', '.join(names) or 'no label'}")
    return exit_code


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
