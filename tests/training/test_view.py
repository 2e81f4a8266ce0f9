"""Inputs that are not square, and the ways of fitting an image to them, through every command."""

from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image

from tests.training.test_run import run_it
from vitft.cli.main import main
from vitft.export import export_run, plan_export
from vitft.models import load_checkpoint
from vitft.predict import NumpyEngine, Predictor

pytestmark = pytest.mark.long

FITS: list[Literal["crop", "squash", "pad"]] = ["crop", "squash", "pad"]


@pytest.fixture(params=FITS)
def run(
    request: pytest.FixtureRequest, image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> Path:
    weights: dict[str, Any] = {"image_size": [16, 24], "fit": request.param}
    return run_it(image_folder, tiny_weights, tmp_path / "run", weights=weights).run


def test_every_engine_and_export_sees_the_same_view(run: Path, image_folder: Path) -> None:
    photo = str(image_folder / "red" / "000.png")  # 24 x 20 pixels
    torch_engine = Predictor.from_run(str(run), device="cpu")
    numpy_engine = NumpyEngine.open(run / "model.safetensors")
    assert numpy_engine is not None
    transform = torch_engine.card.transform

    with Image.open(photo) as picture:
        view = transform.pixels(picture)[None]
    expected = torch_engine.scores(view).logits
    order = plan_export(["onnx"], str(run.parent / "export"), with_resize=True)
    compared = export_run(str(run), order)

    assert transform.image_size == (16, 24)
    assert transform.crop == (0.9 if transform.fit == "crop" else 1.0)
    assert numpy_engine.transform == transform
    assert numpy_engine.scores(view).logits == pytest.approx(expected, abs=1e-5)
    assert compared.difference < 0.01
    assert main(["explain", photo, "--run", str(run), "--out", str(run.parent / "heat")]) == 0
    with Image.open(run.parent / "heat" / "001-000.png") as heat:
        assert heat.width * 16 == heat.height * 24  # enlarged, the shape of the view


@pytest.mark.parametrize(
    ("settings", "fit"), [({"crop": 0.5}, "crop"), ({"fit": "pad", "crop": 0.5}, "pad")]
)
def test_a_crop_that_is_set_replaces_that_of_the_weights(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, settings: dict[str, Any], fit: str
) -> None:
    run = run_it(image_folder, tiny_weights, tmp_path / "run", weights=settings).run

    transform = load_checkpoint(run / "model.safetensors")[1].transform
    assert (transform.fit, transform.crop) == (fit, 0.5)
