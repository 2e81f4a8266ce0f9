"""Commands and pipelines on a pretend accelerator, and the accelerator itself."""

import io
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from benchmarks.speed import gpu
from tests.conftest import draw_folder, tiny_home
from tests.models.test_timm_model import random_model, saved
from tests.support.pretend_gpu import Stream, pretend_gpu
from tests.support.serving import serving
from tests.training.test_several_labels import draw_patches
from vitft.cli.main import main
from vitft.predict import Predictor
from vitft.system import to_device

pytestmark = pytest.mark.long

GPU = torch.device("cuda")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, weights, and a run that was trained on the GPU."""
    home = tiny_home(tmp_path_factory.mktemp("gpu"), per_class=8)
    with pretend_gpu():
        assert main([*finetune(home / "data", home / "w.safetensors", home / "run")]) == 0
    return home


def finetune(data: Path, weights: Path, out: Path) -> list[str]:
    words = ["finetune", "--data", str(data), "--weights", str(weights), "--out", str(out)]
    return [*words, "--device", "cuda", "--cache", "none"]


# the accelerator --------------------------------------------------------------------------------


def test_tensors_of_two_devices_and_numpy_are_refused() -> None:
    with pretend_gpu():
        here, there = torch.ones(3), torch.ones(3).to("cuda")
        with pytest.raises(RuntimeError, match="same device"):
            here + there
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            there.numpy()


def test_pinned_memory_must_not_change_before_its_copy_ends() -> None:
    with pretend_gpu():
        source = torch.ones(3).pin_memory()
        to_device(source, GPU)
        source.zero_()
        with pytest.raises(RuntimeError, match="pinned memory changed"):
            torch.cuda.synchronize()


def test_a_copy_on_another_stream_must_be_awaited() -> None:
    with pretend_gpu():
        with torch.cuda.stream(Stream()):  # type: ignore[arg-type]
            there = torch.ones(3).pin_memory().to("cuda", non_blocking=True)
        with pytest.raises(RuntimeError, match="before the stream"):
            there + 1
        assert (to_device(torch.ones(3), GPU) + 1).tolist() == [2, 2, 2]


# commands ---------------------------------------------------------------------------------------


def test_a_study_a_check_and_an_evaluation_run_on_a_gpu(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, weights = str(home / "data"), str(home / "w.safetensors")
    study = ["study", "--data", data, "--weights", weights, "--shots", "1", "2"]
    commands = [
        [*study, "--cache", "none", "--out", str(tmp_path / "study")],
        ["check", data, "--weights", weights, "--cache", "none", "--out", str(tmp_path / "check")],
        ["evaluate", "--data", data, "--run", str(home / "run")],
    ]
    for words in commands:
        with pretend_gpu() as counts:
            code = main([*words, "--device", "cuda"])

        assert code == 0, capsys.readouterr().err
        assert counts.batches


def test_a_run_of_a_gpu_is_exported(home: Path, tmp_path: Path) -> None:
    """`--onnx` computes on the CPU too, but torch.export asks the driver for a real GPU."""
    out = tmp_path / "export"
    with pretend_gpu() as counts:
        words = ["export", "--safetensors", "--timm", "--run", str(home / "run")]
        assert main([*words, "--out", str(out)]) == 0

        assert counts.to_gpu == 0
    assert {path.suffix for path in out.rglob("*.safetensors")} == {".safetensors"}


def test_a_server_answers_on_a_gpu(home: Path) -> None:
    image = next((home / "data").rglob("*.png"))
    buffer = io.BytesIO()
    Image.open(image).save(buffer, "PNG")
    with pretend_gpu() as counts:
        predictor = Predictor.from_run(str(home / "run"), device="cuda")
        with serving(predictor) as client:
            answer = client.post("/predict", buffer.getvalue())

        assert counts.to_gpu > 0
    assert answer.status == 200
    assert answer.json["results"][0]["classes"][0]["class"] == image.parent.name


def test_several_labels_are_trained_and_predicted_on_a_gpu(home: Path, tmp_path: Path) -> None:
    table = draw_patches(tmp_path / "patches")
    out = tmp_path / "rows.jsonl"
    with pretend_gpu():
        assert main(finetune(table, home / "w.safetensors", tmp_path / "run")) == 0
        words = ["predict", str(table.parent), "--run", str(tmp_path / "run"), "--out", str(out)]
        assert main([*words, "--device", "cuda"]) == 0

    results = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert results["labels"]["map"] > 0.5
    assert len(out.read_text().splitlines()) == 60


def test_a_timm_model_is_cut_and_predicts_on_a_gpu(tmp_path: Path) -> None:
    weights = saved(tmp_path / "weights.safetensors", random_model())
    data = draw_folder(tmp_path / "data", per_class=8)
    with pretend_gpu():
        words = finetune(data, weights, tmp_path / "run")
        assert main([*words, "--train", "blocks:1", "--epochs", "1"]) == 0
        rows = tmp_path / "rows.csv"
        words = ["predict", str(data), "--run", str(tmp_path / "run"), "--out", str(rows)]
        assert main([*words, "--device", "cuda", "--dtype", "bf16"]) == 0

    assert len(rows.read_text().splitlines()) == 1 + 24


def test_predict_chooses_bf16_and_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(home / "data"), "--run", str(home / "run"), "--device", "cuda"]

    def answers(*options: str, has_bf16: bool = True) -> tuple[list[str], str]:
        with pretend_gpu(has_bf16=has_bf16):
            assert main([*words, "--format", "jsonl", *options]) == 0
        said = capsys.readouterr()
        found = [json.loads(line)["classes"][0]["class"] for line in said.out.splitlines()]
        return found, said.err

    plain, nothing = answers("--dtype", "fp32")
    found, note = answers()

    assert found == plain
    assert "computed in bf16" in note
    assert "bf16" not in nothing
    for options in (["--threshold", "0.5"], ["--tta"], ["--dtype", "bf16"]):
        assert "computed in bf16" not in answers(*options)[1]
    assert "computed in bf16" not in answers(has_bf16=False)[1]


def test_the_benchmark_of_a_gpu_writes_every_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench-gpu.txt"
    assert gpu.main(["--out", str(out)]) == 2
    assert "no CUDA GPU: nothing was measured" in capsys.readouterr().err
    assert not out.exists()

    with pretend_gpu():
        assert gpu.main(["--quick", "--out", str(out)]) == 0

    sections = {text.partition("\n")[0]: text for text in out.read_text().split("\n\n")}
    assert list(gpu.SECTIONS) == [name for name in sections if name in gpu.SECTIONS]
    assert "as expected" in sections["parity"]
    assert all(len(sections[name].splitlines()) >= 4 for name in gpu.SECTIONS)
    assert "100.0% of 30" in sections["accuracy"]
