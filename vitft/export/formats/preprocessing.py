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
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import PIL
from PIL import Image

from vitft.data.images import ORIENTATION, decode
from vitft.data.transforms import MAX_ASPECT, MAX_RESIZED_PIXELS, EvalTransform
from vitft.export.formats.base import (
    ExportFormat,
    NumericArray,
    OpenedModel,
    module_logits,
    normalised_input,
)
from vitft.models.find import SPECIFICATION_FILE
from vitft.report.html import filled
from vitft.system.errors import RunError
from vitft.system.files import resource, write_atomically, write_json, writing
from vitft.system.imports import version

# synthetic images that test each step of a transform, as files and as decoded pixels --------------

_MAX_UINT16 = 65535
_DEPTHS = {"8": ("<u1", ""), "16": ("<u2", "I;16"), "f32": ("<f4", "F")}
"""Type of a sample in a .pixels file, and Pillow's mode of grey pixels of more than 8 bits."""


class Vector(NamedTuple):
    """An image that tests a transform."""

    file: str
    about: str
    content: bytes  # bytes of the image file, in a lossless format
    pixels: bytes  # a line of text and the decoded samples

    @classmethod
    def of(
        cls,
        file: str,
        about: str,
        pixels: NumericArray,
        mode: str,
        *,
        depth: str = "8",
        orientation: int = 1,
        transparent: int = -1,
    ) -> Self:
        """Return a vector of pixels (height, width, channels of the mode)."""
        dtype, wide_mode = _DEPTHS[depth]
        height, width = pixels.shape[:2]
        line = f"{width} {height} {mode} {depth} {orientation} {transparent}\n"
        buffer, exif = io.BytesIO(), Image.Exif()
        options: dict[str, Any] = {"transparency": transparent} if transparent >= 0 else {}
        if orientation != 1:
            exif[ORIENTATION] = orientation
            options["exif"] = exif
        image = Image.frombytes(wide_mode or mode, (width, height), pixels.tobytes())
        image.save(buffer, "tiff" if file.endswith(".tif") else "png", **options)
        return cls(file, about, buffer.getvalue(), line.encode() + pixels.astype(dtype).tobytes())

    def write(self, folder: Path, transform: EvalTransform) -> dict[str, str]:
        """Write the image and the output of vitft's transform; return the files' digests."""
        image = decode(self.content, self.file, grey_range=transform.grey_range).image
        stem = Path(self.file).stem
        contents = {
            self.file: self.content,
            f"{stem}.pixels": self.pixels,
            f"{stem}.view": transform.pixels(image).tobytes(),
            f"{stem}.tensor": normalised_input(transform, image).astype("<f4").tobytes(),
        }
        for name, content in contents.items():
            write_atomically(folder / name, content)
        return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def _draw_vectors(transform: EvalTransform) -> list[Vector]:
    """Draw five images; the same transform always gives the same images."""
    random = np.random.default_rng(0)
    phone, alpha = _drawn(random, 30, 41, 3), _drawn(random, 24, 33, 4)
    inks = _drawn(random, 5, 610, 4)
    short = min(transform.resized(1000, 1000)) + 12
    tall = _drawn(random, 3 * short, short, 1)
    # Grey of more than 8 bits, in floating point if the range requires it.
    low, high = transform.grey_range or (0, _MAX_UINT16)
    margin = (high - low) / 8 if transform.grey_range else 0
    levels = _drawn(random, 29, 37, 1) / 255 * (high - low + 2 * margin) + low - margin
    if low < 0 or high > _MAX_UINT16 or high - low < 1000:
        about = "floating-point grey, scaled from the grey range of the run"
        wide = Vector.of("wide.tif", about, levels.astype(np.float32), "L", depth="f32")
    else:
        how = "scaled from the grey range of the run" if margin else "upper 8 bits kept"
        about = f"16-bit grey with a transparent value, {how}"
        greys = levels.clip(0, _MAX_UINT16).astype(np.uint16)
        clear = int(greys[14, 18, 0])
        wide = Vector.of("wide.png", about, greys, "L", depth="16", transparent=clear)
    turned = "RGB, rotated by EXIF orientation 6, enlarged"
    return [
        Vector.of("phone.png", turned, phone, "RGB", orientation=6),
        Vector.of("alpha.png", "RGBA, composited on white", alpha, "RGBA"),
        wide,
        Vector.of("print.tif", "CMYK, with an aspect ratio above 100", inks, "CMYK"),
        Vector.of("tall.png", "grey, reduced with antialiasing, rows first", tall, "L"),
    ]


