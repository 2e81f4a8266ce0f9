"""Several labels per image in tables: cells such as `a|b`, columns of 0 and 1, attributes."""

from pathlib import Path

from tests.data.test_folder import touch
from vitft.config import DataSpec
from vitft.data import Folder, Manifest, scan

NAMES = ("0.png", "1.png", "2.png", "3.png")


def table(root: Path, text: str, **settings: str) -> Folder:
    """Scan a CSV table of four images."""
    touch(root, *NAMES)
    (root / "t.csv").write_text(text)
    return scan(root / "t.csv", DataSpec(**settings))  # type: ignore[arg-type]


def labels_of(folder: Folder) -> dict[str, str]:
    return {file.path: folder.classes[file.label] for file in folder.files}


def test_a_separator_in_a_cell_gives_several_labels_and_an_empty_cell_none(tmp_path: Path) -> None:
    folder = table(tmp_path, "path,label\n0.png,b|a\n1.png, a \n2.png,\n3.png,a||c|a\n")

    assert folder.labels == folder.outputs == ("a", "b", "c")
    assert labels_of(folder) == {"0.png": "a|b", "1.png": "a", "2.png": "", "3.png": "a|c"}


def test_columns_of_0_and_1_are_labels_and_other_columns_are_attributes(tmp_path: Path) -> None:
    text = "path,cat,colour,wild\n0.png,1,red,true\n1.png,0,,false\n2.png,1,red|blue,false\n"
    folder = table(tmp_path, text, label="cat,colour,wild")

    assert folder.labels == ("cat", "colour=blue", "colour=red", "wild")
    assert labels_of(folder) == {
        "0.png": "cat|colour=red|wild",
        "1.png": "",
        "2.png": "cat|colour=blue|colour=red",
    }
    assert table(tmp_path, text, label="*").files == folder.files


def test_the_split_of_a_run_contains_the_labels_and_is_read_back(tmp_path: Path) -> None:
    path, digest = tmp_path / "split.csv", "0" * 64
    text = f"path,labels,split,sha256\n0.png,,train,{digest}\n1.png,a|b,val,{digest}\n"
    path.write_text(text)

    manifest = Manifest.read(path, tmp_path)

    assert manifest.labels == manifest.outputs == ("a", "b")
    assert [manifest.names(row) for row in manifest.rows] == [(), ("a", "b")]
    assert manifest.to_csv().decode() == text
