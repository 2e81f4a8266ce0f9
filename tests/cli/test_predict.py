"""The command `vitft predict`: inputs, outputs, large jobs and invalid requests."""

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import save_model
from tests.data.test_images import chunk, encoded, gradient, png_header
from vitft.cli.main import main
from vitft.models import VisionTransformer

CLASSES = ("blue", "green", "red")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_vit: VisionTransformer) -> Path:
    """A folder with a run whose model is random and has distinct probabilities."""
    monkeypatch.chdir(tmp_path)
    tiny_vit.head.weight.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    save_model(tmp_path / "run" / "model.safetensors", tiny_vit, CLASSES)
    return tmp_path


@pytest.fixture
def photos(here: Path) -> list[str]:
    """Fifty different images."""
    random = np.random.default_rng(0)
    (here / "photos").mkdir()
    for i in range(50):
        picture = Image.fromarray(random.integers(0, 256, (20, 24, 3), np.uint8))
        picture.save(f"photos/{i:02}.png")
    return [f"photos/{i:02}.png" for i in range(50)]


def predict(*options: str) -> int:
    return main(["predict", "--run", "run", "--device", "cpu", *options])


def rows(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    predict("--format", "jsonl", *options)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


BAD = {
    "empty.jpg": b"", "cut.jpg": encoded(gradient(), "JPEG")[:600], "page.jpg": b"<!doctype html>",
    "cut.png": encoded(gradient(), "PNG")[:90], "pack.jpg": b"PK\x03\x04" + b"\0" * 40,
    "cut.webp": encoded(gradient(), "WEBP")[:200], "zeros.jpg": b"\0" * 500,
    "bomb.png": png_header(30_000, 30_000) + chunk(b"IEND", b""),
    "pointer.jpg": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}  # fmt: skip


@pytest.mark.parametrize("how", ["--engine numpy", "--engine torch", "--dtype bf16"])
def test_unreadable_files_get_errors_and_leave_other_rows_intact(
    photos: list[str], capsys: pytest.CaptureFixture[str], how: str
) -> None:
    Path("bad").mkdir()
    for name, data in BAD.items():
        Path("bad", name).write_bytes(data)
    alone = {row["path"]: row for row in rows(capsys, *how.split(), "--top-k", "3", *photos)}

    mixed = [name for pair in zip(photos, [f"bad/{b}" for b in BAD], strict=False) for name in pair]
    mixed += photos[len(BAD) :]
    found = rows(capsys, *how.split(), "--top-k", "3", *mixed)

    assert [row["path"] for row in found] == mixed
    errors = {row["path"]: row["error"] for row in found if "error" in row}
    assert set(errors) == {f"bad/{name}" for name in BAD}
    assert "run git lfs pull" in errors["bad/pointer.jpg"]
    assert "900 Mpx" in errors["bad/bomb.png"]
    for row in found:
        if "error" not in row:
            expected = {c["class"]: c["probability"] for c in alone[row["path"]]["classes"]}
            given = {c["class"]: c["probability"] for c in row["classes"]}
            assert given == pytest.approx(expected, abs=2e-3 if "bf16" in how else 2e-6)


@pytest.mark.parametrize("kind", ["image", "list"])
def test_standard_input_is_an_image_or_a_list(
    photos: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    named = photos[:1] if kind == "image" else photos
    expected = [row["classes"] for row in rows(capsys, *named)]
    data = Path(photos[0]).read_bytes() if kind == "image" else "\n".join(photos).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    found = rows(capsys, "-")

    assert [row["path"] for row in found] == (["-"] if kind == "image" else photos)
    for row, classes in zip(found, expected, strict=True):
        assert row["classes"][0]["class"] == classes[0]["class"]


def test_a_killed_job_is_resumed_to_the_same_bytes(photos: list[str]) -> None:
    Path("list.txt").write_text("".join(f"{name}\n" for name in [*photos, "gone.jpg"] * 40))
    common = ["--list", "list.txt", "--top-k", "3"]
    assert predict(*common, "--out", "whole.jsonl") == 3

    command = [sys.executable, "-m", "vitft", "predict", "--run", "run", "--device", "cpu", *common]
    with subprocess.Popen([*command, "--out", "o.jsonl"], stderr=subprocess.DEVNULL) as process:
        part = Path("o.jsonl.part")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (part.exists() and part.stat().st_size > 20_000):
            if process.poll() is not None:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    if not Path("o.jsonl").exists():
        with part.open("ab") as file:
            file.write(b'{"path": "photos/')  # a torn last row
    resumed = predict(*common, "--out", "o.jsonl", "--resume")

    assert resumed == 3
    assert Path("o.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert not part.exists()


def test_processes_that_resume_with_another_model_other_images_or_batches_are_refused(
    photos: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [*photos, "--dtype", "fp32", "--out", "o.csv"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert predict(*common) == 0
    for words, reason in (
        ([*common, "--top-k", "2"], "it was begun with --top-k 1, not 2"),
        ([*photos[:3], *common[len(photos) :]], "but the request has fewer images"),
        ([*photos, *photos, *common], "but the request has more images"),
        ([*common, "--engine", "numpy"], "it was begun with batch size "),
    ):
        assert predict(*words, "--resume") == 5
        assert reason in capsys.readouterr().err
        assert not Path("o.csv").exists()
    assert predict(*common, "--resume") == 0
    monkeypatch.setenv("RANK", "1")
    assert predict(*common, "--resume", "--tta") == 5
    assert predict(*common) == 0

    assert sorted(path.name for path in Path().glob("o.csv*")) == ["o.csv"]


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_two_processes_do_not_write_one_part(
    photos: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    with Path("o.csv.part").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        assert predict(*photos, "--out", "o.csv", "--resume") == 8

    assert "another process is writing o.csv.part" in capsys.readouterr().err


def test_several_processes_predict_every_image_once_in_order(
    photos: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("list.csv").write_text("path\n" + "".join(f"{n}\n" for n in [*photos, "gone.jpg"] * 3))
    common = ["--list", "list.csv", "--format", "csv", "--top-k", "2"]
    predict(*common, "--out", "alone.csv")
    monkeypatch.setenv("WORLD_SIZE", "3")  # what torchrun sets

    for rank in ("2", "0", "1"):
        assert not Path("together.csv").exists()
        monkeypatch.setenv("RANK", rank)
        assert predict(*common, "--out", "together.csv") == 0  # torchrun would end the others

    assert Path("together.csv").read_bytes() == Path("alone.csv").read_bytes()
    assert [p.name for p in Path().glob("together*")] == ["together.csv"]
    capsys.readouterr()
    assert predict(*common) == 2
    assert "use --out FILE.csv" in capsys.readouterr().err


def test_tta_averages_with_the_mirror_image(
    photos: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Image.open(photos[0]).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save("mirrored.png")

    for engine in ("numpy", "torch"):
        plain, other = rows(capsys, photos[0], "mirrored.png", "--engine", engine)
        both = rows(capsys, photos[0], "mirrored.png", "--tta", "--engine", engine)

        assert plain["classes"][0]["probability"] != other["classes"][0]["probability"]
        first, second = (row["classes"][0]["probability"] for row in both)
        assert first == pytest.approx(second, abs=2e-6)


def test_explain_writes_a_relevance_overlay_of_each_image(
    photos: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(*photos[:2], "gone.jpg", photos[2], "--explain", "seen") == 3

    names = sorted(p.name for p in Path("seen").iterdir())
    assert names == ["000001-00.png", "000002-01.png", "000004-02.png"]
    with Image.open("seen/000001-00.png") as picture:
        assert picture.size == (224, 224)
    assert predict(photos[0], "--explain", "seen") == 5  # nothing is overwritten
    assert "choose a new or empty folder with --explain" in capsys.readouterr().err


def test_no_error_object_follows_the_beginning_of_a_list(
    photos: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "list.txt").write_text("\n".join([*photos, *photos, "x" * 70_000]))

    assert predict("list.txt", "--format", "json") == 3

    shown = capsys.readouterr()
    assert shown.out.startswith("[")
    assert '"problem"' not in shown.out
    assert "not a list of paths" in shown.err
