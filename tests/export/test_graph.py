"""Parts of exported graphs: bytes and grey levels inside the graph, its description, and errors."""

import json
import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.support.export_run import make_run, tiny
from vitft.data.transforms import EvalTransform
from vitft.export.formats.base import (
    NumericArray,
    OpenedModel,
    count_same,
    first_unsupported,
    predictions,
)
from vitft.export.formats.graph import (
    NormalisingModel,
    describe_graph,
    example_of,
    export_error,
    open_graph,
    silenced,
    to_grey,
)
from vitft.export.formats.onnx import OnnxFormat
from vitft.export.trained import TrainedRun, load_trained


@pytest.fixture
def trained(tmp_path: Path) -> TrainedRun:
    return load_trained(str(make_run(tmp_path, mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))))


@pytest.fixture
def grey(tmp_path: Path) -> TrainedRun:
    config = tiny(3, in_channels=1)
    return load_trained(str(make_run(tmp_path, config=config, mean=(0.4,), std=(0.2,))))


def test_a_graph_converts_colours_to_grey_exactly_as_pillow() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (400, 300, 3), dtype=np.uint8)
    colours[0, :7] = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0] * 3, [1] * 3,
                      [128] * 3]  # fmt: skip
    planes = torch.from_numpy(colours).permute(2, 0, 1)[None].float()

    found = to_grey(planes)

    expected = np.asarray(Image.fromarray(colours).convert("L"))
    assert found.shape == (1, 1, 400, 300)
    assert (found[0, 0].numpy() == expected).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_are_normalised_in_the_graph_as_before_it(channels: int) -> None:
    transform = EvalTransform(
        image_size=(2, 3), mean=(0.5, 0.4, 0.3)[:channels], std=(0.1, 0.2, 0.3)[:channels]
    )
    views = np.random.default_rng(0).integers(0, 256, (4, 2, 3, 3), dtype=np.uint8)

    found = NormalisingModel(nn.Identity(), transform)(torch.from_numpy(views))

    values = views.astype(float)
    if channels == 1:
        greys = [np.asarray(Image.fromarray(view).convert("L")) for view in views]
        values = np.stack(greys)[..., None].astype(float)
    expected = (values / 255 - transform.mean) / transform.std
    assert found.shape == (4, channels, 2, 3)
    np.testing.assert_allclose(found.permute(0, 2, 3, 1), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("takes_bytes", "any_size", "name", "layout"),
    [
        (False, False, "pixels",
         "float32 (batch, 3, 16, 16): RGB, (value / 255 - mean) / std per channel"),
        (True, False, "pixels", "uint8 (batch, 16, 16, 3): RGB, 0 to 255; the graph normalises it"),
        (True, True, "image",
         "uint8 (batch, height, width, 3): upright RGB images of any size; the graph resizes, "
         "crops and normalises them"),
        (False, True, "pixel_values",
         "float32 (batch, 3, height, width): upright RGB of any size, values 0 to 255"),
    ],
)  # fmt: skip
def test_the_description_of_a_graph_names_its_input(
    trained: TrainedRun, name: str, layout: str, *, takes_bytes: bool, any_size: bool
) -> None:
    trained = replace(trained, card=replace(trained.card, run={}))

    text = describe_graph(trained, takes_bytes=takes_bytes, any_size=any_size)

    assert text.isascii()
    assert "\n" not in text
    assert json.loads(text) == {
        "classes": ["blue", "green", "red"],
        "transform": json.loads(json.dumps(trained.card.transform.to_json())),
        "input": {"name": name, "layout": layout, "bytes": takes_bytes, "any_size": any_size},
        "output": {
            "name": "logits",
            "layout": "float32 (batch, classes), before the softmax",
        },
        "weights": dict(trained.card.weights),
        "split": trained.card.split,
        "made_by": f"vitft {version('vitft')}",
    }


def test_the_description_of_a_graph_states_labels_and_the_figures_of_the_run(
    trained: TrainedRun,
) -> None:
    run: Any = {"top1": 0.5}
    card = replace(trained.card, thresholds=(0.25, 0.5, 0.75), run=run)

    found = json.loads(describe_graph(replace(trained, card=card), takes_bytes=False))

    assert found["output"]["layout"] == "float32 (batch, classes), before the sigmoid"
    assert found["thresholds"] == [0.25, 0.5, 0.75]
    assert found["run"] == {"top1": 0.5}
    assert found["input"]["any_size"] is False


