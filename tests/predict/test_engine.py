"""The prediction pipeline: order, batches, threads, and the average with the mirror image."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from vitft.data.sources import ImageSource
from vitft.data.transforms import EvalTransform
from vitft.predict.engine import (
    Engine,
    LoadedImage,
    MirroredEngine,
    Pipeline,
    Views,
    decode_view,
    load_image,
    notes_on,
    with_notes,
)
from vitft.predict.postprocess import Postprocess, Scores
from vitft.predict.prediction import Prediction
from vitft.system.errors import ImageError

CLASSES = ("dark", "bright")


class BrightnessEngine:
    """An engine whose logits are the mean of the left half of an image and 127.5."""

    def __init__(self, *, batch: int = 4, workers: int = 2, in_workers: bool = False) -> None:
        self.batch, self.workers, self.in_workers = batch, workers, in_workers
        self.transform = EvalTransform(image_size=(8, 8))
        self.classes: tuple[str, ...] = CLASSES
        self.thresholds: tuple[float, ...] = ()
        self.facts: Any = {}
        self.reference = None
        self.sizes: list[int] = []
        """Number of images of each call."""
        self.entered = self.finished = 0
        self.threads: set[int] = set()
        self.is_running = False

    def view(self, data: bytes, name: str, *, max_pixels: int = 10**6) -> Views:
        return decode_view(data, name, self.transform, max_pixels=max_pixels)

    def view_of(self, image: Image.Image) -> Views:
        return self.transform.pixels(image)

    def scores(self, views: Views) -> Scores:
        return self.start(views)()

    def start(self, views: Views) -> Callable[[], Scores]:
        assert self.is_running
        self.sizes.append(len(views))
        self.threads.add(threading.get_ident())
        left = views[:, :, : views.shape[2] // 2].mean(axis=(1, 2, 3), dtype=np.float32)
        logits = np.stack([np.full_like(left, 127.5), left], axis=1)

        def finish() -> Scores:
            self.finished += 1
            return Scores(logits, left[:, None])

        return finish

    def enter_worker(self) -> None:
        self.entered += 1

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False


def png(value: int) -> bytes:
    """Return an image of one brightness on the left and its opposite on the right."""
    pixels = np.full((8, 8, 3), value, np.uint8)
    pixels[:, 4:] = 255 - value
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Ten images, alternately dark and bright on the left."""
    for i in range(10):
        (tmp_path / f"{i}.png").write_bytes(png(200 if i % 2 else 20 + i))
    return [str(tmp_path / f"{i}.png") for i in range(10)]


def pipeline(engine: Any, **options: Any) -> Pipeline:
    return Pipeline(cast("Engine", engine), Postprocess(classes=CLASSES), **options)


def sources(paths: list[str]) -> Iterator[ImageSource]:
    return (ImageSource(path, path) for path in paths)


@pytest.mark.parametrize("in_workers", [True, False])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_predictions_are_in_the_order_of_the_sources_with_errors_in_their_places(
    paths: list[str], in_workers: bool, workers: int
) -> None:
    engine = BrightnessEngine(workers=workers, in_workers=in_workers)
    mixed = [*paths[:3], "missing.png", *paths[3:]]

    found = [*pipeline(engine).predict(sources(mixed))]

    assert [one.path for one in found] == mixed
    assert [bool(one.error) for one in found] == [path == "missing.png" for path in mixed]
    answers = [one.classes[0] for one in found if not one.error]
    assert answers == [CLASSES[i % 2] for i in range(10)]
    assert sorted(engine.sizes, reverse=True) == [4, 3, 3]  # in chunks of four sources
    assert engine.finished == 3
    assert engine.entered == 11
    assert not engine.is_running


@pytest.mark.parametrize("in_workers", [True, False])
def test_only_a_few_chunks_are_in_memory_at_a_time(paths: list[str], in_workers: bool) -> None:
    taken: list[str] = []
    engine = BrightnessEngine(batch=2, workers=1, in_workers=in_workers)

    def endless() -> Iterator[ImageSource]:
        while True:
            taken.append(paths[0])
            yield ImageSource(paths[0], paths[0])

    with contextlib.closing(cast("Any", pipeline(engine).predict(endless()))) as found:
        next(found)

        assert len(taken) <= (2 * 2 if in_workers else 16)  # two chunks, or up to eight
    assert not engine.is_running


