"""The setup of a run: estimates, paths and counts before and after its images are read."""

import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tests.conftest import draw_folder
from tests.support.training_data import data_set, digest, noted, pooled_inputs, row
from vitft.config.run import config_from_table
from vitft.config.sections import DataSpec
from vitft.data.folder import File, Folder
from vitft.data.inspection import InspectedFile, InspectedFolder
from vitft.models.vit import VisionTransformer
from vitft.system.errors import UsageError
from vitft.training import setup as module
from vitft.training.distributed import ProcessGroup
from vitft.training.extraction import Inspection
from vitft.training.setup import (
    Start,
    count_parameters,
    describe_solver,
    dry_run,
    expected_training_labels,
    extract_and_split,
    inspect_images,
    load_data_and_model,
    next_inputs,
    with_absolute_paths,
    with_stage_data,
)


@pytest.mark.parametrize(
    ("computed", "seconds"),
    [
        pytest.param(40, 10 * (3 * 30 + 10) * 8.0 / 40, id="all images"),
        pytest.param(20, 10 * (3 * 30 + 10) * 8.0 / 20, id="half of the images"),
        pytest.param(19, None, id="most were cached"),
    ],
)
def test_full_training_takes_three_passes_per_image_and_epoch(
    computed: int, seconds: float | None
) -> None:
    rows = [row(f"t{i}", 0) for i in range(30)] + [row(f"v{i}", 0, "val") for i in range(10)]
    inspection: Any = SimpleNamespace(computed=computed)
    inputs = pooled_inputs(data_set(rows), {})
    setup: Any = None
    start = Start(setup=setup, inspection=inspection, inputs=inputs, extraction_s=8.0)

    assert start.full_training_s == (seconds if seconds is None else pytest.approx(seconds))
    nothing_frozen = replace(inputs, extractor=None)
    assert replace(start, inputs=nothing_frozen).full_training_s is None


def test_only_the_values_of_the_named_parameters_are_counted() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))

    assert count_parameters(model, ["0.weight", "1.bias"]) == 6 + 4
    assert count_parameters(model, []) == 0


@pytest.mark.parametrize(
    ("table", "labels", "words"),
    [
        ({}, [0, 1], "fitted by L-BFGS without a training loop"),
        (
            {"optim": {"lr": 0.0123456, "epochs": 1, "batch_size": 4, "solver": "sgd"}},
            [0] * 9,
            "sgd with learning rate 0.0123: 1 epoch, 3 steps per epoch, 4 images per step",
        ),
        (
            {"optim": {"lr": 0.1, "epochs": 2, "batch_size": 8, "solver": "adamw"}},
            [0] * 8,
            "adamw with learning rate 0.1: 2 epochs, 1 step per epoch, 8 images per step",
        ),
        (
            {
                "optim": {"lr": 0.1, "epochs": 2, "batch_size": 1, "solver": "adamw"},
                "train": {"sampling": "balanced"},
            },
            [0] * 8 + [1],
            "2 epochs, 8 steps per epoch, 1 image per step",
        ),
    ],
)
def test_the_solver_of_a_stage_is_described_with_its_steps(
    table: dict[str, Any], labels: list[int], words: str
) -> None:
    assert words in describe_solver(config_from_table(table), "head", labels, nn.Linear(1, 1))


def folder_of(parts: list[tuple[int, Any]], layout: Any = "classes", **more: Any) -> Folder:
    files = tuple(File(str(i), label, part) for i, (label, part) in enumerate(parts))
    return Folder(root=Path("x"), classes=("a", "b"), files=files, layout=layout, **more)


def test_the_expected_split_is_that_of_the_folder_or_of_the_rate() -> None:
    given = [(0, "train"), (1, "train"), (1, "val"), (1, "test")]
    drawn = [(0, "")] * 10 + [(1, "")] * 5 + [(1, "test")] * 7

    assert expected_training_labels(folder_of(given, "split"), DataSpec()) == [0, 1]
    assert expected_training_labels(folder_of(drawn), DataSpec(val_rate=0.2)) == [0] * 8 + [1] * 4
    assert expected_training_labels(folder_of(drawn), DataSpec(val_rate=0.1)) == [0] * 9 + [1] * 4


