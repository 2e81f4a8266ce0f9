"""Rows of Hugging Face datasets as shards, with a stand-in for the library `datasets`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.pictures import encoded, scene
from tests.support.training_data import watched_progress
from vitft.config.sections import DataSpec
from vitft.data.images import read_bytes
from vitft.data.remote import hugging_face, prepare
from vitft.data.remote.hugging_face import (
    HubName,
    chosen_splits,
    image_bytes,
    image_columns,
    json_value,
    load_arguments,
    local_version,
    parse_name,
    read_copied,
    row_members,
    split_names,
    write_rows,
)
from vitft.data.remote.places import Place
from vitft.data.remote.prepare import prepare_data
from vitft.data.remote.samples import read_samples
from vitft.system.errors import DataError

PICTURE = encoded(scene(1, (8, 8)))


class FakeStream:
    """A streamed split whose position can be stored."""

    def __init__(self, library: "FakeLibrary", split: str) -> None:
        self.library, self.split, self.place = library, split, 0
        self.features = {"image": library.Image(), "label": SimpleNamespace(dtype="string")}
        total = SimpleNamespace(num_examples=len(library.splits[split]))
        self.info = SimpleNamespace(splits={split: total})

    def cast_column(self, name: str, kind: "FakeLibrary.Image") -> "FakeStream":
        assert (name, kind.decode) == ("image", False)
        return self

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = self.library.splits[self.split]
        while self.place < len(rows):
            self.library.read.append(f"{self.split} {self.place}")
            self.place += 1
            yield rows[self.place - 1]


class FakeLibrary:
    """What vitft uses of the library `datasets`."""

    class Image:
        def __init__(self, *, decode: bool = True) -> None:
            self.decode = decode

    def __init__(self) -> None:
        self.splits: dict[str, list[dict[str, Any]]] = {}
        self.read: list[str] = []
        self.verbosity = 7
        self.logging = SimpleNamespace(
            get_verbosity=lambda: self.verbosity,
            set_verbosity_error=lambda: setattr(self, "verbosity", 40),
            set_verbosity=lambda level: setattr(self, "verbosity", level),
        )
        self.bars = True

    def disable_progress_bars(self) -> None:
        self.bars = False

    def get_dataset_split_names(self, _path: str, name: str | None, **_: object) -> list[str]:
        assert name is None
        assert self.verbosity == 40
        return [*self.splits]

    def load_dataset(self, *, split: str, streaming: bool, **_: object) -> FakeStream:
        assert streaming
        return FakeStream(self, split)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    found = FakeLibrary()
    monkeypatch.setitem(sys.modules, "datasets", found)
    for module in (hugging_face, prepare):
        monkeypatch.setattr(module, "require_extra", lambda *_, **__: None)
    return found


def rows_of(count: int) -> list[dict[str, Any]]:
    """Rows with different bytes that begin like a PNG."""
    start = b"\x89PNG\r\n\x1a\n"
    return [
        {"image": {"bytes": start + bytes([i]), "path": None}, "label": "ab"[i % 2]}
        for i in range(count)
    ]


def test_rows_are_copied_to_shards_and_an_interrupted_copy_continues(
    library: FakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hugging_face, "SHARD_ROWS", 5)
    (tmp_path / "set").mkdir()
    library.splits = {"train": rows_of(12), "test": rows_of(5), "more": rows_of(1)}
    replace = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if target.name == "train-00001.tar":
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            prepare_data(f"hf:{tmp_path}/set", DataSpec())
    assert library.read == [f"train {i}" for i in range(10)]
    assert (library.verbosity, library.bars) == (7, False)
    library.read.clear()
    bars = watched_progress(monkeypatch)

    index = prepare_data(f"hf:{tmp_path}/set", DataSpec())

    copying = [bar for bar in bars if bar.label.startswith("copying")]
    assert [(bar.total, bar.done) for bar in copying] == [(7, 7), (5, 5)]
    assert library.read == [f"train {i}" for i in range(5, 12)] + [f"test {i}" for i in range(5)]
    lines = index.read_text().splitlines()
    paths = [line.split(",")[0] for line in lines[1:]]
    assert paths == [
        *(f"train-{i // 5:05}.tar/{i:07}.png" for i in range(12)),
        *(f"test-00000.tar/{i:07}.png" for i in range(5)),
    ]
    assert [line.split(",", 1)[1] for line in lines[:3]] == ["split,label", "train,a", "train,b"]
    images = [read_bytes(f"{index.parent}/{path}") for path in paths]
    assert images == [row["image"]["bytes"] for row in rows_of(12) + rows_of(5)]
    prepare_data(f"hf:{tmp_path}/set", DataSpec())
    assert len(library.read) == 12
    (tmp_path / "set" / "new").touch()
    prepare_data(f"hf:{tmp_path}/set", DataSpec())
    assert len(library.read) == 12 + 17


@pytest.mark.parametrize(
    ("info", "totals"),
    [
        pytest.param(True, [7, 1], id="sizes"),
        pytest.param(False, [1, 1], id="other splits only"),
        pytest.param(None, [1, 1], id="nothing"),
    ],
)
def test_the_progress_of_each_split_shows_how_many_rows_are_left(
    library: FakeLibrary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    info: bool | None,
    totals: list[int],
) -> None:
    bars = watched_progress(monkeypatch)
    monkeypatch.setattr(hugging_face, "SHARD_ROWS", 5)
    (tmp_path / "set").mkdir()
    library.splits = {"train": rows_of(7), "test": rows_of(1)}
    load = library.load_dataset

    def loaded(**options: Any) -> FakeStream:
        stream = load(**options)
        if not info:
            stream.info = None if info is None else SimpleNamespace(splits={"other": 1})
        return stream

    monkeypatch.setattr(library, "load_dataset", loaded)

    prepare_data(f"hf:{tmp_path}/set", DataSpec())

    shown = [bar for bar in bars if bar.label.startswith("copying")]
    assert [bar.label for bar in shown] == ["copying set train", "copying set test"]
    assert [bar.total for bar in shown] == totals
    assert [bar.done for bar in shown] == [7, 1]


def test_shards_of_changed_data_that_are_no_longer_needed_are_removed(
    library: FakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hugging_face, "SHARD_ROWS", 5)
    (tmp_path / "set").mkdir()
    library.splits = {"train": rows_of(7)}
    shards = prepare_data(f"hf:{tmp_path}/set", DataSpec()).parent / "shards"
    assert len([*shards.glob("*.tar")]) == 2
    library.splits = {"train": rows_of(3)}
    (tmp_path / "set" / "new").touch()

    prepare_data(f"hf:{tmp_path}/set", DataSpec())

    assert [path.name for path in shards.glob("*.tar")] == ["train-00000.tar"]


def test_a_dataset_without_images_or_with_an_error_is_refused(
    library: FakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set").mkdir()
    library.splits = {"train": []}
    with pytest.raises(DataError, match="contains no images"):
        prepare_data(f"hf:{tmp_path}/set", DataSpec())
    monkeypatch.setattr(hugging_face, "image_columns", lambda _: [])
    (tmp_path / "set" / "new").touch()
    with pytest.raises(DataError, match="no column of images; columns found: image and label"):
        prepare_data(f"hf:{tmp_path}/set", DataSpec())

    def fail(*_: object) -> None:
        raise ValueError("\n  the first line  \nthe second line")

    monkeypatch.setattr(library, "get_dataset_split_names", fail)
    (tmp_path / "set" / "newer").touch()
    with pytest.raises(DataError, match=r"cannot read hf:.*/set: the first line\n"):
        prepare_data(f"hf:{tmp_path}/set", DataSpec())


def test_only_columns_of_images_are_cast_to_bytes(
    library: FakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast: list[tuple[str, bool]] = []

    def noted(stream: FakeStream, name: str, kind: FakeLibrary.Image) -> FakeStream:
        cast.append((name, kind.decode))
        return stream

    monkeypatch.setattr(FakeStream, "cast_column", noted)
    begin = FakeStream.__init__

    def with_columns(stream: FakeStream, library: FakeLibrary, split: str) -> None:
        begin(stream, library, split)
        stream.features |= {"file": SimpleNamespace(dtype="binary"), "mask": library.Image()}

    monkeypatch.setattr(FakeStream, "__init__", with_columns)
    (tmp_path / "set").mkdir()
    library.splits = {"train": [row | {"file": None, "mask": None} for row in rows_of(2)]}

    prepare_data(f"hf:{tmp_path}/set", DataSpec())

    assert cast == [("image", False), ("mask", False)]


def test_the_parts_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("set", "odd@v1:x"):
        (tmp_path / name).mkdir()
    expected = {
        "me/set": HubName("me/set"),
        "me/set:test": HubName("me/set", "", "", "test"),
        "me/set@v2:small/test": HubName("me/set", "v2", "small", "test"),
        "me/set@v2": HubName("me/set", "v2"),
        "set": HubName(f"{tmp_path}/set"),
        "set:test": HubName(f"{tmp_path}/set", "", "", "test"),
        "set:small/test": HubName(f"{tmp_path}/set", "", "small", "test"),
        "odd@v1:x": HubName(f"{tmp_path}/odd@v1:x"),
        "odd@v1:x:a/b": HubName(f"{tmp_path}/odd@v1:x", "", "a", "b"),
    }

    assert {name: parse_name(name) for name in expected} == expected


def test_a_parquet_file_has_one_split(library: FakeLibrary, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()

    assert split_names(HubName(f"{tmp_path}/a.parquet"), "") == ["train"]
    with hugging_face.quiet_libraries():
        library.splits = {"a": [], "b": []}
        assert split_names(HubName(f"{tmp_path}"), "") == ["a", "b"]


@pytest.mark.parametrize("revision", ["", "v2"])
def test_the_splits_and_rows_of_a_remote_dataset_are_those_of_one_commit(
    library: FakeLibrary, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    used: list[object] = []
    library.splits = {"train": rows_of(2)}
    names, load = library.get_dataset_split_names, library.load_dataset

    def split_names(path: str, name: str | None, **options: object) -> list[str]:
        used.append(options["revision"])
        return names(path, name)

    def loaded(*, split: str, streaming: bool, **options: object) -> FakeStream:
        used.append(options["revision"])
        return load(split=split, streaming=streaming)

    class FakeHub:
        def dataset_info(self, name: str, *, revision: str | None) -> SimpleNamespace:
            return SimpleNamespace(sha=f"commit of {name} {revision}")

    monkeypatch.setattr(library, "get_dataset_split_names", split_names)
    monkeypatch.setattr(library, "load_dataset", loaded)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=FakeHub))

    prepare_data(f"hf:user/name{f'@{revision}' * bool(revision)}", DataSpec())

    assert used == [f"commit of user/name {revision or None}"] * 2


@pytest.mark.parametrize(
    ("names", "split", "known", "notes"),
    [
        (["train", "test"], "", ["train", "test"], []),
        (["train", "extra", "more"], "", ["train"], ["not used: the splits extra and more"]),
        (["odd"], "", ["odd"], []),
        (["train", "extra"], "extra", ["extra"], []),
    ],
)
def test_splits_with_usual_names_or_the_only_one_are_copied(
    names: list[str], split: str, known: list[str], notes: list[str]
) -> None:
    hub = HubName("user/name", split=split)

    assert chosen_splits(Place("hf", "user/name"), hub, names) == (known, notes)


def test_splits_without_usual_names_are_left_to_the_user() -> None:
    with pytest.raises(DataError, match="splits found: a and b") as error:
        chosen_splits(Place("hf", "user/name"), HubName("user/name"), ["a", "b"])

    assert error.value.fix == "choose one of them, e.g. hf:user/name:a"


def test_columns_of_images_are_known_by_type_and_name(library: FakeLibrary) -> None:
    text, data, large = (SimpleNamespace(dtype=n) for n in ("string", "binary", "large_binary"))
    features = {
        "label": SimpleNamespace(dtype="int64"),
        "mask": library.Image(),
        "raw": data,
        "scan": {"bytes": data, "path": text},
        "img": large,
        "image": text,
        "other": {"bytes": data},
    }

    assert image_columns(features) == ["img", "mask", "scan"]


def test_a_row_has_its_images_and_other_columns() -> None:
    row = {"image": {"bytes": PICTURE, "path": "x.png"}, "mask": b"unknown", "none": None, "n": 3}

    found = dict(row_members(row, ["image", "mask", "none"], {}))

    assert found == {"jpg": PICTURE, "mask.jpg": b"unknown", "json": b'{"n": 3}'}
    named = dict(row_members({"image": {"bytes": b"?", "path": "a/x.PNG"}}, ["image"], {}))
    assert named == {"png": b"?", "json": b"{}"}


def test_an_image_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(PICTURE)
    path = str(tmp_path / "a.jpg")

    assert image_bytes({"bytes": None, "path": path}) == (PICTURE, path)
    assert image_bytes({"bytes": b"x", "path": path}) == (b"x", path)
    assert image_bytes({"bytes": None, "path": None}) == (None, "")
    assert image_bytes(b"x") == (b"x", "")


def test_cells_become_json() -> None:
    names = SimpleNamespace(int2str=["cat", "dog"].__getitem__)
    cells: list[tuple[Any, Any, Any]] = [
        (0, names, "cat"), (1, names, "dog"), (-1, names, None), ("dog", names, "dog"),
        ([0, 1], [names], ["cat", "dog"]), ([0], SimpleNamespace(feature=names), ["cat"]),
        ((1.5, None), None, [1.5, None]), (float("nan"), None, None), (True, None, True),
        ({"a": 1}, None, {}), (b"x", None, {}), (Path("x"), None, "x"),
    ]  # fmt: skip

    assert [json_value(value, feature) for value, feature, _ in cells] == [w for *_, w in cells]


def test_a_shard_has_five_hundred_rows(tmp_path: Path) -> None:
    rows = iter([{"image": PICTURE, "n": i} for i in range(501)])

    written = [write_rows(tmp_path / f"{i}.tar", rows, 500 * i, ["image"], {}) for i in range(3)]

    assert written == [500, 1, 0]
    first = read_samples(tmp_path / "0.tar", shown="0").samples
    assert [*first] == [f"{i:07}" for i in range(500)]
    assert [*read_samples(tmp_path / "1.tar", shown="1").samples] == ["0000500"]


def test_the_version_of_local_files_changes_with_names_sizes_and_times(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1").write_bytes(b"x")
    versions = [local_version(str(tmp_path))]
    for content, time in ((b"x", 1), (b"xy", 1)):
        (tmp_path / "a" / "1").write_bytes(content)
        os.utime(tmp_path / "a" / "1", ns=(time, time))
        versions.append(local_version(str(tmp_path)))
    (tmp_path / "a" / "1").rename(tmp_path / "a" / "2")
    versions.append(local_version(str(tmp_path)))

    assert len({*versions}) == 4
    assert local_version(str(tmp_path)) == versions[-1]
    assert local_version(str(tmp_path / "a" / "2")) == versions[-1]  # a single file


def test_arguments_of_local_and_remote_datasets(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    file, folder = str(tmp_path / "a.parquet"), str(tmp_path)

    assert load_arguments(HubName(file), "v") == {"path": "parquet", "data_files": file}
    assert load_arguments(HubName(folder, "", "c"), "v") == {"path": folder, "name": "c"}
    (tmp_path / "b").touch()
    assert load_arguments(HubName(f"{folder}/b"), "v") == {"path": f"{folder}/b", "name": None}
    remote = {"path": "u/n.parquet", "name": None, "revision": "v"}
    assert load_arguments(HubName("u/n.parquet"), "v") == remote
    assert load_arguments(HubName("u/n"), "v") == {"path": "u/n", "name": None, "revision": "v"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"splits": []}'])
def test_a_damaged_record_of_progress_is_ignored(tmp_path: Path, text: str) -> None:
    assert read_copied(tmp_path) == {}
    (tmp_path / "progress.json").write_text(text)
    assert read_copied(tmp_path) == {}
    (tmp_path / "progress.json").write_text('{"splits": {}}')
    assert read_copied(tmp_path) == {"splits": {}}
