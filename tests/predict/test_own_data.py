"""Whether data to evaluate is the data of a run, and which labels it then has."""

import hashlib
import json
from pathlib import Path

import pytest

from vitft.config.run import config_from_table
from vitft.data.labelled import LabelledImages
from vitft.data.split import Manifest, Row
from vitft.predict.run_labels import as_in_run, has_digest, is_own_data, with_run_classes
from vitft.system.errors import DataError


def write_run(folder: Path, data: Path, names: list[str], **settings: str) -> Path:
    """Write a run on files of a folder, and the files, each with its name as content."""
    data.mkdir()
    run = folder / "run"
    run.mkdir()
    rows = []
    for name in names:
        (data / name).write_text(name)
        rows.append(Row(name, 0, "train", hashlib.sha256(name.encode()).hexdigest()))
    Manifest(data, ("cat", "dog"), tuple(rows)).write(run / "split.csv")
    options = {"path": str(data), **settings}
    lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    (run / "config.toml").write_text("\n".join(["[data]", *lines, ""]))
    return run


def listed(data: Path, names: list[str], *, label: str = "cat") -> LabelledImages:
    return LabelledImages(
        source=data,
        root=str(data),
        classes=tuple(sorted({"cat", label})),
        images=tuple((name, label) for name in names),
    )


def own(run: Path, data: Path, names: list[str]) -> bool:
    config = config_from_table({"data": {"path": str(data)}})
    return is_own_data(listed(data, names), config, run)


@pytest.mark.parametrize(("same", "expected"), [(4, True), (3, True), (2, False), (0, False)])
def test_most_images_must_be_those_of_the_run(tmp_path: Path, same: int, expected: bool) -> None:
    names = [f"{i}.jpg" for i in range(4)]
    run = write_run(tmp_path, tmp_path / "data", names)
    for name in names[same:]:
        (tmp_path / "data" / name).write_text("changed")

    assert own(run, tmp_path / "data", names) is expected
    (run / "split.csv").unlink()
    assert not own(run, tmp_path / "data", names)


@pytest.mark.parametrize(("number", "read"), [(20, 20), (39, 39), (40, 20), (100, 20)])
def test_about_twenty_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, read: int
) -> None:
    names = [f"{i:03}.jpg" for i in range(number)]
    run = write_run(tmp_path, tmp_path / "data", names)
    opened: list[str] = []

    def digest(path: str, sha256: str) -> bool:
        opened.append(path)
        return has_digest(path, sha256)

    monkeypatch.setattr("vitft.predict.run_labels.has_digest", digest)

    assert own(run, tmp_path / "data", names)
    assert len(opened) == read
    assert len({*opened}) == read


def test_a_file_that_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")

    assert has_digest(str(tmp_path / "a"), hashlib.sha256(b"a").hexdigest())
    assert not has_digest(str(tmp_path / "a"), hashlib.sha256(b"b").hexdigest())
    assert not has_digest(str(tmp_path / "b"), hashlib.sha256(b"b").hexdigest())


def test_class_changes_of_a_run_are_applied_only_to_classes_it_does_not_know(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "classes.csv"
    table.write_text("class,new_class\nkitten,cat\nold,\n")
    run = write_run(tmp_path, tmp_path / "data", ["0.jpg"], classes=str(table))
    config = config_from_table({"data": {"path": "d", "classes": str(table)}})
    kittens = listed(tmp_path / "data", ["0.jpg"], label="kitten")

    with caplog.at_level("INFO"):
        found = as_in_run(kittens, run, ("cat", "dog"))
        known = with_run_classes(kittens, config, ("cat", "kitten"))
        records = len(caplog.records)
        puppies = listed(tmp_path / "data", ["0.jpg"], label="puppy")
        assert with_run_classes(puppies, config, ("cat", "dog")) is puppies  # none of the table
        assert len(caplog.records) == records
    table.unlink()

    assert dict(found.images) == {"0.jpg": "cat"}
    assert "applied the class changes of the run: classes.csv" in caplog.text
    assert known is kittens
    assert with_run_classes(kittens, config, ("cat",)) is kittens


def test_data_of_several_labels_or_a_bare_model_is_unchanged(tmp_path: Path) -> None:
    run = write_run(tmp_path, tmp_path / "data", ["0.jpg"], fixes="fixes.csv")
    plain = listed(tmp_path / "data", ["0.jpg"])
    several = LabelledImages(
        source="d", root=".", classes=("cat",), images=(("0.jpg", "cat"),), labels=("cat",)
    )

    assert as_in_run(several, run, ("cat",)) is several
    assert as_in_run(plain, tmp_path, ("cat",)) is plain


def test_fixes_that_leave_out_everything_are_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "fixes.csv"
    table.write_text("path,action,new_label\n0.jpg,drop,\n1.jpg,move,dog\n2.jpg,keep,\n")
    names = ["0.jpg", "1.jpg", "2.jpg"]
    run = write_run(tmp_path, tmp_path / "data", names, fixes=str(table))
    data = listed(tmp_path / "data", names)

    with caplog.at_level("INFO"):
        found = as_in_run(data, run, ("cat", "dog"))

    assert found.images == (("1.jpg", "dog"), ("2.jpg", "cat"))
    assert found.classes == ("cat", "dog")
    assert "1 image left out, 1 relabelled" in caplog.text
    table.write_text("path,action,new_label\n" + "".join(f"{n},drop,\n" for n in names))
    with pytest.raises(DataError, match="leave out all images"):
        as_in_run(data, run, ("cat", "dog"))
