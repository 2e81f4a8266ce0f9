"""Thumbnails for the report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import draw_folder
from tests.support.training_data import data_set, digest, noted, row, watched_progress
from vitft.config.sections import DataSpec
from vitft.data.inspection import inspect_folder
from vitft.data.scan import scan
from vitft.data.split import Manifest, split, write_class_indices
from vitft.data.thumbnail import THUMBNAIL_SIDE, thumbnail_jpeg
from vitft.data.transforms import EvalTransform
from vitft.models.timm_config import TimmConfig
from vitft.models.timm_model import TimmModel
from vitft.models.vit import VisionTransformer
from vitft.predict.validation import (
    ValidationPrediction,
    least_confident,
    mistakes,
    read_validation_predictions,
    thumb_name,
)
from vitft.system.rundir import RunDir
from vitft.training import thumbnails as module
from vitft.training.thumbnails import write_thumbnails

TRANSFORM = EvalTransform(image_size=(16, 16))


def finished(tmp_path: Path, folder: Path, *, wrong: int = 3) -> tuple[RunDir, Manifest]:
    """Return a run in which the first `wrong` validation images are misclassified."""
    manifest = split(inspect_folder(scan(folder)), DataSpec(path=str(folder)))
    run = RunDir(tmp_path / "run")
    run.path.mkdir(parents=True)
    manifest.write(run.split)
    write_class_indices(run.class_indices, manifest.classes)
    logits = np.zeros((len(manifest.val), 3), np.float32)
    for i, one in enumerate(manifest.val):
        logits[i, (one.label + (i < wrong)) % 3] = 1 + i
    np.savez(run.path / "validation.npz", logits=logits)
    return run, manifest


def keep(run: RunDir, manifest: Manifest, model: torch.nn.Module) -> int:
    return write_thumbnails(run, manifest, model, TRANSFORM, max_pixels=10**6)


def test_mistakes_have_an_attention_overlay_and_correct_images_none(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    run, manifest = finished(tmp_path, image_folder)

    count = keep(run, manifest, tiny_vit)

    verdicts = read_validation_predictions(run.path)
    names = {file.name for file in (run.path / "thumbs").iterdir()}
    wrong, right = mistakes(verdicts), least_confident(verdicts, per_class=3, most=60)
    assert count == len(wrong) + len(right) == 6
    assert {thumb_name(v.sha256, attention=True) for v in wrong} <= names
    assert {thumb_name(v.sha256) for v in wrong + right} <= names
    assert len(names) == 6 + 3
    for file in (run.path / "thumbs").iterdir():
        with Image.open(file, formats=["JPEG"]) as image:
            assert max(image.size) <= THUMBNAIL_SIDE


def test_images_named_by_the_audit_have_thumbnails(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    run, manifest = finished(tmp_path, image_folder)
    train, odd = manifest.train[:2]
    member = {"path": "gone", "label": "blue", "split": "train"}
    odds = {"given_probability": 0.01, "suggested_probability": 0.99}
    audit = {
        "images": 30,
        "bad": [],
        "odd": [{"path": odd.path, "reason": "a JPEG with the suffix .HEIC"}],
        "duplicates": [
            {"kind": "near", "members": [member], "across_split": False, "labels_differ": False}
        ],
        "mislabels": [{"path": train.path, "label": "blue", "suggested": "red", **odds}],
        "imbalance": {"largest": ["blue", 10], "smallest": ["red", 10], "ratio": 1.0},
    }
    (run.path / "audit.json").write_text(json.dumps(audit))

    keep(run, manifest, tiny_vit)

    assert (run.path / "thumbs" / thumb_name(train.sha256)).is_file()
    assert (run.path / "thumbs" / thumb_name(odd.sha256)).is_file()


def test_networks_that_cannot_be_explained_have_thumbnails_without_overlays(
    tmp_path: Path, image_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, manifest = finished(tmp_path, image_folder)

    with caplog.at_level("INFO"):
        count = keep(run, manifest, torch.nn.Linear(2, 3))

    assert count == len(list((run.path / "thumbs").iterdir())) == 6
    assert "the report will have no relevance overlays" in caplog.text


def test_mistakes_of_a_timm_model_have_an_overlay(tmp_path: Path, image_folder: Path) -> None:
    run, manifest = finished(tmp_path, image_folder)
    config = TimmConfig(timm="test_resnet", image_size=(16, 16), num_classes=3)

    keep(run, manifest, TimmModel(config))

    names = [file.name for file in (run.path / "thumbs").iterdir()]
    assert sum(name.endswith("-attention.jpg") for name in names) == 3


def test_without_logits_there_are_no_thumbnails(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    run, manifest = finished(tmp_path, image_folder)
    (run.path / "validation.npz").unlink()

    assert keep(run, manifest, tiny_vit) == 0
    assert not (run.path / "thumbs").exists()


def test_a_deleted_image_is_left_out(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    run, manifest = finished(tmp_path, image_folder)
    Path(manifest.locate(manifest.val[0])).unlink()

    assert keep(run, manifest, tiny_vit) == 5


def test_a_full_or_read_only_disk_costs_the_thumbnails_only(
    tmp_path: Path,
    image_folder: Path,
    tiny_vit: VisionTransformer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, manifest = finished(tmp_path, image_folder)
    (run.path / ".thumbs").write_text("a file where the folder should be")

    assert keep(run, manifest, tiny_vit) == 0
    assert "the report will have no thumbnails" in capsys.readouterr().err


def test_thumbnails_hold_no_metadata_of_the_original(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    folder = draw_folder(tmp_path / "photos", per_class=5)
    for file in list(folder.rglob("*.png")):
        with Image.open(file, formats=["PNG"]) as image:
            exif = Image.Exif()
            exif[0x010F] = "SecretMaker"
            exif.get_ifd(0x8825)[29] = "2024:SECRETGPS"
            image.resize((300, 200)).save(
                file.with_suffix(".jpg"), exif=exif, comment=b"SecretComment", icc_profile=b"SECRET"
            )
        file.unlink()
    run, manifest = finished(tmp_path, folder)
    assert b"SECRETGPS" in Path(manifest.locate(manifest.val[0])).read_bytes()

    keep(run, manifest, tiny_vit)

    pictures = list((run.path / "thumbs").iterdir())
    assert len(pictures) >= 3
    for picture in pictures:
        data = picture.read_bytes().lower()
        assert b"secret" not in data
        assert b"exif" not in data


@pytest.mark.parametrize("size", [(1000, 500), (500, 1000), (30, 20), (5000, 2), (1, 1)])
def test_every_shape_becomes_a_small_image(size: tuple[int, int]) -> None:
    import io

    with Image.open(io.BytesIO(thumbnail_jpeg(Image.new("RGB", size))), formats=["JPEG"]) as image:
        assert max(image.size) == min(THUMBNAIL_SIDE, max(size))
        assert min(image.size) >= 1


def test_the_attention_in_bf16_is_nearly_that_of_float32(
    tmp_path: Path, image_folder: Path, tiny_vit: VisionTransformer
) -> None:
    """Both explain the class that was predicted in float32."""
    torch.manual_seed(0)
    assert isinstance(tiny_vit.head, torch.nn.Linear)
    torch.nn.init.normal_(tiny_vit.head.weight)
    pictures = {}
    for precision in ("fp32", "bf16"):
        run, manifest = finished(tmp_path / precision, image_folder)

        write_thumbnails(run, manifest, tiny_vit, TRANSFORM, max_pixels=10**6, precision=precision)

        files = sorted((run.path / "thumbs").glob("*-attention.jpg"))
        pictures[precision] = [np.asarray(Image.open(file), np.float32) for file in files]
    exact, fast = (np.stack(some) for some in pictures.values())
    assert len(exact) == 3
    assert np.abs(exact - fast).mean() < 2  # grey levels
    assert next(tiny_vit.parameters()).dtype == torch.float32


def predictions(count: int, *, wrong: int) -> list[ValidationPrediction]:
    """Return predictions for images of class a, of which the first `wrong` are mistaken for b.

    Mistakes are the more confident the earlier they are, correct predictions the later they are.
    """
    found = []
    for i in range(count):
        predicted = "b" if i < wrong else "a"
        probability = 0.99 - i / 1000 if i < wrong else 0.5 + i / (2 * count)
        found.append(
            ValidationPrediction(
                path=f"a/{i:03}",
                sha256=digest(f"a/{i:03}"),
                label="a",
                predicted=predicted,
                probability=probability,
                label_probability=probability if predicted == "a" else 1 - probability,
                most_probable=predicted,
            )
        )
    return found


def selected(
    monkeypatch: pytest.MonkeyPatch, found: list[ValidationPrediction], audit: Any, *rest: str
) -> tuple[dict[str, int], list[str]]:
    """Return what is selected of the predicted images and of the other images `rest`."""
    monkeypatch.setattr(module, "read_validation_predictions", lambda _: found)
    monkeypatch.setattr(module, "read_run_json", lambda *_: audit)
    rows = [row(one.path, 0, "val") for one in found] + [row(name, 2) for name in rest]
    predicted, chosen = module.select_images(Path("run"), data_set(rows).manifest)
    return predicted, [one.path for one in chosen]


def test_200_mistakes_are_shown_12_of_them_with_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    found = predictions(230, wrong=230)

    predicted, chosen = selected(monkeypatch, found, None)

    assert predicted == {digest(f"a/{i:03}"): 1 for i in range(12)}
    assert chosen == [f"a/{i:03}" for i in range(200)]


def test_the_least_and_the_most_confident_correct_predictions_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predicted, chosen = selected(monkeypatch, predictions(40, wrong=0), None)

    assert predicted == {}
    assert chosen[:3] == ["a/000", "a/001", "a/002"]  # three of each class
    assert chosen[3:] == ["a/039"]  # and the surest one


def test_up_to_60_unsure_predictions_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        replace(one, label=f"c{i // 4}", predicted=f"c{i // 4}")
        for i, one in enumerate(predictions(200, wrong=0))
    ]

    _, chosen = selected(monkeypatch, found, None)

    assert len(chosen) == 60 + 8


def test_images_that_the_audit_names_are_shown_within_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"m{i:03}" for i in range(100)] + [f"d{i}" for i in range(8)] + ["o"]
    members = [{"path": f"d{i}"} for i in range(8)]

    def shown(mislabels: int) -> list[str]:
        audit = {
            "mislabels": [{"path": name} for name in [*names[:mislabels], "not in the split"]],
            "duplicates": [{"members": members}],
            "odd": [{"path": "o"}],
        }
        return selected(monkeypatch, [], audit, *names)[1]

    assert shown(3) == ["m000", "m001", "m002", "d0", "d1", "d2", "d3", "d4", "d5", "o"]
    assert len(shown(100)) == 80
    assert shown(76)[76:] == ["d0", "d1", "d2"]  # 80 with the one that is not in the split


def test_an_image_with_copies_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = predictions(4, wrong=4)
    monkeypatch.setattr(module, "read_validation_predictions", lambda _: found)
    monkeypatch.setattr(module, "read_run_json", lambda *_: None)
    rows = [row(one.path, 0, "val", sha256=digest("same")) for one in found]

    _, chosen = module.select_images(Path("run"), data_set(rows).manifest)

    assert [one.path for one in chosen] == ["a/003"]


@pytest.mark.parametrize(
    ("precision", "wrong", "dtype"),
    [("fp32", 3, torch.float32), ("bf16", 3, torch.bfloat16), ("bf16", 0, torch.float32)],
)
def test_attention_is_computed_by_a_copy_in_bf16_only_if_there_is_any(
    tmp_path: Path,
    image_folder: Path,
    tiny_vit: VisionTransformer,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    wrong: int,
    dtype: torch.dtype,
) -> None:
    run, manifest = finished(tmp_path, image_folder, wrong=wrong)
    makers: list[module.ThumbnailMaker] = []
    monkeypatch.setattr(module, "write_folder", lambda _, maker, __: noted(makers, maker, 7))

    count = write_thumbnails(
        run, manifest, tiny_vit, TRANSFORM, max_pixels=10**6, precision=precision
    )

    assert count == 7
    assert next(makers[0].model.parameters()).dtype == dtype
    assert next(tiny_vit.parameters()).dtype == torch.float32


@pytest.mark.parametrize(("images", "sizes"), [(0, []), (4, [4]), (9, [4, 4, 1])])
def test_attention_is_computed_for_four_images_at_a_time_with_one_thread_each(
    tiny_vit: VisionTransformer,
    monkeypatch: pytest.MonkeyPatch,
    images: int,
    sizes: list[int],
) -> None:
    views = {str(i): np.zeros((16, 16, 3), np.uint8) for i in range(images)}
    maker = module.ThumbnailMaker(data_set([]).manifest, tiny_vit.train(), TRANSFORM, 10, {})
    seen: list[tuple[int, int, bool]] = []

    def draw(_: Any, model: torch.nn.Module, batch: Any) -> list[tuple[str, bytes]]:
        seen.append((len(batch), torch.get_num_threads(), model.training))
        return [(name, b"jpeg") for name in batch]

    monkeypatch.setattr(module.ThumbnailMaker, "draw_attention", draw)
    torch.set_num_threads(2)

    drawn = list(maker.attention(views))

    assert drawn == [(name, b"jpeg") for name in views]
    assert sorted(seen, reverse=True) == [(size, 1, False) for size in sizes]
    assert torch.get_num_threads() == 2


def test_without_images_no_folder_is_written(tmp_path: Path, tiny_vit: VisionTransformer) -> None:
    maker = module.ThumbnailMaker(data_set([]).manifest, tiny_vit, TRANSFORM, 10, {})

    assert module.write_folder(tmp_path, maker, []) == 0
    assert not list(tmp_path.iterdir())


def test_old_thumbnails_are_replaced_by_those_of_the_run(
    tmp_path: Path,
    image_folder: Path,
    tiny_vit: VisionTransformer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bars = watched_progress(monkeypatch)
    run, manifest = finished(tmp_path, image_folder)
    for name in ("thumbs", ".thumbs"):  # of an earlier run, and of a killed one
        (run.path / name).mkdir()
        (run.path / name / "old.jpg").write_bytes(b"")

    count = keep(run, manifest, tiny_vit)

    names = sorted(path.name for path in (run.path / "thumbs").iterdir())
    assert "old.jpg" not in names
    assert len(names) == count + 3  # with the attention of three mistakes
    assert [(bar.total, bar.done) for bar in bars] == [(count + 3, count + 3)]
    assert not (run.path / ".thumbs").exists()
