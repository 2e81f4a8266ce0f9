"""The torch engine: one prediction per image, in order."""

from pathlib import Path

import pytest
import torch

from vitft.data.sources import expand
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.vit import VisionTransformer
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import DataError, RunError


@pytest.fixture
def predictor(tiny_vit: VisionTransformer) -> Predictor:
    tiny_vit.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    card = Card(
        architecture=tiny_vit.config,
        transform=EvalTransform(image_size=(16, 16)),
        classes=("blue", "green", "red"),
    )
    return Predictor(tiny_vit, card, device="cpu")


def test_every_input_has_one_prediction_in_order(predictor: Predictor, image_folder: Path) -> None:
    paths = sorted(str(p) for p in image_folder.rglob("*.png"))

    answers = list(predictor.stream(paths, top_k=2))

    assert [a.path for a in answers] == paths
    assert all(len(a.classes) == 2 and not a.error for a in answers)
    assert all(a.probabilities[0] >= a.probabilities[1] for a in answers)


def test_an_unreadable_file_gets_an_error_and_the_others_their_own_prediction(
    predictor: Predictor, image_folder: Path
) -> None:
    good = sorted(str(p) for p in image_folder.rglob("*.png"))
    (image_folder / "page.jpg").write_text("<html>")
    bad = str(image_folder / "page.jpg")
    alone = {a.path: a.classes for a in predictor.stream(good)}

    mixed = list(predictor.stream([bad, *good[:17], bad, *good[17:], "missing.jpg"]))

    assert [bool(a.error) for a in mixed].count(True) == 3
    assert [a.path for a in mixed if a.error] == [bad, bad, "missing.jpg"]
    assert all(a.classes == alone[a.path] for a in mixed if not a.error)


def test_a_prediction_does_not_depend_on_the_other_images(
    predictor: Predictor, image_folder: Path
) -> None:
    paths = sorted(str(p) for p in image_folder.rglob("*.png"))

    together = list(predictor.stream(paths, top_k=3))
    alone = [next(iter(predictor.stream([path], top_k=3))) for path in paths]

    for a, b in zip(together, alone, strict=True):
        assert a.classes == b.classes
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-6)


def test_more_classes_than_there_are_gives_all(predictor: Predictor, image_folder: Path) -> None:
    (answer,) = predictor.stream([str(image_folder / "red" / "000.png")], top_k=9)

    assert set(answer.classes) == {"blue", "green", "red"}
    assert sum(answer.probabilities) == pytest.approx(1)


def test_folders_become_their_images_sorted(image_folder: Path) -> None:
    files = list(expand([str(image_folder / "red"), "single.jpg"]))

    assert files[0].endswith("red/000.png")
    assert files[-1] == "single.jpg"
    assert len(files) == 11
    assert len(list(expand([str(image_folder)]))) == 30


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images in"):
        list(expand([str(tmp_path)]))


def test_a_backbone_without_classes_is_refused(tiny_weights: Path) -> None:
    with pytest.raises(RunError, match="backbone without classes"):
        Predictor.from_run(str(tiny_weights))