def test_a_worker_scores_the_batch_that_it_has_loaded(paths: list[str]) -> None:
    inside, beside = BrightnessEngine(in_workers=True), BrightnessEngine()

    for engine in (inside, beside):
        assert len([*pipeline(engine).predict(sources(paths))]) == 10

    assert threading.get_ident() not in inside.threads


def test_a_batch_without_usable_images_is_not_scored() -> None:
    engine = BrightnessEngine()
    broken = [LoadedImage("a", None, "empty file"), LoadedImage("b", None, "not found")]

    found = pipeline(engine).predict_batch(broken)

    assert [(one.path, one.error) for one in found] == [("a", "empty file"), ("b", "not found")]
    assert engine.sizes == []


def test_views_are_kept_on_request_and_belong_to_their_images(paths: list[str]) -> None:
    engine = BrightnessEngine()
    mixed = ["missing.png", *paths[:2]]

    kept = [*pipeline(engine, keep_views=True).predict(sources(mixed))]
    plain = [*pipeline(engine).predict(sources(mixed))]

    assert kept[0].view is None
    for one, path in zip(kept[1:], paths, strict=False):
        assert one.view is not None
        assert (one.view == engine.view(Path(path).read_bytes(), path)).all()
    assert [one.view for one in plain] == [None] * 3


def test_notes_of_the_file_follow_those_of_the_prediction() -> None:
    one = Prediction(path="a", notes=("not sure",))

    assert with_notes(one, ("first of several pages",)).notes == (
        *("not sure", "first of several pages"),
    )
    assert with_notes(one, ()) is one


def test_only_a_file_of_several_pages_is_noted() -> None:
    buffer = BytesIO()
    pages = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in (0, 200)]
    pages[0].save(buffer, format="TIFF", save_all=True, append_images=pages[1:])

    assert notes_on(buffer.getvalue(), EvalTransform()) == ("first of several pages",)
    assert notes_on(png(3), EvalTransform()) == ()


def test_a_loaded_image_has_its_view_or_the_reason_why_not(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(7))
    (tmp_path / "b.png").write_bytes(b"")
    engine = cast("Engine", BrightnessEngine())

    good = load_image(engine, ImageSource("a", str(tmp_path / "a.png")))
    bad = load_image(engine, ImageSource("b", str(tmp_path / "b.png")))

    assert good.view is not None
    assert (good.path, good.view.shape, good.error, good.notes) == ("a", (8, 8, 3), "", ())
    assert (bad.path, bad.view, bad.error) == ("b", None, "empty file")


def test_an_image_of_too_many_pixels_is_not_decoded() -> None:
    transform = EvalTransform(image_size=(8, 8))

    assert decode_view(png(7), "a", transform, max_pixels=64).shape == (8, 8, 3)
    with pytest.raises(ImageError):
        decode_view(png(7), "a", transform, max_pixels=63)


def test_logits_of_an_image_and_its_mirror_image_are_averaged_but_not_its_features() -> None:
    engine = BrightnessEngine()
    mirrored = MirroredEngine(cast("Engine", engine))
    views = np.stack([engine.view(png(200), ""), engine.view(png(20), "")])

    with mirrored.running():
        plain, both = engine.scores(views), mirrored.scores(views)

    assert plain.logits[:, 1].tolist() == [200, 20]
    assert both.logits.tolist() == [[127.5, 127.5]] * 2
    assert both.logits.dtype == np.float32
    assert (both.features == plain.features).all()


@pytest.mark.parametrize("in_workers", [True, False])
def test_a_mirrored_engine_has_the_properties_of_its_engine(in_workers: bool) -> None:
    engine = BrightnessEngine(batch=3, workers=5, in_workers=in_workers)
    engine.thresholds, engine.facts = (0.5, 0.7), {"name": "flowers"}

    mirrored = MirroredEngine(cast("Engine", engine))

    for name in (
        "batch",
        "workers",
        "in_workers",
        "transform",
        "classes",
        "thresholds",
        "facts",
        "reference",
    ):
        assert getattr(mirrored, name) == getattr(engine, name)
    assert mirrored.view(png(5), "a").shape == (8, 8, 3)
