"""Facts and fingerprints of images, and their rows in the cache."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.pictures import encoded, read, scene, scenes_folder
from vitft.data import OpenedImage, Row, fingerprint_of, scan
from vitft.features import Fingerprints, fingerprint_folder
from vitft.system import ImageError


def opened(data: bytes, path: str = "cat/0.jpg", *, max_pixels: int = 10**6) -> OpenedImage:
    return OpenedImage(Row(path, 0), data, max_pixels=max_pixels, fast=False)


def test_an_image_is_refused_by_a_smaller_limit_than_that_of_the_cached_facts(
    tmp_path: Path,
) -> None:
    fingerprints, data = Fingerprints(str(tmp_path)), encoded(scene(0))
    facts, row = fingerprints.inspect(opened(data))
    fingerprints.add(facts, row)

    again, known = fingerprints.inspect(opened(data))
    assert again == facts
    assert np.array_equal(known, fingerprint_of(read(data)))
    with pytest.raises(ImageError):
        fingerprints.inspect(opened(data, max_pixels=160 * 120 - 1))


def test_a_run_of_zeros_in_a_jpeg_is_remarked_on() -> None:
    data = encoded(scene(0), 90)
    damaged = data[: len(data) // 2] + bytes(40) + data[len(data) // 2 + 40 :]

    (remark,) = Fingerprints("none").inspect(opened(damaged))[0].odd

    assert remark.startswith("damaged JPEG data: part of the image may be wrong (")
    assert len(remark) <= len("damaged JPEG data: part of the image may be wrong ()") + 60
    assert Fingerprints("none").inspect(opened(data))[0].odd == ()


def test_the_table_has_a_row_for_each_digest_in_its_order() -> None:
    fingerprints = Fingerprints("none")
    for seed in range(3):
        fingerprints.add(*fingerprints.inspect(opened(encoded(scene(seed)))))
    first, second, third = fingerprints.by_digest

    table = fingerprints.table([third, first])

    assert np.array_equal(table[0], fingerprints.by_digest[third])
    assert np.array_equal(table[1], fingerprints.by_digest[first])
    assert not np.array_equal(table[0], fingerprints.by_digest[second])


def test_near_duplicates_form_a_group_named_by_its_first_image(tmp_path: Path) -> None:
    root = scenes_folder(tmp_path / "pets")
    (root / "dog" / "smaller.jpg").write_bytes(encoded(scene(100).resize((112, 84)), 70))
    fingerprints = Fingerprints("none")
    found = fingerprint_folder(scan(root), fingerprints, max_pixels=10**6)
    digest = {file.path: file.sha256 for file in found.rows}

    first = digest["dog/0.jpg"]
    assert fingerprints.duplicate_groups() == {first: first, digest["dog/smaller.jpg"]: first}


def test_fingerprints_of_several_processes_are_merged_in_the_order_of_the_files(
    tmp_path: Path,
) -> None:
    whole = Fingerprints("none")
    found = fingerprint_folder(scan(scenes_folder(tmp_path / "pets")), whole, max_pixels=10**6).rows
    items = list(whole.by_digest.items())
    merged = Fingerprints("none")

    merged.merge(found, [dict(items[1::2]), dict(items[::2])])

    assert list(merged.by_digest) == [file.sha256 for file in found] == [key for key, _ in items]
    assert all(np.array_equal(merged.by_digest[key], row) for key, row in items)


def test_images_of_other_grey_ranges_have_other_fingerprints(tmp_path: Path) -> None:
    plain = Fingerprints(str(tmp_path)).store
    ranged = Fingerprints(str(tmp_path), (0, 4095)).store

    assert plain is not None
    assert ranged is not None
    assert plain.folder != ranged.folder
    assert Fingerprints("none").store is None
