"""The command `vitft cache`."""

import json
import os
import re
from pathlib import Path

import pytest

from vitft.cli.main import build_parser, main
from vitft.features.cache import Space


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


def test_features_are_listed_with_their_total(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "list"]) == 0

    head, first, second, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["contents", "prefix", "digest", "precision", "last", "used", "MB"]
    assert first.split()[:3] == ["12", "0123456789ab", "bf16"]
    assert first.split()[3].startswith("2023-11-1")
    assert first.split()[-1] == "3.0"
    assert first.startswith("12            0123456789ab   bf16       20")
    assert second.split()[0] == "fingerprints"
    assert second.split()[-1] == "1.5"
    assert total.startswith(f"0.00 GB in {cache}, limit ")


def test_sizes_are_right_aligned_and_their_total_is_in_gigabytes(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Space(folder=cache, settings={"prefix": "abc"}, size=10**9 * n, shards=1, used=1.7e9)
        for n in (3, 14)
    ]
    monkeypatch.setattr("vitft.features.cache.spaces", lambda _: found)

    assert main(["cache", "list"]) == 0

    head, first, second, total = capsys.readouterr().out.splitlines()
    assert len(head) == len(first) == len(second)
    assert (first[-9:], second[-9:]) == ("  3,000.0", " 14,000.0")
    assert re.search("abc +20", first)
    assert head.index("last used") == first.index("2023-")
    assert total.startswith("17.00 GB in ")


def test_another_folder_may_be_listed(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "list", "--cache", str(tmp_path)]) == 0

    assert f"0.00 GB in {tmp_path}, limit" in capsys.readouterr().out


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
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    deleted: str,
    left: list[str],
) -> None:
    assert main(["cache", "clean", *words]) == 0

    assert capsys.readouterr().out == f"{deleted} MB deleted\n"
    assert sorted(path.name for path in cache.iterdir()) == left


@pytest.mark.parametrize("size", ["-1", "nan"])
def test_a_size_below_zero_is_refused(
    cache: Path, capsys: pytest.CaptureFixture[str], size: str
) -> None:
    assert main(["cache", "clean", f"--to-gb={size}"]) == 2
    assert "invalid --to-gb" in capsys.readouterr().err
    assert len([*cache.iterdir()]) == 2


def test_an_action_is_required_and_only_cleaning_has_a_size() -> None:
    parser = build_parser("cache")

    assert parser.parse_args(["cache", "clean"]).to_gb == 0.0
    assert parser.parse_args(["cache", "list"]).cache is None
    assert not hasattr(parser.parse_args(["cache", "list"]), "to_gb")
