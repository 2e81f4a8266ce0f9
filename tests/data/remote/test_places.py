"""Values of `--data` that are not paths: their shards, their names, and what is refused."""

from pathlib import Path

import pytest

from vitft.cli.main import main
from vitft.config import DataSpec
from vitft.data import place_of, prepare_data
from vitft.system import UsageError


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
        prepare_data("wds:s3://bucket/0.tar", DataSpec())

    assert "s3fs" in error.value.fix


def test_the_library_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(UsageError, match="needs datasets, which is not installed") as error:
        prepare_data("hf:user/name", DataSpec())

    assert "datasets" in error.value.fix
    place = place_of("hf:user/name")
    assert place is not None
    assert not place.folder.exists()
