"""Recipes and settings of runs, read from TOML files."""

from pathlib import Path

import pytest

from vitft.config.run import checked_run_config, config_from_table, read_recipe
from vitft.system.errors import RunError, UsageError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"[data\n", "is not valid TOML", id="torn"),
        pytest.param(b"\xff\xfe", "is not valid TOML", id="not UTF-8"),
        pytest.param(b"[data]\npath = 1\npath = 2\n", "is not valid TOML", id="key twice"),
        pytest.param(b"data = 3\n", "data is a section", id="section is a number"),
    ],
)
def test_a_broken_recipe_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=message):
        config_from_table(read_recipe(str(path)))


def test_reading_an_unknown_recipe_lists_the_bundled_ones() -> None:
    with pytest.raises(UsageError, match=r"one of the recipes .*demo, "):
        read_recipe("nonsense")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("dmo", "did you mean demo? Use a TOML file, or one of the recipes"),
        ("DEMO.toml", "did you mean demo? Use a TOML file, or one of the recipes"),
        ("mine.toml", f"did you mean {Path('kept/mine.toml')}? Use a TOML file, or one of"),
        ("mine", "use a TOML file, or one of the recipes cifar10, "),
        ("dma", "use a TOML file, or one of the recipes cifar10, "),
    ],
)
def test_an_unknown_recipe_is_answered_with_the_one_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine.toml").write_text("")

    with pytest.raises(UsageError, match="unknown recipe") as caught:
        read_recipe(name)

    assert caught.value.fix.startswith(fix)


def test_a_recipe_of_more_than_16_mib_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"# " + bytes(2**24 - 2).replace(b"\0", b"x"))
    assert read_recipe(str(path)) == {}

    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(UsageError, match="more than the limit of 16,777,216"):
        read_recipe(str(path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[data\n", "not valid TOML"),
        ("data = 3\n", "data is not a section"),
        ("[optim]\nepochs = 0\n", "invalid optim.epochs=0"),
        (None, "cannot read"),
    ],
)
def test_a_damaged_file_of_settings_is_an_error_of_the_run(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "config.toml").write_text(content)

    with pytest.raises(RunError, match=r"damaged run: .*config\.toml") as caught:
        checked_run_config(tmp_path)

    assert f"({reason}" in caught.value.problem
