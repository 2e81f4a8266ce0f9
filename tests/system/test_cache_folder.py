"""The place of the cache."""

from pathlib import Path

import pytest

from vitft.system.cache_folder import cache_folder
from vitft.system.errors import RunError


def test_the_cache_is_where_the_user_wants_it(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder("data") == own_home / ".cache" / "vitft" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored
    assert cache_folder("data") == own_home / ".cache" / "vitft" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_folder("data") == Path("/shared/vitft/data")
    monkeypatch.setenv("VITFT_CACHE", "~/mine")
    assert cache_folder("data") == own_home / "mine" / "data"
    monkeypatch.setenv("VITFT_CACHE", "")
    assert cache_folder("data") == Path("/shared/vitft/data")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("features", "choose a cache folder with --cache DIR or the environment variable VITFT_"),
        ("data", "choose a cache folder with the environment variable VITFT_CACHE"),
    ],
)
def test_without_a_home_directory_the_fix_is_a_variable_or_the_option(
    monkeypatch: pytest.MonkeyPatch, name: str, fix: str
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)

    with pytest.raises(RunError, match=f"cannot cache {name}") as refused:
        cache_folder(name)
    assert refused.value.fix.startswith(fix)
