"""Several labels per image in tables: cells such as `a|b`, columns of 0 and 1, attributes."""

from pathlib import Path

import pytest

from tests.data.test_folder import touch
from vitft.config.sections import DataSpec
from vitft.data.folder import Folder
from vitft.data.label_columns import is_predicted
from vitft.data.label_sets import join_labels, split_labels
from vitft.data.membership import membership
from vitft.data.scan import scan
from vitft.data.split import Manifest
from vitft.system.errors import DataError, UsageError

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


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        pytest.param("path,tags\n0.png,a\n1.png,\n", {}, id="a column named tags"),
        pytest.param("path,label\n0.png,a;b\n1.png,b\n", {"separator": ";"}, id="a semicolon"),
        pytest.param("path,label\n0.png,a\n1.png,\n", {"labels": "several"}, id="a setting"),
    ],
)
def test_several_labels_are_recognised(tmp_path: Path, text: str, settings: dict[str, str]) -> None:
    text = text.replace(",a;b", ',"a;b"') if "separator" in settings else text
    settings |= {"label": "label"} if "path,label" in text else {}

    assert table(tmp_path, text, **settings).labels


def test_one_class_per_image_may_contain_the_separator_if_the_settings_say_so(
    tmp_path: Path,
) -> None:
    folder = table(tmp_path, "path,label\n0.png,a|b\n1.png,c\n", labels="one")

    assert (folder.labels, folder.classes) == ((), ("a|b", "c"))


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


def test_a_single_column_of_0_and_1_contains_classes_and_empty_columns_none(
    tmp_path: Path,
) -> None:
    one = table(tmp_path, "path,tags\n0.png,1\n1.png,0\n")
    three = table(tmp_path, "path,a,b,c\n0.png,1,,x\n1.png,TRUE,,\n", label="a,b,c")

    assert (one.labels, one.classes) == ((), ("0", "1"))
    assert labels_of(three) == {"0.png": "a|c", "1.png": "a"}


def test_a_weight_is_no_label_of_all_columns(tmp_path: Path) -> None:
    text = "path,a,weight,split,sample_weight,b\n0.png,1,5,train,2,0\n1.png,0,5,val,2,1\n"

    assert table(tmp_path, text, label="*").classes == ("a", "b")


def test_the_separator_does_not_matter_if_one_class_has_a_column_of_tags(tmp_path: Path) -> None:
    folder = table(tmp_path, "path,labels,class\n0.png,a|b,x\n1.png,c,y\n")

    assert (folder.labels, folder.classes) == ((), ("x", "y"))


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


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="separator is empty"):
        DataSpec(separator="")


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


@pytest.mark.parametrize(
    ("header", "places", "expected"),
    [
        (["path", "class", "probability"], [1], True),
        (["path", " Class ", "Probability"], [1], True),
        (["path", "class"], [1], False),
        (["path", "label", "probability"], [1], False),
        (["path", "labels", "probability_cat"], [1], True),
        (["path", "labels", "probability"], [1], False),
        (["path", "tags", "probability_cat"], [1], False),
        (["path", "cat", "dog", "probability_cat"], [1, 2], False),
    ],
)
def test_a_table_of_predictions_is_known_by_its_columns(
    header: list[str], places: list[int], expected: bool
) -> None:
    assert is_predicted(header, places) is expected
