"""Trained models read back from exported folders, and files that are not trained models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny
from tests.support.export_run import make_run
from vitft.export import export_run, plan_export
from vitft.models import TimmConfig, find_model, load_classifier, load_pretrained
from vitft.system import RunError

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
