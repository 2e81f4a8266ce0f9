"""Final evaluation, calibration and saving: the files of a run agree with each other."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from tests.conftest import draw_folder, tiny_home
from tests.support.fail_points import FailPoints, Killed
from tests.training.test_run import run_it
from vitft.data import Images, open_image
from vitft.models import load_checkpoint
from vitft.predict import Predictor, thumb_name
from vitft.system import ResourceError
from vitft.training import Result

SOLVED = {"solver": "lbfgs", "l2": 1.0}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights, and three colours with 50 images each, a fifth of them mislabelled."""
    home = tiny_home(tmp_path_factory.mktemp("finish"), per_class=50)
    mislabel(home / "data", every=5)
    return home


def mislabel(root: Path, *, every: int) -> None:
    """Move every so many images of a class to the next class."""
    names = sorted(folder.name for folder in root.iterdir())
    for path in sorted(root.rglob("*.png")):
        if int(path.stem) % every == 0:
            other = names[(names.index(path.parent.name) + 1) % 3]
            path.rename(root / other / f"{path.stem}-of-{path.parent.name}.png")


def run_on(home: Path, name: str, data: Path | None = None) -> Result:
    exact = {"precision": "fp32", "cache": str(home / "cache")}
    weights = home / "w.safetensors"
    return run_it(data or home / "data", weights, home / name, optim=SOLVED, train=exact)


@pytest.fixture(scope="module")
def done(home: Path) -> Result:
    return run_on(home, "run")


def scores_of(run: Path) -> torch.Tensor:
    with np.load(run / "validation.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["logits"])


def test_the_saved_model_computes_the_saved_logits(home: Path, done: Result) -> None:
    predictor = Predictor.from_run(str(done.run), device="cpu")
    val = Images.from_csv(done.run / "split.csv", home / "data").val

    pixels = [predictor.card.transform.pixels(open_image(home / "data" / row.path)) for row in val]
    answered = torch.from_numpy(predictor.scores(np.stack(pixels)).logits)

    kept = scores_of(done.run)
    assert kept.dtype == torch.float32
    torch.testing.assert_close(answered, kept, atol=1e-4, rtol=1e-4)
    right = (kept.argmax(dim=-1) == torch.tensor([row.label for row in val])).float().mean()
    assert right.item() == pytest.approx(done.figures["top1"])


def test_calibration_improves_the_held_out_metrics(home: Path, done: Result) -> None:
    labels = torch.tensor(
        [r.label for r in Images.from_csv(done.run / "split.csv", home / "data").val]
    )

    figures = json.loads((done.run / "eval.json").read_text())

    assert figures == json.loads(json.dumps(done.figures))
    temperature = figures["calibration"]["temperature"]
    flattered = F.cross_entropy(scores_of(done.run), labels).item()
    before = F.cross_entropy(scores_of(done.run) * temperature, labels).item()
    assert flattered < figures["loss"] < before  # judged without having seen the image
    assert sum(row["images"] for row in figures["calibration"]["bins"]) == figures["images"]


def test_the_temperature_rests_on_validation_and_cross_validated_training_images(
    home: Path, done: Result
) -> None:
    manifest = Images.from_csv(done.run / "split.csv", home / "data")

    calibration = json.loads((done.run / "eval.json").read_text())["calibration"]
    with np.load(done.run / "validation.npz", allow_pickle=False) as file:
        probability, correct = file["train_probability"], file["train_correct"]
        predicted, of_label = file["cross_validated"], file["train_label_probability"]

    labels = np.array([row.label for row in manifest.rows])
    more = json.loads((done.run / "eval.json").read_text())["cross_validation"]
    assert (predicted == labels).mean() == pytest.approx(more["top1"])
    training = np.array([row.split == "train" for row in manifest.rows])
    assert (predicted == labels)[training].tolist() == correct.tolist()
    assert calibration["cross_validated"] == len(manifest.train) == 120
    assert probability.shape == correct.shape == (120,)
    assert correct.dtype == bool
    assert of_label[correct].tolist() == pytest.approx(probability[correct].tolist())
    assert (of_label[~correct] <= np.minimum(probability, 1 - probability)[~correct] + 1e-9).all()
    # A fifth of the labels is wrong, which a head that was fitted to them could not know.
    assert probability.mean() == pytest.approx(correct.mean(), abs=0.1)


def test_training_images_that_are_easier_than_the_validation_images_do_not_calibrate(
    home: Path, tmp_path: Path
) -> None:
    draw_folder(tmp_path / "train", per_class=30)
    mislabel(draw_folder(tmp_path / "val", per_class=20), every=2)

    calibration = run_on(home, "harder", tmp_path).figures["calibration"]

    assert calibration is not None
    assert calibration["cross_validated"] == 0


def test_eval_json_always_describes_the_weights_beside_it(home: Path) -> None:
    with FailPoints(home / "counted") as points:
        run_on(home, "counted")
    calls = points.calls

    for name in ("open .model.safetensors", "replace .model.safetensors", "open .validation.npz"):
        number = len(calls) - 1 - calls[::-1].index(name)
        run = home / f"killed-{number}"
        with FailPoints(run, number), pytest.raises(Killed):
            run_on(home, run.name)
        load_checkpoint(run / "model.safetensors")  # whole, the old one or the new
        assert not (run / "eval.json").exists()
        assert not (run / "validation.npz").exists()
    removed = FailPoints(home / "again", calls.index("unlink eval.json"), "EIO")
    with removed, pytest.raises(ResourceError, match=r"eval\.json"):
        run_on(home, "again")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photos with metadata, in three classes; one of them is in a wrong class."""
    folder = draw_folder(tmp_path / "photos", per_class=10)
    for file in list(folder.rglob("*.png")):
        with Image.open(file, formats=["PNG"]) as image:
            exif = Image.Exif()
            exif[0x010F] = "SecretMaker"
            exif.get_ifd(0x8825)[29] = "2024:SECRETGPS"
            image.resize((300, 200)).save(
                file.with_suffix(".jpg"), exif=exif, comment=b"SecretComment", icc_profile=b"SECRET"
            )
        file.unlink()
    (folder / "red" / "000.jpg").rename(folder / "blue" / "wrong.jpg")
    return folder


def test_images_named_by_the_audit_have_thumbnails_without_metadata(
    photos: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    assert b"SECRETGPS" in (photos / "blue" / "wrong.jpg").read_bytes()

    run = run_it(photos, tiny_weights, tmp_path / "run", optim=SOLVED).run

    named = [one["path"] for one in json.loads((run / "audit.json").read_text())["mislabels"]]
    rows = {row.path: row for row in Images.from_csv(run / "split.csv", photos).rows}
    assert "blue/wrong.jpg" in named
    for path in named:
        assert (run / "thumbs" / thumb_name(rows[path].sha256)).is_file()
    for picture in (run / "thumbs").iterdir():
        data = picture.read_bytes().lower()
        assert b"secret" not in data
        assert b"exif" not in data
