"""Trained models read back from exported folders, and files that are not trained models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.export_run import make_run, tiny
from vitft.cli.main import main
from vitft.export import export_run
from vitft.export.plan import plan_export
from vitft.models.classifier import load_classifier
from vitft.models.find import find_model
from vitft.models.pretrained.load import load_pretrained
from vitft.models.timm_config import TimmConfig
from vitft.system.errors import RunError, WeightsError

TRANSFORMS = [
    pytest.param({"mean": (0.1, 0.2, 0.3), "std": (0.3, 0.2, 0.1)}, id="its own statistics"),
    pytest.param({"fit": "squash", "crop": 1.0}, id="squashed"),
    pytest.param({"fit": "pad", "crop": 1.0}, id="padded"),
    pytest.param({"crop": 0.77, "interpolation": "bilinear"}, id="bilinear, crop 0.77"),
    pytest.param({"grey_range": (120.0, 3900.0)}, id="12-bit values"),
]


def exported(run: Path, form: str) -> Path:
    return export_run(str(run), plan_export([form], str(run.parent / form))).folder


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_exported_folders_are_the_run_to_the_last_bit(
    tmp_path: Path, transform: dict[str, Any]
) -> None:
    run = make_run(tmp_path, config=tiny(3, norm_eps=1e-6), **transform)
    forms = ["safetensors", "timm", "transformers"]

    done = export_run(str(run), plan_export(forms, str(tmp_path / "all")))

    original, known = load_classifier(find_model(str(run)))
    for form in forms:
        tensors, card = load_classifier(find_model(str(done.folder / form)))
        assert (card.classes, card.transform) == (known.classes, known.transform)
        assert card.architecture == known.architecture
        assert tensors.keys() == original.keys()
        assert all(torch.equal(tensors[name], original[name]) for name in original)
        _, report = load_pretrained(done.folder / form)
        assert (report.transform, report.classes) == (known.transform, known.classes)


def test_a_transformers_folder_on_the_hub_states_its_preprocessing_in_either_file(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1))
    folder = exported(run, "transformers")
    (folder / "preprocessor_config.json").unlink()

    assert load_classifier(find_model(str(folder)))[1].transform.mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    "wrong", ["0 to 4095", [0], [0, 1, 2], [9, 3], [0, "x"], [0, 1e39], [0, True]], ids=str
)
def test_a_grey_range_that_is_none_is_refused_with_its_name(tmp_path: Path, wrong: object) -> None:
    folder = exported(make_run(tmp_path, grey_range=(120.0, 3900.0)), "transformers")
    path = folder / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    settings["pretrained_cfg"]["grey_range"] = wrong
    path.write_text(json.dumps(settings))

    with pytest.raises(WeightsError, match=r"preprocessor_config.json: grey_range is .* instead"):
        load_pretrained(folder)


@pytest.mark.parametrize("form", ["timm", "transformers"])
def test_predict_answers_alike_from_the_run_and_from_its_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    run = make_run(tmp_path, mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1))
    folder = exported(run, form)
    rows = []

    for model in (run, folder):
        options = ["--run", str(model), "--engine", "torch", "--device", "cpu", "--format", "csv"]
        assert main(["predict", str(tmp_path / "photos"), *options]) == 0
        rows.append(capsys.readouterr().out)

    assert rows[0] == rows[1]
    assert rows[0].count("\n") == 10


def test_a_folder_of_a_timm_model_is_the_run(tmp_path: Path) -> None:
    config = TimmConfig(timm="test_resnet", image_size=(32, 32), num_classes=3)
    run = make_run(tmp_path, config=config)

    tensors, card = load_classifier(find_model(str(exported(run, "timm"))))

    original, _ = load_classifier(find_model(str(run)))
    assert card.architecture == config
    assert all(torch.equal(tensors[name], original[name]) for name in original)


def test_weights_of_another_tool_without_class_names_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path)
    folder = exported(run, "transformers")
    config = json.loads((folder / "config.json").read_text())
    del config["id2label"]
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(RunError, match=r"no config.json next to it lists the classes") as caught:
        load_classifier(find_model(str(folder)))

    assert caught.value.fix.startswith("use it as pretrained weights: vitft finetune")


def test_tensors_that_are_no_classifier_are_refused_as_such(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")

    with pytest.raises(RunError, match="no plain Vision Transformer is among"):
        load_classifier(find_model(str(tmp_path / "other.safetensors")))


KINDS = [
    ("model.onnx", "is an ONNX graph, which only `vitft predict`, `evaluate` and `serve` can run"),
    ("model.pt2", "is a torch.export program"),
    ("model.pth", "is a Python pickle"),
    ("model.npz", "is a NumPy archive"),
    ("index.html", "is a web page, which is opened with a browser"),
    ("preprocessing.json", "is the preprocessing of a model without the model"),
    ("notes.txt", "is not a checkpoint"),
]


@pytest.mark.parametrize(("name", "reason"), KINDS)
def test_a_file_of_another_kind_is_refused_for_its_kind_and_never_called_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    (tmp_path / name).write_bytes(b"something")

    assert main(["explain", "photo.jpg", "--run", str(tmp_path / name)]) == 5

    error = capsys.readouterr().err
    assert reason in error
    assert "damaged" not in error
    assert "train the model again" not in error


def test_the_folder_of_a_web_page_is_opened_with_a_browser(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    export_run(str(run), plan_export(["html"], str(tmp_path / "page")))

    with pytest.raises(RunError, match="is a web page, which is opened with a browser") as caught:
        find_model(str(tmp_path / "page"))

    assert caught.value.fix.startswith("open it in a browser")


def test_a_copy_of_a_checkpoint_with_another_name_is_a_checkpoint(tmp_path: Path) -> None:
    copy = make_run(tmp_path).joinpath("model.safetensors").rename(tmp_path / "model.v2")

    assert find_model(str(copy)) == copy


def test_a_folder_of_several_exports_is_refused_with_their_names(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    out = tmp_path / "all"
    export_run(str(run), plan_export(["timm", "safetensors"], str(out)))

    with pytest.raises(RunError, match="no model in") as caught:
        find_model(str(out))

    options = f"--run {out}/safetensors or --run {out}/timm"
    assert caught.value.fix == f"use one of the folders in it: {options}"


def test_a_folder_of_exports_is_not_mistaken_for_one_for_transformers_js(tmp_path: Path) -> None:
    out, names = tmp_path / "all", ("int8/model.onnx", "onnx/model.onnx", "timm/model.safetensors")
    for name in names:
        (out / name).parent.mkdir(parents=True)
        (out / name).write_bytes(b"")

    with pytest.raises(RunError, match="contains several models: int8, onnx and timm") as caught:
        find_model(str(out), graphs=True)

    options = f"--run {out}/int8, --run {out}/onnx or --run {out}/timm"
    assert caught.value.fix == f"use one of the folders in it: {options}"
    for name in ("int8", "timm"):
        (out / name).rename(tmp_path / name)
    assert find_model(str(out), graphs=True) == out / "onnx" / "model.onnx"  # transformers.js
    for i in range(9):
        (out / f"{i}").mkdir()
        (out / f"{i}" / "model.onnx").write_bytes(b"")
    with pytest.raises(RunError, match=f"one of the 10 folders in it, e.g. --run {out}/0"):
        find_model(str(out), graphs=True)


def test_the_name_of_published_weights_is_no_run_and_names_their_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(RunError, match="the name of pretrained weights") as caught:
        find_model("vit_tiny_patch16_224")
    with pytest.raises(RunError, match=r"no model in vit_base_patch16_224\.mae\n") as headless:
        find_model("vit_base_patch16_224.mae")

    assert "--run hf:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k" in caught.value.fix
    assert "hf:" not in headless.value.fix
