"""`timm:NAME` from a hub on loopback, through a run, to predictions and an export."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save, save_file

from tests.conftest import draw_folder
from tests.support.children import ended
from tests.support.hub_server import HubServer, Repo
from vitft.cli.main import main
from vitft.models import TimmModel, check_weights_name, load_backbone
from vitft.predict import Predictor
from vitft.system import WeightsError


def content(name: str, **options: Any) -> dict[str, bytes]:
    """A repository as timm's authors publish it, with random weights."""
    torch.manual_seed(0)
    state = timm.create_model(name, **options).state_dict()
    return {"model.safetensors": save({key: value.contiguous() for key, value in state.items()})}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos and the runs of fresh processes that fine-tune models from the hub."""
    home = tmp_path_factory.mktemp("timm")
    data = draw_folder(home / "data", per_class=6)
    repos = {
        "timm/test_resnet.r160_in1k": Repo(content("test_resnet")),
        "timm/test_vit.r160_in1k": Repo(content("test_vit")),
    }
    with HubServer(repos) as hub:
        client = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home / "hub"), "HF_TOKEN": ""}
        client |= {name: "" for name in os.environ if "proxy" in name.lower()}
        for name, size in (("test_resnet", "64"), ("test_vit", "48")):
            run = ["--data", str(data), "--weights", f"timm:{name}", "--image-size", size]
            command = [sys.executable, "-m", "vitft", "finetune", *run, "--out", str(home / name)]
            done = ended(command, env={**client, "HOME": str(home)})
            assert done.returncode == 0, done.stderr
    return home


@pytest.mark.parametrize(
    ("name", "size"), [("test_resnet", 64), ("test_vit", 48)], ids=["resnet", "vit"]
)
def test_a_model_of_timm_is_fine_tuned_from_the_hub(runs: Path, name: str, size: int) -> None:
    results = json.loads((runs / name / "eval.json").read_text())
    predictor = Predictor.from_run(str(runs / name))
    (answer,) = predictor.stream([str(runs / "data" / "red" / "000.png")])

    weights, transform = predictor.card.weights, predictor.card.transform
    assert results["images"] == 3
    assert weights["name"] == f"timm:{name}.r160_in1k"
    assert weights["revision"].startswith("c0ffee")
    assert len(weights["sha256"]) == 64
    assert weights["licence"] == "apache-2.0"
    assert (transform.image_size, transform.crop) == ((size, size), 0.95)
    assert transform.mean == (0.5, 0.5, 0.5)
    if name == "test_resnet":  # even random convolutions tell colours apart
        assert results["top1"] == 1.0
        assert answer.classes[0] == "red"


# a file of the user, and random weights -----------------------------------------------------------


@pytest.fixture
def resnet(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A file in timm's format whose name says nothing."""
    torch.manual_seed(1)
    state = timm.create_model("test_resnet", num_classes=7).state_dict()
    path = tmp_path / "mine.safetensors"
    save_file({key: value.contiguous() for key, value in state.items()}, path)
    return path, state


def test_a_local_file_of_a_timm_model_is_loaded_without_a_network(
    resnet: tuple[Path, dict[str, torch.Tensor]],
) -> None:
    path, state = resnet

    model, report = load_backbone(f"timm:test_resnet={path}", num_classes=3)

    assert isinstance(model, TimmModel)
    loaded = model.net.state_dict()
    assert all(torch.equal(loaded[name], state[name]) for name in loaded)
    assert not bool(model.head.weight.any())
    assert report.dropped == ("fc (7 classes)",)
    assert report.provenance["source"] == str(path)
    assert report.provenance["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "licence" not in report.provenance  # of a file of unknown origin
    assert "state_dict" not in model.net.pretrained_cfg


@pytest.mark.parametrize(
    ("size", "sized", "positions"),
    [(None, False, "as loaded"), (160, False, "as loaded"), (192, True, "resized by timm")],
)
def test_position_embeddings_are_resized_at_a_size_other_than_that_of_the_weights(
    tmp_path: Path, size: int | None, sized: bool, positions: str
) -> None:
    state = timm.create_model("test_vit").state_dict()
    save_file(state, tmp_path / "vit.safetensors")

    model, report = load_backbone(
        f"timm:test_vit={tmp_path}/vit.safetensors", num_classes=3, image_size=size
    )

    assert isinstance(model, TimmModel)
    assert model.config.sized is sized
    assert report.positions == positions
    assert report.dropped == ("head (1000 classes)",)
    assert report.transform.image_size == (size or 160,) * 2
    assert (report.head, report.loaded) == ("new, 3 classes, initialised to zero", len(state) - 2)


def test_a_pickle_of_a_timm_model_needs_permission(
    tmp_path: Path, resnet: tuple[Path, dict[str, torch.Tensor]]
) -> None:
    path = tmp_path / "mine.pth"
    torch.save({f"module.{name}": tensor for name, tensor in resnet[1].items()}, path)
    name = f"timm:test_resnet={path}"

    with pytest.raises(WeightsError, match="is a Python pickle"):
        check_weights_name(name, allow_pickle=False)
    with pytest.raises(WeightsError, match="is a Python pickle"):
        load_backbone(name, num_classes=3)

    model, _ = load_backbone(name, num_classes=3, allow_pickle=True)
    assert isinstance(model, TimmModel)
    assert torch.equal(model.net.state_dict()["conv1.0.weight"], resnet[1]["conv1.0.weight"])


@pytest.mark.parametrize("form", ["timm:test_resnet={}", "random:timm:test_resnet"])
def test_finetune_and_study_take_the_same_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resnet: tuple[Path, dict[str, torch.Tensor]],
    form: str,
) -> None:
    monkeypatch.chdir(tmp_path)  # check writes fixes.csv into the current folder
    data = draw_folder(tmp_path / "data", per_class=6)
    name = form.format(resnet[0])

    run = ["--data", str(data), "--weights", name, "--out"]
    assert main(["finetune", *run, str(tmp_path / "run")]) == 0
    assert main(["study", *run, str(tmp_path / "study"), "--shots", "1", "--seeds", "1"]) == 0
    assert main(["check", str(data), "--weights", name]) == 0
    assert (tmp_path / "run" / "report.html").exists()
