"""Programs in the README of every exported folder, run as a reader would run them."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import tiny
from tests.data.test_images import negative
from tests.support.children import python
from tests.support.export_run import make_run
from vitft.cli.main import main
from vitft.export import EXPORT_FORMATS, export_run, plan_export
from vitft.models import ViTConfig, load_checkpoint, save_checkpoint

pytestmark = pytest.mark.long

# Runs the programs in argv[1], each in its folder, and classifies photo.jpg and the files in
# argv[2] with each.
RUNNER = """
import contextlib, io, json, os, sys

answers = {}
for name, (folder, code) in json.loads(sys.argv[1]).items():
    os.chdir(folder)
    space, printed = {"__name__": "__main__"}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), space)
    paths = ["photo.jpg", *json.loads(sys.argv[2])]
    answers[name] = [space["classify"](path) for path in paths]
    assert printed.getvalue() == f"{tuple(answers[name][0])}\\n", printed.getvalue()
assert "vitft" not in sys.modules
print(json.dumps(answers))
"""


def noise(*shape: int) -> Any:
    coarse = np.random.default_rng(sum(shape)).integers(0, 256, (5, 4, shape[-1]), np.uint8)
    return np.asarray(Image.fromarray(coarse.squeeze()).resize((shape[1], shape[0])))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A photo from a phone held upright, images with transparency, and 16-bit X-rays."""
    folder = tmp_path_factory.mktemp("photos")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(noise(30, 44, 3)).save(folder / "phone.jpg", exif=exif, quality=95)
    Image.fromarray(noise(33, 24, 4)).save(folder / "alpha.png")
    wide = noise(26, 37, 1).astype(np.uint16) * 257
    Image.fromarray(wide).save(folder / "xray.png")
    Image.fromarray(noise(28, 30, 3)).quantize(4).save(folder / "palette.png", transparency=0)
    clear = np.where(np.arange(37) < 20, 1799, wide).astype(np.uint16)  # half is transparent
    Image.fromarray(clear).save(folder / "clear.png", transparency=1799)
    names = ("phone.jpg", "alpha.png", "xray.png", "palette.png", "clear.png")
    return [folder / name for name in names]


def made(root: Path, config: ViTConfig, **transform: Any) -> Path:
    """A run whose answers depend more on the image than those of a model drawn at random."""
    run = make_run(root, config=config, **transform)
    state, card = load_checkpoint(run / "model.safetensors")
    factors = {n: 6.0 if t.ndim > 1 else 0.2 if "bias" in n else 1.0 for n, t in state.items()}
    factors["head.weight"] = 0.1  # so that probabilities are far from 0 and 1
    save_checkpoint(run / "model.safetensors", {n: t * factors[n] for n, t in state.items()}, card)
    return run


def programs(folder: Path) -> dict[str, str]:
    """The programs of a README by their headings."""
    text = (folder / "README.md").read_text()
    return dict(re.findall(r"### (\w+)\n.*?```python\n(.*?)```", text, flags=re.DOTALL))


def ours(run: Path, photos: list[Path], capsys: pytest.CaptureFixture[str]) -> list[Any]:
    arguments = [*map(str, photos), "--run", str(run), "--format", "csv"]
    assert main(["predict", *arguments]) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    return [(row["class"], float(row["probability"])) for row in rows]


def check(
    run: Path,
    folders: dict[str, Path],
    photos: list[Path],
    capsys: pytest.CaptureFixture[str],
    libraries: set[str],
) -> None:
    """Run every program of the folders on the photos and compare with predict."""
    found = {}
    for form, folder in folders.items():
        (folder / "photo.jpg").write_bytes(photos[0].read_bytes())
        for library, code in programs(folder).items():
            found[f"{form}, {library}"] = (str(folder), code)
    assert {name.split(", ")[1] for name in found} == libraries
    done = python(RUNNER, json.dumps(found), json.dumps([*map(str, photos[1:])]))
    assert done.returncode == 0, done.stderr[-3000:]
    printed = filter(None, re.split(r"[\r\n]+", done.stderr))
    assert [line for line in printed if not re.search(OWN_OUTPUT, line)] == []
    for name, answers in json.loads(done.stdout).items():
        form = name.split(", ")[0]
        is_exact = form != "int8" and "resize" not in form
        expected = ours(run if is_exact else folders[form], photos, capsys)
        for (label, probability), (our_label, our_probability) in zip(
            answers, expected, strict=True
        ):
            assert label == our_label, name
            # Runtimes round int8 activations differently where they lie between two integers.
            tolerance = 0.05 if form == "int8" and "OpenVINO" in name else 1e-4
            assert probability == pytest.approx(our_probability, abs=tolerance), name


