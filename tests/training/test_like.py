"""`--like RUN`: what a run held out is never trained on by the next one."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.pictures import encoded, read, scene, scenes_folder
from tests.training.test_table_runs import train, write_table
from vitft.cli.main import main
from vitft.data import Images, Row

SETTINGS: dict[str, Any] = {"optim": {"solver": "lbfgs", "l2": 1.0}}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return scenes_folder(tmp_path / "photos", each=10)


@pytest.fixture
def run(photos: Path, tiny_weights: Path, tmp_path: Path) -> Path:
    """A run on 20 scenes, 4 of which validate."""
    return train(photos, tiny_weights, tmp_path / "first", **SETTINGS).run


def rows_of(run: Path) -> Sequence[Row]:
    return Images.from_csv(run / "split.csv", run).rows


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


@pytest.mark.long
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

    assert main(["finetune", "--resume", str(out)]) == 5
    assert main(["finetune", "--resume", str(out), "--like", str(moved)]) == 0

    for file in ("model.safetensors", "split.csv"):
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
