"""The command `vitft cache`."""

import json
import os
from pathlib import Path

import pytest

from tests.conftest import tiny_home
from vitft.cli.main import main


def space(folder: Path, *, bytes_: int, used: int, **settings: str) -> Path:
    """Write a space of the cache with files of this size in all."""
    folder.mkdir(parents=True)
    (folder / "space.json").write_text(json.dumps(settings))
    (folder / "rows").write_bytes(b"x" * (bytes_ - (folder / "space.json").stat().st_size))
    os.utime(folder, (used, used))
    return folder


@pytest.fixture
def cache(own_home: Path) -> Path:
    root = own_home / ".cache" / "vitft" / "features"
    space(root / "a", bytes_=3_000_000, used=1_700_000_000, cut="12", prefix="0123456789abcdef",
          precision="bf16")  # fmt: skip
    space(root / "b", bytes_=1_500_000, used=1_600_000_000, what="fingerprints")
    return root


@pytest.mark.parametrize(
    ("words", "deleted", "left"),
    [
        ([], "4.5", []),
        (["--to-gb", "0"], "4.5", []),
        (["--to-gb", "0.003"], "1.5", ["a"]),
        (["--to-gb", "1"], "0.0", ["a", "b"]),
    ],
)
def test_the_least_recently_used_features_are_deleted_first(
    cache: Path, capsys: pytest.CaptureFixture[str], words: list[str], deleted: str, left: list[str]
) -> None:
    assert main(["cache", "clean", *words]) == 0

    assert capsys.readouterr().out == f"{deleted} MB deleted\n"
    assert sorted(path.name for path in cache.iterdir()) == left


@pytest.mark.parametrize(("options", "is_left"), [([], False), (["--cache", "own"], True)])
def test_a_run_bounds_the_default_cache_only_if_it_uses_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], is_left: bool
) -> None:
    os.truncate(cache / "b" / "rows", 40 * 10**9)  # most of which is not on the disk
    monkeypatch.chdir(tiny_home(tmp_path))

    assert main(["finetune", "--data", "data", "--weights", "w.safetensors", *options]) == 0

    assert (cache / "b").exists() == is_left
