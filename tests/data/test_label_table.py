"""Tables of labels: formats, columns, paths, and a sentence for every broken table."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_folder import touch
from vitft.data import scan

NAMES = ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png")


def write_csv(path: Path, rows: list[dict[str, Any]], separator: str = ",") -> None:
    lines = [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_excel(path: Path, rows: list[dict[str, Any]]) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    names = list(dict.fromkeys(name for row in rows for name in row))
    book.active.append(names)
    for row in rows:
        book.active.append([row.get(name) for name in names])
    book.save(path)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), path)


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "t.csv": write_csv,
    "semicolons.csv": lambda path, rows: write_csv(path, rows, ";"),
    "t.tsv": lambda path, rows: write_csv(path, rows, "\t"),
    "t.jsonl": write_jsonl,
    "t.parquet": write_parquet,
    "t.xlsx": write_excel,
}


@pytest.mark.parametrize("is_apart", [False, True])
def test_paths_are_found_in_the_unicode_form_on_disk(tmp_path: Path, is_apart: bool) -> None:
    ours, theirs = (
        "G\u00e4nse/Bl\u00fcte.png",
        unicodedata.normalize("NFD", "G\u00e4nse/Bl\u00fcte.png"),
    )
    if is_apart:
        ours, theirs = theirs, ours
    mixed = unicodedata.normalize("NFC", ours).split("/")[0] + "/" + theirs.split("/")[1]
    touch(tmp_path, ours, ours.replace(".png", "2.png"), "b/1.png")
    second = mixed.replace(".png", "2.png").replace("/", "\\")
    (tmp_path / "labels.csv").write_text(f"path,label\n{theirs},a\n{second},a\nb/1.png,b\n")

    found = scan(tmp_path / "labels.csv")

    assert {file.path for file in found.rows} == {ours, ours.replace(".png", "2.png"), "b/1.png"}


def test_a_file_name_that_is_not_utf_8_is_found(tmp_path: Path) -> None:
    odd = b"cat/caf\xe9.png"
    touch(tmp_path, *NAMES, odd.decode("utf-8", "surrogateescape"))
    (tmp_path / "t.csv").write_bytes(b"path,label\n" + odd + b",cat\ndog/0.png,dog\ndog/1.png,dog")

    assert len(scan(tmp_path / "t.csv").rows) == 3