def test_paths_of_the_data_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "photos").mkdir()
    (tmp_path / "t.csv").write_text("path,label\n")
    (tmp_path / "runs" / "1").mkdir(parents=True)

    folder = with_absolute_paths(DataSpec(path="photos", like="runs/1", classes="~/c.csv"))
    table = with_absolute_paths(DataSpec(path="t.csv", root="photos"))

    assert folder.path == str(tmp_path / "photos")
    assert folder.like == str(tmp_path / "runs" / "1")
    assert folder.classes == str(tmp_path / "home" / "c.csv")
    assert (folder.root, table.like, table.classes) == ("", "", "")
    assert (table.path, table.root) == (str(tmp_path / "t.csv"), str(tmp_path / "photos"))
    assert Path(with_absolute_paths(DataSpec(path="new")).path).is_absolute()


def inspected(digests: str, bad: int) -> InspectedFolder:
    good = tuple(InspectedFile(str(i), 0, "", digest(name), 8, 8) for i, name in enumerate(digests))
    refused = tuple((f"bad{i}", "torn") for i in range(bad))
    return InspectedFolder(folder_of([]), good, refused, {})


@pytest.mark.parametrize(
    ("digests", "bad", "data", "lines"),
    [
        ("abc", 0, {}, []),
        ("abb", 0, {}, ["2 different", "copies count once in the accuracy"]),
        ("abc", 1, {}, ["unreadable"]),
        ("abc", 0, {"group_duplicates": True}, ["near-duplicates: 2 images; each group is kept"]),
    ],
)
def test_copies_and_unreadable_files_are_logged_if_there_are_any(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    digests: str,
    bad: int,
    data: dict[str, Any],
    lines: list[str],
) -> None:
    asked: list[Any] = []

    def inspect(*_: Any, fingerprints: Any, **__: Any) -> Inspection:
        asked.append(fingerprints)
        return Inspection(
            inspected=inspected(digests, bad), duplicates={"a": "g", "b": "g"},
            fingerprints=fingerprints, computed=0,
        )  # fmt: skip

    monkeypatch.setattr(module, "inspect_shards", inspect)
    setup: Any = SimpleNamespace(
        config=config_from_table({"data": data, "train": {"cache": "none"}}),
        report=SimpleNamespace(transform=data_set([]).transform),
        folder=None,
    )

    with caplog.at_level("INFO", "vitft"):
        inspect_images(setup, None, ProcessGroup())

    shown = "\n".join(m for m in caplog.messages if m.startswith(("images:", "near-")))
    assert bool(shown) is bool(lines)
    assert all(line in shown for line in lines)
    assert ("count once" in shown) is (digests == "abb")
    assert (asked[0] is not None) is bool(data)


def test_the_images_of_an_earlier_split_are_recognised_by_their_fingerprints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(module, "Fingerprints", lambda *_: "prints")
    monkeypatch.setattr(module, "log_inspection", lambda _: None)

    def inspect(*_: Any, fingerprints: Any, **__: Any) -> Any:
        asked.append(fingerprints)
        return SimpleNamespace(inspected=inspected("ab", 0), duplicates={})

    monkeypatch.setattr(module, "inspect_shards", inspect)
    for data in ({}, {"like": "runs/1"}):
        setup: Any = SimpleNamespace(
            config=config_from_table({"data": data}),
            report=SimpleNamespace(transform=data_set([]).transform),
            folder=None,
        )
        inspect_images(setup, None, ProcessGroup())

    assert asked == [None, "prints"]


