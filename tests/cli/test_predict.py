"""The command `vitft predict`: inputs, outputs, large jobs and invalid requests."""

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.test_images import chunk, encoded, gradient, png_header
from vitft.cli.main import main
from vitft.data import EvalTransform
from vitft.models import Card, VisionTransformer, ViTConfig, save_checkpoint

CLASSES = ("blue", "green", "red")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_vit: VisionTransformer) -> Path:
    """A folder with a run whose model is random and has distinct probabilities."""
    monkeypatch.chdir(tmp_path)
    tiny_vit.head.weight.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    card = Card(
        architecture=tiny_vit.config,
        transform=EvalTransform(image_size=(16, 16)),
        classes=CLASSES,
    )
    (tmp_path / "run").mkdir()
    save_checkpoint(tmp_path / "run" / "model.safetensors", tiny_vit.state_dict(), card)
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


def bad_files() -> dict[str, bytes]:
    """Return thirty kinds of files that are not images."""
    jpeg, png, webp = (encoded(gradient(), kind) for kind in ("JPEG", "PNG", "WEBP"))
    gif, bmp, tiff = (encoded(gradient(), kind) for kind in ("GIF", "BMP", "TIFF"))
    broken_chunk = png[:60] + b"\xff" * 40 + png[100:]
    return {
        "empty.jpg": b"",
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "cut.png": png[: len(png) // 2],
        "cut.webp": webp[: len(webp) // 2],
        "cut.gif": gif[: len(gif) // 3],
        "cut.bmp": bmp[: len(bmp) // 2],
        "cut.tif": tiff[: len(tiff) // 2],
        "head.jpg": jpeg[:20],
        "head.png": png[:20],
        "page.jpg": b"<!doctype html><title>404</title>",
        "drawing.jpg": b'<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        "answer.jpg": b'{"error": "no such image"}',
        "list.jpg": b"[1, 2, 3]",
        "feed.jpg": b"<?xml version='1.0'?><rss/>",
        "pointer.jpg": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "text.jpg": b"see you at eight\n",
        "noise.jpg": bytes(range(7, 207)),
        "zeros.jpg": b"\0" * 500,
        "bomb.png": png_header(30_000, 30_000) + chunk(b"IEND", b""),
        "broken.png": broken_chunk,
        "letter.jpg": b"%PDF-1.7\n",
        "print.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n",
        "layers.jpg": b"8BPS\0\1" + b"\0" * 40,
        "icon.jpg": b"\0\0\1\0\1\0" + b"\0" * 40,
        "phone.jpg": b"\0\0\0\x18ftypheic" + b"\0" * 40,
        "film.jpg": b"\0\0\0\x18ftypmp42" + b"\0" * 40,
        "new.jpg": b"\0\0\0\x1cftypavif" + b"\0" * 40,
        "pack.jpg": b"PK\x03\x04" + b"\0" * 40,
        "numbers.jpg": b"\x93NUMPY\x01\0" + b"\0" * 40,
        "array.jpg": b"\x89HDF\r\n\x1a\n" + b"\0" * 40,
    }


@pytest.mark.parametrize("engine", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_thirty_kinds_of_unreadable_files_get_errors_and_leave_other_rows_intact(
    photos: list[str], capsys: pytest.CaptureFixture[str], engine: str, dtype: str
) -> None:
    if (engine, dtype) == ("numpy", "bf16"):
        return
    bad = bad_files()
    Path("bad").mkdir()
    for name, data in bad.items():
        Path("bad", name).write_bytes(data)
    how = ["--engine", engine, "--dtype", dtype, "--top-k", "3"]
    alone = {row["path"]: row for row in rows(capsys, *how, *photos)}

    mixed = [name for pair in zip(photos, [f"bad/{b}" for b in bad], strict=False) for name in pair]
    found = rows(capsys, *how, *mixed, *photos[30:])

    assert len(bad) == 30
    assert [row["path"] for row in found] == [*mixed, *photos[30:]]
    errors = {row["path"]: row["error"] for row in found if "error" in row}
    assert set(errors) == {f"bad/{name}" for name in bad}
    assert all(errors.values())
    assert "run git lfs pull" in errors["bad/pointer.jpg"]
    assert "900 Mpx" in errors["bad/bomb.png"]
    for row in found:
        if "error" not in row:
            expected = {c["class"]: c["probability"] for c in alone[row["path"]]["classes"]}
            given = {c["class"]: c["probability"] for c in row["classes"]}
            assert given == pytest.approx(expected, abs=2e-3 if dtype == "bf16" else 2e-6)


def test_both_engines_and_both_precisions_predict_the_same_classes(
    photos: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ways = [["--engine", "numpy"], ["--engine", "torch"], ["--dtype", "bf16"]]

    answers = [
        [[c["class"] for c in row["classes"]] for row in rows(capsys, *way, "photos")]
        for way in ways
    ]

    assert answers[0] == answers[1] == answers[2]
    assert len({tuple(a) for a in answers[0]}) > 1


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
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))

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


def test_a_byte_order_mark_begins_only_csv_and_stays_on_resuming(
    photos: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(*photos, "--out", "plain.csv") == 0
    assert predict(*photos, "--out", "excel.csv", "--bom") == 0
    whole = Path("excel.csv").read_bytes()
    Path("excel.csv").unlink()
    header = whole.partition(b"\n")[0] + b"\n"
    Path("excel.csv.part").write_bytes(header)

    assert predict(*photos, "--out", "excel.csv", "--bom", "--resume") == 0

    assert whole == b"\xef\xbb\xbf" + Path("plain.csv").read_bytes()
    assert Path("excel.csv").read_bytes() == whole
    assert predict(*photos, "--bom") == 2
    assert "--bom needs the CSV format" in capsys.readouterr().err


def test_a_finished_file_of_fewer_images_is_not_called_complete(
    photos: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    predict(*photos[:2], "--out", "o.csv")
    before = Path("o.csv").read_bytes()

    assert predict(*photos[:3], "--out", "o.csv", "--resume") == 5
    assert f"has more images, e.g. {photos[2]}" in capsys.readouterr().err
    assert predict(photos[0], "--out", "o.csv", "--resume") == 5
    assert "the request has fewer images" in capsys.readouterr().err
    assert predict(*photos[:2], "--out", "o.csv", "--resume", "--top-k", "2") == 5
    assert "its columns are" in capsys.readouterr().err
    assert Path("o.csv").read_bytes() == before


def test_a_file_of_another_program_beside_the_rows_is_not_overwritten(
    photos: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("o.csv.part.json").write_text('{"mine": 1}')

    assert predict(*photos[:2], "--out", "o.csv") == 5

    assert "does not contain the options of a job" in capsys.readouterr().err
    assert Path("o.csv.part.json").read_text() == '{"mine": 1}'


def test_processes_that_resume_with_another_model_are_refused(
    photos: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [*photos, "--out", "o.csv"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert predict(*common) == 0
    assert predict(*common, "--resume", "--top-k", "2") == 5
    assert "it was begun with --top-k 1, not 2" in capsys.readouterr().err
    assert predict(*common, "--resume") == 0
    monkeypatch.setenv("RANK", "1")
    assert predict(*common, "--resume", "--tta") == 5
    assert predict(*common) == 0

    assert sorted(path.name for path in Path().glob("o.csv*")) == ["o.csv"]


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
    assert "use --out FILE.jsonl" in capsys.readouterr().err


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


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_a_damaged_model_predicts_nothing(
    here: Path, photos: list[str], capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    model = here / "run" / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[-100] ^= 1
    model.write_bytes(data)

    assert predict(photos[0], "--engine", engine) == 5

    shown = capsys.readouterr()
    assert "damaged checkpoint" in shown.err
    assert shown.out == ""


def test_logits_that_are_not_finite_are_an_error(
    here: Path, photos: list[str], tiny_config: ViTConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    model = VisionTransformer(tiny_config)
    model.head.bias.data.fill_(float("nan"))
    card = Card(architecture=tiny_config, transform=EvalTransform(image_size=(16, 16)),
                classes=CLASSES)  # fmt: skip
    save_checkpoint(here / "run" / "model.safetensors", model.state_dict(), card)

    for engine in ("numpy", "torch"):
        assert predict(photos[0], "--engine", engine) == 5
        assert "not finite" in capsys.readouterr().err
