"""Export format --preprocessing: the transform of a run for programs in other languages.

The folder contains a specification with every number, test vectors, and programs in Python,
JavaScript and C++ that reproduce the vectors bit for bit. The Python program is run on all vectors
and on the images of the comparison before the export is kept. The tests of vitft run all three
programs.
"""

import hashlib
import io
import json
import re
import runpy
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
from PIL import Image

from vitft.data.images import ORIENTATION, read_image
from vitft.data.transforms import MAX_ASPECT, MAX_RESIZED_PIXELS, EvalTransform
from vitft.export.facts import program
from vitft.export.formats.base import (
    ExportFormat,
    NumericArray,
    OpenedModel,
    module_logits,
    normalised_input,
)
from vitft.export.trained import TrainedRun
from vitft.models.card import Card
from vitft.models.find import SPECIFICATION_FILE
from vitft.system.errors import RunError
from vitft.system.files import resource, write_atomically, write_json, writing

# synthetic images that test each step of a transform, as files and as decoded pixels --------------

_MAX_UINT16 = 65535
_LITTLE_ENDIAN = {"8": "<u1", "16": "<u2", "f32": "<f4"}


class Vector(NamedTuple):
    """An image that tests a transform."""

    file: str
    about: str
    content: bytes
    """Bytes of the image file, in a lossless format."""
    pixels: bytes
    """The decoded pixels: a line of text and the samples (see `pixel_file`)."""


def _draw_vectors(transform: EvalTransform) -> list[Vector]:
    """Draw five images; the same transform always gives the same images."""
    random = np.random.default_rng(0)
    phone = drawn(random, 30, 41, 3)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    alpha, inks = drawn(random, 24, 33, 4), drawn(random, 5, 610, 4)
    short = min(transform.resized(1000, 1000)) + 12
    tall = drawn(random, 3 * short, short, 1)
    return [
        Vector(
            "phone.png",
            "RGB, rotated by EXIF orientation 6, enlarged",
            image_file(phone, "RGB", "png", exif=exif),
            pixel_file(phone, "RGB", orientation=6),
        ),
        Vector(
            "alpha.png",
            "RGBA, composited on white",
            image_file(alpha, "RGBA", "png"),
            pixel_file(alpha, "RGBA"),
        ),
        _draw_wide(random, transform),
        Vector(
            "print.tif",
            "CMYK, with an aspect ratio above 100",
            image_file(inks, "CMYK", "tiff"),
            pixel_file(inks, "CMYK"),
        ),
        Vector(
            "tall.png",
            "grey, reduced with antialiasing, rows first",
            image_file(tall, "L", "png"),
            pixel_file(tall, "L"),
        ),
    ]


def _draw_wide(random: np.random.Generator, transform: EvalTransform) -> Vector:
    """Draw a grey image with more than 8 bits, in floating point if the range requires it."""
    low, high = transform.grey_range or (0, _MAX_UINT16)
    margin = (high - low) / 8 if transform.grey_range else 0
    levels = drawn(random, 29, 37, 1) / 255 * (high - low + 2 * margin) + low - margin
    if low < 0 or high > _MAX_UINT16 or high - low < 1000:
        greys = levels.astype(np.float32)
        content = image_file(greys, "F", "tiff")
        about = "floating-point grey, scaled from the grey range of the run"
        return Vector("wide.tif", about, content, pixel_file(greys, "L", depth="f32"))
    greys = levels.clip(0, _MAX_UINT16).astype(np.uint16)
    clear = int(greys[14, 18, 0])
    how = "scaled from the grey range of the run" if transform.grey_range else "upper 8 bits kept"
    return Vector(
        "wide.png",
        f"16-bit grey with a transparent value, {how}",
        image_file(greys, "I;16", "png", transparency=clear),
        pixel_file(greys, "L", depth="16", transparent=clear),
    )


