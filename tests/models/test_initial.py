"""New models with random weights: shape, defaults, and that every command accepts their runs."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import draw_folder
from vitft.config.run import Config, config_from_table
from vitft.config.sections import WeightsSpec
from vitft.data.folder import Folder
from vitft.data.images import read_bytes
from vitft.data.labelled import find_labelled
from vitft.data.scan import scan
from vitft.data.transforms import EvalTransform
from vitft.export.job import export_run
from vitft.export.plan import ExportPlan
from vitft.metrics.calibration import softmax
from vitft.models.checkpoint import load_checkpoint
from vitft.models.initial import (
    checked_size,
    checked_statistics,
    fitted,
    log_model,
    new_model,
    sample_facts,
    sinusoidal_positions,
)
from vitft.models.pretrained.report import LoadReport
from vitft.models.pretrained.weights import UNSTATED
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.predict.evaluate import evaluate
from vitft.predict.numpy_engine import NumpyEngine
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import DataError, RunError, UsageError
from vitft.training.batches import training_batches
from vitft.training.checks import check_request
from vitft.training.distributed import ProcessGroup
from vitft.training.run import run_finetuning
from vitft.training.setup import Start, extract_and_split, load_data_and_model

SMALL = {"width": 16, "depth": 2, "heads": 2}


def settings(data: Path, **tables: dict[str, Any]) -> Config:
    table: dict[str, Any] = {
        "data": {"path": str(data)},
        "weights": {"name": "none"},
        "model": SMALL | tables.pop("model", {}),
        "optim": {"epochs": 2, "batch_size": 8, "lr": 3e-3} | tables.pop("optim", {}),
        "train": {"device": "cpu"} | tables.pop("train", {}),
    }
    return config_from_table(table | tables)


def initial_for(config: Config, folder: Folder) -> tuple[VisionTransformer, LoadReport]:
    """A new model with the settings of a run."""
    return new_model(
        config.weights,
        config.model,
        folder,
        max_pixels=config.data.max_pixels,
        drop_path=config.train.drop_path,
        seed=config.train.seed,
    )


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Three kinds of grey bars in an .npz that has its own split."""
    random = np.random.default_rng(0)
    labels = np.arange(45) % 3
    images = random.integers(0, 60, (45, 8, 8))
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 3] += 150
    path = tmp_path / "digits.npz"
    images = images.astype(np.uint8)
    np.savez(path, x_train=images[:30], y_train=labels[:30], x_test=images[30:],
             y_test=labels[30:])  # fmt: skip
    return path


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """Three colours, 20 pixels high and 24 wide."""
    return draw_folder(tmp_path / "colours", per_class=8)


