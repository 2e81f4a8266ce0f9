"""The transform for other languages: a specification, vectors, and three programs that agree."""

import importlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.contract.built.images import png
from tests.data.test_images import tiff
from tests.support.export_run import make_run, tiny
from tests.support.limits import HANG_S
from vitft.cli.main import main
from vitft.data.images import open_image
from vitft.data.transforms import MAX_ASPECT, MAX_RESIZED_PIXELS, EvalTransform
from vitft.export import export_run
from vitft.export.formats.preprocessing import (
    PreprocessingFormat,
    constants_of,
    cpp_constants,
    javascript_constants,
    python_constants,
    specification,
    write_vector,
)
from vitft.export.formats.vectors import Vector, draw_wide, drawn, image_file, pixel_file
from vitft.export.plan import plan_export
from vitft.export.trained import load_trained
from vitft.system.errors import RunError

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
    transform = EvalTransform.from_json(
        json.loads((found / "preprocessing.json").read_text())["transform"]
    )
    (found / "more").mkdir()
    for vector in random_vectors():
        write_vector(found / "more", transform, vector)
    return found


def random_vectors() -> Iterator[Vector]:
    random = np.random.default_rng(1)
    wide = drawn(random, 21, 33, 3).astype(np.uint16) * 257
    yield Vector("wide_colour.png", "", png(wide), pixel_file(wide, "RGB", depth="16"))
    modes = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
    for i in range(24):
        mode = [*modes][i % 5]
        height, width = (int(side) for side in random.integers(1, 90, 2))
        if i % 6 == 0:  # the ratio decides the order of the passes, and what is resized at all
            height, width = (700, 1 + i % 4) if i % 12 else (1 + i % 4, 700)
        pixels = drawn(random, height, width, modes[mode])
        orientation = 1 + i % 8
        exif = Image.Exif()
        exif[0x0112] = orientation
        kind = "tiff" if mode == "CMYK" else "png"
        options = {} if mode == "CMYK" else {"exif": exif}
        yield Vector(
            f"{i:02}.{kind}",
            "",
            image_file(pixels, mode, kind, **options),
            pixel_file(pixels, mode, orientation=orientation if options else 1),
        )


def checked(*command: str, cwd: Path) -> tuple[int, str]:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=HANG_S, check=False
    )
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
    assert text.startswith("3 of 5 vectors equal; different: ")
    assert {*text.split(": ")[1].split(", ")} == {"phone (floats)", "tall (bytes)"}