OWN_OUTPUT = (
    r"^Loading weights:|torch/export/.*UserWarning: The given buffer is not writable|"
    r"^\s.*torch\.frombuffer\("
)
"""A bar of transformers, and a warning of torch 2.10 and 2.11 about its own buffers, two lines."""
LIBRARIES = {"timm", "transformers", "onnxruntime", "OpenVINO", "PyTorch"}
"""Libraries with a program in Python."""


@pytest.fixture(autouse=True)
def openvino() -> None:
    """Skip the test where OpenVINO is missing, whose programs are run too."""
    pytest.importorskip("openvino", reason="OpenVINO is not installed")


def test_every_program_answers_as_predict_for_turned_transparent_and_16_bit_images(
    tmp_path: Path, photos: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(3, image_size=(24, 24), width=64, heads=4)
    run = made(tmp_path, config, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    done = export_run(str(run), plan_export([*EXPORT_FORMATS], str(tmp_path / "all")))

    check(run, {form: done.folder / form for form in EXPORT_FORMATS}, photos, capsys, LIBRARIES)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the open file
def test_programs_for_graphs_that_prepare_images_themselves_answer_as_predict(
    tmp_path: Path, photos: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path, tiny(3, in_channels=1), mean=(0.4,), std=(0.3,))
    plans = {
        "timm": plan_export(["timm"], str(tmp_path / "timm")),
        "grey": plan_export(["transformers"], str(tmp_path / "grey")),
        "bytes": plan_export(["onnx"], str(tmp_path / "bytes"), with_preprocessing=True),
        "resize": plan_export(["onnx"], str(tmp_path / "resize"), with_resize=True),
    }
    folders = {name: export_run(str(run), order).folder for name, order in plans.items()}

    check(run, folders, photos, capsys, {"timm", "onnxruntime", "OpenVINO", "transformers"})
    code, space = programs(folders["timm"])["timm"], dict[str, Any]()
    start, end = code.index("def open_rgb"), code.index("def classify")
    exec(f"import numpy as np\nfrom PIL import Image, ImageOps\n{code[start:end]}", space)
    Image.fromarray(np.zeros((9, 9), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(ValueError, match="can only be opened by vitft"):
        space["open_rgb"](tmp_path / "float.tif")


def test_programs_scale_wide_images_by_the_range_of_the_training_images(
    tmp_path: Path, photos: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(3, image_size=(20, 20), width=64, heads=4)
    run = made(tmp_path, config, grey_range=(120.0, 3900.0))
    values = np.random.default_rng(0).integers(0, 4096, (5, 6)).astype(np.uint16)
    for name, dtype in (("detector.png", np.uint16), ("map.tif", np.float32)):
        Image.fromarray(values.astype(dtype)).save(tmp_path / name)
    Image.fromarray(values).save(white := tmp_path / "white_is_0.tif")
    white.write_bytes(negative(white.read_bytes()))
    wide = [photos[0], tmp_path / "detector.png", tmp_path / "map.tif", white]
    plans = {
        "timm": plan_export(["timm"], str(tmp_path / "timm")),
        "resize": plan_export(["onnx"], str(tmp_path / "resize"), with_resize=True),
    }
    folders = {name: export_run(str(run), order).folder for name, order in plans.items()}

    check(run, folders, wide, capsys, {"timm", "onnxruntime", "OpenVINO"})

    assert "training images (120 to 3,900)" in (folders["timm"] / "README.md").read_text()
    plain = ours(made(tmp_path / "plain", config), wide[1:], capsys)
    ranged = ours(run, wide[1:], capsys)
    assert min(abs(a[1] - b[1]) for a, b in zip(plain, ranged, strict=True)) > 1e-3


def test_every_format_has_a_program_in_its_readme(tmp_path: Path) -> None:
    run = make_run(tmp_path, config=tiny(3, norm="post"))
    done = export_run(str(run), plan_export(["safetensors"], str(tmp_path / "x")))

    text = (done.folder / "README.md").read_text()

    assert "```sh\nvitft predict --run . photo.jpg\n```" in text
    assert "```python" not in text  # no other library opens a post-norm model
