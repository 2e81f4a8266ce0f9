"""Data given in place of a model or of weights: what they are called."""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vitft.data.mistaken import MistakenData, contains_images, is_data_set, mistaken_data


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ("name", "what", "use"),
    [
        ("a b.csv", "a table", "if it lists images, train on them with `vitft finetune --data {}`"),
        ("t.TSV", "a table", "if it lists images, train on them with `vitft finetune --data {}`"),
        ("p.JPG", "an image", "train on its folder with `vitft finetune --data DIR`"),
        ("z.tar.gz", "an archive",
         "unpack it; train on images in it with `vitft finetune --data DIR`"),
        ("z.zip", "an archive",
         "unpack it; train on images in it with `vitft finetune --data DIR`"),
    ],
)  # fmt: skip
def test_files_are_known_by_their_suffix(tmp_path: Path, name: str, what: str, use: str) -> None:
    path = touch(tmp_path / name)

    found = mistaken_data(path)

    shown = f"'{path}'" if " " in name else str(path)
    assert found == MistakenData(what, use.format(shown))
    assert found.weights_fix == f"{found.use}, and choose weights from `vitft weights list`"
    path.unlink()
    assert mistaken_data(path) is None


@pytest.mark.parametrize("name", ["model.safetensors", "model", "config.json"])
def test_other_files_are_no_data(tmp_path: Path, name: str) -> None:
    assert mistaken_data(touch(tmp_path / name)) is None


def test_arrays_are_data_if_they_are_images_with_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", X_train=np.zeros(1), y_train=np.zeros(1))
    np.savez(tmp_path / "half.npz", x_train=np.zeros(1), y_test=np.zeros(1))
    np.savez(tmp_path / "weights.npz", kernel=np.zeros(1), bias=np.zeros(1))
    (tmp_path / "torn.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:-30])
    with zipfile.ZipFile(tmp_path / "bare.npz", "w") as archive:
        archive.writestr("x", b"")
        archive.writestr("y", b"")

    names = ("data", "half", "weights", "torn", "bare")
    found = {name: mistaken_data(tmp_path / f"{name}.npz") for name in names}

    path = tmp_path / "data.npz"
    use = f"train on it with `vitft finetune --data {path}`"
    assert found["data"] == MistakenData("a data set of labelled images", use)
    assert [name for name in names if found[name]] == ["data", "bare"]
    assert is_data_set(tmp_path / "torn.npz") is False
    assert is_data_set(tmp_path / "gone.npz") is False


@pytest.mark.parametrize(
    ("image", "is_found"),
    [
        ("1.jpg", True), ("a/1.PNG", True), ("a/b/1.jpg", True), ("a/b/c/1.jpg", False),
        (".a/1.jpg", False), ("a/1.txt", False),
    ],
)  # fmt: skip
def test_images_are_looked_for_in_two_levels_of_folders(
    tmp_path: Path, image: str, is_found: bool
) -> None:
    touch(tmp_path / "set" / image)

    found = mistaken_data(tmp_path / "set")

    use = f"train on it with `vitft finetune --data {tmp_path / 'set'}`"
    assert found == (MistakenData("a folder of images", use) if is_found else None)
    assert contains_images(tmp_path / "gone") is False


@pytest.mark.parametrize(("before", "is_found"), [(199, True), (200, False)])
def test_200_entries_of_a_folder_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, before: int, is_found: bool
) -> None:
    @contextmanager
    def listed(_: object) -> Iterator[Iterator[SimpleNamespace]]:
        names = [*(f"{number}.txt" for number in range(before)), "image.jpg"]
        yield iter([SimpleNamespace(name=name, is_dir=lambda: False) for name in names])

    monkeypatch.setattr(os, "scandir", listed)

    assert contains_images(Path("set")) is is_found


def test_only_the_first_folder_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []

    @contextmanager
    def listed(folder: Path) -> Iterator[Iterator[SimpleNamespace]]:
        entered.append(str(folder))
        names = [".hidden", "file", "first", "second"] if folder == Path("set") else []
        yield iter(
            [
                SimpleNamespace(name=n, path=f"set/{n}", is_dir=lambda n=n: n != "file")
                for n in names
            ]
        )

    monkeypatch.setattr(os, "scandir", listed)

    assert contains_images(Path("set")) is False
    assert entered == ["set", "set/first"]
