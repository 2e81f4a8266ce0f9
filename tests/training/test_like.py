"""`--like RUN`: what a run held out is never trained on by the next one."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.pictures import encoded, read, scene, scenes_folder
from tests.support.training_data import data_set, digest
from tests.support.training_data import row as image_row
from tests.training.test_table_runs import train, write_table
from vitft.cli.main import main
from vitft.config.run import config_from_table, read_run_config
from vitft.config.sections import DataSpec
from vitft.data.inspection import InspectedFile, InspectedFolder
from vitft.data.split import Manifest, Row
from vitft.system.errors import DataError, RunError, UsageError
from vitft.training import like as module
from vitft.training.checks import check_request, check_resume

SETTINGS: dict[str, Any] = {"optim": {"solver": "lbfgs", "l2": 1.0}}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return scenes_folder(tmp_path / "photos", each=10)


@pytest.fixture
def run(photos: Path, tiny_weights: Path, tmp_path: Path) -> Path:
    """A run on 20 scenes, 4 of which validate."""
    return train(photos, tiny_weights, tmp_path / "first", **SETTINGS).run


def rows_of(run: Path) -> tuple[Row, ...]:
    return Manifest.read(run / "split.csv", run).rows


def digests(run: Path, *parts: str) -> set[str]:
    return {row.sha256 for row in rows_of(run) if row.split in parts}


def grow(photos: Path, each: int = 10) -> None:
    """Add scenes to each class."""
    for label, name in enumerate(("cat", "dog")):
        for i in range(each):
            (photos / name / f"new{i}.jpg").write_bytes(encoded(scene(900 + 100 * label + i)))


def like(photos: Path, weights: Path, run: Path, **data: Any) -> Path:
    """A second run, which holds out what the first has held out."""
    table = {"data": {"like": str(run), **data}, **SETTINGS}
    return train(photos, weights, run.with_name("second"), **table).run


def test_held_out_photos_are_held_out_again_and_others_fill_up_to_the_rule(
    photos: Path, run: Path, tiny_weights: Path
) -> None:
    grow(photos)

    second = like(photos, tiny_weights, run)

    assert digests(run, "val") < digests(second, "val")
    assert digests(run, "train") < digests(second, "train")
    labels = [row.label for row in rows_of(second) if row.split == "val"]
    assert (labels.count(0), labels.count(1)) == (4, 4)


def test_the_split_of_any_kind_of_run_is_continued(
    photos: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    random = {"data": {"split": "random", "val_rate": 0.4}}
    run = train(photos, tiny_weights, tmp_path / "first", **SETTINGS, **random).run
    grow(photos)

    second = like(photos, tiny_weights, run)

    assert digests(run, "val") == digests(second, "val")  # a fifth of 40, as is wanted


def test_moved_renamed_and_relabelled_photos_are_held_out(
    photos: Path, run: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    held = [row.path for row in rows_of(run) if row.split == "val"]
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(photos, elsewhere)
    (elsewhere / held[0]).rename(elsewhere / "dog" / "another name.jpg")

    second = like(elsewhere, tiny_weights, run)

    assert digests(run, "val") == digests(second, "val")


def test_copies_of_held_out_photos_never_train(
    photos: Path, run: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = [row for row in rows_of(run) if row.split == "val"]
    for i, row in enumerate(held):
        again = encoded(read((photos / row.path).read_bytes()), 60)
        (photos / row.path).with_name(f"copy{i}.jpg").write_bytes(again)
    (photos / held[0].path).unlink()  # so that its copy can no longer be recognised

    second = like(photos, tiny_weights, run)

    sides = {row.path.rpartition("/")[2]: row.split for row in rows_of(second)}
    assert {sides[f"copy{i}.jpg"] for i in range(1, 4)} == {"val"}
    assert "held out again: 3 of 4 images held out by" in (shown := capsys.readouterr().err)
    assert ", and 3 copies of held-out images" in shown


def test_fixes_of_the_earlier_run_that_are_not_applied_are_a_warning(
    photos: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "fixes.csv"
    dropped = min((photos / "cat").iterdir()).relative_to(photos)
    table.write_text(f"path,action\n{dropped},drop\n")
    fixed = {"data": {"fixes": str(table)}}
    first = train(photos, tiny_weights, tmp_path / "fixed", **SETTINGS, **fixed).run
    capsys.readouterr()

    like(photos, tiny_weights, first)

    assert f"was trained with the fixes of {table}, which this run" in capsys.readouterr().err


def test_a_photo_saved_again_is_recognised_in_the_folder_of_the_run(
    photos: Path, run: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    for path in sorted(photos.rglob("*.jpg")):
        place = again / path.parent.name / f"renamed-{path.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(encoded(read(path.read_bytes()), 60))

    second = like(again, tiny_weights, run)

    held = {row.path for row in rows_of(run) if row.split == "val"}
    found = {row.path.replace("renamed-", "") for row in rows_of(second) if row.split == "val"}
    assert held <= found


def test_the_path_decides_where_the_held_out_photo_was_changed(
    photos: Path, run: Path, tiny_weights: Path
) -> None:
    held, *_ = [row.path for row in rows_of(run) if row.split == "val"]
    (photos / held).write_bytes(encoded(scene(7777)))

    second = like(photos, tiny_weights, run)

    assert {row.path: row.split for row in rows_of(second)}[held] == "val"


def test_test_images_of_the_run_are_test_images_again(tiny_weights: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    scenes_folder(data / "train", each=10)
    scenes_folder(tmp_path / "more", ("cat", "dog", "owl"), each=10)
    (data / "test").mkdir()
    for name in ("cat", "dog"):
        (data / "test" / name).mkdir()
        for i in range(3):
            shutil.move(data / "train" / name / f"{i}.jpg", data / "test" / name / f"{i}.jpg")
    run = train(data, tiny_weights, tmp_path / "first", **SETTINGS).run

    second = like(tmp_path / "more", tiny_weights, run)

    assert len(digests(run, "test")) == 6
    assert digests(second, "test") == digests(run, "test")
    assert digests(run, "val") <= digests(second, "val")


def test_a_group_with_a_held_out_image_is_held_out(
    photos: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    def patient(path: str) -> str:
        return f"p{int(path.rpartition('/')[2][:-4]) // 2}"

    for path in photos.rglob("*.jpg"):  # `write_table` lists PNG files
        read(path.read_bytes()).save(path.with_suffix(".png"))
        path.unlink()
    table = write_table(photos, patient=patient)
    run = train(table, tiny_weights, tmp_path / "first", **SETTINGS).run
    groups = {row.group for row in rows_of(run) if row.split == "val"}
    for i in range(4):
        scene(950 + i).save(photos / "cat" / f"{20 + i}.png")
    (group,) = groups
    names = {20: group, 21: group, 22: "p3" if group != "p3" else "p4", 23: "new"}
    table = write_table(
        photos, patient=lambda path: names.get(int(path[-6:-4].lstrip("/")), patient(path))
    )

    second = like(table, tiny_weights, run)

    sides = {row.path: row.split for row in rows_of(second)}
    assert sides["cat/20.png"] == sides["cat/21.png"] == "val"
    assert sides["cat/22.png"] == "train"
    by_group = {(row.group, row.split) for row in rows_of(second)}
    assert len(by_group) == len({group for group, _ in by_group})


def test_a_split_of_the_data_keeps_held_out_images_out_of_training(
    photos: Path, run: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    data = tmp_path / "parts"
    shutil.copytree(photos, data / "train")
    for label, name in enumerate(("cat", "dog")):
        (data / "val" / name).mkdir(parents=True)
        (data / "val" / name / "a.jpg").write_bytes(encoded(scene(960 + label)))

    second = like(data, tiny_weights, run)

    assert digests(run, "val") < digests(second, "val")
    assert not digests(run, "val") & digests(second, "train")


def test_a_run_that_shares_no_held_out_image_is_refused(
    run: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    for label, name in enumerate(("cat", "dog")):
        (other / name).mkdir(parents=True)
        for i in range(5):
            (other / name / f"x{i}.jpg").write_bytes(encoded(scene(5000 + 100 * label + i)))

    with pytest.raises(DataError, match=r"none of the images in .*other was held out by .*first"):
        like(other, tiny_weights, run)


@pytest.mark.parametrize("missing", ["split.csv", "config.toml", ""])
def test_something_else_than_a_run_is_refused_before_anything_is_read(
    photos: Path, run: Path, tiny_weights: Path, missing: str
) -> None:
    (run / missing).unlink() if missing else shutil.rmtree(run)
    data = {"path": str(photos), "like": str(run)}
    config = config_from_table({"data": data, "weights": {"name": str(tiny_weights)}})

    with pytest.raises(RunError, match=r"is not a run directory: config.toml or split.csv"):
        check_request(config, None)


@pytest.mark.parametrize("kind", ["random", "reference"])
def test_only_the_split_by_content_continues_a_run(kind: Any) -> None:
    with pytest.raises(UsageError, match=f"cannot be combined with data.split={kind}"):
        DataSpec(like="runs/latest", split=kind)


def test_the_settings_of_the_run_name_the_run_itself_not_a_link_to_it(
    photos: Path, run: Path, tiny_weights: Path
) -> None:
    link = run.with_name("latest")
    link.symlink_to(run.name)

    second = like(photos, tiny_weights, link)

    assert read_run_config(second)["data"]["like"] == str(run)


def test_a_stopped_run_is_resumed_also_if_the_first_run_was_moved(
    photos: Path, run: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    grow(photos)
    words = ["--data", str(photos), "--weights", str(tiny_weights), "--solver", "adamw"]
    words += ["--like", str(run), "--epochs", "2"]
    assert main(["finetune", *words, "--out", str(tmp_path / "whole")]) == 0
    out = tmp_path / "stopped"
    assert main(["finetune", *words, "--out", str(out), "--max-time", "0.001s"]) == 0
    moved = run.rename(tmp_path / "moved")

    with pytest.raises(RunError, match="is not a run directory"):
        check_resume(out, [])
    assert main(["finetune", "--resume", str(out), "--like", str(moved)]) == 0

    for file in ("model.safetensors", "split.csv"):
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


class Prints:
    """Fingerprints that are letters: images with the same letter are copies of each other."""

    def __init__(self, by_digest: dict[str, str]) -> None:
        self.by_digest = by_digest

    def table(self, digests: list[str]) -> list[str]:
        return [self.by_digest[one] for one in digests]


class Known:
    def __init__(self, letters: list[str]) -> None:
        self.letters = letters

    def copies_of(self, letter: str) -> list[int]:
        return [i for i, other in enumerate(self.letters) if other == letter]


EARLIER = (
    image_row("t1", 0),
    image_row("v1", 0, "val"),
    image_row("v2", 0, "val"),
    image_row("x1", 1, "test", group="p"),
    image_row("gone", 1, "val"),
)


def former(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], *, known: str = "v1 v2 x1", **more: Any
) -> Any:
    """Return the former split of the files `path: letter`, where `v1` has the letter v1, etc."""
    earlier = data_set([*EARLIER, *more.pop("rows", ())], root=Path("nowhere")).manifest
    letters = {digest(name): name for name in known.split()}
    letters |= {more.get(path, digest(path)): letter for path, letter in files.items()}
    prints: Any = Prints(letters)
    good = tuple(InspectedFile(path, 0, "", more.get(path, digest(path)), 8, 8) for path in files)
    folder: Any = None
    read: list[str] = []

    def fingerprint(folder: Any, *_: Any, **__: Any) -> None:
        read.extend(file.path for file in folder.files)

    monkeypatch.setattr(module, "like_manifest", lambda _: earlier)
    monkeypatch.setattr(module, "read_run_config", lambda _: {})
    monkeypatch.setattr(module, "run_path", lambda _: Path("nowhere"))
    monkeypatch.setattr(module, "KnownImages", Known)
    monkeypatch.setattr(module, "fingerprint_folder", fingerprint)
    found = module.former_split(
        "runs/1", InspectedFolder(folder, good, (), {}), prints, max_pixels=9, applies_fixes=False
    )
    assert read == ["gone"]  # the others are known
    return found


def test_a_copy_of_a_held_out_image_is_held_out_like_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"v1": "v1", "copy": "v2", "tested": "x1", "t1": "t1", "new": "n"}

    with caplog.at_level("INFO", "vitft"):
        found = former(monkeypatch, files)

    parts = {name: found.parts.get(digest(name)) for name in files}
    assert parts == {"v1": "val", "copy": "val", "tested": "test", "t1": "train", "new": None}
    assert found.parts[digest("gone")] == "val"
    assert found.groups == {"p": "test"}
    assert caplog.messages == [
        "held out again: 1 of 4 images held out by runs/1, and 2 copies of held-out images"
    ]


def test_a_training_image_that_is_a_copy_of_a_held_out_one_is_held_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "vitft"):
        found = former(monkeypatch, {"t1": "v1", "v1": "v1", "v2": "x1"})

    assert found.parts[digest("t1")] == "val"
    assert found.parts[digest("v2")] == "val"  # itself held out
    assert "held out again: 2 of 4 images held out by runs/1, and 1 copy of" in caplog.text


def test_a_copy_of_a_validation_and_of_a_test_image_is_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again = image_row("x2", 1, "test")

    found = former(monkeypatch, {"copy": "v1", "x2": "v1"}, rows=[again])

    assert found.parts[digest("copy")] == "test"


def test_an_image_with_the_path_of_a_lost_one_is_held_out_unless_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = former(monkeypatch, {"gone": "n"}, gone=digest("other"))
    assert found.parts[digest("other")] == "val"

    renamed = former(monkeypatch, {"gone": "n", "t1": "t1"}, gone=digest("t1"))
    assert renamed.parts[digest("t1")] == "train"  # a training image of the earlier run


def test_an_image_that_was_both_trained_on_and_held_out_is_held_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    twice = image_row("again", 0, "train", sha256=digest("v1"))

    with caplog.at_level("INFO", "vitft"):
        found = former(monkeypatch, {"v1": "v1"}, rows=[twice])

    assert found.parts[digest("v1")] == "val"
    assert caplog.messages == ["held out again: 1 of 4 images held out by runs/1"]