def _drawn(random: np.random.Generator, height: int, width: int, channels: int) -> NumericArray:
    """Draw blocks of 6 x 6 pixels with noise: uint8 (height, width, channels)."""
    blocks = random.integers(0, 256, (-(-height // 6), -(-width // 6), channels))
    coarse = blocks.repeat(6, axis=0).repeat(6, axis=1)[:height, :width]
    noise = random.integers(-40, 41, (height, width, channels))
    return np.asarray((coarse + noise).clip(0, 255).astype(np.uint8))


_PROGRAM_NAME = "preprocess"
_VECTORS = "vectors"  # name of the folder that contains the test vectors
_PROGRAMS = Path(__file__).parents[1] / "reference"
"""Folder that contains the programs before the constants of a run are filled in."""
_CONSTANTS = re.compile(
    r"(?<=Constants of the run: begin\n)(.*?)(?=\S+ Constants of the run: end)", re.DOTALL
)
"""The part of a program that is replaced with the constants of a run."""


class PreprocessingFormat(ExportFormat):
    """The specification, the programs and the vectors; the Python program is what is compared."""

    name = "preprocessing"
    is_model = False

    def obstacle(self) -> str:
        if self.card.transform.fit == "pad":
            return "its images are padded (weights.fit=pad), which the programs do not support"
        return ""

    def write(self, folder: Path) -> None:
        transform = self.card.transform
        vectors, place = _draw_vectors(transform), folder / _VECTORS
        with writing(folder):
            place.mkdir()
            shutil.copyfile(resource("LICENSE"), folder / "LICENSE")
        images = [
            {"file": v.file, "about": v.about, "sha256": v.write(place, transform)} for v in vectors
        ]
        text = filled(
            "specification.j2",
            transform=transform,
            made_by=f"vitft {version('vitft')}, Pillow {PIL.__version__}",
            max_aspect=MAX_ASPECT,
            max_pixels=MAX_RESIZED_PIXELS,
            folder=_VECTORS,
            images=images,
        )
        write_json(folder / SPECIFICATION_FILE, json.loads(text))
        constants: dict[str, Any] = {
            **dict(zip(("HEIGHT", "WIDTH"), transform.image_size, strict=True)),
            "CROP_FRACTION": transform.crop,
            "FIT": transform.fit,
            "INTERPOLATION": transform.interpolation,
            "MEAN": transform.mean,
            "STD": transform.std,
            "GREY_RANGE": transform.grey_range,
        }
        for suffix in (".py", ".mjs", ".cpp"):
            text = (_PROGRAMS / f"{_PROGRAM_NAME}{suffix}").read_text(encoding="utf-8")
            before, _, after = _CONSTANTS.split(text)
            lines = "".join(_constant_line(suffix, *pair) for pair in constants.items())
            write_atomically(folder / f"{_PROGRAM_NAME}{suffix}", before + lines + after)
        text = filled(
            "preprocessing_readme.j2",
            file=SPECIFICATION_FILE,
            transform=transform,
            folder=_VECTORS,
            vectors=vectors,
        )
        write_atomically(folder / "README.md", text)

    def open(self, folder: Path) -> OpenedModel:
        program = runpy.run_path(str(folder / f"{_PROGRAM_NAME}.py"))
        _, wrong = program["unequal_vectors"](folder / _VECTORS)
        if wrong:
            raise RunError(
                f"preprocess.py does not reproduce the test vectors: {', '.join(wrong)}",
                fix="report this as a bug, and keep the run directory",
            )

        def prepare(image: Image.Image) -> NumericArray:
            pixels = program["DecodedPixels"](np.asarray(image.convert("RGB")), "RGB", "8")
            return np.asarray(program["preprocess"](pixels)[0])

        return OpenedModel(
            by=f"NumPy {np.__version__}",
            outputs=self.card,
            prepare=prepare,
            logits=module_logits(self.trained.model),
        )


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
