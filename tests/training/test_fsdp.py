"""Sharded training takes the same steps as that of a whole model, on loopback with gloo."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_home
from tests.support.children import ended
from tests.support.ranks import TORCHRUN
from vitft.cli.main import main
from vitft.models import load_checkpoint

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["all", "blocks:2"])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Tensor]:
    """Weights trained by two processes: whole, sharded, and sharded and resumed."""
    out = tmp_path_factory.mktemp("split") / "found.pt"
    words = [*TORCHRUN, "tests.support.split_steps", request.param, str(out)]
    done = ended(words, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    read: dict[str, Tensor] = torch.load(out, weights_only=True)
    return read


def named(found: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {key.partition("/")[2]: v for key, v in found.items() if key.startswith(f"{kind}/")}


def without_keys(bias: Tensor) -> Tensor:
    """Return the bias of queries and values; the gradient of that of keys is rounding errors."""
    queries, _, values = bias.chunk(3)
    return torch.cat([queries, values])


def test_sharded_steps_equal_those_of_whole_models(found: dict[str, Tensor]) -> None:
    whole_ones, split_ones = named(found, "whole"), named(found, "split")

    assert split_ones.keys() == whole_ones.keys()
    for name in whole_ones:
        pair = split_ones[name], whole_ones[name]
        if name.endswith("qkv.bias"):
            pair = tuple(map(without_keys, pair))
        assert torch.allclose(*pair, atol=1e-5), name
    assert torch.allclose(found["split losses"], found["whole losses"], atol=1e-5)


def test_a_sharded_run_resumes_exactly_where_it_was_stopped(found: dict[str, Tensor]) -> None:
    straight, resumed = named(found, "split"), named(found, "resumed")

    assert straight.keys() == resumed.keys()
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_a_process_holds_about_half(found: dict[str, Tensor]) -> None:
    held, everything = found["held"].item(), found["all"].item()

    assert everything / 2 <= held < 0.6 * everything


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, weights, and an undisturbed run of two processes."""
    home = tiny_home(tmp_path_factory.mktemp("home"))
    assert begun(home, *RUN, "--out", "whole").wait(180) == 0
    return home


RUN = [
    *("--data", "data", "--weights", "w.safetensors", "--train", "head,all", "--lr", "0.01"),
    *("--epochs", "12", "--batch-size", "7", "--set", "optim.ema=0.9"),
    *("--set", "optim.interpolation=0.8", "--set", "train.shard=true"),
]


def begun(home: Path, *options: str) -> subprocess.Popen[str]:
    """Start a run of two processes whose output goes to said.txt."""
    with (home / "said.txt").open("w") as said:
        return subprocess.Popen(
            [*TORCHRUN, "--", "vitft", "finetune", *options],
            cwd=home,
            env={**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"},
            stdout=said,
            stderr=said,
            text=True,
        )


def epochs_of(run: Path) -> list[str]:
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if "epoch" in line]


def test_a_sharded_run_that_is_terminated_and_resumed_is_bit_identical(home: Path) -> None:
    process = begun(home, *RUN, "--out", "stopped")
    deadline = time.monotonic() + 120
    while len(epochs_of(home / "stopped")) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    was = len(epochs_of(home / "stopped"))
    resumed = begun(home, "--resume", "stopped").wait(180)

    assert resumed == 0, (home / "said.txt").read_text()
    assert 2 <= was < 12
    assert epochs_of(home / "stopped") == epochs_of(home / "whole")
    (first, _), (second, _) = (
        load_checkpoint(home / name / "model.safetensors") for name in ("whole", "stopped")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_only_a_sharded_run_may_lower_its_micro_batches(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    text = (home / "whole" / "config.toml").read_text()
    for name, shard in (("split", "true"), ("plain", "false")):  # runs that have not ended
        (home / name).mkdir()
        (home / name / "config.toml").write_text(text.replace("shard = true", f"shard = {shard}"))
        for file in ("split.csv", "class_indices.json"):
            (home / name / file).write_bytes((home / "whole" / file).read_bytes())

    codes = [
        main(["finetune", "--resume", str(home / name), "--set", "optim.micro_batch=2"])
        for name in ("split", "whole", "plain")
    ]

    assert codes == [0, 0, 5]
    assert "micro_batch = 2" not in (home / "whole" / "config.toml").read_text()
    assert "micro_batch was" in capsys.readouterr().err
