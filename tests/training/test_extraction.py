"""Passes over the image files, divided among the processes of a run."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import draw_folder
from tests.support.thread_ranks import ThreadRank, run_ranks
from tests.support.training_data import data_set, row, watched_progress
from vitft.config.sections import DataSpec
from vitft.data.folder import File, Folder
from vitft.data.transforms import EvalTransform, eval_view
from vitft.features.cache import key_of
from vitft.features.fingerprints import Fingerprints
from vitft.features.pipeline import inspect_dataset
from vitft.system.errors import DataError, ImageError
from vitft.training import extraction as module
from vitft.training.distributed import ProcessGroup
from vitft.training.extraction import compute_views, inspect_shards, share_rows, shared_grey_range

VIEW = eval_view(EvalTransform(image_size=(8, 8)))


class Rows:
    """Rows by key: those of a process, which has a cache of its own."""

    def __init__(self, rows: dict[bytes, Any], folder: dict[bytes, Any] | None = None) -> None:
        self.rows, self.folder = rows, folder
        self.added: list[int] = []
        self.flushed = 0

    def __contains__(self, key: object) -> bool:
        return key in self.rows

    def get(self, key: bytes) -> Any:
        return self.rows.get(key)

    def add(self, rows: dict[bytes, Any]) -> None:
        assert not rows.keys() & self.rows.keys()
        self.added.append(len(rows))
        self.rows |= rows

    def flush(self) -> None:
        self.flushed += 1


class FakeExtractor:
    """Extractor of rows (3,) in float32; a refresh reads the common folder, if there is one."""

    def __init__(self, store: Rows) -> None:
        self.kept = store
        self.prefix = SimpleNamespace(shape=(3,))

    def refresh(self) -> None:
        self.kept.rows |= self.kept.folder or {}

    def store(self, _: Any) -> Rows:
        return self.kept


def key(name: str) -> bytes:
    return key_of(name, VIEW.name)


def share(having: Sequence[str], wanted: str, folder: dict[bytes, Any] | None = None) -> list[Rows]:
    """Share the rows that each process has, named by letters, and return what each has then."""

    def rank(group: ThreadRank) -> Rows:
        rows = {key(name): np.full(3, ord(name), np.float32) for name in having[group.rank]}
        extractor: Any = FakeExtractor(Rows(rows, folder))
        share_rows(extractor, list(wanted), VIEW, group)
        extractor.kept.sent = [
            len(value) for value in group.sent if isinstance(value, list) and value
        ]
        return extractor.kept

    return run_ranks(len(having), rank)


def names_of(store: Rows, every: str = "abcdefgh") -> str:
    for name in every:
        if key(name) in store:
            assert store.get(key(name)).tolist() == [ord(name)] * 3
    return "".join(name for name in every if key(name) in store)


@pytest.mark.parametrize(
    ("having", "wanted"),
    [
        pytest.param(("ab", "cd"), "abcd", id="two processes"),
        pytest.param(("a", "", "bcd"), "abcd", id="three processes"),
        pytest.param(("abcd", "abc"), "abcd", id="one row is missing in one process"),
        pytest.param(("", "abcd"), "abcd", id="the main process has none"),
        pytest.param(("ab", "cd"), "abcdab", id="images with copies"),
    ],
)
def test_every_process_gets_the_rows_that_another_one_has(
    having: Sequence[str], wanted: str
) -> None:
    found = share(having, wanted)

    assert [names_of(store) for store in found] == ["abcd"] * len(having)
    for store, had in zip(found, having, strict=True):
        assert sum(store.added) == 4 - len(had)
        assert store.flushed == 1


def test_a_row_that_no_process_has_is_left_out() -> None:
    found = share(("ab", "c"), "abcd")

    assert [names_of(store) for store in found] == ["abc", "abc"]


def test_only_rows_that_are_missing_somewhere_are_sent_and_only_once() -> None:
    one, other = share(("abcd", "cde"), "abcde")

    assert sum(one.sent) == 2  # type: ignore[attr-defined]  # a and b
    assert sum(other.sent) == 1  # type: ignore[attr-defined]  # e


def test_rows_are_sent_in_messages_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGE_BYTES", 2 * 3 * 4)  # two rows of three float32 values

    one, other = share(("abcde", ""), "abcde")

    assert one.sent == [2, 2, 1]  # type: ignore[attr-defined]
    assert other.added == [2, 2, 1]
    monkeypatch.setattr(module, "MESSAGE_BYTES", 1)
    assert share(("ab", ""), "ab")[0].sent == [1, 1]  # type: ignore[attr-defined]


def test_nothing_is_sent_between_processes_with_a_common_cache() -> None:
    folder = {key(name): np.full(3, ord(name), np.float32) for name in "abcd"}

    found = share(("ab", "cd"), "abcd", folder)

    assert [store.added for store in found] == [[], []]
    assert [store.sent for store in found] == [[], []]  # type: ignore[attr-defined]
    assert [names_of(store) for store in found] == ["abcd", "abcd"]


def test_a_single_process_shares_nothing() -> None:
    share_rows(None, ["a"], VIEW, ProcessGroup())  # type: ignore[arg-type]


class Computing:
    """Extractor that notes which files it is asked to compute, of which view."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str], str]] = []
        self.error: Exception | None = None

    def compute(
        self, root: str, files: Sequence[File], view: Any, *, claim: Any, progress: Any
    ) -> None:
        assert claim is None
        self.calls.append((root, [file.path for file in files], view.name))
        if self.error is not None:
            raise self.error
        progress(len(files))


