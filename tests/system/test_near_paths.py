"""Suggestions for paths that do not exist."""

import unicodedata
from pathlib import Path

import pytest

from vitft.system.near_paths import (
    EquivalentNames,
    entries_of,
    misspelt_name,
    near_paths,
    nearby_folders,
    path_fix,
    without_suffix,
)

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
        pytest.param("rose/001.jpg", ["Rose/001.jpg"], id="another case of the folder"),
        pytest.param("Rsoe/001.jpg", ["Rose/001.jpg"], id="swapped letters"),
        pytest.param("Rose/1.jpg", ["Rose/001.jpg"], id="without leading zeros"),
        pytest.param("Roses/1.jpeg", ["Rose/001.jpg"], id="folder, zeros and suffix"),
        pytest.param("Rose/001.png", ["Rose/001.jpg"], id="another suffix"),
        pytest.param("Rose/IGM_2041.jpg", ["Rose/IMG_2041.jpg"], id="swapped letters of a file"),
        pytest.param("Rose/img 2041.jpg", ["Rose/IMG_2041.jpg"], id="blank for underscore"),
        pytest.param("Rose/close_up.jpg", ["Rose/close up.JPG"], id="underscore for blank"),
        pytest.param("Tulip/gardn.png", ["Tulip/garden.png"], id="missing letter"),
        pytest.param("garden.png", ["Tulip/garden.png"], id="in a folder below"),
        pytest.param("Rose/IMG_2042.jpg", [], id="another number of a camera"),
        pytest.param("Roses/999.jpg", ["Rose"], id="only the folder is known"),
        pytest.param("Rose/005.jpg", [], id="no such number"),
        pytest.param("Rose/0015.jpg", [], id="swapped digits"),
        pytest.param("Rose/007.jpg", [], id="the same number in another class"),
        pytest.param("Lily/001.jpg", [], id="no such folder"),
        pytest.param("Rose/shed.jpg", [], id="another word"),
    ],
)
def test_a_path_is_suggested_only_for_a_probable_typing_error(
    photos: Path, wrong: str, meant: list[str]
) -> None:
    assert [str(path) for path in near_paths(Path(wrong), lambda _: True)] == meant


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
    ],
)
def test_a_name_is_suggested_if_few_letters_differ_and_no_number_does(
    wrong: str, known: list[str], meant: str | None
) -> None:
    assert misspelt_name(wrong, known) == meant


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("a.jpg", "a"),
        ("a.b.mp4", "a.b"),
        ("a.7z", "a.7z"),
        ("a.ninechars", "a"),
        ("a.tencharsss", "a.tencharsss"),
        ("a.", "a."),
        (".jpg", ".jpg"),
        ("a", "a"),
    ],
)
def test_a_suffix_has_up_to_nine_letters_and_digits(name: str, stem: str) -> None:
    assert without_suffix(name) == stem


def test_at_most_three_files_of_the_same_name_are_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c", "d"):
        Path(name).mkdir()
        (Path(name) / "House.JPG").touch()
    (Path("a") / ".house.jpg").touch()

    found = near_paths(Path("house.jpg"), lambda _: True)

    assert [str(path) for path in found] == ["a/House.JPG", "b/House.JPG", "c/House.JPG"]


def test_folders_above_and_two_levels_below_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here/a/deep/deeper", "here/b", "beside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "beside")
    monkeypatch.chdir(tmp_path / "here")

    assert [*map(str, nearby_folders(Path()))] == ["a", "b", "..", "a/deep"]
    absolute = [*nearby_folders(tmp_path / "here")]
    assert [str(path.relative_to(tmp_path)) for path in absolute] == [
        *("here/a", "here/b", ".", "here/a/deep"),
    ]
    (tmp_path / "here" / "a" / "deep" / "xylophone.txt").touch()
    (tmp_path / "here" / "a" / "deep" / "deeper" / "yesterday.txt").touch()
    (tmp_path / "zeppelin.txt").touch()
    for name, found in (
        ("xylophone.txt", ["a/deep/xylophone.txt"]),
        ("yesterday.txt", []),
        ("zeppelin.txt", ["../zeppelin.txt"]),
    ):
        assert [*map(str, near_paths(Path(name), lambda _: True))] == found


@pytest.mark.parametrize("below", [199, 200, 250])
def test_a_name_is_searched_in_200_folders(tmp_path: Path, below: int) -> None:
    for i in range(below):
        (tmp_path / "top" / f"{i:03}" / "deep").mkdir(parents=True)

    found = [*nearby_folders(tmp_path / "top")]

    assert len(found) == 200
    assert found[:199] == [tmp_path / "top" / f"{i:03}" for i in range(199)]
    assert (found[199] == tmp_path) is (below == 199)


def test_hidden_and_refused_entries_are_left_out_and_the_others_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", ".c", "d.txt"):
        (tmp_path / name).touch()

    found = entries_of(tmp_path, lambda entry: not entry.name.endswith(".txt"))

    assert [entry.name for entry in found] == ["a", "b"]
    assert entries_of(tmp_path / "none", lambda _: True) == []


def test_the_fix_names_what_was_meant_or_where_the_path_would_be(photos: Path) -> None:
    assert path_fix(Path("Rsoe"), lambda _: True) == "check the path: did you mean Rose?"
    assert path_fix(Path("Rose/shed.jpg"), lambda _: True) == (
        f"check the path (it is relative to the current folder, {photos})"
    )
    assert path_fix(Path("/none/shed.jpg"), lambda _: True, otherwise="or choose another") == (
        "check the path, or choose another"
    )
    assert path_fix(Path("/none/shed.jpg"), lambda _: True) == "check the path"


def test_names_are_found_in_other_forms_and_exact_ones_first() -> None:
    composed, apart = "G\u00e4nse", unicodedata.normalize("NFD", "G\u00e4nse")

    for ours, theirs in ((composed, apart), (apart, composed)):
        names = EquivalentNames([ours, f"{ours}/1.jpg", "b"])
        assert names.find(theirs) == ours
        assert names.find(f"{theirs}\\1.jpg") == f"{ours}/1.jpg"
        assert names.find("c") == "c"
    both = EquivalentNames([composed, apart])
    assert (both.find(composed), both.find(apart)) == (composed, apart)


def test_of_equally_long_names_the_most_similar_one_is_meant() -> None:
    assert misspelt_name("sunflower", ["sunflxxer", "sunflowxr"]) == "sunflowxr"
    assert misspelt_name("Sunflower", ["SUNFLOWER", "sunfloper"]) == "SUNFLOWER"
    assert misspelt_name("sunflower", []) is None
