"""Explanations of image files: their order, numbers, pictures, arrays and overview page."""

import base64
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitft.data.transforms import EvalTransform
from vitft.explain.attribution import attention_maps, explain, scale_maps
from vitft.explain.explainer import (
    ExplainedImage,
    Explainer,
    head_maps,
    illustrate_predictions,
    picture_stem,
    safe_stem,
)
from vitft.explain.heatmaps import overlay
from vitft.explain.method import Method
from vitft.explain.model import ExplainedModel
from vitft.features.reference import Reference
from vitft.models.card import Card
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.predict.postprocess import Postprocess
from vitft.predict.prediction import OUT_OF_DISTRIBUTION, Prediction
from vitft.predict.torch_engine import Predictor

CLASSES = ("blue", "green", "red")
TILE: dict[str, Any] = {"view": "", "map": "", "name": "x", "answer": "", "about": "", "notes": ()}


def random_vit(config: ViTConfig) -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(config).eval()
    for name, tensor in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(tensor, std=0.3)
    return model


def explained_model(config: ViTConfig, classes: tuple[str, ...] = CLASSES) -> ExplainedModel:
    transform = EvalTransform(image_size=config.image_size, crop=1.0)
    return ExplainedModel(
        name="roses", net=random_vit(config), transform=transform, classes=classes
    )


def explainer_for(model: ExplainedModel, out: Path, **options: Any) -> Explainer:
    given: dict[str, Any] = {"postprocess": Postprocess(classes=model.classes)}
    return Explainer(model=model, out=out, **{"method": Method()} | given | options)


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    """Twelve images of 16 pixels, of which the first, tenth and last are not readable."""
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.png" for i in range(12)]
    for i, path in enumerate(paths):
        if i in (0, 9, 11):
            path.write_text("<html>")
        else:
            Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return [str(path) for path in paths]


