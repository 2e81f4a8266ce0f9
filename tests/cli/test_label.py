"""Where `vitft label` writes its table, and what it suggests afterwards."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from PIL import Image

from vitft.cli.label import check_table, label_command, paths_in_table, print_next
from vitft.cli.main import build_parser, main
from vitft.serve.label.answers import AnswerFile
from vitft.serve.server import listen
from vitft.system.errors import UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("photos/deep", "other"):
        Path(name).mkdir(parents=True)
    return tmp_path


def test_the_table_is_a_csv_file_in_an_existing_folder(here: Path) -> None:
    (here / "folder.csv").mkdir()

    check_table(Path("labels.CSV"), Path("photos"), is_default=True)
    for name in ("labels.txt", "folder.csv"):
        with pytest.raises(UsageError, match=f"invalid --out {name}: not a CSV file"):
            check_table(Path(name), Path("photos"), is_default=False)
    with pytest.raises(UsageError, match=r"the folder of --out none/a\.csv does not exist"):
        check_table(Path("none/a.csv"), Path("photos"), is_default=False)


@pytest.mark.parametrize("folder", ["photos", "photos/deep"])
def test_the_default_table_is_never_in_the_picture_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    photos = here / "photos"
    monkeypatch.chdir(folder)

    with pytest.raises(UsageError, match="would be written to the picture folder") as refused:
        check_table(Path("labels.csv"), photos, is_default=True)
    assert refused.value.fix.endswith(f"use --out {photos / 'labels.csv'}")
    check_table(Path("labels.csv"), photos, is_default=False)
    check_table(Path("labels.csv"), here / "other", is_default=True)


@pytest.mark.parametrize(
    ("root", "table", "expected"),
    [
        ("photos", "labels.csv", ("photos/", True)),
        ("photos/deep", "labels.csv", ("photos/deep/", True)),
        ("photos", "photos/labels.csv", ("", True)),
        ("photos", "other/labels.csv", ("", False)),
        ("photos", "photos/deep/labels.csv", ("", False)),
    ],
)
def test_paths_in_the_table_are_relative_to_it_if_the_pictures_are_below(
    here: Path, root: str, table: str, expected: tuple[str, bool]
) -> None:
    assert paths_in_table(Path(root), Path(table)) == expected


@pytest.mark.parametrize(
    ("answers", "table", "options", "end"),
    [
        ({"a": 2, "b": 2}, "labels.csv", [],
         "next: vitft finetune --data labels.csv --weights demo"),
        ({"a": 2, "b": 2}, "other/labels.csv", ["--weights", "x"],
         "next: vitft finetune --data other/labels.csv --set data.root=photos --weights x"),
        ({"a": 2, "b": 2}, "labels.csv", ["--run", "r"],
         "next: vitft finetune --data labels.csv --weights r"),
        ({"a": 2, "b": 1}, "labels.csv", [], "at least 2 pictures of every class; too few: b (1)"),
        ({"a": 5}, "labels.csv", [], "at least 2 classes, and at least 2 pictures of every class"),
        ({}, "labels.csv", [], "at least 2 classes, and at least 2 pictures of every class"),
    ],
)  # fmt: skip
def test_the_next_step_is_training_once_there_are_enough_pictures(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, int],
    table: str,
    options: list[str],
    end: str,
) -> None:
    args = build_parser("label").parse_args(["label", "photos", *options])

    print_next(answers, Path(table), Path("photos"), args)

    first, last = capsys.readouterr().out.splitlines()
    assert first == f"{sum(answers.values())} labelled pictures in {table}"
    assert last.endswith(end)


def test_by_default_the_bundled_weights_label_on_this_machine_only() -> None:
    args = vars(build_parser("label").parse_args(["label", "photos"]))

    assert args == {
        "data": "photos",
        "weights": None,
        "run": None,
        "classes": "",
        "out": "labels.csv",
        "host": "127.0.0.1",
        "port": 8001,
        "cache": None,
        "device": None,
        "command": label_command,
    }


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["table.csv"], 2, "`vitft label FOLDER --out table.csv`"),
        (["array.npz"], 2, "use a folder of image files; arrays already contain labels"),
        (["none"], 3, "data folder not found: none\n"),
        (["none", "--weights", "no-such", "--out", "x.txt"], 3, "data folder not found: none\n"),
        (["hf:me/photos"], 2, "hf:me/photos is not a folder\n"),
        (["photos", "--port", "65536"], 2, "invalid --port 65536"),
        (["photos", "--out", "x.txt"], 2, "not a CSV file"),
        (["photos", "--weights", "no-such"], 4, "no-such"),
        (["photos", "--run", "no-such"], 5, "no-such"),
    ],
)
def test_wrong_requests_are_refused_before_torch_is_imported(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    for name in ("table.csv", "array.npz"):
        Path(name).touch()

    assert main(["label", *words]) == code
    assert text in capsys.readouterr().err


def test_a_missing_extra_is_reported_before_the_pictures_are_read(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(extra: str, *, feature: str) -> None:
        raise UsageError(f"{feature} needs {extra}", fix="install it")

    monkeypatch.setattr("vitft.cli.label.require_extra", missing)

    assert main(["label", "photos"]) == 2  # the folder has no pictures
    assert "vitft label needs serve" in capsys.readouterr().err


@pytest.mark.parametrize("exists", [True, False])
def test_a_table_in_use_is_reported_before_the_port_and_a_new_one_after_it(
    here: Path, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    Image.new("RGB", (4, 4)).save("photos/a.png")
    table = Path("labels.csv")
    with AnswerFile(table) if exists else nullcontext(), listen("127.0.0.1", 0) as bound:
        port = str(bound.getsockname()[1])

        assert main(["label", "photos", "--port", port]) == (8 if exists else 2)

    error = capsys.readouterr().err
    assert ("cannot listen on" in error) is not exists
    assert table.exists() is exists
