"""`timm:NAME` from a hub on loopback, through a run, to predictions and an export."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save, save_file

from tests.conftest import draw_folder
from tests.support.children import python
from tests.support.hub_server import HubServer, Repo
from vitft.cli.main import main
from vitft.models import TimmModel, check_weights_name, load_backbone
from vitft.system import WeightsError

RUN = """
import json, sys
import torch
from vitft.config.run import config_from_table
from vitft.predict.torch_engine import Predictor
from vitft.training.run import run_finetuning

torch.set_num_threads(1)
answers = {}
for name, size in (("test_resnet", 64), ("test_vit", 48)):
    out = f"{sys.argv[2]}/{name}"
    table = {
        "data": {"path": sys.argv[1]},
        "weights": {"name": f"timm:{name}", "image_size": [size, size]},
    }
    from pathlib import Path
    figures = run_finetuning(config_from_table(table), out=Path(out)).figures
    predictor = Predictor.from_run(out)
    answers[name] = {
        "figures": figures,
        "weights": predictor.card.weights,
        "transform": predictor.card.transform.to_json(),
        "answer": [p.classes[0] for p in predictor.stream([sys.argv[1] + "/red/000.png"])],
    }
print(json.dumps(answers))
"""


def content(name: str, **options: Any) -> dict[str, bytes]:
    """A repository as timm's authors publish it, with random weights."""
    torch.manual_seed(0)
    state = timm.create_model(name, **options).state_dict()
    return {"model.safetensors": save({key: value.contiguous() for key, value in state.items()})}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh process prints that fine-tunes both models from the hub."""
    home = tmp_path_factory.mktemp("timm")
    data = draw_folder(home / "data", per_class=6)
    repos = {
        "timm/test_resnet.r160_in1k": Repo(content("test_resnet")),
        "timm/test_vit.r160_in1k": Repo(content("test_vit")),
    }
    with HubServer(repos) as hub:
        environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(home / "hub"),
            "HOME": str(home),
            "HF_TOKEN": "",
        }
        done = python(RUN, str(data), str(home), env=environment)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize(
    ("name", "full", "size", "crop"),
    [
        ("test_resnet", "timm:test_resnet.r160_in1k", 64, 0.95),
        ("test_vit", "timm:test_vit.r160_in1k", 48, 0.95),
    ],
)
def test_a_model_of_timm_is_fine_tuned_from_the_hub(
    told: dict[str, Any], name: str, full: str, size: int, crop: float
) -> None:
    answer = told[name]

    assert answer["figures"]["images"] == 3
    assert len(answer["answer"]) == 1
    assert answer["weights"]["name"] == full
    assert answer["weights"]["revision"].startswith("c0ffee")
    assert len(answer["weights"]["sha256"]) == 64
    assert answer["weights"]["licence"] == "apache-2.0"
    assert answer["transform"]["image_size"] == [size, size]
    assert answer["transform"]["crop"] == crop
    assert answer["transform"]["mean"] == [0.5, 0.5, 0.5]


def test_colours_are_told_apart_even_by_random_convolutions(told: dict[str, Any]) -> None:
    assert told["test_resnet"]["figures"]["top1"] == 1.0
    assert told["test_resnet"]["answer"] == ["red"]


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
