"""The scripts of docs/deploy, each run where its library is installed."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.children import ended
from tests.support.export_run import make_run
from vitft import load
from vitft.export import export_run, plan_export

FOLDER = Path(__file__).parents[2] / "docs" / "deploy"
pytestmark = pytest.mark.long


def run_script(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return ended([sys.executable, str(FOLDER / script), *arguments])


def answer(script: str, *arguments: str) -> str:
    done = run_script(script, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model.onnx, model.pt2 and reference.npz of the same run."""
    run = make_run(tmp_path_factory.mktemp("made"))
    done = export_run(str(run), plan_export(["onnx", "torch-export"], str(run.parent / "all")))
    assert "6 images" in answer("reference.py", str(run), str(done.folder / "reference.npz"))
    return done.folder


def test_the_reference_has_the_inputs_and_logits_of_the_validation_images(folder: Path) -> None:
    with np.load(folder / "reference.npz") as file:
        assert file["pixels"].shape == (6, 3, 16, 16)
        assert file["logits"].shape == (6, 3)
        assert sorted(file["labels"]) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("script", "library", "arguments"),
    [
        ("run_onnxruntime.py", "onnxruntime", ["onnx/model.onnx"]),
        ("to_openvino.py", "openvino", ["onnx/model.onnx", "model.xml"]),
        ("to_litert.py", "litert_torch", ["torch-export/model.pt2", "model.tflite"]),
        ("to_executorch.py", "executorch", ["torch-export/model.pt2", "model.pte"]),
        ("to_coreml.py", "coremltools", ["torch-export/model.pt2", "model.mlpackage"]),
    ],
)
def test_every_script_converts_an_export_and_the_labels_stay(
    folder: Path, script: str, library: str, arguments: list[str]
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")

    printed = answer(script, *(str(folder / name) for name in [*arguments, "reference.npz"]))

    if "not compared" in printed:
        pytest.skip("the converted model only runs on other systems")
    assert "6 images" in printed
    assert "0 changed labels" in printed
    found = re.search(r"largest logit difference (\S+)", printed)
    assert found is not None
    assert float(found[1]) < 1e-4


def test_a_comparison_counts_what_has_changed(folder: Path, tmp_path: Path) -> None:
    with np.load(folder / "reference.npz") as file:
        arrays = {name: file[name] for name in file.files}
    arrays["logits"][:2] = arrays["logits"][:2, ::-1] + [[9, 0, -9]]
    arrays["logits"][:2, 1] = 99
    np.savez(tmp_path / "other.npz", **arrays)

    printed = answer(
        "run_onnxruntime.py", str(folder / "onnx" / "model.onnx"), str(tmp_path / "other.npz")
    )

    assert re.search(r"[12] changed labels", printed)
    assert "largest logit 99.0" in printed


def test_the_table_names_every_script() -> None:
    page = (FOLDER / "README.md").read_text()

    scripts = {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".mjs")}

    assert not {name for name in scripts - {"compare.py"} if name not in page}


def test_the_program_classifies_files_as_predict_does(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    done = export_run(str(run), plan_export(["onnx"], str(tmp_path / "onnx"), with_resize=True))
    photos = sorted((tmp_path / "photos").glob("*/*"))[:3]
    wide = np.asarray(Image.open(photos[0]).convert("L")).astype(np.uint16) * 256
    Image.fromarray(wide).save(tmp_path / "wide.png")
    photos.append(tmp_path / "wide.png")

    printed = answer("classify.py", str(done.folder / "model.onnx"), *map(str, photos))

    (tmp_path / "damaged.png").write_bytes(photos[0].read_bytes()[:60])
    unusable = [str(tmp_path / name) for name in ("damaged.png", "missing.png")]
    done_with_errors = run_script(
        "classify.py", str(done.folder / "model.onnx"), *unusable, *map(str, photos)
    )
    assert (done_with_errors.returncode, done_with_errors.stdout) == (3, printed)
    assert len(done_with_errors.stderr.splitlines()) == 2
    missing = run_script("classify.py", str(done.folder / "model.onn"), *map(str, photos))
    assert missing.returncode == 1
    assert missing.stderr.startswith("cannot open ")
    assert "Traceback" not in missing.stderr

    answers = load(str(run)).predict(photos)
    assert [line.split(": ")[1].split()[0] for line in printed.splitlines()] == [
        prediction.classes[0] for prediction in answers
    ]
