"""The pictures to label: which files they are, and which of them represent a class of a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.reference_run import make_reference_run
from vitft.config.sections import TrainSpec
from vitft.models.vit import VisionTransformer
from vitft.serve.label import pictures
from vitft.serve.label.pictures import find_pictures
from vitft.serve.label.pool import files_by_digest, find_stand_ins, load_pool
from vitft.system.errors import DataError


def stand_ins(logits: torch.Tensor) -> tuple[list[int], list[int]]:
    """Return the stand-ins, and their classes, among pictures with these logits."""
    model: Any = SimpleNamespace(classify=lambda x: x)
    found = find_stand_ins(model, logits, torch.device("cpu"))
    return found.pictures.tolist(), found.labels.tolist()


def logits_of(*probabilities: float) -> torch.Tensor:
    """Return logits of two classes that give the first one these probabilities."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    return torch.stack([p, 1 - p], dim=1).log()


def test_pictures_with_a_probability_of_at_least_nine_tenths_represent_a_class() -> None:
    chosen = stand_ins(logits_of(0.901, 0.5, 0.95, 0.899, 0.02, 0.11, 0.09))

    assert chosen == ([2, 0, 4, 6], [0, 0, 1, 1])  # by class, most confident first
    assert stand_ins(logits_of(0.6, 0.4)) == ([], [])


def test_at_most_fifty_pictures_represent_a_class() -> None:
    chosen, labels = stand_ins(logits_of(*(0.92 + i / 1000 for i in range(60)), 0.05))

    assert chosen == [*range(59, 9, -1), 60]
    assert labels == [0] * 50 + [1]
    alike = logits_of(*([0.95] * 300))
    assert stand_ins(alike)[0] == [*range(50)]  # of equal probabilities, the first ones


def drawn(folder: Path, *names: str) -> Path:
    """Write small images of these names, whose first letters are their colours."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (ord(Path(name).name[0]), 0, 0)).save(folder / name)
    return folder


def test_all_images_in_and_below_a_folder_are_found(tmp_path: Path) -> None:
    root = drawn(tmp_path, "b.png", "a.png", "sub/c.png")
    (root / "notes.txt").write_text("x")

    folder = find_pictures(root)

    assert [file.path for file in folder.files] == ["a.png", "b.png", "sub/c.png"]
    assert folder.classes == ()
    assert len(folder.notes) == 1  # on the other file


@pytest.mark.parametrize(("most", "is_sampled"), [(5, False), (4, True), (2, True)])
def test_of_too_many_images_a_random_sample_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, *, is_sampled: bool
) -> None:
    root = drawn(tmp_path, *(f"{name}.png" for name in "abcde"))
    monkeypatch.setattr(pictures, "MOST_PICTURES", most)

    folder = find_pictures(root)

    paths = [file.path for file in folder.files]
    assert len(paths) == min(5, most)
    assert paths == sorted(paths)
    assert ("using" in " ".join(folder.notes)) is is_sampled
    if most == 2:
        assert folder.notes == ("using 2 of 5 images, drawn at random",)
        assert paths != ["a.png", "b.png"]  # not the first ones


def test_a_folder_without_images_says_what_it_contains(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")

    with pytest.raises(DataError, match=r"no images in .*, which contains 1 .txt"):
        find_pictures(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no images in \S*empty\n"):
        find_pictures(tmp_path / "empty")


def test_identical_files_are_one_picture(tmp_path: Path) -> None:
    good = [SimpleNamespace(path=f"one/{name}", sha256=name[0]) for name in ("a.png", "a2.png")]
    good.append(SimpleNamespace(path="two/b.png", sha256="b"))
    inspected: Any = SimpleNamespace(good=good, bad=(), folder=SimpleNamespace(root=tmp_path))

    assert files_by_digest(inspected) == {"a": ("one/a.png", "one/a2.png"), "b": ("two/b.png",)}


def test_a_folder_of_unreadable_images_is_an_error_with_an_example(tmp_path: Path) -> None:
    bad = (("a.png", "empty file"), ("b.png", "truncated"))
    inspected: Any = SimpleNamespace(good=(), bad=bad, folder=SimpleNamespace(root=tmp_path))

    with pytest.raises(DataError, match=r"none of the 2 images .*\(a.png: empty file\)"):
        files_by_digest(inspected)


def test_a_pool_has_the_directions_of_its_readable_pictures(
    image_folder: Path, tiny_weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (image_folder / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    copied = image_folder / "red" / "copy.png"
    copied.write_bytes((image_folder / "red" / "000.png").read_bytes())

    pool = load_pool(
        find_pictures(image_folder),
        weights=str(tiny_weights),
        run=None,
        train=TrainSpec(device="cpu", cache="none"),
    )

    assert len(pool.paths) == len(pool.digests) == len({*pool.digests}) == 30
    assert ("red/000.png", "red/copy.png") in pool.paths
    assert [path for path, _ in pool.bad] == ["torn.png"]
    assert "skipped torn.png: " in caplog.text
    torch.testing.assert_close(pool.z.norm(dim=1), torch.ones(30))
    colours = [paths[0].split("/")[0] for paths in pool.paths]
    same = torch.tensor([[a == b for b in colours] for a in colours])
    cosines = pool.z @ pool.z.T
    assert cosines[same].mean() > cosines[~same].mean() + 0.1
    assert (pool.classes, pool.stand_ins, pool.grey_range) == ((), None, ())


def test_the_readable_pictures_are_used_even_if_most_files_are_damaged(
    tmp_path: Path, tiny_weights: Path
) -> None:
    root = drawn(tmp_path / "pictures", "a.png", "b.png")
    for i in range(20):
        (root / f"torn{i}.png").write_bytes(b"\x89PNG\r\n\x1a\n")

    pool = load_pool(
        find_pictures(root),
        weights=str(tiny_weights),
        run=None,
        train=TrainSpec(device="cpu", cache="none"),
    )

    assert pool.paths == (("a.png",), ("b.png",))
    assert len(pool.bad) == 20


def test_a_pool_of_a_run_has_its_classes_and_their_stand_ins(
    image_folder: Path, tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    (tmp_path / "made").mkdir()
    run = make_reference_run(tmp_path / "made", tiny_vit)

    pool = load_pool(
        find_pictures(image_folder),
        weights="",
        run=str(run),
        train=TrainSpec(device="cpu", cache="none"),
    )

    assert len(pool.classes) == 3
    assert pool.stand_ins is not None
    assert len(pool.stand_ins.pictures) == len(pool.stand_ins.labels) <= 30


def test_the_grey_range_is_that_of_the_pictures_or_of_the_run(
    tmp_path: Path, tiny_vit: VisionTransformer, tiny_weights: Path
) -> None:
    (tmp_path / "made").mkdir()
    run = make_reference_run(tmp_path / "made", tiny_vit)
    (tmp_path / "wide").mkdir()
    for i in range(3):
        greys = np.linspace(0, 4095 - i, 64).astype(np.uint16).reshape(8, 8)
        Image.fromarray(greys).save(tmp_path / "wide" / f"{i}.png")

    of_pictures, of_run = (
        load_pool(
            find_pictures(tmp_path / "wide"),
            weights=str(tiny_weights),
            run=name,
            train=TrainSpec(device="cpu", cache="none"),
        ).grey_range
        for name in (None, str(run))
    )

    assert len(of_pictures) == 2
    assert of_pictures[1] == pytest.approx(4095, rel=0.1)
    assert of_run == ()