def test_each_process_computes_the_views_of_every_other_run_of_16_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared, bars = list[Any](), watched_progress(monkeypatch)
    monkeypatch.setattr(module, "share_rows", lambda *given: shared.append(given[1:3]))
    rows = [row(f"{i:02}", i % 3) for i in range(40)]
    manifest = data_set(rows, root=Path("there")).manifest
    views: Any = [SimpleNamespace(name="one"), SimpleNamespace(name="two")]
    extractors = [Computing(), Computing()]

    for rank, extractor in enumerate(extractors):
        group = ProcessGroup(rank, 2)
        compute_views(extractor, manifest, rows, views, "x", group)  # type: ignore[arg-type]

    own = [[*range(16), *range(32, 40)], [*range(16, 32)]]
    for extractor, indices in zip(extractors, own, strict=True):
        names = [f"{i:02}" for i in indices]
        assert extractor.calls == [("there", names, "one"), ("there", names, "two")]
    digests = [one.sha256 for one in rows]
    assert shared == [(digests, view) for view in views] * 2
    assert [(bar.total, bar.done) for bar in bars] == [(48, 48), (32, 32)]


def test_a_file_that_was_deleted_meanwhile_is_named() -> None:
    extractor: Any = Computing()
    extractor.error = ImageError("x.png", "no such file")
    rows = [row("x.png", 0)]

    with pytest.raises(DataError, match=r"x\.png"):
        compute_views(extractor, data_set(rows).manifest, rows, [VIEW], "x", ProcessGroup())


def folder_of(root: Path, *, copies: int = 0) -> Folder:
    """Return a folder of 36 images, some of them copied to the last class, and two torn files."""
    draw_folder(root, per_class=12)
    for i in range(copies):
        (root / "red" / f"copy {i}.png").write_bytes((root / f"blue/{i:03}.png").read_bytes())
    (root / "red" / "zz0.png").write_bytes(b"torn")
    (root / "red" / "zz1.png").write_bytes(b"torn")
    classes = ("blue", "green", "red")
    files = tuple(
        File(path.relative_to(root).as_posix(), classes.index(path.parent.name))
        for path in sorted(root.rglob("*.png"))
    )
    return Folder(root=root, classes=classes, files=files, layout="classes")


