"""Export format --preprocessing: the transform of a run for programs in other languages.

The folder contains a specification with every number, test vectors, and programs in Python,
JavaScript and C++ that reproduce the vectors bit for bit. The Python program is run on all vectors
and on the images of the comparison before the export is kept. The tests of vitft run all three
programs.
"""

import hashlib
import json
import math
import re
import runpy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image

from vitft.data.images import read_image
from vitft.data.transforms import MAX_ASPECT, MAX_RESIZED_PIXELS, EvalTransform
from vitft.export.formats.base import (
    ExportFormat,
    NumericArray,
    OpenedModel,
    module_logits,
    normalised_input,
)
from vitft.export.formats.vectors import Vector, draw_vectors
from vitft.export.trained import TrainedRun
from vitft.models.card import Card
from vitft.models.find import SPECIFICATION_FILE
from vitft.system.errors import RunError
from vitft.system.files import resource, write_atomically, write_json, writing

PROGRAM_NAME = "preprocess"
VECTORS = "vectors"
"""Name of the folder that contains the test vectors."""
PROGRAMS = Path(__file__).parents[1] / "reference"
"""Folder that contains the programs before the constants of a run are filled in."""
CONSTANTS = re.compile(
    r"(?<=Constants of the run: begin\n)(.*?)(?=\S+ Constants of the run: end)", re.DOTALL
)
"""The part of a program that is replaced with the constants of a run."""
EQUALITY = (
    "The view must match in every byte, and the tensor in every bit of every float32. No tolerance "
    "is needed: the three programs in this folder resize with integer weights and round each "
    "float32 operation separately. Lanczos weights depend on the sine function of the standard "
    "library, whose last bit may differ; the resulting integer weights were equal in all libraries "
    "that were tested."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessingFormat(ExportFormat):
    """The files preprocessing.json, preprocess.py, preprocess.mjs, preprocess.cpp and test vectors.

    The folder contains no model. For the comparison with the run, the Python program prepares
    the images, and the run's own model computes the logits.
    """

    trained: TrainedRun
    is_model = False

    def obstacle(self, card: Card) -> str:
        if card.transform.fit == "pad":
            return "its images are padded (weights.fit=pad), which the programs do not support"
        return ""

    def write(self, trained: TrainedRun, folder: Path) -> None:
        transform = trained.card.transform
        vectors = draw_vectors(transform)
        with writing(folder):
            (folder / VECTORS).mkdir()
        digests = [write_vector(folder / VECTORS, transform, vector) for vector in vectors]
        write_json(folder / SPECIFICATION_FILE, specification(transform, vectors, digests))
        for suffix, constants in CONSTANT_WRITERS.items():
            text = (PROGRAMS / f"{PROGRAM_NAME}{suffix}").read_text(encoding="utf-8")
            before, _, after = CONSTANTS.split(text)
            filled = before + constants(constants_of(transform)) + after
            write_atomically(folder / f"{PROGRAM_NAME}{suffix}", filled)
        with writing(folder):
            shutil.copyfile(resource("LICENSE"), folder / "LICENSE")
        write_atomically(folder / "README.md", readme(transform, vectors))

    def open(self, folder: Path) -> OpenedModel:
        program = runpy.run_path(str(folder / f"{PROGRAM_NAME}.py"))
        found, wrong = program["unequal_vectors"](folder / VECTORS)
        if wrong or not found:
            raise RunError(
                "preprocess.py does not reproduce the test vectors: "
                f"{', '.join(wrong) or 'none found'}",
                fix="report this as a bug, and keep the run directory",
            )

        def prepare(image: Image.Image) -> NumericArray:
            pixels = program["DecodedPixels"](np.asarray(image.convert("RGB")), "RGB", "8")
            return np.asarray(program["preprocess"](pixels)[0])

        return OpenedModel(
            by=f"NumPy {np.__version__}",
            classes=self.trained.card.classes,
            prepare=prepare,
            logits=lambda inputs: module_logits(self.trained.model, inputs),
        )


def write_vector(folder: Path, transform: EvalTransform, vector: Vector) -> dict[str, str]:
    """Write the input and the expected output of a vector, and return the digests of its files.

    The output is computed by vitft's own decoder and transform from the bytes of the image file.
    """
    image = read_image(vector.content, vector.file, grey_range=transform.grey_range)
    stem = Path(vector.file).stem
    contents = {
        vector.file: vector.content,
        f"{stem}.pixels": vector.pixels,
        f"{stem}.view": transform.pixels(image).tobytes(),
        f"{stem}.tensor": normalised_input(transform, image).astype("<f4").tobytes(),
    }
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def constants_of(transform: EvalTransform) -> dict[str, Any]:
    """Return the constants of the programs by name."""
    height, width = transform.image_size
    return {
        "HEIGHT": height,
        "WIDTH": width,
        "CROP_FRACTION": transform.crop,
        "FIT": transform.fit,
        "INTERPOLATION": transform.interpolation,
        "MEAN": transform.mean,
        "STD": transform.std,
        "GREY_RANGE": transform.grey_range,
    }


def python_constants(values: Mapping[str, Any]) -> str:
    """Return the constants as Python code."""
    return "".join(f"{name} = {value!r}\n" for name, value in values.items())


def javascript_constants(values: Mapping[str, Any]) -> str:
    """Return the constants as JavaScript code."""
    return "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())


def cpp_constants(values: Mapping[str, Any]) -> str:
    """Return the constants as C++ code."""
    lines = []
    for name, value in values.items():
        kind = {bool: "constexpr bool", int: "constexpr int", float: "constexpr double"}
        if isinstance(value, tuple):
            numbers = ", ".join(repr(float(each)) for each in value)
            lines.append(f"const std::vector<double> {name} = {{{numbers}}};\n")
        elif isinstance(value, str):
            lines.append(f'const std::string {name} = "{value}";\n')
        else:
            lines.append(f"{kind[type(value)]} {name} = {json.dumps(value)};\n")
    return "".join(lines)


CONSTANT_WRITERS = {".py": python_constants, ".mjs": javascript_constants, ".cpp": cpp_constants}
"""Mapping from the suffix of a program to the function that returns its constants."""


def specification(
    transform: EvalTransform, vectors: Sequence[Vector], digests: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the content of preprocessing.json."""
    height, width = transform.image_size
    return {
        "format": "vitft preprocessing",
        "version": 1,
        "made_by": f"vitft {version('vitft')}, Pillow {PIL.__version__}",
        "licence": "Apache-2.0",
        "transform": transform.to_json(),
        "steps": [*colour_steps(transform), *size_steps(transform), *number_steps(transform)],
        "output": {
            "dtype": "float32",
            "shape": ["batch", transform.channels, height, width],
            "layout": "channels first, rows from top to bottom, little-endian in the vectors",
        },
        "equality": EQUALITY,
        "vectors": {
            "folder": VECTORS,
            "pixels": "one line of ASCII text with width, height, mode, depth, orientation and "
            "transparent value (-1: none), then a line feed, then the samples row by row, with "
            "interleaved channels, little-endian",
            "view": "uint8 (height, width, 3) after the crop step",
            "tensor": "float32 (channels, height, width) after the last step",
            "images": [
                {"file": vector.file, "about": vector.about, "sha256": dict(found)}
                for vector, found in zip(vectors, digests, strict=True)
            ],
        },
    }


def colour_steps(transform: EvalTransform) -> list[dict[str, Any]]:
    """Return the steps from a file to an upright RGB image."""
    wide: dict[str, Any] = {
        "unsigned": "keep the upper 8 bits: value >> (depth - 8)",
        "signed 32-bit": "clip to 0..65535, then value >> 8",
        "floating point": "NaN is 0; times 255 if no value in the image is above 1; round half to "
        "even, clip to 0..255",
    }
    if transform.grey_range:
        low, high = transform.grey_range
        wide = {
            "black": low,
            "white": high,
            "formula": "round_half_even(clip(value - black, 0, white - black) * (255 / (white - "
            "black))), NaN is 0; in float32, with 255 / (white - black) rounded to float32; in "
            "float64 for 32-bit integers",
        }
    steps: list[dict[str, Any]] = [
        {
            "step": "decode",
            "frame": "the first one",
            "colour profile": "ignored",
            "note": "JPEG decoders may differ from libjpeg-turbo by one or two levels",
        },
        {
            "step": "mode",
            "grey": "equal channels",
            "palette": "looked up",
            "cmyk": "light = 255 - K; channel = max(0, light - div255(ink * light)), where "
            "div255(x) = (((x + 128) >> 8) + x + 128) >> 8; the inks of JPEG files with an Adobe "
            "marker are inverted first",
            "alpha": "on white: channel = div255(255 * (255 - alpha) + channel * alpha)",
            "channels of more than 8 bits": wide,
            "transparent value of grey with more than 8 bits": "255",
        },
    ]
    if transform.channels == 1:
        grey = "(19595 * R + 38470 * G + 7471 * B + 32768) >> 16, in all three channels"
        steps.append({"step": "grey", "formula": grey})
    turns = {2: "flip left to right", 3: "rotate by 180 degrees", 4: "flip top to bottom"}
    turns |= {5: "transpose", 6: "rotate clockwise by 90 degrees", 7: "transverse"}
    turns[8] = "rotate counter-clockwise by 90 degrees"
    return [*steps, {"step": "orientation", "tag": "EXIF 0x0112", "values": turns}]


def size_steps(transform: EvalTransform) -> list[dict[str, Any]]:
    """Return the steps that resize and crop."""
    tall, wide = (math.floor(side / transform.crop) for side in transform.image_size)
    if transform.fit == "squash":
        sides = f"height {tall}, width {wide}"
    elif tall == wide:
        sides = f"shorter side {tall}, longer side {tall} * longer / shorter, rounded down"
    else:
        sides = (
            f"ratio = min(h / {tall}, w / {wide}); height max({tall}, round_half_even(h / ratio)), "
            f"width max({wide}, round_half_even(w / ratio))"
        )
    filters = {
        "nearest": "the pixel at (position + 0.5) * scale, rounded down; computed by adding scale "
        "repeatedly",
        "bilinear": "1 - |x| for |x| < 1",
        "bicubic": "(1.5|x| - 2.5)|x|^2 + 1 for |x| < 1, -0.5(((|x| - 5)|x| + 8)|x| - 4) for "
        "|x| < 2",
        "lanczos": "sinc(x) sinc(x / 3) for -3 <= x < 3",
    }
    order = (
        "columns, then rows; rows first if resizing removes rows, and over twice as many as columns"
    )
    resize: dict[str, Any] = {
        "step": "resize",
        "library": "like Image.resize of Pillow",
        "sides": sides,
        "filter": transform.interpolation,
        "formula": filters[transform.interpolation],
        "antialias": transform.interpolation != "nearest",
    }
    if transform.interpolation != "nearest":
        resize |= {
            "scale": "old / new; the filter is stretched by max(scale, 1)",
            "weights": "float64, normalised to a sum of 1, times 2^22, rounded half away from 0",
            "rounding": "after each pass: clip((sum + 2^21) >> 22, 0, 255)",
            "order": order,
        }
    height, width = transform.image_size
    crop: dict[str, Any] = {
        "step": "crop",
        "height": height,
        "width": width,
        "top": f"round_half_even((resized height - {height}) / 2)",
        "left": f"round_half_even((resized width - {width}) / 2)",
    }
    if transform.fit == "crop":
        crop["large images"] = (
            f"if the resized image would have an aspect ratio above {MAX_ASPECT} or more than "
            f"{MAX_RESIZED_PIXELS} pixels, only the part inside the crop is resized: its corners "
            "times old / new, rounded to float32, are the argument box of Image.resize"
        )
    return [resize, crop]


def number_steps(transform: EvalTransform) -> list[dict[str, Any]]:
    """Return the steps from bytes to the model's input."""
    return [
        {"step": "scale", "formula": "float32(byte) / float32(255)"},
        {
            "step": "normalise",
            "mean": list(transform.mean),
            "std": list(transform.std),
            "formula": "(value - float32(mean)) / float32(std), rounded to float32 after each step",
        },
        {"step": "layout", "order": "channels, rows, columns"},
    ]


def readme(transform: EvalTransform, vectors: Sequence[Vector]) -> str:
    """Return the text of README.md."""
    height, width = transform.image_size
    rows = "\n".join(f"| {vector.file} | {vector.about} |" for vector in vectors)
    return f"""# Preprocessing of a vitft run

{SPECIFICATION_FILE} describes each step from an image file to the model's input, float32
(batch, {transform.channels}, {height}, {width}), with the numbers of the run. Three programs do
the same:

| language | needs | check |
|---|---|---|
| Python | NumPy, and Pillow to decode files | `python preprocess.py` |
| JavaScript | nothing | `node preprocess.mjs` |
| C++17 | nothing | `g++ -std=c++17 -O2 -ffp-contract=off preprocess.cpp -o preprocess && \
./preprocess` |

The command in the last column checks the program against the vectors in {VECTORS}/:

| image | what it tests |
|---|---|
{rows}

Next to each image are its decoded pixels (.pixels), the resized and cropped bytes (.view) and the
model's input (.tensor). {EQUALITY}

The programs in JavaScript and C++ take decoded pixels. Decode files with a library that returns
unmodified samples and the EXIF orientation, and compare the result with the .pixels files. Browser
canvases are not suitable for images with transparency.

The programs are part of vitft and are licensed under Apache-2.0 (LICENSE); the model may have a
different licence.
"""
