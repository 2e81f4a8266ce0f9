"""What trains, split among processes: the same steps as a whole model's, on loopback with gloo."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from vitft.config import OptimSpec
from vitft.errors import UsageError
from vitft.features import Whole
from vitft.loop import Training
from vitft.model import VisionTransformer, ViTConfig
from vitft.sharding import slice_like, split_up, whole
from vitft.team import Team

SMALL = ViTConfig(image_size=(8, 8), patch_size=(4, 4), width=8, depth=1, heads=2, num_classes=2)


@pytest.fixture(scope="module", params=["none", "blocks:2"])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Tensor]:
    """The weights that two processes came to, whole, split, and split and resumed."""
    out = tmp_path_factory.mktemp("split") / "found.pt"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", "-m", "tests.split_steps", request.param, str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read: dict[str, Tensor] = torch.load(out, weights_only=True)
    return read


def named(found: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(f"{kind}/"): v for key, v in found.items() if key.startswith(f"{kind}/")
    }


def test_split_steps_are_those_of_whole_models(found: dict[str, Tensor]) -> None:
    whole_ones, split_ones = named(found, "whole"), named(found, "split")

    assert split_ones.keys() == whole_ones.keys()
    assert all(torch.allclose(split_ones[n], whole_ones[n], atol=1e-5) for n in whole_ones)
    assert torch.allclose(found["split losses"], found["whole losses"], atol=1e-5)


def test_a_split_training_goes_on_exactly_where_it_was_stopped(found: dict[str, Tensor]) -> None:
    straight, resumed = named(found, "split"), named(found, "resumed")

    assert straight.keys() == resumed.keys()
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_a_process_holds_about_half(found: dict[str, Tensor]) -> None:
    held, everything = found["held"].item(), found["all"].item()

    assert everything / 2 <= held < 0.6 * everything


@pytest.mark.parametrize(
    ("precision", "compiled", "words"), [("fp16", False, "fp16"), ("fp32", True, "compile")]
)
def test_what_does_not_go_together_is_refused(precision: str, compiled: bool, words: str) -> None:
    model = Whole(VisionTransformer(SMALL))

    with pytest.raises(UsageError, match=words):
        split_up(model, Team(0, 2), precision=precision, compiled=compiled)


def test_models_of_timm_are_refused() -> None:
    with pytest.raises(UsageError, match="timm"):
        split_up(nn.Linear(2, 2), Team(0, 2), precision="fp32", compiled=False)


@pytest.mark.parametrize(("own", "sizes"), [(4, [2, 2]), (3, [2, 1]), (0, [0, 0])])
def test_every_process_takes_as_many_passes(own: int, sizes: list[int]) -> None:
    spec = OptimSpec(solver="sgd", lr=0.1, micro_batch=2)
    training = Training(nn.Linear(1, 2), spec, steps_per_epoch=1, team=Team(0, 3), split=True)

    passes = training.pieces(own, 11)

    assert [len(range(own)[piece]) for piece in passes] == sizes


def test_whole_tensors_stay_as_they_are() -> None:
    tensor = torch.ones(2)

    assert whole(tensor) is tensor
    assert slice_like(tensor, torch.zeros(2)) is tensor