def test_a_grey_graph_takes_one_channel_or_bytes_of_three(grey: TrainedRun) -> None:
    layout = json.loads(describe_graph(grey, takes_bytes=False))["input"]["layout"]
    plain, pixels = example_of(grey, takes_bytes=False)
    normalising, colours = example_of(grey, takes_bytes=True)

    assert layout == (
        "float32 (batch, 1, 16, 16): greyscale, (value / 255 - mean) / std per channel"
    )
    assert plain is grey.model
    assert (pixels.dtype, tuple(pixels.shape)) == (torch.float32, (2, 1, 16, 16))
    assert isinstance(normalising, NormalisingModel)
    assert not normalising.training
    assert (colours.dtype, tuple(colours.shape)) == (torch.uint8, (2, 16, 16, 3))
    with torch.inference_mode():
        assert normalising(colours).shape == plain(pixels).shape == (2, 3)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ValueError("\n\n  no such operator  \nsecond line"), "no such operator"),
        (ValueError("x" * 201), "x" * 200),
        (ValueError(" \n "), "ValueError"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_a_model_that_cannot_be_exported_is_one_sentence(error: Exception, problem: str) -> None:
    found = export_error("ONNX", error)

    assert found.problem == f"ONNX cannot export this model: {problem}"
    assert found.fix == "use --timm or --safetensors"


def test_exporters_are_silent_and_leave_the_level_of_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    level = logging.root.level
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError), silenced():  # noqa: PT012
            print("printed")
            print("to stderr", file=sys.stderr)
            logging.getLogger("exporter").error("logged")
            warnings.warn("a warning", stacklevel=1)
            raise ZeroDivisionError

    assert logging.root.level == level
    assert capsys.readouterr() == ("", "")
    assert caplog.text == ""


@pytest.mark.parametrize("takes_bytes", [False, True])
def test_a_graph_is_opened_as_it_is_described(trained: TrainedRun, *, takes_bytes: bool) -> None:
    card = replace(trained.card, thresholds=(0.25, 0.5, 0.75))
    text = describe_graph(replace(trained, card=card), takes_bytes=takes_bytes)

    def logits(inputs: NumericArray) -> NumericArray:
        return inputs + 1

    opened = open_graph(json.loads(text), logits, by="a tool")

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8))
    view = trained.card.transform.pixels(image)
    expected = (view / 255 - (0.5, 0.4, 0.3)) / (0.1, 0.2, 0.3)
    found = opened.prepare(image)
    if takes_bytes:
        assert (found == view).all()
    else:
        np.testing.assert_allclose(found.transpose(1, 2, 0), expected, atol=1e-5)
    assert (opened.by, opened.classes) == ("a tool", ("blue", "green", "red"))
    assert opened.thresholds == (0.25, 0.5, 0.75)
    assert opened.logits is logits
    plain = json.loads(describe_graph(trained, takes_bytes=takes_bytes))
    assert open_graph(plain, logits, by="a tool").thresholds == ()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_inputs_are_stacked_unless_they_may_differ_in_size(*, one_by_one: bool) -> None:
    shapes: list[tuple[int, ...]] = []

    def logits(inputs: NumericArray) -> NumericArray:
        shapes.append(inputs.shape)
        return inputs.reshape(len(inputs), -1).sum(axis=1, keepdims=True)

    opened = OpenedModel(
        by="", classes=("a",), prepare=np.asarray, logits=logits, one_by_one=one_by_one
    )
    inputs = [np.ones((2, 3)), np.full((2, 3), 2.0)]

    assert opened.predict(inputs).tolist() == [[6], [12]]
    assert shapes == ([(1, 2, 3)] * 2 if one_by_one else [(2, 2, 3)])


@pytest.mark.parametrize(
    ("thresholds", "expected"),
    [
        ((), [0, 1]),
        ((0.5, 0.5), [[True, False], [True, True]]),
        ((0.75, 0.75), [[False, False], [False, True]]),
    ],
)
def test_a_prediction_is_the_largest_logit_or_each_that_reaches_its_threshold(
    thresholds: Sequence[float], expected: list[Any]
) -> None:
    logits = np.array([[0.0, -1.0], [1.0, 2.0]])

    assert predictions(logits, thresholds).tolist() == expected


def test_images_on_which_all_labels_agree_are_counted() -> None:
    flags = np.array([[True, False], [True, True], [False, False]])

    assert count_same(np.array([0, 1, 2, 2]), np.array([0, 2, 2, 2])) == 3
    assert count_same(flags, flags) == 3
    assert count_same(flags, flags[:, ::-1]) == 2


def test_the_first_unsupported_part_is_named() -> None:
    assert first_unsupported({"a": False, "b": True, "c": True}) == "b"
    assert first_unsupported({"a": False}) == ""


def test_a_format_without_two_graphs_has_no_sizes_notes_or_8_bit_graph(tmp_path: Path) -> None:
    form = OnnxFormat()

    assert form.graph_sizes(tmp_path) == (0, 0)
    assert form.notes() == []
    assert form.open_int8(tmp_path) is None
    assert (form.is_model, form.reads_last_block) == (True, False)
