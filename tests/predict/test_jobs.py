"""Prediction jobs: which engine runs, what is summarised, and what is resumed."""

import io
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from tests.predict.test_onnx_engine import description, foreign_graph
from vitft.data.sources import ImageSource
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import load_checkpoint, save_checkpoint
from vitft.models.vit import VisionTransformer
from vitft.predict.engine import Engine
from vitft.predict.jobs import (
    SourceHistory,
    check_top_k,
    choose_engine,
    log_summary,
    run_prediction,
)
from vitft.predict.numpy_engine import NumpyEngine
from vitft.predict.onnx_engine import OnnxEngine
from vitft.predict.output import ProcessShard
from vitft.predict.prediction import NOT_SURE, Prediction
from vitft.predict.request import PredictRequest
from vitft.predict.rows import RowWriter
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import RunError, UsageError


@pytest.fixture
def model(tmp_path: Path, tiny_vit: VisionTransformer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of three classes, in the current folder."""
    monkeypatch.chdir(tmp_path)
    tiny_vit.head.weight.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    card = Card(
        architecture=tiny_vit.config,
        transform=EvalTransform(image_size=(16, 16)),
        classes=("blue", "green", "red"),
    )
    save_checkpoint(Path("m.safetensors"), tiny_vit.state_dict(), card)
    return Path("m.safetensors")


@pytest.fixture
def photos() -> list[str]:
    """Forty different images in the current folder."""
    random = np.random.default_rng(0)
    for i in range(40):
        Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(f"{i:02}.png")
    return [f"{i:02}.png" for i in range(40)]


def named(number: int) -> Iterator[ImageSource]:
    return (ImageSource(f"{i}.jpg", f"{i}.jpg") for i in range(number))


def chosen(model: Path, images: int = 3, **options: Any) -> tuple[Engine, list[str]]:
    request = PredictRequest(**{"images": ("x",), "run": str(model), "device": "cpu", **options})
    engine, sources = choose_engine(request, model, named(images))
    return engine, [source.name for source in sources]


@pytest.mark.parametrize(
    ("images", "options", "kind"),
    [
        pytest.param(1, {}, NumpyEngine, id="one image"),
        pytest.param(8, {}, NumpyEngine, id="eight images"),
        pytest.param(9, {}, Predictor, id="nine images"),
        pytest.param(0, {}, Predictor, id="no images"),
        pytest.param(3, {"device": "auto"}, NumpyEngine, id="any device"),
        pytest.param(3, {"dtype": "fp32"}, NumpyEngine, id="fp32"),
        pytest.param(3, {"dtype": "bf16"}, Predictor, id="bf16"),
        pytest.param(3, {"explain": "new"}, Predictor, id="overlays"),
        pytest.param(3, {"engine": "torch"}, Predictor, id="torch"),
        pytest.param(9, {"engine": "numpy"}, NumpyEngine, id="NumPy"),
    ],
)
def test_a_few_plain_images_are_predicted_without_torch(
    model: Path, images: int, options: dict[str, Any], kind: type
) -> None:
    engine, names = chosen(model, images, **options)

    assert isinstance(engine, kind)
    assert names == [source.name for source in named(images)]


def test_processes_of_a_divided_job_never_wait_for_their_images(model: Path) -> None:
    shard = ProcessShard(rank=1, world=2)

    engine, names = chosen(model, 3, shard=shard, out="o.csv")

    assert isinstance(engine, Predictor)
    assert names == ["0.jpg", "1.jpg", "2.jpg"]


def test_a_few_images_in_torch_are_scored_as_one_batch_in_float32(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitft.predict.torch_engine.pick_precision", lambda *_: "bf16")

    def found(images: int, **options: Any) -> tuple[bool, str]:
        engine = cast("Predictor", chosen(model, images, engine="torch", **options)[0])
        return engine.in_workers, engine.precision

    assert found(8) == (False, "fp32")
    assert found(9) == (True, "bf16")
    assert found(8, dtype="bf16") == (False, "bf16")
    assert found(9, threshold=0.5) == (True, "fp32")


def test_a_job_in_bf16_says_so_unless_it_was_requested(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vitft.predict.torch_engine.pick_precision", lambda *_: "bf16")
    both = ProcessShard(rank=0, world=2)

    def says(**options: Any) -> bool:
        caplog.clear()
        chosen(model, 9, **options)
        return "computed in bf16" in caplog.text

    with caplog.at_level(logging.INFO):
        assert says()
        assert says(shard=both, out="o.csv")
        assert not says(shard=replace(both, rank=1), out="o.csv")
        assert not says(dtype="bf16")
        assert not says(dtype="fp32")


def test_a_model_that_needs_torch_is_refused_by_the_numpy_engine_only_on_request(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitft.predict.numpy_engine.numpy_model", lambda *_, **__: None)

    assert isinstance(chosen(model)[0], Predictor)
    with pytest.raises(UsageError, match="the NumPy engine does not support this model"):
        chosen(model, engine="numpy")


def test_a_graph_runs_in_onnxruntime(tmp_path: Path) -> None:
    graph = foreign_graph(tmp_path / "m.ONNX", vitft=description())

    engine, names = chosen(graph, 2)

    assert isinstance(engine, OnnxEngine)
    assert names == ["0.jpg", "1.jpg"]
    with pytest.raises(UsageError, match="cannot be used with the ONNX graph"):
        chosen(graph, 2, engine="torch")


def test_a_number_of_classes_has_no_effect_on_several_labels() -> None:
    several = cast("Engine", SimpleNamespace(thresholds=(0.5, 0.5)))

    check_top_k(1, several)
    check_top_k(2, cast("Engine", SimpleNamespace(thresholds=())))
    with pytest.raises(UsageError, match="--top-k 2 has no effect"):
        check_top_k(2, several)


def summary(
    caplog: pytest.LogCaptureFixture,
    number: int,
    *,
    resumed: int = 0,
    level: int = logging.INFO,
    **options: Any,
) -> list[str]:
    """Return what is logged after `number` rows, one of which is an error."""
    labels = options.pop("labels", ())
    rows = RowWriter("csv", 1, lambda _: None, labels)
    for i in range(number - 1):
        labelled: dict[str, Any] = {"labels": ("rose",)} if labels else {}
        rows.add(Prediction(path=str(i), classes=("rose",), probabilities=(0.9,), **labelled))
    rows.add(Prediction(path="x", error="empty file"))
    caplog.clear()
    with caplog.at_level(level, logger="vitft"):
        log_summary(PredictRequest(images=("x",), **options), rows, resumed=resumed)
    return [record.getMessage() for record in caplog.records]


def test_rows_that_are_all_in_view_are_not_summarised(caplog: pytest.LogCaptureFixture) -> None:
    assert summary(caplog, 20) == []
    assert summary(caplog, 21) == ["predicted: rose: 20", "marked: 1 unreadable"]


def test_unreadable_images_are_counted_even_if_the_log_is_quiet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for out in (None, "o.csv"):
        assert summary(caplog, 3, level=logging.WARNING, out=out) == ["1 image could not be read"]


def test_rows_in_a_file_are_counted_and_summarised(caplog: pytest.LogCaptureFixture) -> None:
    written = "wrote 3 rows, including 1 error, to o.csv"

    assert summary(caplog, 3, out="o.csv") == [
        written,
        "predicted: rose: 2",
        "marked: 1 unreadable",
    ]
    assert summary(caplog, 3, out="o.csv", resumed=1)[1:] == [
        "predicted after resuming: rose: 2",
        "marked after resuming: 1 unreadable",
    ]
    both = ProcessShard(rank=0, world=2)
    assert summary(caplog, 30, out="o.csv", shard=both) == [written.replace("3 rows", "30 rows")]


@pytest.mark.parametrize(
    ("options", "stated"),
    [
        ({}, False),
        ({"threshold": 0.5}, True),
        ({"precision": 0.9}, True),
        ({"threshold": 0.5, "labels": ("rose",)}, False),
    ],
)
def test_the_number_of_unsure_predictions_is_stated_if_there_is_a_threshold(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], stated: bool
) -> None:
    lines = summary(caplog, 3, out="o.csv", **options)

    assert (lines[-1] == f"marked: 0 {NOT_SURE}, 1 unreadable") == stated


def test_sources_after_a_resume_point_are_repeated_once() -> None:
    history = SourceHistory(named(10), 4)
    read = [name for name, _ in zip(history.names(), range(6), strict=False)]

    rest = [source.name for source in history.after(4)]

    assert read == [f"{i}.jpg" for i in range(6)]
    assert history.count == 7  # one more was read to find the end
    assert rest == [f"{i}.jpg" for i in range(4, 10)]


@pytest.mark.parametrize("count", [3, 4])
def test_no_source_is_repeated_if_all_that_were_read_have_rows(count: int) -> None:
    history = SourceHistory(named(6), 4)
    for _ in zip(range(count), history.names(), strict=False):
        pass

    assert [source.name for source in history.after(count)] == [f"{i}.jpg" for i in range(count, 6)]


def run(*images: str, write: Any = None, **options: Any) -> int:
    return run_prediction(
        PredictRequest(**{"images": images, "run": "m.safetensors", "device": "cpu", **options}),
        write=write or (lambda _: None),
        stdin=io.BytesIO(),
        illustrate=lambda *_: iter(()),
    )


def test_rows_are_passed_on_and_errors_counted(model: Path, photos: list[str]) -> None:
    lines: list[str] = []

    assert run(*photos[:3], "gone.png", "none.png", write=lines.append, format="csv") == 2

    assert [line.partition(",")[0] for line in lines] == [
        *("path", *photos[:3], "gone.png", "none.png"),
    ]
    assert lines[-1] == "none.png,,,,not found"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, False),
        ({"out": "o.csv"}, True),
        ({"out": "o.csv", "shard": ProcessShard(rank=0, world=2)}, True),
        ({"out": "o.csv", "shard": ProcessShard(rank=1, world=2)}, False),
    ],
    ids=["rows on the terminal", "a file", "the first process", "another process"],
)
def test_progress_is_shown_once_and_not_between_rows(
    model: Path, photos: list[str], caplog: pytest.LogCaptureFixture,
    options: dict[str, Any], shown: bool,
) -> None:  # fmt: skip
    with caplog.at_level(logging.INFO):
        assert run(*photos, **options) == 0

    texts = [record.getMessage() for record in caplog.records]
    assert any(text.startswith("predicting: ") for text in texts) is shown


def test_there_are_no_more_columns_than_classes(model: Path, photos: list[str]) -> None:
    for top_k, columns in ((2, 7), (3, 9), (9, 9)):
        lines: list[str] = []
        assert run(photos[0], write=lines.append, format="csv", top_k=top_k) == 0
        assert {line.count(",") + 1 for line in lines} == {columns}


def test_labels_of_a_multi_label_model_are_columns(
    model: Path, photos: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    state, card = load_checkpoint(model)
    save_checkpoint(model, state, replace(card, thresholds=(0.5, 0.5, 0.5)))
    lines: list[str] = []

    assert run(photos[0], write=lines.append, format="csv") == 0

    assert lines[0] == "path,labels,probability_blue,probability_green,probability_red,notes,error"


def test_the_model_is_named_once_before_the_rows(
    model: Path, photos: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        run(photos[0], out="o.csv")

    texts = [record.getMessage() for record in caplog.records]
    assert [text.startswith("run m: 3 classes") for text in texts].count(True) == 1
    assert texts[-2:] == ["wrote 1 row to o.csv", texts[-1]]
    assert texts[-1].startswith("predicted: ")


def test_a_complete_file_states_its_errors_again_and_is_not_changed(
    model: Path, photos: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    images = [*photos[:9], "gone.png"]
    assert run(*images, out="o.csv") == 1
    before = Path("o.csv").read_bytes()

    with caplog.at_level(logging.INFO):
        assert run(*images, out="o.csv", resume=True) == 1

    assert "o.csv is already complete: 10 rows for these images" in caplog.text
    assert Path("o.csv").read_bytes() == before
    with pytest.raises(RunError, match=r"complete, with 10 rows, but .* e\.g\. 10\.png"):
        run(*images, photos[10], out="o.csv", resume=True)
    assert not Path("o.csv.part.json").exists()


@pytest.mark.parametrize("style", ["csv", "jsonl"])
def test_an_unfinished_file_is_continued_after_its_last_whole_chunk(
    model: Path, photos: list[str], style: str, caplog: pytest.LogCaptureFixture
) -> None:
    out, part = Path(f"o.{style}"), Path(f"o.{style}.part")
    assert run(*photos, out=str(out)) == 0
    whole = out.read_bytes()
    out.rename(part)
    lines = whole.splitlines(keepends=True)
    part.write_bytes(b"".join(lines[: 20 + (style == "csv")]) + b"torn")

    with caplog.at_level(logging.INFO):
        assert run(*photos, out=str(out), resume=True) == 0

    assert "resuming after 16 rows" in caplog.text
    assert "predicted after resuming: " in caplog.text
    assert "wrote 40 rows to" in caplog.text
    assert out.read_bytes() == whole
    assert [*Path().glob("o*")] == [out]


def test_each_process_writes_whole_chunks_in_turn(model: Path, photos: list[str]) -> None:
    assert run(*photos, out="alone.csv") == 0
    for rank in (1, 0):
        assert run(*photos, out="o.csv", shard=ProcessShard(rank=rank, world=2)) == 0
        if rank:
            done = Path("o.csv.part-1-of-2.done").read_text().splitlines()[1:]
            assert [line.partition(",")[0] for line in done] == photos[16:32]

    assert Path("o.csv").read_bytes() == Path("alone.csv").read_bytes()
    assert [*Path().glob("o.csv*")] == [Path("o.csv")]


def test_a_finished_process_waits_for_the_others_and_then_merges(
    model: Path, photos: list[str]
) -> None:
    both = ProcessShard(rank=0, world=2)
    assert run(*photos, out="o.csv", shard=both) == 0
    done = Path("o.csv.part-0-of-2.done").read_bytes()

    assert run(*photos, out="o.csv", shard=both, resume=True) == 0
    assert Path("o.csv.part-0-of-2.done").read_bytes() == done
    assert not Path("o.csv").exists()
    with pytest.raises(RunError, match="it was begun with --top-k 1, not 2"):
        run(*photos, out="o.csv", shard=replace(both, rank=1), resume=True, top_k=2)


@pytest.mark.parametrize("first", [0, 1])
def test_a_finished_process_merges_if_the_others_ended_before_they_did(
    model: Path, photos: list[str], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    assert run(*photos, out="alone.csv") == 0
    with monkeypatch.context() as patch:
        patch.setattr("vitft.predict.output.merge_shards", lambda *_: None)
        for rank in (0, 1):
            assert run(*photos, out="o.csv", shard=ProcessShard(rank=rank, world=2)) == 0
    assert not Path("o.csv").exists()

    shard = ProcessShard(rank=first, world=2)
    assert run(*photos, out="o.csv", shard=shard, resume=True) == 0

    assert Path("o.csv").read_bytes() == Path("alone.csv").read_bytes()
    assert [*Path().glob("o.csv*")] == [Path("o.csv")]


def test_overlays_get_the_views_and_the_rows_are_those_of_the_illustrator(
    model: Path, photos: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Prediction] = []

    def illustrate(
        engine: Engine, predictions: Iterator[Prediction], folder: Path
    ) -> Iterator[Prediction]:
        assert (engine.batch, folder) == (16, Path("new"))
        for one in predictions:
            seen.append(one)
            yield one

    with caplog.at_level(logging.INFO):
        run_prediction(
            PredictRequest(
                images=photos[:2], run="m.safetensors", device="cpu", explain="new", out="o.csv"
            ),
            write=print,
            stdin=io.BytesIO(),
            illustrate=illustrate,
        )

    assert [one.view is not None for one in seen] == [True, True]
    assert caplog.records[-1].getMessage() == "wrote overlays to new/"
    assert len(Path("o.csv").read_text().splitlines()) == 3
