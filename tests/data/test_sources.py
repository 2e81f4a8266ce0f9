"""Inputs of a prediction: one source per row of output, in order and lazily."""

import io
from itertools import islice
from pathlib import Path

import pytest

from vitft.data import sources
from vitft.system import DataError

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


def test_folders_and_patterns_become_images_in_the_order_of_their_whole_paths(here: Path) -> None:
    (here / "p[1]").mkdir()
    (here / "p[1]" / "x.png").write_bytes(PNG)
    plain = ["photos/a-b/1.png", "photos/a.jpg", "photos/a/2.jpg", "photos/a/b/1.jpg"]

    assert names("photos") == [*plain, "photos/z.webp"]
    assert names("p[1]/*.png") == ["p[1]/x.png"]
    assert names("ph*/a*/*.jpg") == ["photos/a/2.jpg"]
    assert names("photos/a*") == [*plain[2:], *plain[:2]]
    (here / "photos" / "a" / "loop").symlink_to(here / "photos")  # is not followed
    (here / "photos" / "c").symlink_to("a")  # is listed at both places
    assert names("photos") == [*plain, "photos/c/2.jpg", "photos/c/b/1.jpg", "photos/z.webp"]


def test_paths_of_a_list_are_relative_to_the_list_or_the_current_folder(here: Path) -> None:
    (here / "photos" / "list.txt").write_text("a.jpg\nz.webp\r\n\n# a remark\ngone.jpg\n")
    (here / "lists").mkdir()
    (here / "lists" / "list.txt").write_text("photos/a.jpg\nphotos/z.webp\n")

    beside = list(sources(["photos/list.txt"]))
    current = list(sources(["lists/list.txt"]))

    assert [s.path for s in beside] == ["photos/a.jpg", "photos/z.webp", "photos/gone.jpg"]
    assert [s.name for s in beside] == ["a.jpg", "z.webp", "gone.jpg"]
    assert [s.path for s in current] == ["photos/a.jpg", "photos/z.webp"]


def test_a_list_is_known_by_its_first_entry(here: Path) -> None:
    for name, text in {
        "here.csv": "path,label\nphotos/a.jpg,x\n", "gone.csv": "path,label\ngone.jpg,x\n",
        "web.lst": "https://host/a.jpg\n", "two.tsv": "n\tfile\n1\tphotos/a.jpg\n",
        "odd.csv": "a,b\n1,2\n", "empty.txt": "", "plain.csv": "photos/a.jpg\nphotos/z.webp\n",
        "blank.csv": "path,label\nphotos/a.jpg,x\n,y\n",
    }.items():  # fmt: skip
        (here / name).write_text(text)

    assert names("here.csv") == ["photos/a.jpg"]
    assert names("two.tsv") == ["photos/a.jpg"]
    assert names("plain.csv") == ["photos/a.jpg", "photos/z.webp"]
    assert [(s.name, s.error) for s in sources(["blank.csv"])][1:] == [("", "empty line")]
    assert names("web.lst") == ["https://host/a.jpg"]
    for name in ("gone.csv", "odd.csv", "empty.txt"):
        assert names(name) == [name]
    assert names(lists=(str(here / "photos/../here.csv"),)) == ["photos/a.jpg"]


def test_a_long_list_is_read_as_it_is_used(here: Path) -> None:
    (here / "long.txt").write_text("photos/a.jpg\n" * 200_000)

    found = sources([], lists=["long.txt"])

    assert len(list(islice(found, 3))) == 3
    (here / "long.txt").write_text("photos/a.jpg\n")
    assert sum(1 for _ in found) < 200_000  # the rest had not been read


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

    found = sources(["-"], stdin=Piped(data, most))  # type: ignore[arg-type]

    assert [source.name for source in found] == expected


def test_4096_bytes_decide_whether_standard_input_is_an_image_or_a_list() -> None:
    name = "a/" * 2500
    piped = Piped(name.encode(), 1000)

    found = sources(["-"], stdin=piped)  # type: ignore[arg-type]

    assert piped.asked == [4096, 3096, 2096, 1096, 96]
    assert [source.name for source in found] == [name]
    assert piped.asked[5:] == [io.DEFAULT_BUFFER_SIZE] * 2
    long = b"a/" * 2048 + b"\0\0"  # zeros as in an image, after the first 4096 bytes
    assert [s.data for s in sources(["-"], stdin=io.BytesIO(long))] == [None]
    assert [s.data for s in sources(["-"], stdin=io.BytesIO(long[2:]))] == [long[2:]]


def test_a_name_with_a_line_break_survives_print0() -> None:
    assert names("-", stdin=b"a\nb.jpg\0c.jpg\0") == ["a\nb.jpg", "c.jpg"]


def test_a_line_that_is_too_long_is_no_path() -> None:
    with pytest.raises(DataError, match="standard input has a line of more than 65,536"):
        names("-", stdin=b"a.jpg\n" + b"x" * 70_000)
