"""`timm:NAME` from a hub on loopback, through a run, to predictions and an export."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save

from tests.support.hub_server import HubServer, Repo

RUN = """
import json, sys
import torch
from vitft.config.run import config_from_table
from vitft.predict.torch_engine import Predictor
from vitft.training.run import run_finetuning

torch.set_num_threads(1)
answers = {}
for name, size in (("resnet18", 64), ("vit_small_patch14_dinov2", 28)):
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
    from tests.conftest import draw_folder

    home = tmp_path_factory.mktemp("timm")
    data = draw_folder(home / "data", per_class=6)
    repos = {
        "timm/resnet18.a1_in1k": Repo(content("resnet18")),
        "timm/vit_small_patch14_dinov2.lvd142m": Repo(
            content("vit_small_patch14_dinov2", num_classes=0)
        ),
    }
    with HubServer(repos) as hub:
        environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(home / "hub"),
            "HOME": str(home),
            "HF_TOKEN": "",
        }
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(data), str(home)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize(
    ("name", "full", "size", "crop"),
    [
        ("resnet18", "timm:resnet18.a1_in1k", 64, 0.95),
        ("vit_small_patch14_dinov2", "timm:vit_small_patch14_dinov2.lvd142m", 28, 1.0),
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
    assert answer["transform"]["mean"] == [0.485, 0.456, 0.406]


def test_colours_are_told_apart_even_by_random_convolutions(told: dict[str, Any]) -> None:
    assert told["resnet18"]["figures"]["top1"] == 1.0
    assert told["resnet18"]["answer"] == ["red"]