def drawn(random: np.random.Generator, height: int, width: int, channels: int) -> NumericArray:
    """Draw blocks of 6 x 6 pixels with noise: uint8 (height, width, channels)."""
    blocks = random.integers(0, 256, (-(-height // 6), -(-width // 6), channels))
    coarse = blocks.repeat(6, axis=0).repeat(6, axis=1)[:height, :width]
    noise = random.integers(-40, 41, (height, width, channels))
    return np.asarray((coarse + noise).clip(0, 255).astype(np.uint8))


def image_file(pixels: NumericArray, mode: str, kind: str, **options: Any) -> bytes:  # noqa: ANN401
    """Encode pixels (height, width, channels) losslessly."""
    buffer = io.BytesIO()
    size = pixels.shape[1], pixels.shape[0]
    Image.frombytes(mode, size, pixels.tobytes()).save(buffer, kind, **options)
    return buffer.getvalue()


def pixel_file(
    pixels: NumericArray,
    mode: str,
    *,
    depth: str = "8",
    orientation: int = 1,
    transparent: int = -1,
) -> bytes:
    """Return the content of a .pixels file: one line of text, then the samples."""
    height, width = pixels.shape[:2]
    line = f"{width} {height} {mode} {depth} {orientation} {transparent}\n"
    return line.encode() + pixels.astype(_LITTLE_ENDIAN[depth]).tobytes()


# export format --preprocessing: the transform of a run for programs in other languages ------------

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
    "library, whose last bit may differ. The resulting integer weights were equal in all libraries "
    "that were tested."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessingFormat(ExportFormat):
    """The files preprocessing.json, preprocess.py, preprocess.mjs, preprocess.cpp and test vectors.

    For the comparison, the Python program prepares the images for the run's own model.
    """

    trained: TrainedRun
    is_model = False

    def obstacle(self, card: Card) -> str:
        if card.transform.fit == "pad":
            return "its images are padded (weights.fit=pad), which the programs do not support"
        return ""

    def write(self, trained: TrainedRun, folder: Path) -> None:
        transform = trained.card.transform
        vectors = _draw_vectors(transform)
        with writing(folder):
            (folder / _VECTORS).mkdir()
            shutil.copyfile(resource("LICENSE"), folder / "LICENSE")
        images = [
            {
                "file": vector.file,
                "about": vector.about,
                "sha256": write_vector(folder / _VECTORS, transform, vector),
            }
            for vector in vectors
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
        write_json(folder / SPECIFICATION_FILE, json.loads(text))
        for suffix in (".py", ".mjs", ".cpp"):
            text = (_PROGRAMS / f"{_PROGRAM_NAME}{suffix}").read_text(encoding="utf-8")
            before, _, after = _CONSTANTS.split(text)
            values = constants_of(transform).items()
            filled = "".join(_constant_line(suffix, name, value) for name, value in values)
            write_atomically(folder / f"{_PROGRAM_NAME}{suffix}", before + filled + after)
        text = program(
            "preprocessing_readme",
            file=SPECIFICATION_FILE,
            transform=transform,
            folder=_VECTORS,
            vectors=vectors,
            equality=_EQUALITY,
        )
        write_atomically(folder / "README.md", text)

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
    """Write a vector, with the output of vitft's own transform, and return its files' digests."""
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


def _constant_line(suffix: str, name: str, value: Any) -> str:  # noqa: ANN401 - any constant
    """Return a constant as a line of Python, JavaScript or C++, depending on the suffix."""
    if suffix == ".py":
        return f"{name} = {value!r}\n"
    if suffix == ".mjs":
        return f"const {name} = {json.dumps(value)};\n"
    if isinstance(value, tuple):
        numbers = ", ".join(repr(float(each)) for each in value)
        return f"const std::vector<double> {name} = {{{numbers}}};\n"
    if isinstance(value, str):
        return f'const std::string {name} = "{value}";\n'
    kind = {int: "int", float: "double"}[type(value)]
    return f"constexpr {kind} {name} = {json.dumps(value)};\n"