@pytest.mark.parametrize("size", [1, 3])
def test_every_process_knows_all_files_and_near_duplicates(tmp_path: Path, size: int) -> None:
    folder = folder_of(tmp_path / "data", copies=2)

    def rank(group: ThreadRank) -> Any:
        own = group if size > 1 else ProcessGroup()
        return inspect_shards(
            folder,
            own,
            data=DataSpec(group_duplicates=True),
            view=VIEW,
            extractor=None,
            fingerprints=Fingerprints("none", ()),
        )

    for found in run_ranks(size, rank):
        paths = [file.path for file in found.inspected.good]
        assert paths == [file.path for file in folder.files[:-2]]
        assert [path for path, _ in found.inspected.bad] == ["red/zz0.png", "red/zz1.png"]
        assert found.computed == 0
        assert {*found.fingerprints.by_digest} == {file.sha256 for file in found.inspected.good}
        assert found.inspected.folder.files == folder.files
        again = {f.path: f.sha256 for f in found.inspected.good}
        assert again["red/copy 0.png"] == again["blue/000.png"]


def test_near_duplicates_are_grouped_only_on_request(tmp_path: Path, monkeypatch: Any) -> None:
    folder = folder_of(tmp_path / "data")
    monkeypatch.setattr(Fingerprints, "duplicate_groups", lambda _: {"x": "g"})

    def groups(**data: Any) -> Any:
        spec, prints = DataSpec(**data), Fingerprints("none", ())
        found = inspect_shards(
            folder, ProcessGroup(), data=spec, view=VIEW, extractor=None, fingerprints=prints
        )
        assert found.fingerprints is prints
        return found.duplicates

    assert groups(group_duplicates=True) == {"x": "g"}
    assert groups() == {}


def test_too_many_unreadable_files_are_refused_unless_allowed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data")
    for path in (tmp_path / "data" / "blue").iterdir():
        path.write_bytes(b"torn")

    def inspect(**data: Any) -> Any:
        spec = DataSpec(**data)
        return inspect_shards(
            folder, ProcessGroup(), data=spec, view=VIEW, extractor=None, fingerprints=None
        )

    with pytest.raises(DataError, match="14 of 38"):
        inspect()
    found = inspect(allow_bad=True)
    assert len(found.inspected.bad) == 14
    assert (found.duplicates, found.fingerprints) == ({}, None)


def test_images_with_too_many_pixels_are_not_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data")  # of 24 x 20 pixels
    limits = [DataSpec(max_pixels=pixels, allow_bad=True) for pixels in (24 * 20, 24 * 20 - 1)]

    found = [
        inspect_shards(folder, ProcessGroup(), data=d, view=VIEW, extractor=None, fingerprints=None)
        for d in limits
    ]

    assert [len(one.inspected.good) for one in found] == [36, 0]


def test_the_features_of_all_processes_are_counted_and_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, logged, shared = folder_of(tmp_path / "data"), list[int](), list[Any]()
    original = inspect_dataset

    def without_features(part: Folder, **given: Any) -> Any:
        return original(part, **given | {"extractor": None, "view": None})

    monkeypatch.setattr(module, "inspect_dataset", without_features)
    monkeypatch.setattr(module, "share_rows", lambda *given: shared.append(given[1:3]))
    monkeypatch.setattr(module, "log_cached_features", lambda _, n: logged.append(n))

    def rank(group: ThreadRank) -> Any:
        extractor: Any = SimpleNamespace(computed=10 + group.rank)
        return inspect_shards(
            folder, group, data=DataSpec(), view=VIEW, extractor=extractor, fingerprints=None
        )

    found = run_ranks(2, rank)

    assert [one.computed for one in found] == logged == [21, 21]
    digests = [file.sha256 for file in found[0].inspected.good]
    assert shared == [(digests, VIEW)] * 2


def test_the_grey_range_is_measured_on_the_files_of_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path / "data")
    asked: list[Any] = []

    def measure(_: Folder, *, max_pixels: int, workers: int, own: Any, gather: Any) -> Any:
        assert max_pixels == 1234
        assert workers >= 1
        asked.append([file.path for file in own])
        return tuple(gather([len(own), asked[-1][0]]))

    monkeypatch.setattr(module, "measure_grey_range", measure)

    found: Any = run_ranks(2, lambda group: shared_grey_range(folder, group, max_pixels=1234))

    paths = [file.path for file in folder.files]
    assert sorted(asked, key=len) == [paths[16:32], paths[:16] + paths[32:]]
    assert found == [(22, paths[0], 16, paths[16])] * 2
