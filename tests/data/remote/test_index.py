"""Index of a local copy: errors name the dataset, the sample and the field."""

from pathlib import Path

import pytest

from vitft.data.remote.index import IndexReader


@pytest.fixture
def reader(tmp_path: Path) -> IndexReader:
    index = tmp_path / "index.csv"
    index.write_text('path,cls\nx.tar/a.jpg,cat\n"x.tar/b,c.jpg",dog\n')
    return IndexReader(index, "wds:x.tar")


@pytest.mark.parametrize(
    ("line", "sample"),
    [(1, ""), (2, ", the sample x.tar/a.jpg"), (3, ", the sample x.tar/b,c.jpg")],
)
@pytest.mark.parametrize("is_given", [True, False])
def test_an_error_names_the_sample_of_its_line(
    reader: IndexReader, line: int, sample: str, is_given: bool
) -> None:
    for _, _ in zip(range(3 if is_given else line), reader, strict=False):
        pass

    error = reader.error("it is odd", line=line if is_given else 0)

    assert error.problem == f"wds:x.tar{sample}: it is odd"


def test_an_error_names_the_first_40_characters_of_the_field(reader: IndexReader) -> None:
    error = reader.error("it is odd", line=2, column=f" {'x' * 41}")

    assert error.problem == f"wds:x.tar, the sample x.tar/a.jpg, the field {'x' * 40}: it is odd"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("", None),
        ("rename the column", None),
        ("fill in the cell", None),
        ("remove the line", None),
        ("run the command again", "run the command again"),
        (
            "choose a column with --set data.path_column=a, or rename one",
            "choose a field with --set data.path_column=a",
        ),
        ("use --set data.split_column=s", "choose a field with --set data.split_column=s"),
        ("or --set data.group=g", "choose a field with --set data.group=g"),
    ],
)
def test_a_fix_for_a_table_is_replaced_by_one_for_a_dataset(
    reader: IndexReader, given: str, shown: str | None
) -> None:
    assert reader.error("it is odd", fix=given).fix == (shown or reader.fix)


@pytest.mark.parametrize(("data", "names_files"), [("wds:x.tar", True), ("hf:x/y", False)])
def test_only_shards_can_be_given_classes_as_files(
    tmp_path: Path, data: str, names_files: bool
) -> None:
    (tmp_path / "index.csv").write_text("path\n")

    fix = IndexReader(tmp_path / "index.csv", data).fix

    assert ("write the class of each sample as KEY.cls" in fix) is names_files
    assert "--set data.label=NAME" in fix
