"""Values of `--data` that are not paths: their shards, their names, and what is refused."""

from pathlib import Path

import pytest

from vitft.cli.main import main
from vitft.config import DataSpec
from vitft.data import Place, check_libraries, expand_braces, place_of, prepare_data
from vitft.system import UsageError


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


def test_secrets_are_neither_in_the_settings_nor_in_the_folder() -> None:
    signed = place_of("wds:https://me:hidden@host/a/train-{0..3}.tar?sig=12345")
    renewed = place_of("wds:https://me:other@host/a/train-{0..3}.tar?sig=67890")

    assert signed is not None
    assert renewed is not None
    assert signed.text == "wds:https://***@host/a/train-{0..3}.tar?sig=***"
    assert signed.folder == renewed.folder
    assert signed.name == "train_0..3"


def test_s3_without_its_library_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    assert main(["predict", "wds:s3://bucket/{0..3}.tar", "--run", str(tmp_path)]) in (2, 5)
    with pytest.raises(UsageError, match="s3:// needs") as error:
        check_libraries("s3://bucket/0.tar")

    assert "s3fs" in error.value.fix


def test_the_library_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(UsageError, match="needs datasets, which is not installed") as error:
        prepare_data("hf:user/name", DataSpec())

    assert "datasets" in error.value.fix
    assert not Place("hf", "user/name").folder.exists()
