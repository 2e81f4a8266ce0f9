"""Export format --preprocessing: the transform of a run for programs in other languages.

The folder contains a specification with every number, test vectors, and programs in Python,
JavaScript and C++ that reproduce the vectors bit for bit. The Python program is run on all vectors
and on the images of the comparison before the export is kept. The tests of vitft run all three
programs.
"""

import hashlib
import json
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
from vitft.export.snippets import program
from vitft.export.trained import TrainedRun
from vitft.models.card import Card
from vitft.models.find import SPECIFICATION_FILE
from vitft.system.errors import RunError
from vitft.system.files import resource, write_atomically, write_json, writing

_PROGRAM_NAME = "preprocess"
_VECTORS = "vectors"
"""Name of the folder that contains the test vectors."""
_PROGRAMS = Path(__file__).parents[1] / "reference"
"""Folder that contains the programs before the constants of a run are filled in."""
_CONSTANTS = re.compile(
    r"(?<=Constants of the run: begin\n)(.*?)(?=\S+ Constants of the run: end)", re.DOTALL
)
"""The part of a program that is replaced with the constants of a run."""
_EQUALITY = (
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
            (folder / _VECTORS).mkdir()
        digests = [write_vector(folder / _VECTORS, transform, vector) for vector in vectors]
        write_json(folder / SPECIFICATION_FILE, specification(transform, vectors, digests))
        for suffix, constants in _CONSTANT_WRITERS.items():
            text = (_PROGRAMS / f"{_PROGRAM_NAME}{suffix}").read_text(encoding="utf-8")
            before, _, after = _CONSTANTS.split(text)
            filled = before + constants(constants_of(transform)) + after
            write_atomically(folder / f"{_PROGRAM_NAME}{suffix}", filled)
        with writing(folder):
            shutil.copyfile(resource("LICENSE"), folder / "LICENSE")
        write_atomically(folder / "README.md", _readme(transform, vectors))

    def open(self, folder: Path) -> OpenedModel:
        program = runpy.run_path(str(folder / f"{_PROGRAM_NAME}.py"))
        found, wrong = program["unequal_vectors"](folder / _VECTORS)
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


def _python_constants(values: Mapping[str, Any]) -> str:
    """Return the constants as Python code."""
    return "".join(f"{name} = {value!r}\n" for name, value in values.items())


def _javascript_constants(values: Mapping[str, Any]) -> str:
    """Return the constants as JavaScript code."""
    return "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())


def _cpp_constants(values: Mapping[str, Any]) -> str:
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


_CONSTANT_WRITERS = {
    ".py": _python_constants,
    ".mjs": _javascript_constants,
    ".cpp": _cpp_constants,
}
"""Mapping from the suffix of a program to the function that returns its constants."""


def specification(
    transform: EvalTransform, vectors: Sequence[Vector], digests: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the content of preprocessing.json."""
    images = [
        {"file": vector.file, "about": vector.about, "sha256": dict(found)}
        for vector, found in zip(vectors, digests, strict=True)
    ]
    text = program(
        "specification",
        transform=transform,
        made_by=f"vitft {version('vitft')}, Pillow {PIL.__version__}",
        max_aspect=MAX_ASPECT,
        max_pixels=MAX_RESIZED_PIXELS,
        equality=_EQUALITY,
        folder=_VECTORS,
        images=images,
    )
    return dict(json.loads(text))


def _readme(transform: EvalTransform, vectors: Sequence[Vector]) -> str:
    """Return the text of README.md."""
    return program(
        "preprocessing_readme",
        file=SPECIFICATION_FILE,
        transform=transform,
        folder=_VECTORS,
        vectors=vectors,
        equality=_EQUALITY,
    )
