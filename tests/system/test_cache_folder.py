"""The place of the cache."""

from pathlib import Path

import pytest

from vitft.system import cache_folder


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
