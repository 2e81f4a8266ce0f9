"""The transform for other languages: a specification, vectors, and three programs that agree."""

import importlib.util
import json
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import tiny
from tests.contract.built.images import png
from tests.data.test_images import negative, tiff
from tests.support.children import ended
from tests.support.export_run import make_run
from vitft.data import EvalTransform, open_image
from vitft.export import Vector, export_run, plan_export
from vitft.system import RunError, structured

NODE, COMPILER = shutil.which("node"), shutil.which("g++")
EXIF_COLOURS: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
TRANSFORMS: dict[str, dict[str, Any]] = {
    "photos": {"crop": 0.875, **EXIF_COLOURS},
    "lanczos": {"image_size": (16, 24), "interpolation": "lanczos"},
    "grey": {
        "interpolation": "bilinear",
        "mean": (0.3,),
        "std": (0.27,),
        "fit": "squash",
        "grey_range": (120.0, 3900.0),
    },
    "nearest": {"interpolation": "nearest", "crop": 1.0, "grey_range": (-0.5, 1.25)},
}


def exported(root: Path, **transform: Any) -> Path:
    size = transform.pop("image_size", (16, 16))
    config = tiny(3, image_size=size, in_channels=len(transform.get("mean", (1, 2, 3))))
    run = make_run(root, config=config, **transform)
    return export_run(str(run), plan_export(["preprocessing"], str(root / "export"))).folder


