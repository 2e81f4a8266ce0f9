"""The command `vitft explain`: files, messages and refused options."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.report.test_report import check_harmless
from vitft.cli.main import main
from vitft.data.transforms import EvalTransform
from vitft.explain.explainer import ExplainedImage
from vitft.explain.model_figures import ModelFigures
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import ImageError

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


def test_the_captions_of_the_overview_are_text_in_any_script(
    tmp_path: Path, image_folder: Path, tiny_config: ViTConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("Löwenzahn 蒲公英 وردة", "<img src=x onerror=alert(1)>", "b")
    run = write_run(tmp_path / "any script", tiny_config, names)
    photo = image_folder / "red" / "000.png"
    other = photo.with_name("牡丹.png")
    other.write_bytes(photo.read_bytes())

    for name in names[:2]:
        out = f"out {len(name)}"
        options = ["--run", str(run), "--class", name, "--out", out]
        assert main(["explain", str(photo), str(other), *options]) == 0
        page = check_harmless((Path(out) / "sheet.html").read_text(encoding="utf-8"))
        assert name in page.text
        assert "牡丹.png" in page.text


def test_a_second_call_uses_the_next_folder_and_a_given_one_must_be_empty(
    run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(image_folder / "red" / "000.png")
    for _ in range(2):
        assert main(["explain", image, "--run", str(run)]) == 0
    before = Path("explained/001-000.png").read_bytes()

    assert files_in(Path("explained-2")) == ["001-000.png"]
    assert main(["explain", image, "--run", str(run), "--out", "explained"]) == 5
    assert "not empty" in capsys.readouterr().err
    assert Path("explained/001-000.png").read_bytes() == before


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


def test_the_class_is_selected_by_name(
    run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(image_folder / "red" / "000.png")
    for name in CLASSES:
        assert main(["explain", image, "--run", str(run), "--class", name, "--out", name]) == 0

    pictures = {(Path(name) / "001-000.png").read_bytes() for name in CLASSES}
    assert len(pictures) == 3
    capsys.readouterr()
    assert main(["explain", image, "--run", str(run), "--class", "rod"]) == 2
    assert "no class 'rod'\n  fix: use one of its classes, e.g. red" in capsys.readouterr().err


def test_a_misspelt_path_is_answered_with_the_path_that_was_meant(
    run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, meant = (str(image_folder / name / "000.png") for name in ("rde", "red"))

    assert main(["explain", wrong, "--run", str(run)]) == 3
    error = f"error: {wrong} does not exist\n  fix: check the path: did you mean {meant}?\n"
    assert error in capsys.readouterr().err

    assert main(["explain", "a.png", "b.png", "--run", str(run)]) == 3
    error = "error: a.png and b.png do not exist\n  fix: check the paths\n"
    assert error in capsys.readouterr().err

    assert main(["explain", wrong, meant, "--run", str(run)]) == 3
    captured = capsys.readouterr()
    assert f"warning: {wrong} not found: did you mean {meant}?" in captured.err
    assert "error: not found" in captured.out
    assert "relevance maps of 1 image" in captured.out


def test_a_dataset_of_arrays_is_named_with_an_image_in_it(
    run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.arange(4 * 16 * 16, dtype=np.uint8).reshape(4, 16, 16)
    np.savez("digits.npz", x=images, y=np.arange(4) % 2)
    np.savez("weights.npz", kernel=np.zeros(3))
    red = str(image_folder / "red" / "000.png")

    for command in ("explain", "predict"):
        assert main([command, "digits.npz", "weights.npz", red, "--run", str(run)]) == 3
        shown = capsys.readouterr().out
        assert (
            "a dataset of 4 images, not an image: name one, e.g. digits.npz/all/0/00000." in shown
        )
        assert "evaluate all with vitft evaluate --data digits.npz --run RUN" in shown
        assert "a NumPy archive without labelled images, not an image" in shown
        assert main([command, "digits.npz/all/0/00000.bmp", "--run", str(run)]) == 0
        for wrong in ("all/0/00099.bmp", "3/00003.bmp", "train/0/00000.bmp"):
            assert main([command, f"digits.npz/{wrong}", "--run", str(run)]) == 3
            shown = " ".join(capsys.readouterr().out.split())
            form = "name an image digits.npz/all/CLASS/INDEX.bmp (INDEX from 00000 to 00003)"
            assert form in shown
        assert main([command, "torchvision:MNIST", "--run", str(run)]) == 3
        assert (
            "evaluate all with vitft evaluate --data torchvision:MNIST --run RUN"
            in capsys.readouterr().out
        )


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
    from vitft.explain.model import validation_files

    assert [Path(name).name for name in validation_files(run)] == ["000.png", "001.png", "002.png"]
    assert main(["explain", "--model", "--run", str(run), "--out", "o"]) == 0
    assert "distance.png" in files_in(Path("o"))


def test_validation_images_of_an_array_dataset_are_found(run: Path, tmp_path: Path) -> None:
    images = np.arange(4 * 16 * 16, dtype=np.uint8).reshape(4, 16, 16)
    np.savez("digits.npz", x=images, y=np.arange(4) % 2)
    rows = [
        f"all/{n % 2}/0000{n}.bmp,{n % 2},{'val' if n < 3 else 'train'},{n:064}" for n in range(4)
    ]
    (run / "split.csv").write_text("path,label,split,sha256\n" + "\n".join(rows) + "\n")
    (run / "config.toml").write_text(f'[data]\npath = "{tmp_path / "digits.npz"}"\n')
    from vitft.explain.model import validation_files

    assert [Path(name).name for name in validation_files(run)] == [
        "00000.bmp", "00001.bmp", "00002.bmp",
    ]  # fmt: skip
    Path("digits.npz").unlink()
    assert validation_files(run) == []


def test_weights_without_a_head_show_their_attention(
    run: Path, tiny_weights: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(image_folder / "red" / "000.png")
    command = ["explain", image, "--weights", str(tiny_weights)]

    assert main([*command, "--method", "rollout"]) == 0
    assert main(command) == 2

    assert "relevance needs a model with classes" in capsys.readouterr().err


def test_patches_and_tokens_are_drawn(
    run: Path, tiny_weights: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("page.jpg").write_text("<html>")
    good = str(image_folder / "red" / "000.png")

    assert main(["explain", "--patches", "page.jpg", good, "--run", str(run), "--out", "a"]) == 3
    weights = ["--weights", str(tiny_weights)]
    assert main(["explain", "--patches", good, *weights, "--out", "b"]) == 0

    assert files_in(Path("a")) == ["002-000-patches.png"]
    assert files_in(Path("b")) == ["001-000-patches.png"]
    with Image.open("a/002-000-patches.png", formats=["PNG"]) as figure:
        assert figure.width > 1200
    out, err = capsys.readouterr()
    assert "patches and tokens of 1 image written to a/" in out
    assert "error: " in out
    assert ("drawing: 2/2" in err, "drawing: 1/1" in err) == (True, True)


def test_pictures_for_slides_are_larger_and_have_a_legend(run: Path, image_folder: Path) -> None:
    command = ["explain", str(image_folder / "red" / "000.png"), "--run", str(run)]

    assert main([*command, "--size", "500", "--out", "large"]) == 0
    assert main([*command, "--size", "500", "--legend", "--out", "legend"]) == 0

    with Image.open("large/001-000.png") as large, Image.open("legend/001-000.png") as legend:
        assert large.size == (512, 512)  # 32 x 16 pixels
        assert legend.width == 512
        assert legend.crop((0, 0, 512, 512)).tobytes() == large.tobytes()
        bar = np.asarray(legend)[512:, :, :].reshape(-1, 512, 3)[15].astype(int)
        assert bar[20].sum() < bar[490].sum()  # from dark to bright


def test_the_picture_of_all_heads_is_as_large_as_asked_and_has_the_legend(
    run: Path, image_folder: Path
) -> None:
    image = str(image_folder / "red" / "000.png")
    command = ["explain", image, "--run", str(run), "--method", "attention"]

    assert main([*command, "--out", "usual"]) == 0
    assert main([*command, "--size", "700", "--out", "large"]) == 0
    assert main([*command, "--size", "700", "--legend", "--out", "legend"]) == 0

    sizes = []
    for name in ("usual", "large", "legend"):
        with Image.open(f"{name}/001-000-heads.png") as picture:
            sizes.append(picture.size)
    usual, large, legend = sizes
    assert min(usual) < 300
    assert min(large) >= 700
    assert legend[0] == large[0]
    assert legend[1] > large[1]


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param([], "no images given", id="nothing"),
        pytest.param(
            ["x.png", "--method", "Grad-CAM"],
            "unknown method 'Grad-CAM'\n  fix: use one of relevance, rollout, attention (relevance "
            "is the closest to Grad-CAM)",
            id="method",
        ),
        pytest.param(
            ["x.png", "--method", "rollot"],
            "fix: did you mean rollout? Use one of relevance, rollout, attention\n",
            id="misspelled method",
        ),
        pytest.param(
            ["x.png", "--method", "heat", "--class", "rose"],
            "unknown method 'heat'\n  fix: use one of relevance, rollout, attention\n",
            id="method before its options",
        ),
        pytest.param(
            ["x.png", "--method", "rollout", "--fusion", "sum"],
            "invalid choice: 'sum'\n  fix: use one of mean, max, min",
            id="fusion",
        ),
        pytest.param(["x.png", "--fusion", "max"], "--fusion has no effect", id="idle"),
        pytest.param(["x.png", "--method", "rollout", "--class", "a"], "--class has", id="class"),
        pytest.param(
            ["x.png", "--method", "rollout", "--discard", "1"], "invalid discard 1.0", id="1"
        ),
        pytest.param(["x.png", "--block", "1"], "--block has no effect", id="block"),
        pytest.param(["--patches"], "no images given", id="patches of nothing"),
        pytest.param(
            ["x.png", "--patches", "--method", "rollout"],
            "--method has no effect with --patches\n  fix: remove --method\n",
            id="patches and method",
        ),
        pytest.param(["x.png", "--patches", "--model"], "--patches has no effect", id="two"),
        pytest.param(
            ["x.png", "--patches", "--size", "9"], "--size has no effect", id="size of a figure"
        ),
        pytest.param(
            ["x.png", "--size", "0"], "invalid --size 0\n  fix: use an integer from 1", id="size"
        ),
        pytest.param(["x.png", "--size", "9999"], "invalid --size 9999", id="too large"),
        pytest.param(["--model", "--legend"], "--legend has no effect with --model", id="legend"),
        pytest.param(["--model", "--arrays"], "--arrays has no effect with --model", id="model"),
        pytest.param(
            ["x.png", "--run", "a", "--weights", "b"],
            "--run and --weights cannot be combined",
            id="both",
        ),
        pytest.param(
            ["x.png", "--method", "attention", "--head", "0", "--fusion", "max"],
            "--fusion combines all heads",
            id="head and fusion",
        ),
    ],
)
def test_an_option_without_effect_is_refused(
    options: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *options]) == 2

    assert message in capsys.readouterr().err
    assert not Path("explained").exists()


@pytest.mark.parametrize(
    ("images", "unreadable", "names", "code", "note"),
    [
        (["a.png"], [], ["filters.png", "distance.png"], 0, ""),
        (["a.png", "b.png"], ["b.png"], ["filters.png", "distance.png"], 3, ""),
        (["b.png"], ["b.png"], ["filters.png"], 3, "none of the images could be read"),
        (
            [],
            [],
            ["filters.png"],
            0,
            "attention distances are measured on images: name some after --model",
        ),
    ],
)
def test_the_plots_of_a_model_are_named_with_their_folder(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    images: list[str],
    unreadable: list[str],
    names: list[str],
    code: int,
    note: str,
) -> None:
    pytest.importorskip("matplotlib")
    given: list[object] = []

    def write(model: object, paths: list[str], out: Path) -> ModelFigures:
        given.extend([paths, out])
        errors = [ImageError(path, "empty file") for path in unreadable]
        return ModelFigures(names=tuple(names), failed=tuple(errors))

    monkeypatch.setattr("vitft.explain.model_figures.write_model_figures", write)
    for name in images:
        Path(name).touch()

    assert main(["explain", "--model", *images, "--run", str(run)]) == code

    printed = capsys.readouterr()
    assert given == [images, Path("explained")]
    assert printed.out == f"plots of run written to explained/: {', '.join(names)}\n"
    assert printed.err.splitlines() == [
        *(f"warning: {ImageError(path, 'empty file').problem}" for path in unreadable),
        *([f"distance.png was not written: {note}"] if note else []),
    ]


def test_images_beyond_the_first_ones_are_not_in_the_overview(
    run: Path,
    image_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitft.explain.explainer.MAX_ON_SHEET", 2)
    images = [str(image_folder / "red" / f"00{i}.png") for i in range(3)]
    Path("page.jpg").write_text("<html>")

    assert main(["explain", *images, "--run", str(run), "--out", "a"]) == 0
    assert "sheet.html shows only the first 2 images\n" in capsys.readouterr().err
    assert main(["explain", *images[:2], "page.jpg", "--run", str(run), "--out", "b"]) == 3
    assert "shows only" not in capsys.readouterr().err


def test_a_table_of_explained_images_has_the_class_and_the_files_of_each(
    run: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("page.jpg").write_text("<html>")
    image = str(image_folder / "red" / "000.png")
    command = ["explain", image, "page.jpg", "--run", str(run), "--class", "blue"]

    assert main(command) == 3

    printed = capsys.readouterr()
    head, good, bad, summary = printed.out.splitlines()
    assert [cell.strip() for cell in head.split("  ") if cell] == [
        *("path", "prediction", "explained class", "picture"),
    ]
    assert good.endswith("  blue             001-000.png")
    assert re.search(r"  (blue|green|red) \d+\.\d%  ", good)
    assert bad.startswith("page.jpg")
    assert "  error: " in bad
    assert summary == "relevance maps of 1 image written to explained/"
    assert printed.err.startswith("run run: 3 classes, accuracy unknown, ")
    assert "explaining: 2/2" in printed.err
    assert printed.err.endswith("1 image could not be explained: replace it, or leave it out\n")


def test_the_table_of_patches_names_each_picture(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def write(model: object, paths: list[str], out: Path) -> Iterator[ExplainedImage]:
        for path in paths:
            found: dict[str, Any] = {"error": "empty"}
            if path.endswith(".png"):
                found = {"file": out / f"{Path(path).stem}-patches.png"}
            yield ExplainedImage(path=path, **found)

    monkeypatch.setattr("vitft.explain.patches.write_patch_figures", write)
    for name in ("a.png", "b.jpg", "c.png"):
        Path(name).touch()

    assert main(["explain", "--patches", "a.png", "b.jpg", "c.png", "--run", str(run)]) == 3

    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "path   picture      ",
        "a.png  a-patches.png",
        "b.jpg  error: empty ",
        "c.png  c-patches.png",
        "patches and tokens of 2 images written to explained/",
    ]
    assert "drawing: 3/3" in printed.err
    assert printed.err.endswith("1 image could not be explained: replace it, or leave it out\n")
    assert main(["explain", "--patches", "b.jpg", "--run", str(run)]) == 3
    assert "written to" not in capsys.readouterr().out
    assert main(["explain", "--patches", "a.png", "--run", str(run)]) == 0
    assert "explained: " not in capsys.readouterr().err
