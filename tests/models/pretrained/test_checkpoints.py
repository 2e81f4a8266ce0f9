"""Checkpoints of training scripts and libraries: the same logits as the plain weights in them."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contract.built.weights import CONFIG, checkpoints, folders, forms, google, refused, state
from vitft import load_pretrained
from vitft.models import build_model
from vitft.system import WeightsError

FILES = [*forms(), "legacy.pth", "root.safetensors", "called.bin"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all files and folders of weights."""
    folder = tmp_path_factory.mktemp("written")
    checkpoints(folder)
    folders(folder)
    return folder


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize("name", [*FILES, "hub", "one", "parts", "pickled_parts"])
def test_the_logits_are_those_of_the_plain_weights(
    name: str, written: Path, images: Tensor
) -> None:
    expected = build_model(state(), CONFIG)(images)

    model, _ = load_pretrained(written / name, allow_pickle=True)

    assert torch.equal(model(images), expected)


@torch.no_grad()
@pytest.mark.parametrize(
    ("file", "average", "other"),
    [
        ("timm_ema.pth.tar", "state_dict_ema", "state_dict"),
        ("deit_ema.pth", "model_ema", "model"),
        ("ema_inside.pth", "ema_model.module", "net"),
        ("dino.pth", "teacher.backbone", "student.module.backbone"),
        ("moco.pth.tar", "state_dict.module.base_encoder", "state_dict.module.momentum_encoder"),
    ],
)
def test_of_two_models_the_usual_one_is_named_and_the_other_is_read_by_its_name(
    file: str, average: str, other: str, written: Path, images: Tensor
) -> None:
    _, report = load_pretrained(written / file, allow_pickle=True)
    model, named = load_pretrained(f"{written / file}#{other}", allow_pickle=True)

    assert "the file contains 2 models: " in report.notes[0]
    assert f"{average} is used. For another, use '{written / file}#{other}'" in report.notes[0]
    assert not any("models" in note for note in named.notes)
    assert torch.equal(model(images), build_model(state(1), CONFIG)(images))


def test_weights_in_parts_are_refused_if_one_is_missing_or_a_pickle(written: Path) -> None:
    index = written / "parts" / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    part = next(iter(table["weight_map"].values()))

    for name in (part.replace("1-of", "3-of").replace("2-of", "3-of"), "../plain.pth"):
        other = {"weight_map": {**table["weight_map"], "x": name}}
        (written / "parts" / "other.safetensors.index.json").write_text(json.dumps(other))
        with pytest.raises(WeightsError, match="weights not found"):
            load_pretrained(written / "parts" / "other.safetensors.index.json")
    with pytest.raises(WeightsError, match="is a Python pickle"):
        load_pretrained(written / "pickled_parts")


def test_of_googles_arrays_those_of_the_optimiser_are_dropped(tmp_path: Path) -> None:
    google(tmp_path)

    model, report = load_pretrained(tmp_path / "vit.npz")

    assert report.dropped == ("opt (25 tensors)",)
    assert model.config.heads == 2
    for name, tensor in model.state_dict().items():
        assert bool((tensor == float("head" not in name)).all()), name


def test_no_code_is_run_and_the_file_is_refused_wherever_the_code_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(tmp_path)

    for name in ("code.ckpt", "code_in_array.pth"):
        with pytest.raises(WeightsError, match=r"needs (posix|nt)\.system"):
            load_pretrained(name, allow_pickle=True)

    assert not Path("CODE-WAS-RUN").exists()
