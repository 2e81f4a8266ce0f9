"""The command `vitft data fetch`, with an archive that is not downloaded."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitft.cli.main import build_parser, main


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would be fetched; `archive` and `record` can be changed."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {
        "archive": SimpleNamespace(name="flowers", what="photos", licence="cc-by", sha256="ab"),
        "record": None,
    }

    def select(*arguments: Any, **options: Any) -> Any:
        found.update(select=(arguments, options))
        return found["archive"]

    def fetch(archive: Any, target: Path, *, patience: Any) -> Any:
        found.update(target=target, patience=patience)
        folder = SimpleNamespace(notes=("one note",), files=[1] * 1200, classes=("a",))
        return SimpleNamespace(
            folder=folder, root=target / "photos", sha256="cd", record=found["record"]
        )

    monkeypatch.setattr("vitft.data.download.fetch.select_archive", select)
    monkeypatch.setattr("vitft.data.download.fetch.fetch_folder", fetch)
    return found


def test_the_images_are_counted_and_the_next_command_is_named(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "fetch", "flower_photos"]) == 0

    printed = capsys.readouterr()
    assert asked["select"] == (
        ("flower_photos",),
        {"url": None, "folder": None, "sha256": None},
    )
    assert asked["target"] == Path("flowers")
    assert asked["patience"].allow_private is False
    assert printed.out == "flowers/photos: 1,200 images in 1 class\n"
    assert printed.err.splitlines() == [
        "flowers: photos (licence: cc-by)",
        "one note",
        "SHA-256 of the archive: cd (as published)",
        "next: vitft finetune --data flowers/photos --weights NAME",
    ]


def test_an_unknown_archive_is_recorded(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    asked["archive"] = SimpleNamespace(name="x", what="", licence="", sha256="")
    words = ["data", "fetch", "--url", "https://h/x.zip", "--to", "~/new", "--sha256", "ef"]

    assert main([*words, "--allow-private-addresses"]) == 0

    assert "SHA-256 of the archive: cd (as recorded earlier)" in capsys.readouterr().err
    assert asked["select"][1] == {"url": "https://h/x.zip", "folder": "~/new", "sha256": "ef"}
    assert asked["target"] == Path.home() / "new"
    assert asked["patience"].allow_private is True
    asked["record"] = Path("new.sha256")
    assert main(words) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "SHA-256 of the archive: cd" in lines
    assert "digest recorded in new.sha256 to verify later downloads" in lines


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_the_target_has_a_name(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["data", "fetch", "x", "--to", name]) == 2
    assert f"invalid --to {name}" in capsys.readouterr().err
    assert "target" not in asked


def test_private_addresses_are_refused_by_default() -> None:
    args = build_parser("data").parse_args(["data", "fetch"])

    assert args.allow_private_addresses is False
    assert (args.name, args.url, args.to, args.sha256) == (None,) * 4
