"""Hugging Face datasets through the library `datasets`: the same data as their folder."""

import math
import tarfile
from datetime import date
from pathlib import Path
from typing import IO, Any

import pytest

from tests.conftest import draw_folder
from tests.data.remote.test_copies import figures, split_by_digest, train
from tests.data.remote.test_samples import scanned
from vitft.config import DataSpec
from vitft.data import prepare_data, read_bytes
from vitft.system import DataError

datasets = pytest.importorskip("datasets", reason="needs the extra `sources`")
pytestmark = pytest.mark.filterwarnings("ignore")  # of `datasets` and what it imports


def write_parquet(folder: Path, images: Path, *, split: str = "train", **columns: Any) -> Path:
    """Write the images of a folder of classes as a Parquet file of a split."""
    paths = sorted(images.rglob("*.png"))
    names = sorted({path.parent.name for path in paths})
    table = {
        "image": [{"bytes": path.read_bytes(), "path": path.name} for path in paths],
        "label": [names.index(path.parent.name) for path in paths],
        **columns,
    }
    kinds: dict[str, Any] = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    data = datasets.Dataset.from_dict(table)
    for name, kind in kinds.items():
        data = data.cast_column(name, kind)
    folder.mkdir(parents=True, exist_ok=True)
    data.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    return folder


def test_parquet_files_are_the_folder_they_were_made_of(
    tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = draw_folder(tmp_path / "data", per_class=8)
    parquet = write_parquet(tmp_path / "parquet", images)

    train(str(images), tiny_weights, tmp_path / "folder")
    capsys.readouterr()
    train(f"hf:{parquet}", tiny_weights, tmp_path / "hf", "-v")

    assert "features from the cache: 24 of 24" in capsys.readouterr().err
    assert split_by_digest(tmp_path / "hf") == split_by_digest(tmp_path / "folder")
    assert figures(tmp_path / "hf") == figures(tmp_path / "folder")
    assert f'path = "hf:{parquet}"' in (tmp_path / "hf" / "config.toml").read_text()


def test_rows_are_named_by_split_and_number(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "data", per_class=4)
    parquet = write_parquet(tmp_path / "parquet", images)

    folder = scanned(f"hf:{parquet}/train-00000-of-00001.parquet")

    assert [file.path for file in folder.rows] == [f"train-00000.tar/{i:07}.png" for i in range(12)]
    first = folder.rows[0]
    assert folder.classes == ("blue", "green", "red")
    assert read_bytes(f"{folder.root}/{first.path}") == (images / "blue/000.png").read_bytes()


def test_images_outside_the_rows_are_read_from_their_files(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "data", per_class=4)

    folder = scanned(f"hf:{images}")

    assert folder.classes == ("blue", "green", "red")
    found = {read_bytes(f"{folder.root}/{file.path}") for file in folder.rows}
    assert found == {path.read_bytes() for path in images.rglob("*.png")}


def test_splits_divide_the_data_or_one_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, parquet = draw_folder(tmp_path / "data", per_class=4), tmp_path / "parquet"
    for split in ("train", "validation", "unsupervised"):
        write_parquet(parquet, images, split=split)
    readme = "".join(
        f"  - split: {split}\n    path: {split}-*.parquet\n"
        for split in ("train", "validation", "unsupervised")
    )
    (parquet / "README.md").write_text(
        f"---\nconfigs:\n- config_name: default\n  data_files:\n{readme}---\n"
    )

    every, one = scanned(f"hf:{parquet}"), scanned(f"hf:{parquet}:unsupervised")
    monkeypatch.chdir(tmp_path)
    assert scanned("hf:parquet:unsupervised").root == one.root

    assert {file.split for file in every.rows} == {"train", "val"}
    assert any("not used: the splits unsupervised" in note for note in every.notes)
    assert (len(every.rows), len(one.rows), one.layout) == (24, 12, "classes")
    with pytest.raises(DataError, match="Splits found: train, "):
        scanned(f"hf:{parquet}:vall")


def test_columns_are_used_like_those_of_a_table(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "data", per_class=4)
    several = [["a", "b"] if i % 2 else ["a"] for i in range(12)]
    parquet = write_parquet(
        tmp_path / "parquet",
        images,
        kind=["x", "y"] * 6,
        patient=[1, 2, 3] * 4,
        tags=several,
        score=[math.nan, 1.5] * 6,
        day=[date(2026, 1, 1), date(2026, 1, 2)] * 6,
    )

    kind = scanned(f"hf:{parquet}", label="kind")
    tags = scanned(f"hf:{parquet}", label="tags")
    day = scanned(f"hf:{parquet}", label="day")

    assert kind.classes == ("x", "y")
    assert {file.group for file in kind.rows} == {"1", "2", "3"}
    assert tags.labels == ("a", "b")
    assert day.classes == ("2026-01-01", "2026-01-02")
    with pytest.raises(DataError, match=r"no column named lable \(data.label\)") as error:
        scanned(f"hf:{parquet}", label="lable")
    assert error.value.problem.startswith(f"hf:{parquet}")


def test_an_interrupted_copy_continues_with_the_next_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = draw_folder(tmp_path / "data", per_class=8)
    data = f"hf:{write_parquet(tmp_path / 'parquet', images)}"
    monkeypatch.setattr("vitft.data.copies._SHARD_ROWS", 5)
    written: list[str] = []
    add = tarfile.TarFile.addfile

    def counted(tar: tarfile.TarFile, info: tarfile.TarInfo, file: IO[bytes]) -> None:
        written.extend([info.name] * info.name.endswith(".png"))
        if len(written) == 13:  # in the third shard
            raise KeyboardInterrupt
        add(tar, info, file)

    monkeypatch.setattr(tarfile.TarFile, "addfile", counted)
    with pytest.raises(KeyboardInterrupt):
        prepare_data(data, DataSpec())

    folder = scanned(data)

    assert len(folder.rows) == 24
    assert len(written) == 13 + 14  # 10 rows were kept in whole shards
    assert written[13] == "0000010.png"
    found = [read_bytes(f"{folder.root}/{file.path}") for file in folder.rows]
    assert found == [path.read_bytes() for path in sorted(images.rglob("*.png"))]
    prepare_data(data, DataSpec())
    assert len(written) == 27


def test_changed_files_are_copied_again(tmp_path: Path) -> None:
    parquet = write_parquet(tmp_path / "parquet", draw_folder(tmp_path / "one", per_class=4))
    assert len(scanned(f"hf:{parquet}").rows) == 12

    write_parquet(parquet, draw_folder(tmp_path / "two", per_class=6))

    assert len(scanned(f"hf:{parquet}").rows) == 18


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    (tmp_path / "p").mkdir()
    data.to_parquet(str(tmp_path / "p" / "train.parquet"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.parquet").write_bytes(b"PAR1 no more")

    with pytest.raises(DataError, match="Columns found: text and label"):
        scanned(f"hf:{tmp_path}/p")
    with pytest.raises(DataError, match="cannot read hf:") as error:
        scanned(f"hf:{tmp_path}/broken")
    assert "\n" not in error.value.problem
