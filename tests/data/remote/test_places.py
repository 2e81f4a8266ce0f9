"""Values of `--data` that are not paths: their shards, their names, and what is refused."""

from pathlib import Path

import pytest

from vitft.cli.main import main
from vitft.config.sections import DataSpec
from vitft.data.remote.fsspec_files import check_libraries
from vitft.data.remote.hugging_face import parse_name
from vitft.data.remote.places import (
    Place,
    check_place,
    common_folder,
    expand_braces,
    list_shards,
    matching,
    place_of,
    safe_name,
)
from vitft.data.remote.prepare import prepare_data
from vitft.system.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("address", "first", "last", "number"),
    [
        pytest.param("a-{00..11}.tar", "a-00.tar", "a-11.tar", 12, id="leading zeros"),
        pytest.param("a-{8..11}.tar", "a-8.tar", "a-11.tar", 4, id="no leading zeros"),
        pytest.param("a-{2..0}.tar", "a-2.tar", "a-0.tar", 3, id="downwards"),
        pytest.param("{a,b}/{0..1}.tar", "a/0.tar", "b/1.tar", 4, id="two pairs of braces"),
        pytest.param("a-{8..010}.tar", "a-008.tar", "a-010.tar", 3, id="one leading zero"),
        pytest.param("a-{0..10}.tar", "a-0.tar", "a-10.tar", 11, id="zero itself"),
        pytest.param("a-{3..3}.tar", "a-3.tar", "a-3.tar", 1, id="a single number"),
        pytest.param("{a,b}/{a,b}.tar", "a/a.tar", "b/b.tar", 4, id="equal pairs of braces"),
        pytest.param("{0..99}/{0..999}", "0/0", "99/999", 100_000, id="as many as allowed"),
        pytest.param("one.tar", "one.tar", "one.tar", 1, id="no braces"),
    ],
)
def test_braces_stand_for_shards(address: str, first: str, last: str, number: int) -> None:
    found = expand_braces(address)

    assert (found[0], found[-1], len(found), len({*found})) == (first, last, number, number)


@pytest.mark.parametrize("address", ["a-{0}.tar", "a-{}.tar", "a-{0..x}.tar"])
def test_other_braces_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is not a list of shards"):
        expand_braces(address)


def test_too_many_shards_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="more than 100,000 shards"):
        expand_braces("a-{0..999999999999}.tar")
    with pytest.raises(UsageError, match="more than 100,000 shards"):
        expand_braces("a-{0..100000}.tar")
    with pytest.raises(UsageError, match="more than 100,000 shards"):
        expand_braces("{0..100}/{0..999}.tar")


def test_shards_are_named_relative_to_their_common_folder(tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "0.tar").touch()

    web = list_shards("https://host/data/{train,val}/0.tar?sig=secret")
    local = list_shards(f"{tmp_path}/*/0.tar")

    assert [shard.name for shard in web] == ["train/0.tar", "val/0.tar"]
    assert [shard.name for shard in local] == ["train/0.tar", "val/0.tar"]


def test_secrets_are_neither_in_the_settings_nor_in_the_folder() -> None:
    signed = place_of("wds:https://me:hidden@host/a/train-{0..3}.tar?sig=12345")
    renewed = place_of("wds:https://me:other@host/a/train-{0..3}.tar?sig=67890")

    assert signed is not None
    assert renewed is not None
    assert signed.text == "wds:https://***@host/a/train-{0..3}.tar?sig=***"
    assert signed.folder == renewed.folder
    assert signed.name == "train_0..3"


REFUSED = [
    ("photos.tar", 2, "photos.tar is a tar file", "wds:photos.tar"),
    ("https://host/photos.tar", 2, "is a tar file", "vitft data fetch --url"),
    ("https://host/photos", 2, "is an address", "vitft data fetch"),
    ("s3://bucket/photos", 2, "s3://bucket/photos cannot be read", "wds:URL"),
    ("gs://bucket/photos", 2, "gs://bucket/photos cannot be read", "wds:URL"),
    ("wds:gs://bucket/{0..3}.tar", 2, "gs:// needs gcsfs", "pip install fsspec gcsfs"),
    ("wds:sftp://host/{0..3}.tar", 2, "sftp:// is not supported", "copy the shards"),
    ("wds:pipe:cat a.tar", 2, "does not run commands", "use the address"),
    ("wds:https://host/a.tar.gz", 2, "is a compressed archive", "uncompressed .tar"),
    ("wds:https://host/a.zip", 2, "is a compressed archive", "uncompressed .tar"),
    ("wds:https://host/a", 2, "is not a .tar file", "uncompressed .tar"),
    ("wds:", 2, "names no data", "wds:https"),
    ("hf:", 2, "names no data", "hf:USER/NAME"),
    ("wds:{a,a}.tar", 2, "names a.tar twice", "once"),
    ("wds:{a,b,c,b}.tar", 2, "names b.tar twice", "once"),
    ("wds:nowhere-*.tar", 3, "no shards match", "check the pattern"),
    ("wds:nowhere-{0..1}.tar", 3, "cannot read the shard", "check the path"),
    ("wds:http://127.0.0.1:1/a.tar", 3, "127.0.0.1 is a private address", "allow_private"),
]


