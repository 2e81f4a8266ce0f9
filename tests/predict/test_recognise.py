"""Images of a run among others: by digest, fingerprint, path and group."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.pictures import encoded, read, scene
from vitft.config.run import checked_run_config
from vitft.data.duplicates import KnownImages
from vitft.data.fingerprint import fingerprint_of
from vitft.data.split import Manifest, Row
from vitft.predict import run_images
from vitft.predict.run_images import (
    COPY_NOTE,
    GROUP_NOTE,
    PATH_NOTE,
    TRAINED_NOTE,
    RunImages,
    read_fingerprints,
)
from vitft.system.errors import ImageError, RunError

PHOTOS = {name: encoded(scene(i), 90) for i, name in enumerate(("trained", "validated", "other"))}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def images(splits: Mapping[str, str]) -> RunImages:
    """Images of a run by the names in `PHOTOS`, with their fingerprints."""
    known = [fingerprint_of(read(PHOTOS[name])) for name in splits]
    return RunImages(
        splits={digest(PHOTOS[name]): split for name, split in splits.items()},
        train_paths=frozenset(["gone.jpg"]),
        known=KnownImages(np.stack(known)),
        known_splits=tuple(splits.values()),
        train_groups=frozenset(["p1"]),
        group_by=r"(p\d+)_",
    )


RUN = images({"validated": "val", "trained": "train"})


@pytest.mark.parametrize(
    ("path", "data", "group", "found"),
    [
        ("x.jpg", PHOTOS["trained"], "", ("train", TRAINED_NOTE)),
        ("gone.jpg", PHOTOS["validated"], "p1", ("val", "")),
        ("x.jpg", encoded(read(PHOTOS["trained"]), 60), "", ("train", COPY_NOTE)),
        ("x.jpg", encoded(read(PHOTOS["validated"]), 60), "", ("val", "")),
        ("x.jpg", PHOTOS["other"], "", ("", "")),
        ("gone.jpg", PHOTOS["other"], "", ("train", PATH_NOTE)),
        ("x.jpg", PHOTOS["other"], "p1", ("train", GROUP_NOTE)),
        ("x.jpg", PHOTOS["other"], "p2", ("", "")),
        ("p1_x.jpg", PHOTOS["other"], "", ("train", GROUP_NOTE)),
        ("p2_x.jpg", PHOTOS["other"], "", ("", "")),
        ("p1_x.jpg", PHOTOS["other"], "p2", ("", "")),
        ("p1_x.jpg", encoded(read(PHOTOS["validated"]), 60), "", ("train", GROUP_NOTE)),
    ],
)
def test_the_surest_way_to_recognise_an_image_comes_first(
    path: str, data: bytes, group: str, found: tuple[str, str]
) -> None:
    assert RUN.recognise(path, data, group) == found


def test_without_fingerprints_an_image_is_not_even_decoded() -> None:
    bare = replace(RUN, known=KnownImages(np.empty((0, 1), np.uint8)), known_splits=())

    assert bare.recognise("x.jpg", b"no image") == ("", "")
    with pytest.raises(ImageError):
        RUN.recognise("x.jpg", b"no image")
    plain = replace(RUN, group_by="", train_groups=frozenset())
    assert plain.recognise("p1_x.jpg", PHOTOS["other"]) == ("", "")


def test_a_copy_of_images_of_both_splits_is_a_training_image() -> None:
    both = images({"validated": "val", "trained": "train"})
    same = replace(both, known=KnownImages(np.stack([fingerprint_of(read(PHOTOS["other"]))] * 2)))

    found = same.recognise("x.jpg", encoded(read(PHOTOS["other"]), 60))

    assert found == ("train", COPY_NOTE)


def manifest(folder: Path, number: int) -> Manifest:
    rows = tuple(Row(f"{i}.jpg", 0, "train", f"{i:064x}") for i in range(number))
    return Manifest(folder, ("a",), rows)


@pytest.mark.parametrize(("number", "compared"), [(3, True), (4, False)])
def test_more_images_than_the_limit_are_not_compared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    compared: bool,
) -> None:
    monkeypatch.setattr(run_images, "MAX_COMPARED", 3)
    calls: list[object] = []
    monkeypatch.setattr(run_images, "fingerprint_folder", lambda *a, **_: calls.append(a))
    (tmp_path / "config.toml").write_text(f'[data]\npath = "{tmp_path}"\n')
    found = manifest(tmp_path, number)

    read_fingerprints(checked_run_config(tmp_path), found, found.rows, ())

    assert bool(calls) is compared
    assert ("near-duplicates of training images are not recognised" in caplog.text) is not compared


def test_fingerprints_of_the_largest_runs_stay_within_a_gigabyte() -> None:
    size = fingerprint_of(read(PHOTOS["other"])).nbytes

    assert 10_000 * size < run_images.MAX_COMPARED * size < 2**30


def test_a_run_without_settings_has_no_fingerprints(tmp_path: Path) -> None:
    assert read_fingerprints(None, manifest(tmp_path, 1), (), ()).by_digest == {}


def test_images_of_a_run_are_read_from_its_split(tmp_path: Path) -> None:
    assert RunImages.read(tmp_path, "") is None
    rows = (
        Row("a.jpg", 0, "train", "a" * 64, "p1"),
        Row("b.jpg", 0, "val", "b" * 64, "p2"),
        Row("c.jpg", 0, "train", "c" * 64),
        Row("d.jpg", 0, "val", "a" * 64),
    )
    path = tmp_path / "split.csv"
    Manifest(tmp_path, ("x",), rows).write(path)

    found = RunImages.read(tmp_path, digest(path.read_bytes()))

    assert found is not None
    assert found.splits == {"a" * 64: "train", "b" * 64: "val", "c" * 64: "train"}
    assert found.train_paths == {"a.jpg", "c.jpg"}
    assert found.train_groups == {"p1"}
    assert (found.known_splits, found.group_by) == ((), "")
    with pytest.raises(RunError, match="is not the split with which the model was trained"):
        RunImages.read(tmp_path, "another")