@pytest.mark.parametrize(
    ("table", "stage", "frozen", "loads", "views"),
    [
        pytest.param({"train": {"views": 2}}, "head", True, False, 2, id="views of a head"),
        pytest.param({}, "head", True, False, 0, id="no views"),
        pytest.param(
            {"train": {"augment": "crop"}}, "head", True, False, 20, id="a crop per epoch"
        ),
        pytest.param(
            {"train": {"freeze": "head,none"}}, "head", True, False, 0, id="a head to start from"
        ),
        pytest.param(
            {"train": {"freeze": "none", "augment": "none"}}, "none", False, True, 0, id="pixels"
        ),
        pytest.param(
            {"train": {"freeze": "none", "augment": "shift"}}, "none", False, True, 0, id="shifts"
        ),
        pytest.param({"train": {"freeze": "none"}}, "none", False, False, 0, id="crops of files"),
    ],
)
def test_images_are_loaded_and_views_are_cached_where_a_stage_reads_them(
    monkeypatch: pytest.MonkeyPatch,
    table: dict[str, Any],
    stage: str,
    frozen: bool,
    loads: bool,
    views: int,
) -> None:
    data = data_set([row("t", 0), row("v", 0, "val")])
    computed, loaded = list[Any](), list[str]()
    monkeypatch.setattr(module, "compute_views", lambda *given: computed.append(given[2:4]))
    monkeypatch.setattr(type(data), "load_images", lambda _: noted(loaded, "all", "table"))
    inputs = pooled_inputs(data, {})
    if not frozen:
        inputs = replace(inputs, extractor=None, cut=inputs.cut._replace(prefix=None))

    found: Any = with_stage_data(inputs, config_from_table(table), stage)

    assert loaded == ["all"] * loads
    assert found.images == ("table" if loads else None)
    assert [len(given[1]) for given in computed] == [views] * bool(views)
    if computed:
        assert [one.path for one in computed[0][0]] == ["t"]
        assert all(view.crop is not None for view in computed[0][1])
    with_stage_data(replace(inputs, images=found.images or "kept"), config_from_table(table), stage)  # type: ignore[arg-type]
    assert loaded == ["all"] * loads  # not twice


def settings_of(data: Path, weights: Path, **table: Any) -> Any:
    known = {"data": {"path": str(data)}, "weights": {"name": str(weights)}}
    return config_from_table(known | table)