@pytest.fixture(scope="module", params=[*TRANSFORMS])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported folder with 25 more vectors of random shapes in a folder of their own."""
    root = tmp_path_factory.mktemp(request.param)
    found = exported(root, **TRANSFORMS[request.param])
    described = json.loads((found / "preprocessing.json").read_text())
    transform = structured(described["transform"], EvalTransform)
    (found / "more").mkdir()
    for vector in random_vectors():
        vector.write(found / "more", transform)
    return found


def drawn(random: np.random.Generator, height: int, width: int, channels: int) -> Any:
    """Draw blocks of 6 x 6 pixels with noise."""
    blocks = random.integers(0, 256, (-(-height // 6), -(-width // 6), channels))
    coarse = blocks.repeat(6, axis=0).repeat(6, axis=1)[:height, :width]
    noise = random.integers(-40, 41, coarse.shape)
    return (coarse + noise).clip(0, 255).astype(np.uint8)


def random_vectors() -> Iterator[Vector]:
    random = np.random.default_rng(1)
    wide = drawn(random, 21, 33, 3).astype(np.uint16) * 257
    samples = b"33 21 RGB 16 1 -1\n" + wide.astype("<u2").tobytes()
    yield Vector("wide_colour.png", "", png(wide), samples)
    modes = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
    for i in range(24):
        mode = [*modes][i % 5]
        height, width = (int(side) for side in random.integers(1, 90, 2))
        if i % 6 == 0:  # the ratio decides the order of the passes, and what is resized at all
            height, width = (700, 1 + i % 4) if i % 12 else (1 + i % 4, 700)
        pixels = drawn(random, height, width, modes[mode])
        kind, turned = ("tif", 1) if mode == "CMYK" else ("png", 1 + i % 8)
        yield Vector.of(f"{i:02}.{kind}", "", pixels, mode, orientation=turned)


def checked(*command: str, cwd: Path) -> tuple[int, str]:
    done = ended(command, cwd=cwd)
    return done.returncode, (done.stdout + done.stderr).strip()


def compiled(folder: Path) -> str:
    path = folder / "compiled"
    if not path.exists():
        flags = ["-std=c++17", "-O0", "-ffp-contract=off", "-Wall", "-Werror"]
        code, text = checked("g++", *flags, "preprocess.cpp", "-o", str(path), cwd=folder)
        assert code == 0, text
    return str(path)


def program(folder: Path, language: str) -> list[str]:
    """The command that checks vectors, or a skipped test."""
    if language == "Python":
        return [sys.executable, "preprocess.py"]
    if language == "JavaScript":
        if NODE is None:
            pytest.skip("node is not installed")
        return [NODE, "preprocess.mjs"]
    if COMPILER is None:
        pytest.skip("g++ is not installed")
    return [compiled(folder)]


LANGUAGES = ["Python", "JavaScript", "C++"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_gives_the_bytes_and_floats_of_vitft(folder: Path, language: str) -> None:
    command = program(folder, language)

    vectors, more = (checked(*command, name, cwd=folder) for name in ("vectors", "more"))

    assert vectors == (0, "5 of 5 vectors equal")
    assert more == (0, "25 of 25 vectors equal")


@pytest.mark.parametrize("folder", ["photos"], indirect=True)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_names_a_vector_that_differs_by_one_bit(
    folder: Path, tmp_path: Path, language: str
) -> None:
    shutil.copytree(folder / "vectors", tmp_path / "vectors")
    for name in ("phone.tensor", "tall.view"):
        content = bytearray((tmp_path / "vectors" / name).read_bytes())
        content[100] ^= 1
        (tmp_path / "vectors" / name).write_bytes(content)

    code, text = checked(*program(folder, language), str(tmp_path / "vectors"), cwd=folder)

    assert code == 1
    assert text.startswith("3 of 5 vectors equal, different: ")
    assert {*text.split(": ")[1].split(", ")} == {"phone (floats)", "tall (bytes)"}


@pytest.fixture
def reference(folder: Path) -> ModuleType:
    """The Python program of a folder."""
    spec = importlib.util.spec_from_file_location("preprocess", folder / "preprocess.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_python_program_reproduces_decoded_vectors_and_their_files(
    folder: Path, reference: ModuleType
) -> None:
    for part, count in (("vectors", 5), ("more", 25)):
        assert reference.unequal_vectors(folder / part) == (count, [])
        for path in (folder / part).glob("*.[pt][ni][gf]"):
            if path.stem == "wide_colour" and reference.GREY_RANGE:
                with pytest.raises(ValueError, match="16-bit colour, which Pillow reduces"):
                    reference.read_file(path)
                continue
            found = reference.preprocess(reference.read_file(path))
            assert found.tobytes() == path.with_suffix(".tensor").read_bytes(), path.name


def test_the_python_program_opens_files_as_vitft_does(
    folder: Path, tmp_path: Path, reference: ModuleType
) -> None:
    described = json.loads((folder / "preprocessing.json").read_text())
    transform = structured(described["transform"], EvalTransform)
    random = np.random.default_rng(2)
    colours = Image.fromarray(drawn(random, 30, 20, 3))
    colours.convert("CMYK").save(tmp_path / "cmyk.jpg")
    colours.quantize(7).save(tmp_path / "palette.png", transparency=2)
    colours.convert("1").save(tmp_path / "black_and_white.png")
    colours.convert("L").save(tmp_path / "clear_grey.png", transparency=3)
    greys = np.asarray(colours.convert("L"), np.float32)
    for highest in (0.5, 1.0, 1.01, 300.0):
        values = (greys / greys.max() * np.float32(highest)).astype(np.float32)
        values[:2, :3] = values[15:17, 8:11] = [[-1, np.nan, 0], [highest, 0.5, 0]]
        Image.fromarray(values).save(tmp_path / f"float_{highest}.tif")
    Image.fromarray(np.where(greys > 99, np.nan, np.inf)).save(tmp_path / "not_finite.tif")
    signed = (63 * np.arange(-300, 300) + 120).astype(np.int32).reshape(30, 20)
    signed[0, :3] = signed[15, 8:11] = 2**31 - 1, -(2**31), 65535 + 300
    Image.fromarray(signed).save(tmp_path / "signed.tif")
    wide = greys.astype(np.uint16) * 257
    Image.fromarray(wide).save(tmp_path / "clear_wide.png", transparency=0)
    Image.fromarray(wide).save(white := tmp_path / "white_is_0.tif")
    white.write_bytes(negative(white.read_bytes()))
    wide[:, ::3] = 0
    bits = "".join(f"{value:012b}" for value in wide.ravel() >> 4)
    pixels = int(bits, 2).to_bytes(len(bits) // 8, "big")
    (tmp_path / "12_bits.tif").write_bytes(tiff(20, 30, pixels, bits=(12,)))
    masks = struct.pack("<3I", 0xF800, 0x07E0, 0x001F)  # 5, 6 and 5 bits: not 16-bit colour
    header = struct.pack("<2sI4xI3I2H6I", b"BM", 1266, 66, 40, 20, 30, 1, 16, 3, 1200, 0, 0, 0, 0)
    (tmp_path / "565.bmp").write_bytes(header + masks + random.bytes(1200))
    paths = [*tmp_path.iterdir(), *(folder / "vectors").glob("*.[pt][ni][gf]")]
    assert len(paths) == 19

    for path in paths:
        found = reference.preprocess(reference.read_file(path))
        view = transform.pixels(open_image(path, grey_range=transform.grey_range))
        expected = reference.tensor_of(view)
        np.testing.assert_array_equal(found, expected, str(path))


def test_padded_images_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, fit="pad", crop=1.0)

    with pytest.raises(RunError, match=r"--preprocessing cannot represent .* images are padded"):
        export_run(str(run), plan_export(["preprocessing"], str(tmp_path / "export")))
