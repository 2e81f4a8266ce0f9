"""Weights that overflow: the exit code and the sentence of every command."""

from pathlib import Path

import pytest

from tests.conftest import tiny_home
from tests.support.reference_run import make_reference_run
from vitft.cli.main import main
from vitft.models import VisionTransformer, load_checkpoint, save_checkpoint

pytestmark = pytest.mark.long

DATA = "--data data --weights w.safetensors"
DIVERGED = "training diverged: the loss is"
FEATURES = "the features computed with these weights are infinite, NaN or above"
LOGITS = "the logits of the model are not finite: training diverged, or the file is damaged"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_vit: VisionTransformer) -> Path:
    """The current folder, with images, weights and a run, whose tensors are multiplied by 1e30."""
    monkeypatch.chdir(tmp_path)
    tiny_home(tmp_path)
    run = make_reference_run(tmp_path, tiny_vit)
    for file in (tmp_path / "w.safetensors", run / "model.safetensors"):
        tensors, card = load_checkpoint(file)
        save_checkpoint(file, {name: 1e30 * value for name, value in tensors.items()}, card)
    for command in ("label", "serve"):
        monkeypatch.setattr(f"vitft.cli.{command}.run_server", lambda *_: 0)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code", "problem"),
    [
        pytest.param(f"finetune {DATA}", 7, FEATURES, id="finetune"),
        pytest.param(f"finetune {DATA} --cache none", 7, FEATURES, id="finetune without a cache"),
        pytest.param(f"finetune {DATA} --train blocks:1", 7, FEATURES, id="finetune a block"),
        pytest.param(f"finetune {DATA} --train all --epochs 1", 7, DIVERGED, id="all layers"),
        pytest.param(f"finetune {DATA} --train lora --epochs 1", 7, DIVERGED, id="LoRA"),
        pytest.param(f"study {DATA} --shots 1 --seeds 1", 7, FEATURES, id="study"),
        pytest.param("check data --weights w.safetensors", 7, FEATURES, id="check"),
        pytest.param("label data --weights w.safetensors --port 0", 7, FEATURES, id="label"),
        pytest.param("label data --run run --port 0", 7, FEATURES, id="label with a run"),
        pytest.param("predict 0.png --run run", 5, LOGITS, id="predict"),
        pytest.param("predict 0.png --run run --engine torch", 5, LOGITS, id="predict with torch"),
        pytest.param("evaluate --data data --run run", 5, LOGITS, id="evaluate"),
        pytest.param("explain 0.png --run run", 5, "maps of this model contain", id="explain"),
        pytest.param("serve --run run --port 0", 5, LOGITS, id="serve"),
        pytest.param("export --safetensors --run run", 5, LOGITS, id="export"),
        pytest.param("export --torch-export --run run", 5, LOGITS, id="export a graph"),
    ],
)
def test_weights_that_overflow_end_every_command_with_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, code: int, problem: str
) -> None:
    assert main(command.split()) == code

    printed = capsys.readouterr().err
    assert problem in printed
    assert printed.count("vitft: error: ") == 1
    assert "Traceback" not in printed
    assert "report this as a bug" not in printed
    assert not (here / "export").exists()