def test_the_next_stage_trains_more_layers_on_what_the_frozen_ones_compute(
    image_folder: Path, tiny_weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = {"freeze": "head,blocks:1", "precision": "fp32", "cache": "none"}
    config = settings_of(image_folder, tiny_weights, train=train)

    with caplog.at_level("DEBUG", "vitft"):
        setup = load_data_and_model(config, ProcessGroup())
        start = extract_and_split(setup, ProcessGroup())
    model = setup.pipeline.model
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    with caplog.at_level("INFO", "vitft"):
        inputs = next_inputs(model, start.inputs, setup.config, "blocks:1", precision="fp32")
    later = {name for name, p in model.named_parameters() if p.requires_grad}

    assert "training:   the head (99 parameters) on cpu" in caplog.text
    total = sum(p.numel() for p in model.parameters())
    assert f"trained:    99 of {total:,} parameters" in caplog.text
    assert "next stage: --freeze blocks:1" in caplog.text
    assert caplog.text.count("caching the tokens of the frozen blocks in ") == 1
    assert trained == {"head.weight", "head.bias"}
    assert start.inputs.cut.pooled
    assert start.inputs.features(start.inputs.data.manifest.rows).shape[0] == 30
    assert start.inspection.computed == 30
    assert start.extraction_s > 0
    assert {name.split(".")[1] for name in later if name.startswith("blocks.")} == {"1"}
    assert not inputs.cut.pooled
    assert inputs.features(inputs.data.manifest.rows).shape == (30, 17, 32)
    assert setup.config.optim.batch_size == 8


def test_a_run_that_is_resumed_says_what_it_is_about(
    image_folder: Path, tiny_weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings_of(image_folder, tiny_weights)
    counts = []
    for resume, rank in ((False, 0), (True, 0), (True, 1)):
        caplog.clear()
        with caplog.at_level("INFO", "vitft"):
            load_data_and_model(config, ProcessGroup(rank, 1 + rank), resume=resume)
        counts.append(caplog.text.count("colours, 30 images in 3 classes"))

    assert counts == [0, 1, 0]


def test_the_number_of_parameters_is_a_limit_until_the_blocks_of_the_head_are_chosen(
    image_folder: Path, tiny_weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for blocks in (0, 1):
        config = settings_of(image_folder, tiny_weights, train={"head_blocks": blocks})
        with caplog.at_level("INFO", "vitft"):
            load_data_and_model(config, ProcessGroup())

    lines = [line for line in caplog.messages if line.startswith("training:")]
    assert lines[0].startswith("training:   the head (up to 291 parameters) on cpu")
    assert lines[1].startswith("training:   the head (99 parameters) on cpu")


def test_settings_for_one_class_are_refused_for_several_labels(
    image_folder: Path, tiny_weights: Path
) -> None:
    table = image_folder / "labels.csv"
    paths = sorted(
        path.relative_to(image_folder).as_posix() for path in image_folder.rglob("*.png")
    )
    rows = [f"{path},{'warm|' * (i % 2)}{path.split('/')[0]}" for i, path in enumerate(paths)]
    table.write_text("\n".join(["path,labels", *rows]))
    weighted = settings_of(table, tiny_weights, optim={"class_weights": True})

    with pytest.raises(UsageError, match="class_weights=true cannot be used for multi-label"):
        load_data_and_model(weighted, ProcessGroup())


def test_sharding_is_checked_before_any_image_is_read(
    image_folder: Path, tiny_weights: Path
) -> None:
    train = {"freeze": "none", "shard": True, "compile": True}

    with pytest.raises(UsageError, match=r"shard cannot be combined with train.compile=true"):
        load_data_and_model(settings_of(image_folder, tiny_weights, train=train), ProcessGroup())


def test_a_dry_run_counts_the_images_parameters_and_steps_of_each_stage(
    tmp_path: Path, tiny_weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = tmp_path / "parts"
    for part, each in (("train", 4), ("val", 2), ("test", 1)):
        draw_folder(parts / part, per_class=each)
    train = {"freeze": "head,lora", "sampling": "balanced", "lora_rank": 2}
    config = settings_of(parts, tiny_weights, train=train)

    with caplog.at_level("INFO", "vitft"):
        texts: list[str] = []
        before: list[str] = []

        def show(text: str) -> None:
            texts.append(text)
            before.extend(caplog.messages)

        dry_run(config, tmp_path / "run", data="parts", show=show)

    assert not any("trainable" in line or "images" in line for line in before)
    counted = "21 images in 3 classes, not opened yet: about 12 for training and 6 for validation"
    assert f"{counted}, and 3 for the final test" in caplog.messages
    assert any(line.startswith("balanced sampling: each epoch") for line in caplog.messages)
    lines = [line for line in caplog.messages if line.startswith("--freeze")]
    assert lines[0] == (
        "--freeze head: 99 trainable parameters, fitted by L-BFGS without a training loop"
    )
    adapters = 2 * 2 * (32 + 96 + 32 + 32 + 2 * (32 + 128))  # two blocks, rank 2
    assert lines[1] == (
        f"--freeze lora: {99 + adapters:,} trainable parameters, adamw with learning rate 0.001: "
        "10 epochs, 2 steps per epoch, 8 images per step"
    )
    assert caplog.messages[-1].endswith(f"the run would be written to {tmp_path / 'run'}")
    (text,) = texts
    written = tomllib.loads(text)
    assert written["data"]["path"] == "parts"
    assert written["optim"]["batch_size"] == 8
    assert not (tmp_path / "run").exists()


def test_a_dry_run_counts_adapters_only_in_a_stage_that_trains_them(
    image_folder: Path,
    tiny_weights: Path,
    tiny_vit: VisionTransformer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = settings_of(image_folder, tiny_weights, train={"freeze": "head,blocks:1,none"})

    with caplog.at_level("INFO", "vitft"):
        dry_run(config, tmp_path, data="x", show=lambda _: None)

    whole = sum(parameter.numel() for parameter in tiny_vit.parameters())
    norms, attention, mlp = 2 * 64, 4 * 32 * 33, 128 * 33 + 32 * 129
    block = norms + attention + mlp
    lines = [line for line in caplog.messages if line.startswith("--freeze")]
    assert lines[1].startswith(f"--freeze blocks:1: {99 + 64 + block:,} trainable parameters, ")
    assert lines[2].startswith(f"--freeze none: {whole:,} trainable parameters, ")


def test_a_dry_run_without_test_images_mentions_none(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "vitft"):
        config = settings_of(image_folder, tiny_weights)
        dry_run(config, tmp_path, data="x", show=lambda _: None)

    counted = "30 images in 3 classes, not opened yet: about 24 for training and 6 for validation"
    assert counted in caplog.messages
    assert "balanced sampling" not in caplog.text
