"""Suggestions for paths that do not exist."""

from pathlib import Path

import pytest

from vitft.system import near_path

FILES = [
    "Rose/001.jpg",
    "Rose/0051.jpg",
    "Rose/IMG_2041.jpg",
    "Rose/close up.JPG",
    "Tulip/007.jpg",
    "Tulip/garden.png",
]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        pytest.param("rose/001.jpg", "Rose/001.jpg", id="another case of the folder"),
        pytest.param("Rsoe/001.jpg", "Rose/001.jpg", id="swapped letters"),
        pytest.param("Rose/1.jpg", "Rose/001.jpg", id="without leading zeros"),
        pytest.param("Roses/1.jpeg", "Rose/001.jpg", id="folder, zeros and suffix"),
        pytest.param("Rose/001.png", "Rose/001.jpg", id="another suffix"),
        pytest.param("Rose/IGM_2041.jpg", "Rose/IMG_2041.jpg", id="swapped letters of a file"),
        pytest.param("Rose/img 2041.jpg", "Rose/IMG_2041.jpg", id="blank for underscore"),
        pytest.param("Rose/close_up.jpg", "Rose/close up.JPG", id="underscore for blank"),
        pytest.param("Tulip/gardn.png", "Tulip/garden.png", id="missing letter"),
        pytest.param("garden.png", None, id="in a folder below"),
        pytest.param("Rose/IMG_2042.jpg", None, id="another number of a camera"),
        pytest.param("Roses/999.jpg", "Rose", id="only the folder is known"),
        pytest.param("Rose/005.jpg", None, id="no such number"),
        pytest.param("Rose/0015.jpg", None, id="swapped digits"),
        pytest.param("Rose/007.jpg", None, id="the same number in another class"),
        pytest.param("Lily/001.jpg", None, id="no such folder"),
        pytest.param("Rose/shed.jpg", None, id="another word"),
    ],
)
def test_a_path_is_suggested_only_for_a_probable_typing_error(
    photos: Path, wrong: str, meant: str | None
) -> None:
    assert near_path(Path(wrong), lambda _: True) == (meant and Path(meant))


@pytest.mark.parametrize(
    ("wrong", "known", "meant"),
    [
        pytest.param("flowers", ["flower", "my_flowers"], "flower", id="the most similar one"),
        pytest.param("flowers", ["birds", "my_flowers"], "my_flowers", id="a word of a name"),
        pytest.param("photos-new", ["photos"], "photos", id="with another word"),
        pytest.param("photos 2025", ["photos 2024"], None, id="another year"),
        pytest.param("photos 2025", ["photos"], None, id="a year that does not exist"),
        pytest.param("run2001", ["run21"], None, id="zeros within a number count"),
        pytest.param("photos.zip", ["photos"], "photos", id="an unpacked archive"),
        pytest.param("cat", ["dog", "cow"], None, id="other words"),
        pytest.param("cow", ["owl"], None, id="another short word"),
        pytest.param("dgo", ["dog"], "dog", id="exchanged letters"),
    ],
)
def test_a_name_is_suggested_if_few_letters_differ_and_no_number_does(
    tmp_path: Path, wrong: str, known: list[str], meant: str | None
) -> None:
    for name in known:
        (tmp_path / "in" / name).mkdir(parents=True)

    found = near_path(tmp_path / "in" / wrong, lambda _: True)

    assert (found and found.name) == meant