@pytest.mark.parametrize(("data", "code", "problem", "fix"), REFUSED, ids=[r[0] for r in REFUSED])
def test_other_places_are_refused_by_name_with_a_way_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data: str,
    code: int,
    problem: str,
    fix: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["finetune", "--data", data, "--weights", "demo", "--out", "run"]) == code

    shown = capsys.readouterr().err
    assert problem in shown
    assert fix in shown.partition("fix: ")[2]
    assert "Traceback" not in shown
    assert not Path("run").exists()


def test_s3_without_its_library_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    assert main(["predict", "wds:s3://bucket/{0..3}.tar", "--run", str(tmp_path)]) in (2, 5)
    with pytest.raises(UsageError, match="s3:// needs") as error:
        check_libraries("s3://bucket/0.tar")

    assert "s3fs" in error.value.fix


def test_paths_stay_paths(tmp_path: Path) -> None:
    (tmp_path / "x.tar").mkdir()

    assert check_place(str(tmp_path / "x.tar")) is None
    assert check_place("C:/photos") is None
    assert check_place(str(tmp_path / "x.zip")) is None
    (tmp_path / "x.zip").touch()
    with pytest.raises(UsageError, match="is an archive"):
        check_place(str(tmp_path / "x.zip"))
    assert check_place("torchvision:CIFAR10") is None


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("set", "{here}/set"),
        ("set:train", "{here}/set:train"),
        ("a:b", "{here}/a:b"),
        ("a:b:c/train", "{here}/a:b:c/train"),
        ("user/name:train", "user/name:train"),
        ("user/name", "user/name"),
        ("", ""),
    ],
)
def test_the_path_of_a_hugging_face_dataset_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("set", "a:b"):
        (tmp_path / name).mkdir()

    assert Place("hf", address).text == f"hf:{text.format(here=tmp_path)}"


def test_a_pattern_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no shards match"):
        list_shards(f"{tmp_path}/*.tar")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("cifar10", ("cifar10", "", "", "")),
        ("user/name:train", ("user/name", "", "", "train")),
        ("user/name@v1:config/train", ("user/name", "v1", "config", "train")),
        ("user/name:config/", ("user/name", "", "config", "")),
    ],
)
def test_a_name_has_parts(address: str, parts: tuple[str, ...]) -> None:
    assert parse_name(address) == parts


def test_the_library_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(UsageError, match="needs datasets, which is not installed") as error:
        prepare_data("hf:user/name", DataSpec())

    assert "datasets" in error.value.fix
    assert not Place("hf", "user/name").folder.exists()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://host/a/train-{0..3}.tar?sig=1", "train_0..3"),
        ("https://host/My%20Photos.tar", "My_Photos"),
        ("/data/one/", "one"),
        ("/data/+.tar", "data"),
        (f"/data/{'n' * 61}.tar", "n" * 60),
    ],
)
def test_a_place_has_a_short_name(address: str, name: str) -> None:
    place = place_of(f"wds:{address}")

    assert place is not None
    assert place.name == name
    assert place.folder.name.startswith(f"{name}-")
    assert len(place.folder.name) == len(f"{name}-0123456789ab.copy")


def test_the_common_folder_is_that_of_all_shards() -> None:
    assert common_folder(["/a/b/1.tar", "/a/b/2.tar"]) == "/a/b/"
    assert common_folder(["/a/b/1.tar", "/a/c/1.tar", "/a/d/e/1.tar"]) == "/a/"
    assert common_folder(["/a/b.tar"]) == "/a/"
    assert common_folder(["a.tar", "b.tar"]) == ""


def test_names_of_shards_are_made_safe() -> None:
    assert safe_name("a b/ü:1.tar") == "a_b/ü_1.tar"
    assert safe_name("./../a.tar") == "a.tar"


def test_a_file_whose_name_is_a_pattern_is_itself(tmp_path: Path) -> None:
    for name in ("a*.tar", "ab.tar", "b.tar"):
        (tmp_path / name).touch()

    assert matching(f"{tmp_path}/a*.tar") == [f"{tmp_path}/a*.tar"]
    assert matching(f"{tmp_path}/?.tar") == [f"{tmp_path}/b.tar"]
    assert matching(f"{tmp_path}/gone.tar") == [f"{tmp_path}/gone.tar"]