@pytest.fixture
def reference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The Python program before it is written to a folder, with the constants of that folder."""
    module = importlib.import_module("vitft.export.reference.preprocess")
    described = json.loads((folder / "preprocessing.json").read_text())
    transform = EvalTransform.from_json(described["transform"])
    for name, value in constants_of(transform).items():
        monkeypatch.setattr(module, name, value)
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


@pytest.mark.parametrize("folder", ["photos"], indirect=True)
def test_the_python_program_exits_with_the_names_of_unequal_vectors(
    folder: Path,
    tmp_path: Path,
    reference: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(folder / "vectors", tmp_path / "vectors")
    for arguments in ([], [str(tmp_path / "vectors")]):
        monkeypatch.setattr(reference, "__file__", str(folder / "preprocess.py"))
        monkeypatch.setattr(sys, "argv", ["preprocess.py", *arguments])
        reference.check_vectors()
    assert capsys.readouterr().out == "5 of 5 vectors equal\n" * 2
    for name in ("phone.tensor", "tall.view"):
        path = tmp_path / "vectors" / name
        path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    message = r"^3 of 5 vectors equal; different: phone \(floats\), tall \(bytes\)$"
    with pytest.raises(SystemExit, match=message):
        reference.check_vectors()
    for path in (tmp_path / "vectors").iterdir():
        path.unlink()
    with pytest.raises(SystemExit, match=r"^0 of 0 vectors equal"):
        reference.check_vectors()


@pytest.mark.parametrize("folder", ["photos"], indirect=True)
def test_decoded_pixels_are_upright_and_opaque_unless_stated(reference: ModuleType) -> None:
    assert reference.DecodedPixels(np.zeros((1, 1, 1)), "L", "16")[3:] == (1, -1)
    assert reference.MAX_SIDE_RATIO == MAX_ASPECT
    assert reference.MAX_PIXELS_RESIZED == MAX_RESIZED_PIXELS


def test_the_python_program_opens_files_as_vitft_does(
    folder: Path, tmp_path: Path, reference: ModuleType
) -> None:
    described = json.loads((folder / "preprocessing.json").read_text())
    transform = EvalTransform.from_json(described["transform"])
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
    wide[:, ::3] = 0
    bits = "".join(f"{value:012b}" for value in wide.ravel() >> 4)
    pixels = int(bits, 2).to_bytes(len(bits) // 8, "big")
    (tmp_path / "12_bits.tif").write_bytes(tiff(20, 30, pixels, bits=(12,)))
    paths = [*tmp_path.iterdir(), *(folder / "vectors").glob("*.[pt][ni][gf]")]
    assert len(paths) == 17

    for path in paths:
        found = reference.preprocess(reference.read_file(path))
        view = transform.pixels(open_image(path, grey_range=transform.grey_range))
        expected = reference.tensor_of(view)
        np.testing.assert_array_equal(found, expected, str(path))


def test_the_specification_has_the_numbers_and_digests_of_the_run(tmp_path: Path) -> None:
    folder = exported(tmp_path, crop=0.875, **EXIF_COLOURS)

    found = json.loads((folder / "preprocessing.json").read_text())

    steps = {step["step"]: step for step in found["steps"]}
    assert [*steps] == [
        *("decode", "mode", "orientation", "resize", "crop", "scale", "normalise", "layout")
    ]
    assert (
        steps["resize"]["sides"]
        == "shorter side 18, longer side 18 * longer / shorter, rounded down"
    )
    assert steps["normalise"]["std"] == [0.229, 0.224, 0.225]
    assert found["output"]["shape"] == ["batch", 3, 16, 16]
    assert len(found["vectors"]["images"]) == 5
    names = {name for image in found["vectors"]["images"] for name in image["sha256"]}
    assert names == {path.name for path in (folder / "vectors").iterdir()}
    assert "Apache License" in (folder / "LICENSE").read_text()


def test_the_program_of_the_folder_needs_no_vitft(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    code = (
        "import sys, preprocess\n"
        "tensor = preprocess.preprocess(preprocess.read_file('vectors/phone.png'))\n"
        "assert not {'vitft', 'torch'} & {*sys.modules}\n"
        "print(tensor.shape, tensor.dtype)"
    )

    done = checked(sys.executable, "-c", code, cwd=folder)

    assert done == (0, "(1, 3, 16, 16) float32")


def test_the_export_is_compared_with_the_run_on_its_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    command = ["export", "--preprocessing", "--run", str(run), "--out", str(tmp_path / "export")]

    assert main(command) == 0

    assert (
        "largest logit difference 0.0e+00, 0 changed predictions on 6 validation images"
        in capsys.readouterr().out
    )


def test_an_export_whose_program_gives_other_values_is_refused(tmp_path: Path) -> None:
    trained = load_trained(str(make_run(tmp_path)))
    form = PreprocessingFormat(trained=trained)
    (tmp_path / "export").mkdir()
    form.write(trained, tmp_path / "export")
    program = tmp_path / "export" / "preprocess.py"
    program.write_text(program.read_text().replace("CROP_FRACTION = 0.9", "CROP_FRACTION = 0.8"))

    with pytest.raises(RunError, match="does not reproduce the test vectors: alpha"):
        form.open(tmp_path / "export")


def test_padded_images_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, fit="pad", crop=1.0)

    with pytest.raises(RunError, match=r"--preprocessing cannot represent .* images are padded"):
        export_run(str(run), plan_export(["preprocessing"], str(tmp_path / "export")))


def steps_of(**fields: Any) -> dict[str, dict[str, Any]]:
    """Return the steps of a specification by name."""
    usual: dict[str, Any] = {"image_size": (16, 24), "crop": 0.875}
    found = specification(EvalTransform(**{**usual, **fields}), [], [])
    return {step["step"]: step for step in found["steps"]}


def test_the_specification_turns_images_as_pillow_does() -> None:
    operations: dict[str, Callable[[Any], Any]] = {
        "flip left to right": lambda pixels: pixels[:, ::-1],
        "rotate by 180 degrees": lambda pixels: pixels[::-1, ::-1],
        "flip top to bottom": lambda pixels: pixels[::-1],
        "transpose": lambda pixels: pixels.T,
        "rotate clockwise by 90 degrees": lambda pixels: np.rot90(pixels, -1),
        "transverse": lambda pixels: pixels[::-1, ::-1].T,
        "rotate counter-clockwise by 90 degrees": np.rot90,
    }
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)

    step = steps_of()["orientation"]

    assert step["tag"] == "EXIF 0x0112"
    assert [*step["values"]] == [*"2345678"]
    for orientation, name in step["values"].items():
        image = Image.fromarray(pixels)
        image.getexif()[0x0112] = int(orientation)
        expected = np.asarray(ImageOps.exif_transpose(image))
        np.testing.assert_array_equal(operations[name](pixels), expected, name)


@pytest.mark.parametrize(
    ("size", "fit", "sides"),
    [
        ((16, 24), "squash", "height 18, width 27"),
        ((16, 16), "squash", "height 18, width 18"),
        ((16, 16), "crop", "shorter side 18, longer side 18 * longer / shorter, rounded down"),
        (
            (16, 24),
            "crop",
            "ratio = min(h / 18, w / 27); height max(18, round_half_even(h / ratio)), "
            "width max(27, round_half_even(w / ratio))",
        ),
    ],
)
def test_the_specification_states_the_sides_and_the_crop(
    size: tuple[int, int], fit: Any, sides: str
) -> None:
    steps = steps_of(image_size=size, fit=fit)

    height, width = size
    assert steps["resize"]["sides"] == sides
    crop = dict(steps["crop"])
    large = crop.pop("large images", "")
    assert crop == {
        "step": "crop",
        "height": height,
        "width": width,
        "top": f"round_half_even((resized height - {height}) / 2)",
        "left": f"round_half_even((resized width - {width}) / 2)",
    }
    assert ("aspect ratio above 100 or more than 67108864 pixels" in large) == (fit == "crop")
    assert bool(large) == (fit == "crop")


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_the_specification_has_the_formula_of_the_filter(interpolation: Any) -> None:
    starts = {"nearest": "the pixel at", "bilinear": "1 - |x| for |x| < 1",
              "bicubic": "(1.5|x| - 2.5)|x|^2", "lanczos": "sinc(x) sinc(x / 3)"}  # fmt: skip

    resize = steps_of(interpolation=interpolation)["resize"]

    assert resize["filter"] == interpolation
    assert resize["formula"].startswith(starts[interpolation])
    is_smooth = interpolation != "nearest"
    assert resize["antialias"] is is_smooth
    for name in ("scale", "weights", "rounding", "order"):
        assert (name in resize) == is_smooth


def test_the_specification_has_the_grey_levels_of_the_run() -> None:
    plain, ranged = steps_of(), steps_of(grey_range=(120.0, 3900.0))
    name = "channels of more than 8 bits"

    assert plain["mode"][name]["unsigned"] == "keep the upper 8 bits: value >> (depth - 8)"
    assert plain["mode"][name]["signed 32-bit"] == "clip to 0..65535, then value >> 8"
    assert (ranged["mode"][name]["black"], ranged["mode"][name]["white"]) == (120.0, 3900.0)
    assert "unsigned" not in ranged["mode"][name]
    assert "grey" not in plain
    grey = steps_of(mean=(0.3,), std=(0.2,))["grey"]["formula"]
    formula = grey.removesuffix(", in all three channels")
    for red, green, blue in ((1, 2, 3), (255, 255, 255), (10, 200, 90), (250, 3, 77)):
        expected = Image.new("RGB", (1, 1), (red, green, blue)).convert("L").getpixel((0, 0))
        value = eval(formula, {"R": red, "G": green, "B": blue})
        assert value == expected


@pytest.mark.parametrize(
    ("grey_range", "depth"),
    [
        ((), "16"),
        ((0.0, 65535.0), "16"),
        ((0.0, 1000.0), "16"),
        ((1.0, 1000.0), "f32"),
        ((-1.0, 5000.0), "f32"),
        ((0.0, 65536.0), "f32"),
    ],
)
def test_a_wide_vector_is_in_floating_point_only_if_its_range_requires_it(
    grey_range: tuple[float, ...], depth: str
) -> None:
    vector = draw_wide(np.random.default_rng(0), EvalTransform(grey_range=grey_range))

    head, _, samples = vector.pixels.partition(b"\n")
    width, height, mode, found, orientation, clear = head.decode().split()
    assert (width, height, mode, orientation, found) == ("37", "29", "L", "1", depth)
    values = np.frombuffer(samples, {"16": "<u2", "f32": "<f4"}[depth]).reshape(29, 37)
    assert int(clear) == (values[14, 18] if depth == "16" else -1)
    low, high = grey_range or (0, 65535)
    margin = (high - low) / 8 if grey_range else 0
    limits = (low - margin, high + margin)
    if depth == "16":
        limits = max(0, limits[0]), min(65535, limits[1])
    assert values.min() >= limits[0] - 1
    assert values.max() <= limits[1] + 1
    assert values.min() < low + (high - low) / 20
    assert values.max() > high - (high - low) / 20
    if grey_range and depth == "f32":
        assert values.min() < low
        assert values.max() > high
    with Image.open(io.BytesIO(vector.content), formats=["PNG", "TIFF"]) as image:
        np.testing.assert_array_equal(np.asarray(image), values)
    assert vector.file == ("wide.png" if depth == "16" else "wide.tif")
    assert (
        vector.about
        == {
            "f32": "floating-point grey, scaled from the grey range of the run",
            "16": "16-bit grey with a transparent value, "
            + ("scaled from the grey range of the run" if grey_range else "upper 8 bits kept"),
        }[depth]
    )


def test_each_program_has_the_constants_in_its_own_language() -> None:
    values = constants_of(EvalTransform(image_size=(16, 24), crop=1.0, mean=(0.5,), std=(1.0,)))

    assert python_constants(values) == (
        "HEIGHT = 16\nWIDTH = 24\nCROP_FRACTION = 1.0\nFIT = 'crop'\n"
        "INTERPOLATION = 'bicubic'\nMEAN = (0.5,)\nSTD = (1.0,)\nGREY_RANGE = ()\n"
    )
    assert javascript_constants(values) == (
        "const HEIGHT = 16;\nconst WIDTH = 24;\nconst CROP_FRACTION = 1.0;\n"
        'const FIT = "crop";\nconst INTERPOLATION = "bicubic";\nconst MEAN = [0.5];\n'
        "const STD = [1.0];\nconst GREY_RANGE = [];\n"
    )
    assert cpp_constants(values) == (
        "constexpr int HEIGHT = 16;\nconstexpr int WIDTH = 24;\n"
        "constexpr double CROP_FRACTION = 1.0;\n"
        'const std::string FIT = "crop";\nconst std::string INTERPOLATION = "bicubic";\n'
        "const std::vector<double> MEAN = {0.5};\nconst std::vector<double> STD = {1.0};\n"
        "const std::vector<double> GREY_RANGE = {};\n"
    )


def test_drawn_images_are_blocks_of_six_pixels_with_noise() -> None:
    pixels = drawn(np.random.default_rng(0), 700, 31, 2)

    blocks = np.random.default_rng(0).integers(0, 256, (117, 6, 2))
    coarse = np.kron(blocks, np.ones((6, 6, 1), int))[:700, :31]
    assert pixels.shape == (700, 31, 2)
    assert pixels.dtype == np.uint8
    difference = pixels.astype(int) - coarse
    assert (difference.min(), difference.max()) == (-40, 40)
