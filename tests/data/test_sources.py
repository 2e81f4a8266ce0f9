"""Inputs of a prediction: one source per row of output, in order and lazily."""

import io
import os
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.support.limits import HANG_S
from vitft.data import sources as sources_module
from vitft.data.sources import (
    STDIN,
    ImageSource,
    expand,
    source_bytes,
    sources,
    split_at,
    with_fetched,
)
from vitft.data.walk import Walk
from vitft.system.errors import DataError, ImageError, UsageError
from vitft.system.redaction import redacted

PNG = b"\x89PNG\r\n\x1a\n" + b"rest of a picture"


def names(*inputs: str, stdin: bytes = b"", lists: tuple[str, ...] = ()) -> list[str]:
    return [s.name for s in sources(inputs, lists=lists, stdin=io.BytesIO(stdin))]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five images in nested folders whose names sort otherwise than their parts."""
    for name in ("a/2.jpg", "a/b/1.jpg", "a-b/1.png", "a.jpg", "z.webp"):
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PNG)
    (tmp_path / "photos" / "notes.txt").write_text("buy milk\n")
    (tmp_path / "photos" / ".hidden.jpg").write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_becomes_its_images_in_the_order_of_their_whole_paths(here: Path) -> None:
    found = names("photos")

    assert found == [
        f"photos/{n}" for n in ("a-b/1.png", "a.jpg", "a/2.jpg", "a/b/1.jpg", "z.webp")
    ]
    assert found == [f"photos/{n}" for n in Walk("photos").images_in("")]  # as finetune lists them


def test_the_folder_of_a_run_is_not_a_folder_of_images(here: Path) -> None:
    for name in ("model.safetensors", "split.csv"):
        (here / "photos" / name).touch()

    with pytest.raises(DataError, match="photos is a run, not a folder of images") as caught:
        names("photos")

    assert "name the run with --run photos" in caught.value.fix


def test_folders_are_read_as_they_are_used(here: Path) -> None:
    found = sources(["photos"])

    first = next(found)
    (here / "photos" / "a" / "3.jpg").write_bytes(PNG)

    assert first.name == "photos/a-b/1.png"
    assert "photos/a/3.jpg" in [s.name for s in found]  # its folder had not been opened yet


def test_a_link_back_to_a_folder_above_is_not_followed(here: Path) -> None:
    (here / "photos" / "a" / "loop").symlink_to(here / "photos")

    assert len(names("photos")) == 5


def test_a_closed_folder_is_one_error_among_the_images_of_the_others(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def closed(path: str) -> object:
        if path == "photos/a-b":
            raise PermissionError
        return scan(path)

    monkeypatch.setattr("vitft.data.walk.os.scandir", closed)

    found = [(source.name, source.error) for source in sources(["photos"])]

    assert found == [
        ("photos/a-b", "permission denied"),
        ("photos/a.jpg", ""),
        ("photos/a/2.jpg", ""),
        ("photos/a/b/1.jpg", ""),
        ("photos/z.webp", ""),
    ]


def test_files_keep_their_order_and_need_not_exist(here: Path) -> None:
    assert names("z.jpg", "photos/a.jpg", "a.jpg") == ["z.jpg", "photos/a.jpg", "a.jpg"]


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        pytest.param("photos/*.jpg", 1, id="star"),
        pytest.param("photos/**/*.jpg", 3, id="two stars go into folders"),
        pytest.param("photos/a*", 4, id="a folder that matches brings its images"),
    ],
)
def test_patterns_are_expanded(here: Path, pattern: str, count: int) -> None:
    assert len(names(pattern)) == count


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(here: Path) -> None:
    (here / "[1].jpg").write_bytes(PNG)

    assert names("[1].jpg") == ["[1].jpg"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("old [a]/*.jpg", ["old [a]/1.jpg"]),
        ("old [a]/**/*.jpg", ["old [a]/1.jpg", "old [a]/in/2.jpg"]),
        ("old [a]/i*/2.jpg", ["old [a]/in/2.jpg"]),
        ("old [[]a]/*.jpg", ["old [a]/1.jpg"]),
        ("[op]ld [[]a]/*.jpg", ["old [a]/1.jpg"]),
    ],
)
def test_folders_whose_names_look_like_patterns_are_folders(
    here: Path, pattern: str, found: list[str]
) -> None:
    (here / "old [a]" / "in").mkdir(parents=True)
    (here / "old [a]" / "1.jpg").write_bytes(PNG)
    (here / "old [a]" / "in" / "2.jpg").write_bytes(PNG)

    assert names(pattern) == found


@pytest.mark.parametrize(
    ("inputs", "lists", "message"),
    [
        pytest.param(["photos/*.gif"], [], "no files match", id="pattern"),
        pytest.param(["empty"], [], "no images in empty", id="folder"),
        pytest.param([], ["none.txt"], "cannot read the list none.txt", id="missing list"),
        pytest.param([], ["blank.txt"], "is empty", id="empty list"),
        pytest.param([STDIN], [], "standard input is empty", id="stdin"),
    ],
)
def test_certain_errors_are_raised_immediately(
    here: Path, inputs: list[str], lists: list[str], message: str
) -> None:
    (here / "empty").mkdir()
    (here / "blank.txt").write_text("\n# nothing\n")

    with pytest.raises(DataError, match=message):
        sources(inputs, lists=lists, stdin=io.BytesIO())


def test_paths_of_a_list_are_relative_to_the_list_or_the_current_folder(here: Path) -> None:
    (here / "photos" / "list.txt").write_text("a.jpg\nz.webp\r\n\n# a remark\ngone.jpg\n")
    (here / "lists").mkdir()
    (here / "lists" / "list.txt").write_text("photos/a.jpg\nphotos/z.webp\n")

    beside = list(sources(["photos/list.txt"]))
    current = list(sources(["lists/list.txt"]))

    assert [s.path for s in beside] == ["photos/a.jpg", "photos/z.webp", "photos/gone.jpg"]
    assert [s.name for s in beside] == ["a.jpg", "z.webp", "gone.jpg"]
    assert [s.path for s in current] == ["photos/a.jpg", "photos/z.webp"]


def test_a_stray_text_among_photos_is_one_row_not_many(here: Path) -> None:
    assert names("photos/notes.txt") == ["photos/notes.txt"]
    assert names(lists=("photos/notes.txt",)) == ["buy milk"]  # said to be a list, it is one


@pytest.mark.parametrize(
    "table",
    [
        pytest.param('label,path\nx,"a, b.jpg"\ny,c.jpg\n', id="column path"),
        pytest.param('File_Name,n\n"a, b.jpg",1\nc.jpg,2\n', id="another name, any case"),
        pytest.param('"a, b.jpg"\nc.jpg\n', id="one column without a header"),
        pytest.param('\ufefffilename\r\n"a, b.jpg"\r\nc.jpg\r\n', id="Excel's mark"),
    ],
)
def test_the_column_of_paths_is_found(here: Path, table: str) -> None:
    (here / "t.csv").write_text(table)

    assert names(lists=("t.csv",)) == ["a, b.jpg", "c.jpg"]


def test_a_short_row_of_a_table_is_an_empty_line(here: Path) -> None:
    (here / "t.csv").write_text("label,path\nx\n\ny,c.jpg\n")

    found = list(sources([], lists=["t.csv"]))

    assert [(s.name, s.path, s.error) for s in found] == [
        ("", "", "empty line"), ("c.jpg", "c.jpg", ""),
    ]  # fmt: skip


def test_a_list_is_known_by_its_first_entry(here: Path) -> None:
    for name, text in {
        "here.csv": "path,label\nphotos/a.jpg,x\n", "gone.csv": "path,label\ngone.jpg,x\n",
        "web.lst": "https://host/a.jpg\n", "two.tsv": "n\tfile\n1\tphotos/a.jpg\n",
        "odd.csv": "a,b\n1,2\n", "empty.txt": "",
    }.items():  # fmt: skip
        (here / name).write_text(text)

    assert names("here.csv") == ["photos/a.jpg"]
    assert names("two.tsv") == ["photos/a.jpg"]
    assert names("web.lst") == ["https://host/a.jpg"]
    for name in ("gone.csv", "odd.csv", "empty.txt"):
        assert names(name) == [name]
    assert names(lists=(str(here / "photos/../here.csv"),)) == ["photos/a.jpg"]


def test_absolute_paths_of_a_list_are_kept(here: Path) -> None:
    (here / "photos" / "l.txt").write_text(f"{here}/photos/a.jpg\na.jpg\n")

    found = [source.path for source in sources([], lists=["photos/l.txt"])]

    assert found == [f"{here}/photos/a.jpg", "photos/a.jpg"]


def test_a_table_without_a_known_column_is_refused_with_the_columns(here: Path) -> None:
    (here / "t.csv").write_text("id,label\n1,rose\n")

    with pytest.raises(UsageError, match=r"t.csv has no path column; columns found: id, label"):
        sources([], lists=["t.csv"])


def test_inside_a_list_nothing_ends_everything(here: Path) -> None:
    (here / "empty").mkdir()
    (here / "l.txt").write_text("photos/a\nempty\nhttps://example.org/x.jpg\nnope.jpg\n")

    found = list(sources([], lists=["l.txt"]))

    assert [s.name for s in found] == [
        "photos/a/2.jpg", "photos/a/b/1.jpg", "empty", "https://example.org/x.jpg", "nope.jpg",
    ]  # fmt: skip
    assert found[2].error == "no images in this folder"


def test_a_long_list_is_read_as_it_is_used(here: Path) -> None:
    (here / "long.txt").write_text("photos/a.jpg\n" * 200_000)

    found = sources([], lists=["long.txt"])

    assert len(list(islice(found, 3))) == 3
    (here / "long.txt").write_text("photos/a.jpg\n")
    assert sum(1 for _ in found) < 200_000  # the rest had not been read


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(PNG, id="PNG"),
        pytest.param(b"BM6\x00\x00\x00\x00\x00\x00\x00", id="BMP, which begins like a name"),
        pytest.param(b"%PDF-1.7 text", id="a foreign format"),
        pytest.param(b"<html><body>", id="a web page"),
        pytest.param(b'{"error": "not found"}', id="JSON"),
        pytest.param(b"\xff\xd8\xff\xe0", id="four bytes of a JPEG"),
    ],
)
def test_bytes_of_a_file_on_standard_input_are_one_image(data: bytes) -> None:
    (found,) = sources([STDIN], stdin=io.BytesIO(data))

    assert found == ImageSource(STDIN, data=data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"BMW/1.jpg\nx y.jpg", id="lines, the first begins like a BMP"),
        pytest.param(b"BMW/1.jpg\r\nx y.jpg\r\n", id="Windows"),
        pytest.param(b"BMW/1.jpg\0x y.jpg\0", id="find -print0"),
    ],
)
def test_paths_on_standard_input_are_a_list(data: bytes) -> None:
    assert names(STDIN, stdin=data) == ["BMW/1.jpg", "x y.jpg"]


class Piped(io.RawIOBase):
    """Standard input that delivers what is written to a pipe, a few bytes at a time."""

    def __init__(self, data: bytes, most: int) -> None:
        self.data, self.most, self.asked = data, most, list[int]()

    def read(self, size: int = -1) -> bytes:
        self.asked.append(size)
        size = min(size if size >= 0 else len(self.data), self.most)
        found, self.data = self.data[:size], self.data[size:]
        return found


@pytest.mark.parametrize("most", [1, 3, 5000, 10**6])
def test_names_may_be_delivered_in_any_pieces(most: int) -> None:
    expected = [f"photos/{i:05}.jpg" for i in range(2000 if most > 100 else 20)]
    data = "\n".join(expected).encode()

    found = sources([STDIN], stdin=Piped(data, most))  # type: ignore[arg-type]

    assert [source.name for source in found] == expected


def test_4096_bytes_decide_whether_standard_input_is_an_image_or_a_list() -> None:
    name = "a/" * 2500
    piped = Piped(name.encode(), 1000)

    found = sources([STDIN], stdin=piped)  # type: ignore[arg-type]

    assert piped.asked == [4096, 3096, 2096, 1096, 96]
    assert [source.name for source in found] == [name]
    assert piped.asked[5:] == [io.DEFAULT_BUFFER_SIZE] * 2
    long = b"a/" * 2048 + b"\0\0"  # zeros as in an image, after the first 4096 bytes
    assert [s.data for s in sources([STDIN], stdin=io.BytesIO(long))] == [None]
    assert [s.data for s in sources([STDIN], stdin=io.BytesIO(long[2:]))] == [long[2:]]


def test_an_image_on_standard_input_may_have_256_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = Piped(PNG, 10**6)
    list(sources([STDIN], stdin=piped))  # type: ignore[arg-type]
    assert piped.asked[-1] == 256 * 2**20

    for size, error in ((len(PNG), ""), (len(PNG) - 1, "larger than ")):
        monkeypatch.setattr(sources_module, "MAX_STDIN", size)
        (found,) = sources([STDIN], stdin=io.BytesIO(PNG))
        assert found.error.startswith(error)
        assert bool(found.error) == bool(error)
        assert found.data == (b"" if error else PNG)


def test_names_are_divided_at_the_mark() -> None:
    rest = io.BytesIO(b"c.jpg\r\n\nd.jpg\r")

    assert list(split_at(rest, b"a.jpg\nb", b"\n")) == ["a.jpg", "bc.jpg", "d.jpg"]
    assert list(split_at(io.BytesIO(), b"a\r", b"\n")) == ["a"]
    assert list(split_at(io.BytesIO(), b"\r", b"\n")) == []


def test_a_name_with_a_line_break_survives_print0() -> None:
    assert names(STDIN, stdin=b"a\nb.jpg\0c.jpg\0") == ["a\nb.jpg", "c.jpg"]


def test_standard_input_can_be_named_only_once() -> None:
    with pytest.raises(UsageError, match="given more than once"):
        sources([STDIN, STDIN], stdin=io.BytesIO(PNG))


def test_a_path_without_its_data_is_answered_with_the_data_before_it(here: Path) -> None:
    with pytest.raises(DataError, match=r"a/2\.jpg does not exist") as caught:
        list(expand(["a/2.jpg"]))

    assert caught.value.fix == "check the path: did you mean photos/a/2.jpg?"


def test_eight_images_of_the_web_are_fetched_at_once_and_32_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, running, most = 0, 0, 0
    lock, free = threading.Lock(), threading.Event()

    def fetch(url: str, _: object) -> bytes:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        free.wait(HANG_S)
        time.sleep(0.001)
        with lock:
            running -= 1
        return url.encode()

    def items() -> Iterator[ImageSource]:
        nonlocal taken
        for number in range(60):
            taken += 1
            yield ImageSource(str(number), url=f"u{number}")

    monkeypatch.setattr(sources_module, "fetch_image", fetch)

    def release() -> None:
        """Let the first images go on once as many as possible are waiting."""
        while taken < 32 or running < 8:
            time.sleep(0.01)
        free.set()

    found = with_fetched(items())
    threading.Thread(target=release, daemon=True).start()

    assert next(found).data == b"u0"
    assert taken == 32
    assert [source.data for source in found] == [b"u%d" % i for i in range(1, 60)]
    assert most == 8


def test_local_files_are_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def fetch(url: str, _: object) -> bytes:
        free.wait(10)
        return url.encode()

    monkeypatch.setattr(sources_module, "fetch_image", fetch)
    items = iter([ImageSource("a", "a"), ImageSource("b", url="b"), ImageSource("c", "c")])

    found = with_fetched(items)

    assert next(found) == ImageSource("a", "a")
    threading.Timer(0.05, free.set).start()
    assert [*found] == [ImageSource("b", url="b", data=b"b"), ImageSource("c", "c")]


def test_sources_are_read_ahead_while_the_first_image_of_the_web_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = threading.Event()

    def fetch(url: str, _: object) -> bytes:
        if url == "late":
            later.set()
        return b"in time" if later.wait(5) else b"too late"

    monkeypatch.setattr(sources_module, "fetch_image", fetch)
    local = ImageSource("b", "b")
    items = iter([ImageSource("a", url="early"), local, ImageSource("c", url="late")])

    one, two, three = with_fetched(items)

    assert (one.data, two, three.data) == (b"in time", local, b"in time")


def test_nothing_is_fetched_after_the_last_source_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, ended = list[str](), list[str]()

    def fetch(url: str, _: object) -> bytes:
        begun.append(url)
        time.sleep(0.02)
        ended.append(url)
        return b""

    monkeypatch.setattr(sources_module, "fetch_image", fetch)
    found = with_fetched(ImageSource(str(i), url=str(i)) for i in range(60))
    next(found)

    found.close()  # type: ignore[attr-defined]

    assert sorted(begun) == sorted(ended)
    assert len(begun) < 32


def test_the_bytes_of_a_source_are_its_own_or_those_of_its_file(here: Path) -> None:
    assert source_bytes(ImageSource("x", data=b""), max_pixels=9) == b""
    assert source_bytes(ImageSource("x", "photos/a.jpg"), max_pixels=9) == PNG
    with pytest.raises(ImageError, match="why"):
        source_bytes(ImageSource("x", data=b"", error="why"), max_pixels=9)


def test_an_image_on_the_web_is_named_without_its_password() -> None:
    address = "https://me:secret@example.org/a.jpg?token=hidden"

    (found,) = sources([address])

    assert found == ImageSource(redacted(address), url=address)
    assert "secret" not in found.name
