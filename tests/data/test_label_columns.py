"""Several labels per image in tables: cells such as `a|b`, columns of 0 and 1, attributes."""

from pathlib import Path

import pytest

from tests.data.test_folder import touch
from vitft.config.sections import DataSpec
from vitft.data.folder import Folder
from vitft.data.label_sets import join_labels, split_labels
from vitft.data.membership import membership
from vitft.data.scan import scan
from vitft.data.split import Manifest
from vitft.system.errors import DataError

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


@pytest.mark.parametrize(
    ("text", "settings", "problem"),
    [
        pytest.param(
            "path,a,b\n0.png,1,0\n1.png,,1\n",
            {"label": "a,b"},
            "line 3, column a: the cell is empty",
            id="an empty cell among 0 and 1",
        ),
        pytest.param(
            "path,a\n0.png,1\n",
            {"label": "a,b"},
            "line 1: no usable column named b",
            id="a missing column",
        ),
        pytest.param(
            'path,label\n0.png,"x|y,z"\n1.png,z\n',
            {"separator": ",", "label": "label", "labels": "several"},
            "line 2, column label: the label 'x|y' contains the character |",
            id="the joiner in a label",
        ),
        pytest.param("path,tags\n0.png,\n1.png,\n", {}, "has a label", id="no label at all"),
        pytest.param(
            "path,a\n0.png,1\n", {"label": "a,a"}, "no usable column named a", id="a column twice"
        ),
        pytest.param(
            "path,a\n0.png,1\n",
            {"label": "a,path"},
            "no usable column named path",
            id="a column with another role",
        ),
        pytest.param(
            "path,a,a\n0.png,1,0\n",
            {"label": "a,b"},
            "no usable column named a",
            id="two columns of a name",
        ),
        pytest.param(
            "path,weight\n0.png,1\n", {"label": "*"}, "no column is left", id="no column at all"
        ),
        pytest.param(
            "path,a|b,c\n0.png,1,1\n",
            {"label": "a|b,c"},
            "line 2, column a|b: the label 'a|b' contains",
            id="the joiner in a name",
        ),
        pytest.param(
            "path,label\n0.png,a\n1.png,\n",
            {},
            "line 3, column label: the label is empty",
            id="an empty cell with one class",
        ),
        pytest.param(
            "path,label\n0.png,a|b\n0.png,a\n",
            {},
            "listed twice",
            id="two label sets for an image",
        ),
    ],
)
def test_an_invalid_table_is_an_error_with_line_and_column(
    tmp_path: Path, text: str, settings: dict[str, str], problem: str
) -> None:
    with pytest.raises(DataError) as caught:
        table(tmp_path, text, **settings)

    assert problem in str(caught.value)


def test_the_split_of_a_run_contains_the_labels_and_is_read_back(tmp_path: Path) -> None:
    path, digest = tmp_path / "split.csv", "0" * 64
    text = f"path,labels,split,sha256\n0.png,,train,{digest}\n1.png,a|b,val,{digest}\n"
    path.write_text(text)

    manifest = Manifest.read(path, tmp_path)

    assert manifest.labels == manifest.outputs == ("a", "b")
    assert [manifest.names(row) for row in manifest.rows] == [(), ("a", "b")]
    assert manifest.to_csv().decode() == text


def test_membership_and_texts_are_inverse() -> None:
    sets, names = ("", "a", "a|c"), ("a", "b", "c")

    found = membership(sets, names)

    assert found.tolist() == [[False] * 3, [True, False, False], [True, False, True]]
    assert [join_labels(split_labels(text)) for text in sets] == list(sets)