def pixels_of(model: ExplainedModel, path: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with Image.open(path) as image:
        return model.transform.pixels(image.convert("RGB"))


@torch.no_grad()
def test_results_and_files_have_the_order_and_numbers_of_the_images(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    model, out = explained_model(tiny_config), tmp_path / "out"

    found = [*explainer_for(model, out).images(photos)]

    assert [result.path for result in found] == photos
    assert [i for i, result in enumerate(found) if result.error] == [0, 9, 11]
    assert sorted(file.name for file in out.iterdir()) == [
        f"{i + 1:03}-{i}.png" for i in range(12) if i not in (0, 9, 11)
    ]
    for i in (1, 8, 10):
        view = pixels_of(model, photos[i])
        logits = model.net(model.inputs(view[None])).softmax(dim=-1)[0]
        assert found[i].file == out / f"{i + 1:03}-{i}.png"
        assert found[i].answer == CLASSES[int(logits.argmax())]
        assert found[i].probability == pytest.approx(float(logits.max()), abs=1e-5)
        heat = explain(model.net, model.inputs(view[None]), Method()).values
        picture = Image.fromarray(view).resize((224, 224), Image.Resampling.NEAREST)
        with Image.open(out / f"{i + 1:03}-{i}.png") as written:
            difference = np.abs(
                np.asarray(written, int) - np.asarray(overlay(picture, scale_maps(heat)[0]), int)
            )
        assert difference.max() <= 1


def test_images_of_which_none_is_readable_have_only_errors(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    explainer = explainer_for(explained_model(tiny_config), tmp_path / "out")

    found = [*explainer.images([photos[0], photos[9]])]

    assert [(result.path, bool(result.error)) for result in found] == [
        (photos[0], True), (photos[9], True),
    ]  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_arrays_are_the_map_and_the_logits_of_the_chosen_class(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    model = explained_model(tiny_config)

    explainer = explainer_for(model, tmp_path / "out", target=2, arrays=True)
    (result,) = explainer.images(photos[1:2])

    inputs = model.inputs(pixels_of(model, photos[1])[None])
    expected = explain(model.net, inputs, Method(), torch.tensor([2]))
    assert isinstance(model.net, VisionTransformer)
    maps, _ = attention_maps(model.net, inputs)
    with np.load(tmp_path / "out" / "001-1.npz") as arrays:
        assert arrays["heat"] == pytest.approx(expected.values[0], rel=1e-4)
        assert arrays["logits"] == pytest.approx(expected.logits[0], abs=1e-5)
        assert arrays["attention"] == pytest.approx(torch.cat(maps).detach().numpy(), abs=1e-6)
    assert result.shown == "red"
    assert result.heads is None


@pytest.mark.parametrize(
    ("method", "has_heads"),
    [
        (Method(), False),
        (Method(name="rollout"), False),
        (Method(name="attention"), True),
        (Method(name="attention", fusion="max"), True),
        (Method(name="attention", block=1), False),
        (Method(name="attention", head=0), False),
    ],
)
def test_attention_without_a_block_or_head_shows_all_of_them(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str], method: Method, has_heads: bool
) -> None:
    explainer = explainer_for(explained_model(tiny_config), tmp_path / "out", method=method)

    (result,) = explainer.images(photos[1:2])

    files = ["001-1-heads.png", "001-1.png"] if has_heads else ["001-1.png"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == files
    assert result.heads == (tmp_path / "out" / "001-1-heads.png" if has_heads else None)
    assert bool(result.shown) == (method.name == "relevance")


def test_a_model_without_classes_has_maps_without_answers(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    model = explained_model(replace(tiny_config, num_classes=0), ())

    explainer = explainer_for(model, tmp_path, method=Method(name="rollout"))
    (result,) = explainer.images(photos[1:2])

    assert result == ExplainedImage(path=photos[1], file=tmp_path / "001-1.png")


def test_an_image_unlike_the_training_images_has_a_note(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    model = explained_model(tiny_config)
    width = tiny_config.width
    reference = Reference(
        centre=np.zeros(width, np.float32),
        means=np.zeros((1, width), np.float32),
        within=np.eye(width, dtype=np.float32),
        limit=0.0,
    )

    notes = []
    for limit in (0.0, 1e9):
        known = replace(reference, limit=limit)
        postprocess = Postprocess(classes=CLASSES, reference=known)
        (result,) = explainer_for(model, tmp_path, postprocess=postprocess).images(photos[1:2])
        notes.append(result.notes)

    assert OUT_OF_DISTRIBUTION in notes[0]
    assert OUT_OF_DISTRIBUTION not in notes[1]


def test_an_image_without_any_label_is_answered_as_such(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    model = explained_model(tiny_config)
    postprocess = Postprocess(classes=CLASSES, thresholds=(0.999999,) * 3)

    (result,) = explainer_for(model, tmp_path, postprocess=postprocess).images(photos[1:2])

    assert result.answer == "no label"
    assert result.shown in CLASSES


def test_the_overview_shows_the_first_48_of_several_images(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    explainer = explainer_for(explained_model(tiny_config), tmp_path / "out", size=400)
    assert explainer.finish() is None
    [*explainer.images(photos[1:2])]
    assert explainer.finish() is None

    [*explainer.images(photos[2:3])]
    assert explainer.finish() is not None
    explainer.tiles += [TILE] * 45
    [*explainer.images(photos[3:5])]
    page = explainer.finish()

    assert page == tmp_path / "out" / "sheet.html"
    assert len(explainer.tiles) == 48
    text = page.read_text()
    assert "48 images explained" in text
    assert "roses" in text
    assert "Maps: relevance" in text
    assert "support the class more" in text
    first = explainer.tiles[0]
    assert first["name"] == "1.png"
    assert first["about"] == ""  # the map is that of the answer
    for uri in (first["view"], first["map"]):
        with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as picture:
            assert picture.size == (320, 320)
    (bar,) = re.findall(r'<p class="map-scale">.*?base64,([^"]+)', text)
    with Image.open(io.BytesIO(base64.b64decode(bar))) as colours:
        light = np.asarray(colours.convert("L"), int)[6]
    assert light[0] < 40
    assert light[-1] > 220


def test_the_overview_names_the_class_of_a_map_that_is_not_the_answer(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    model, path = explained_model(tiny_config), photos[1]
    answer = int(model.net(model.inputs(pixels_of(model, path)[None])).argmax())

    tiles = []
    for target in (answer, (answer + 1) % 3):
        explainer = explainer_for(model, tmp_path / f"{target}", target=target)
        [*explainer.images([path])]
        tiles += explainer.tiles

    assert [tile["about"] for tile in tiles] == ["", CLASSES[(answer + 1) % 3]]
    assert [tile["answer"] for tile in tiles] == [CLASSES[answer]] * 2


def test_pictures_have_the_size_and_the_legend_that_were_asked_for(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    model, method = explained_model(tiny_config), Method(name="attention")
    sizes: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    for size, legend in ((224, False), (300, False), (300, True)):
        out = tmp_path / f"{size}-{legend}"
        explainer = explainer_for(model, out, method=method, size=size, legend=legend)
        [*explainer.images(photos[1:2])]
        sizes[size, legend] = []
        for file in sorted(out.iterdir()):
            with Image.open(file) as picture:
                sizes[size, legend].append(picture.size)

    assert sizes[224, False][1] == (224, 224)
    assert sizes[300, False][1] == (304, 304)
    assert min(sizes[300, False][0]) >= 300
    for without, with_bar in zip(sizes[300, False], sizes[300, True], strict=True):
        assert with_bar[0] == without[0]
        assert with_bar[1] > without[1]


@pytest.mark.parametrize(
    ("fields", "first", "rows"),
    [
        ({}, 1, slice(0, 1)),
        ({"registers": 2}, 3, slice(0, 1)),
        ({"distilled": True}, 2, slice(0, 2)),
        ({"pool": "mean"}, 1, slice(1, 17)),
    ],
)
def test_maps_of_heads_are_those_of_the_tokens_that_the_classifier_reads(
    tiny_config: ViTConfig, fields: dict[str, Any], first: int, rows: slice
) -> None:
    model = explained_model(replace(tiny_config, **fields))
    count = first + 16
    maps = np.random.default_rng(0).random((2, 2, count, count)).astype(np.float32)

    found = head_maps(model, maps)

    assert found.shape == (2, 2, 4, 4)
    expected = maps[1, 0, rows, first:].mean(axis=0).reshape(4, 4)
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    assert found[1, 0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("number", "path", "stem"),
    [
        (0, "a/rose.jpg", "001-rose"),
        (998, "rose", "999-rose"),
        (999, "x y&z.tar.gz", "1000-x_y_z.tar"),
        (1, "é-1_2.png", "002-é-1_2"),
        (2, "a" * 50 + "b.png", "003-" + "a" * 50),
    ],
)
def test_pictures_are_numbered_from_one_and_have_the_name_of_their_image(
    number: int, path: str, stem: str
) -> None:
    assert picture_stem(number, path) == stem
    assert safe_stem(path) == stem.partition("-")[2]


def test_predictions_are_illustrated_and_passed_on(
    tiny_config: ViTConfig, tmp_path: Path, photos: list[str]
) -> None:
    model = explained_model(tiny_config)
    card = Card(architecture=tiny_config, transform=model.transform, classes=CLASSES)
    engine, view = Predictor(model.net, card, device="cpu"), pixels_of(model, photos[1])
    given = [
        Prediction(path="a/b c.png", view=view),
        Prediction(path="bad.png", error="unreadable"),
        Prediction(path=photos[1], view=view),
    ]

    def predictions() -> Iterator[Prediction]:
        yield from given

    passed = [*illustrate_predictions(engine, predictions(), tmp_path / "new" / "out")]

    assert all(a is b for a, b in zip(passed, given, strict=True))
    files = sorted((tmp_path / "new" / "out").iterdir())
    assert [file.name for file in files] == ["000001-b_c.png", "000003-1.png"]
    heat = explain(model.net, model.inputs(view[None]), Method()).values
    large = Image.fromarray(view).resize((224, 224), Image.Resampling.NEAREST)
    with Image.open(files[0]) as picture:
        expected = np.asarray(overlay(large, scale_maps(heat)[0]), int)
        assert np.abs(np.asarray(picture, int) - expected).max() <= 1