def test_without_weights_everything_trains_and_no_weights_are_looked_for(colours: Path) -> None:
    config = settings(colours)

    assert config.train.freeze == "none"
    assert config.train.augment == "shift"
    assert config.optim.layer_decay == 1
    assert not check_request(config, None)[1].exists()


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        pytest.param(
            {"train": {"freeze": "head"}}, "train.freeze=head would freeze random", id="frozen"
        ),
        pytest.param(
            {"weights": {"name": "demo"}},
            r"\[model\] .* have no effect on pretrained",
            id="with weights",
        ),
        pytest.param(
            {"model": {"heads": 3}}, "not a multiple of model.heads=3", id="heads that do not fit"
        ),
        pytest.param({"model": {"norm": "both"}}, "invalid model.norm=both", id="no such norm"),
        pytest.param(
            {"model": {"layers": 3}}, "unknown setting model.layers", id="no such setting"
        ),
        pytest.param({"train": {"flip": 2}}, "invalid train.flip=2.0", id="no share"),
    ],
)
def test_what_makes_no_sense_from_scratch_is_refused(
    colours: Path, tables: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        settings(colours, **tables)


def test_shift_is_refused_where_a_part_is_frozen(colours: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.augment=shift cannot be combined"):
        config_from_table({"data": {"path": str(colours)}, "weights": {"name": "demo"},
                    "train": {"freeze": "blocks:1", "augment": "shift"}})  # fmt: skip


def test_the_model_has_the_shape_of_the_settings_and_of_the_images(colours: Path) -> None:
    model, report = initial_for(
        settings(colours, model={"norm": "post", "pool": "mean", "registers": 2}), scan(colours)
    )

    assert model.config == ViTConfig(
        image_size=(20, 24),
        patch_size=(4, 4),
        in_channels=3,
        width=16,
        depth=2,
        heads=2,
        num_classes=3,
        norm="post",
        pool="mean",
        registers=2,
    )
    assert report.transform.image_size == (20, 24)
    assert report.transform.crop == 1
    assert "post-norm" in report.architecture
    assert report.loaded == 0


def test_grey_images_make_a_model_of_one_channel(digits: Path, tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / "greys" / label).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (8, 8), 40 * i).save(tmp_path / "greys" / label / f"{i}.png")

    for data in (digits, tmp_path / "greys"):
        assert initial_for(settings(data), scan(data))[0].config.in_channels == 1
    of_three, _ = initial_for(settings(digits, model={"channels": 3}), scan(digits))
    assert of_three.config.in_channels == 3


@pytest.mark.parametrize(("number", "sampled"), [(1, 1), (32, 32), (63, 63), (64, 32), (97, 33)])
def test_a_sample_of_the_images_is_inspected(
    monkeypatch: pytest.MonkeyPatch, colours: Path, number: int, sampled: int
) -> None:
    folder = scan(colours)
    files: Any = tuple(f"{i}" for i in range(number))
    inspected: list[str] = []

    def inspect(_: str, file: str, *__: object, max_pixels: int) -> tuple[tuple[int, int], bool]:
        assert max_pixels == 99
        inspected.append(file)
        return (8, 9), file != "0"

    monkeypatch.setattr("vitft.models.initial.inspect_file", inspect)

    assert sample_facts(replace(folder, files=files), 99) == ((8, 9), False)
    assert len(inspected) == sampled
    assert inspected == [*files[:: int(inspected[1]) if number > 1 else 1]]


def test_images_without_any_colour_are_grey_and_one_in_colour_counts(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.new("RGB", (9, 7), (5, 5, 5)).save(tmp_path / "a" / f"{i}.png")
    (tmp_path / "b").mkdir()
    Image.new("RGB", (9, 7), (5, 5, 5)).save(tmp_path / "b" / "0.png")

    assert sample_facts(scan(tmp_path), 1000) == ((7, 9), True)
    Image.new("RGB", (9, 7), (5, 5, 6)).save(tmp_path / "b" / "1.png")
    assert sample_facts(scan(tmp_path), 1000) == ((7, 9), False)
    Image.new("RGB", (7, 9), (5, 6, 5)).save(tmp_path / "b" / "2.png")
    assert sample_facts(scan(tmp_path), 1000) == (None, False)


def test_a_folder_without_a_readable_image_is_refused_with_the_last_reason(colours: Path) -> None:
    with pytest.raises(DataError, match=r"no readable image found in .* after trying 24 images"):
        sample_facts(scan(colours), 1)


def test_images_of_at_most_256_pixels_set_the_input_size(colours: Path) -> None:
    folder = scan(colours)

    assert checked_size(folder, (256, 256)) == (256, 256)
    assert checked_size(folder, (1, 2)) == (1, 2)
    for size in ((257, 8), (8, 257)):
        with pytest.raises(DataError, match=f"are {size[1]}x{size[0]} pixels, .* too large"):
            checked_size(folder, size)


def test_statistics_are_one_half_unless_they_are_given() -> None:
    assert checked_statistics(None, 2) == (0.5, 0.5)
    assert checked_statistics((0.1, 0.2), 2) == (0.1, 0.2)
    with pytest.raises(DataError, match="got 1 mean or std value, but the model has 2 channels"):
        checked_statistics((0.1,), 2)


def test_positions_of_a_patch_are_waves_of_lengths_from_2_pi_to_200_pi() -> None:
    table = sinusoidal_positions((3, 4), 12)  # three frequencies: 1, 1/10 and 1/100

    expected = [
        [f(place / scale) for place in (x, y) for f in (np.sin, np.cos) for scale in (1, 10, 100)]
        for y in range(3)
        for x in range(4)
    ]
    assert table.numpy() == pytest.approx(np.array(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "fit", "crop"),
    [
        ({}, "crop", 0.9),
        ({"fit": "crop"}, "crop", 0.9),
        ({"fit": "squash"}, "squash", 1.0),
        ({"fit": "pad"}, "pad", 1.0),
        ({"crop": 0.5}, "crop", 0.5),
    ],
)
def test_settings_of_the_view_replace_those_of_the_weights(
    settings: dict[str, Any], fit: str, crop: float
) -> None:
    found = fitted(EvalTransform(crop=0.9), WeightsSpec(**settings))

    assert (found.fit, found.crop) == (fit, crop)


def test_assumed_statistics_are_announced_and_random_weights_named(
    colours: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, report = initial_for(settings(colours), scan(colours))

    log_model("none", report)
    assert "do not state mean" not in (shown := capsys.readouterr().err)
    assert "none: random initialisation" in shown
    log_model("x", replace(report, statistics_source=UNSTATED))
    assert "the weights do not state mean and std. 0.5 is assumed" in capsys.readouterr().err
    log_model("random:demo", replace(report, statistics_source=UNSTATED))
    assert "random weights instead of demo" in (shown := capsys.readouterr().err)
    assert "do not state" not in shown


def test_the_report_of_a_new_model_counts_its_parameters_and_names_its_statistics(
    colours: Path,
) -> None:
    given = {"name": "none", "mean": [0.1, 0.2, 0.3], "std": [0.3, 0.2, 0.1]}
    model, report = initial_for(settings(colours), scan(colours))
    _, stated = initial_for(settings(colours, weights=given), scan(colours))

    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert not model.training
    assert (report.transform.mean, report.transform.std) == ((0.5,) * 3, (0.5,) * 3)
    assert report.statistics_source == "default; change with --mean and --std"
    assert stated.transform.mean == (0.1, 0.2, 0.3)
    assert stated.transform.std == (0.3, 0.2, 0.1)
    assert stated.statistics_source == "given by --mean and --std"
    assert report.head == "new, 3 classes, initialised to zero"


def test_the_same_seed_begins_with_the_same_weights(colours: Path) -> None:
    folder = scan(colours)
    first, again, other = (
        initial_for(settings(colours, train={"seed": seed}), folder)[0].get_parameter("pos_embed")
        for seed in (0, 0, 1)
    )

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_positions_may_begin_as_waves_of_row_and_column(colours: Path) -> None:
    folder = scan(colours)
    model, _ = initial_for(settings(colours, model={"positions": "waves"}), folder)
    noise, _ = initial_for(settings(colours), folder)
    rows, columns = model.config.grid
    table = model.get_parameter("pos_embed")[0, 1:].reshape(rows, columns, -1)
    half = table.shape[-1] // 2  # first the column, then the row

    assert torch.equal(table[0, :, :half], table[1, :, :half])
    assert torch.equal(table[:, 0, half:], table[:, 1, half:])
    assert table.square().mean().item() == pytest.approx(0.5)  # sin² + cos² = 1
    assert noise.pos_embed.abs().max() < 0.1
    rest, same = ({**m.state_dict()} for m in (model, noise))
    assert all(torch.equal(rest[n], same[n]) for n in rest if n != "pos_embed")


def test_images_of_several_sizes_ask_for_one(colours: Path) -> None:
    Image.new("RGB", (9, 9)).save(colours / "red" / "000.png")
    config = settings(colours)

    with pytest.raises(DataError, match=r"(?s)differ in size.*--image-size 64"):
        initial_for(config, scan(colours))
    named = replace(config, weights=replace(config.weights, image_size=(16, 16)))
    assert initial_for(named, scan(colours))[0].config.image_size == (16, 16)


def test_patches_that_do_not_tile_the_images_are_refused(colours: Path) -> None:
    with pytest.raises(UsageError, match=r"patches of 7 x 7 pixels.*\n.*patch_size=4, or"):
        initial_for(settings(colours, model={"patch_size": 7}), scan(colours))


@pytest.mark.parametrize(
    ("image_size", "patch", "said"),
    [
        pytest.param((8, 8), 3, "model.patch_size=2 or 4, .* a multiple of 3", id="both sides"),
        pytest.param((8, 8), 16, "model.patch_size=8, or", id="larger than the image"),
        pytest.param((12, 8), 3, "model.patch_size=2 or 4, or", id="only one side is divided"),
        pytest.param((7, 7), 2, "model.patch_size=7, or", id="a prime number"),
    ],
)
def test_settings_alone_show_that_patches_do_not_tile_the_images(
    image_size: tuple[int, int], patch: int, said: str
) -> None:
    weights = {"name": "none", "image_size": list(image_size)}

    with pytest.raises(UsageError, match=said):
        config_from_table({"weights": weights, "model": {"patch_size": patch}})


def test_statistics_for_other_channels_are_refused(digits: Path) -> None:
    config = settings(digits, weights={"name": "none", "mean": [0.5] * 3, "std": [0.5] * 3})

    with pytest.raises(DataError, match="got 3 mean or std values, but the model has 1"):
        initial_for(config, scan(digits))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_model_of_greys_learns_from_arrays_and_every_reader_agrees(
    digits: Path, tmp_path: Path, norm: str
) -> None:
    config = settings(digits, model={"norm": norm}, optim={"epochs": 12}, train={"flip": 0.0})

    result = run_finetuning(config, out=tmp_path / "run")

    assert result.figures["top1"] > 0.6  # a third by chance
    paths = [f"{digits}/test/{i}/{i:05}.bmp" for i in range(3)]
    answers = [*Predictor.from_run(str(tmp_path / "run"), device="cpu").stream(paths)]
    engine = NumpyEngine.open(tmp_path / "run" / "model.safetensors")
    assert engine is not None
    views = np.stack([engine.view(read_bytes(path), path) for path in paths])
    shares = softmax(engine.scores(views).logits)
    assert [max(row) for row in shares.tolist()] == pytest.approx(
        [answer.probabilities[0] for answer in answers], abs=1e-4
    )
    judged = evaluate(find_labelled(digits), str(tmp_path / "run"), device="cpu")
    assert judged.results["top1"] == pytest.approx(result.figures["top1"])


def test_a_run_of_arrays_keeps_their_split_in_its_table(digits: Path, tmp_path: Path) -> None:
    run_finetuning(settings(digits, optim={"epochs": 1}), out=tmp_path / "run")

    lines = (tmp_path / "run" / "split.csv").read_text().splitlines()
    assert sum(",test," in line for line in lines) == 15  # as in the arrays, kept for the end
    assert sum(",val," in line for line in lines) == 6  # drawn from the others
    _, card = load_checkpoint(tmp_path / "run" / "model.safetensors")
    assert card.weights == {"name": "none"}
    assert isinstance(card.architecture, ViTConfig)
    assert card.architecture.in_channels == 1
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["top1"] >= 0


@pytest.mark.parametrize(
    ("odd", "word"), [({"norm": "post"}, "post"), ({"convs": [8, 16]}, "convolutional stem")]
)
def test_a_model_is_not_given_to_libraries_that_lack_a_part_of_it(
    digits: Path, tmp_path: Path, odd: dict[str, Any], word: str
) -> None:
    run_finetuning(settings(digits, model=odd, optim={"epochs": 1}), out=tmp_path / "run")

    for kind in ("timm", "transformers"):
        with pytest.raises(RunError, match=word):
            export_run(str(tmp_path / "run"), ExportPlan(formats=(kind,), out=tmp_path / kind))


def test_a_model_behind_convolutions_is_a_run_like_any_other(digits: Path, tmp_path: Path) -> None:
    config = settings(digits, model={"convs": [8, 16]}, optim={"epochs": 12}, train={"flip": 0.0})

    result = run_finetuning(config, out=tmp_path / "run")

    assert result.figures["top1"] > 0.6  # a third by chance
    judged = evaluate(find_labelled(digits), str(tmp_path / "run"), device="cpu")
    assert judged.results["top1"] == pytest.approx(result.figures["top1"])
    export_run(str(tmp_path / "run"), ExportPlan(formats=("onnx",), out=tmp_path / "onnx"))
    # Its own weights begin another run, of images in colour and of another size.
    colours = draw_folder(tmp_path / "colours", per_class=4)
    again = config_from_table({
        "data": {"path": str(colours)},
        "weights": {"name": str(tmp_path / "run"), "image_size": [12, 12]},
        "train": {"device": "cpu"},
    })  # fmt: skip
    run_finetuning(again, out=tmp_path / "again")
    old, new = (
        load_checkpoint(tmp_path / name / "model.safetensors")[0] for name in ("run", "again")
    )
    first = "patch_embed.backbone.0.conv.weight"
    assert torch.allclose(new[first].sum(dim=1, keepdim=True), old[first], atol=1e-6)


def test_freed_memory_is_kept_while_a_cpu_trains(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def kept(*, when: bool) -> contextlib.nullcontext[None]:
        asked.append(when)
        return contextlib.nullcontext()

    monkeypatch.setattr("vitft.training.run.freed_memory_kept", kept)
    run_finetuning(settings(colours, optim={"epochs": 1}), out=tmp_path / "run")

    assert asked == [True]


def begin(config: Config) -> Start:
    return extract_and_split(load_data_and_model(config, ProcessGroup()), ProcessGroup())


def batches_of(config: Config, *, epoch: int, done: int = 0) -> list[tuple[Any, Any]]:
    start = begin(config)
    batches = training_batches(start.setup.config.train, start.setup.config.optim, start.inputs)
    return [(batch.inputs, batch.labels) for batch in batches(epoch, done)]


def test_images_in_memory_give_the_batches_that_their_files_would(
    colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(colours)
    held = batches_of(config, epoch=1)
    assert begin(config).inputs.images is not None

    monkeypatch.setattr("vitft.data.augment.MEMORY_BYTES", 0)
    read = batches_of(config, epoch=1)

    assert begin(config).inputs.images is None
    assert len(held) == len(read) == 3
    for ours, theirs in zip(held, read, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_an_epoch_that_goes_on_in_its_middle_gives_the_same_batches(colours: Path) -> None:
    whole = batches_of(settings(colours), epoch=2)
    rest = batches_of(settings(colours), epoch=2, done=1)

    assert len(rest) == len(whole) - 1
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole[1:], rest, strict=True))
    other = batches_of(settings(colours), epoch=3)
    assert not torch.equal(whole[0][0], other[0][0])
