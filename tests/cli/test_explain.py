"""The command `vitft explain`: files, messages and refused options."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitft.cli.main import main
from vitft.data import EvalTransform
from vitft.models import Card, VisionTransformer, ViTConfig, save_checkpoint

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
    folder.mkdir()
    transform = EvalTransform(image_size=config.image_size)
    card = Card(architecture=config, transform=transform, classes=classes)
    save_checkpoint(folder / "model.safetensors", model.state_dict(), card)
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_images_become_overlays_and_a_sheet(
    run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [str(image_folder / "red" / "000.png"), str(image_folder / "blue" / "000.png")]

    assert main(["explain", *images, "--run", str(run)]) == 0

    assert files_in(Path("explained")) == ["001-000.png", "002-000.png", "sheet.html"]
    with Image.open("explained/001-000.png", formats=["PNG"]) as picture:
        assert (picture.size, picture.mode) == ((224, 224), "RGB")
        assert "exif" not in picture.info
    out = capsys.readouterr().out
    assert "relevance maps of 2 images written to explained/; overview: sheet.html" in out
    assert images[0] in out


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


def test_attention_also_shows_every_block_and_head(
    run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(image_folder / "red" / "000.png")
    command = ["explain", image, "--run", str(run), "--method", "attention"]

    assert main([*command, "--out", "all"]) == 0
    shown = capsys.readouterr().out
    assert "001-000.png, 001-000-heads.png" in shown
    assert "explained class" not in shown  # attention does not depend on a class
    assert main([*command[:-1], "relevance", "--out", "relevance"]) == 0
    assert "explained class" in capsys.readouterr().out
    assert main([*command, "--block", "0", "--head", "1", "--out", "one"]) == 0

    assert files_in(Path("all")) == ["001-000-heads.png", "001-000.png"]
    assert files_in(Path("one")) == ["001-000.png"]
    assert "heads" not in capsys.readouterr().out


def test_unreadable_files_get_an_error_and_the_others_a_picture(
    run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("page.jpg").write_text("<html>")
    good = str(image_folder / "red" / "000.png")

    assert main(["explain", "page.jpg", "none.jpg", "--run", str(run), "--out", "none"]) == 3
    assert "maps of" not in capsys.readouterr().out
    assert main(["explain", "page.jpg", good, "none.jpg", "--run", str(run)]) == 3

    assert files_in(Path("explained")) == ["002-000.png"]
    out = capsys.readouterr().out
    assert out.count("error: ") == 2
    assert "relevance maps of 1 image written to explained/" in out


def test_hostile_names_become_safe_file_names(run: Path) -> None:
    names = ["a\nb.png", "..;rm -rf.png", "x" * 200 + ".png", "\u202egnp.png", "花.png"]
    for name in names:
        Image.new("RGB", (20, 20), (9, 99, 9)).save(name)

    assert main(["explain", *names, "--run", str(run), "--out", "o"]) == 0

    written = files_in(Path("o"))
    assert len(written) == 6
    assert "001-a_b.png" in written
    assert all(len(name) < 60 and "\u202e" not in name for name in written)


def test_figures_of_the_weights(
    run: Path, tiny_weights: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = str(image_folder / "red")
    assert main(["explain", "--model", images, "--run", str(run), "--out", "a"]) == 0
    assert main(["explain", "--model", "--weights", str(tiny_weights), "--out", "b"]) == 0

    assert files_in(Path("a")) == ["distance.png", "filters.png", "positions.png"]
    assert files_in(Path("b")) == ["filters.png", "positions.png"]
    assert (
        "distance.png was not written: attention distances are measured on images"
        in capsys.readouterr().err
    )
    for path in Path("a").iterdir():
        with Image.open(path, formats=["PNG"]) as figure:
            assert min(figure.size) > 300
            assert len(figure.convert("RGB").getcolors(1_000_000) or ()) > 20
            assert "Software" not in figure.info


def test_distances_are_taken_over_the_runs_own_validation_images(
    run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"red/00{n}.png,red,val,{n:064}" for n in range(3)]
    rows.append("red/005.png,red,train," + "f" * 64)
    (run / "split.csv").write_text("path,label,split,sha256\n" + "\n".join(rows) + "\n")
    (run / "config.toml").write_text(f"[data]\npath = {json.dumps(str(image_folder))}\n")
    from vitft.explain import validation_files

    assert [Path(name).name for name in validation_files(run)] == ["000.png", "001.png", "002.png"]
    assert main(["explain", "--model", "--run", str(run), "--out", "o"]) == 0
    assert "distance.png" in files_in(Path("o"))


def test_patches_and_tokens_are_drawn(
    run: Path, tiny_weights: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("page.jpg").write_text("<html>")
    good = str(image_folder / "red" / "000.png")

    assert (
        main(["explain", "--patches", "page.jpg", good, "--run", str(run), "--out", "a", "-v"]) == 3
    )
    weights = ["--weights", str(tiny_weights)]
    assert main(["explain", "--patches", good, *weights, "--out", "b", "-v"]) == 0

    assert files_in(Path("a")) == ["002-000-patches.png"]
    assert files_in(Path("b")) == ["001-000-patches.png"]
    with Image.open("a/002-000-patches.png", formats=["PNG"]) as figure:
        assert figure.width > 1200
    out, err = capsys.readouterr()
    assert "patches and tokens of 1 image written to a/" in out
    assert "error: " in out
    assert ("drawing: 2/2" in err, "drawing: 1/1" in err) == (True, True)


@pytest.mark.parametrize("field", [{"pool": "mean"}, {"registers": 2}, {"distilled": True}])
def test_models_of_every_architecture_are_explained(
    tiny_config: ViTConfig,
    tmp_path: Path,
    image_folder: Path,
    field: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    config = replace(tiny_config, **field, image_size=(8, 24))  # type: ignore[arg-type]
    other = write_run(tmp_path / "other", config)
    image = str(image_folder / "red" / "000.png")

    for method in ("relevance", "rollout", "attention"):
        out = ["--out", method, "--method", method]
        assert main(["explain", image, "--run", str(other), *out]) == 0
