"""The command `vitft explain`: files, messages and refused options."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import save_model
from vitft.cli.main import main
from vitft.models import VisionTransformer, ViTConfig

CLASSES = ("blue", "green", "red")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_config: ViTConfig) -> Path:
    """A run folder with a random model, below the current folder."""
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path / "run", tiny_config)


def write_run(folder: Path, config: ViTConfig, classes: tuple[str, ...] = CLASSES) -> Path:
    torch.manual_seed(0)
    model = VisionTransformer(config)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    save_model(folder / "model.safetensors", model, classes)
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_exif_orientation_of_a_photo_is_applied(run: Path, image_folder: Path) -> None:
    pixels = np.zeros((24, 24, 3), np.uint8)
    pixels[:12, :12] = (250, 30, 30)
    upright = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90 degrees clockwise
    exif[0x010E] = "secret place"
    upright.save("upright.png")
    upright.transpose(Image.Transpose.ROTATE_90).save("turned.png", exif=exif)

    assert main(["explain", "upright.png", "turned.png", "--run", str(run), "--out", "o"]) == 0

    first, second = (Path("o") / f"00{n}.png" for n in ("1-upright", "2-turned"))
    assert first.read_bytes() == second.read_bytes()
    assert b"secret" not in second.read_bytes()


def test_arrays_hold_the_raw_numbers(run: Path, image_folder: Path) -> None:
    image = str(image_folder / "red" / "000.png")

    command = ["explain", image, "--run", str(run), "--arrays", "--method", "rollout"]
    assert main([*command, "--out", "o"]) == 0

    with np.load("o/001-000.npz") as arrays:
        assert {name: arrays[name].shape for name in arrays} == {
            "heat": (4, 4),
            "attention": (2, 2, 17, 17),  # blocks, heads, tokens, tokens
            "logits": (3,),
        }
        assert arrays["attention"].sum(axis=-1) == pytest.approx(1, abs=1e-5)
        assert 0.5 < arrays["heat"].sum() <= 0.75  # each block leaves the class token half of it


def test_hostile_names_become_safe_file_names(run: Path) -> None:
    names = ["a\nb.png", "..;rm -rf.png", "x" * 200 + ".png", "\u202egnp.png", "花.png"]
    for name in names:
        Image.new("RGB", (20, 20), (9, 99, 9)).save(name)

    assert main(["explain", *names, "--run", str(run), "--out", "o"]) == 0

    written = files_in(Path("o"))
    assert len(written) == 6
    assert "001-a_b.png" in written
    assert all(len(name) < 60 and "\u202e" not in name for name in written)
