"""Facts and fingerprints of images, and their rows in the cache."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.pictures import encoded, read, scene, scenes_folder
from vitft.data.fingerprint import FINGERPRINT_BYTES, fingerprint_of
from vitft.data.folder import File
from vitft.data.inspection import InspectedFile, OpenedImage
from vitft.data.scan import scan
from vitft.features.fingerprints import (
    FACTS_BYTES,
    Fingerprints,
    decode_facts,
    encode_facts,
    facts_key,
    fingerprint_folder,
    fingerprint_store,
    hidden_damage,
)
from vitft.system.errors import DataError, ImageError, RunError


def opened(data: bytes, path: str = "cat/0.jpg", *, max_pixels: int = 10**6) -> OpenedImage:
    return OpenedImage(File(path, 0), data, max_pixels=max_pixels, fast=False)


def inspected(odd: tuple[str, ...], width: int = 160, height: int = 120) -> InspectedFile:
    return InspectedFile("cat/0.jpg", 0, "", opened(b"bytes").sha256, width, height, odd)


def test_facts_are_read_as_they_were_written() -> None:
    for odd in ((), ("rotated by EXIF", "blurry")):
        row = encode_facts(inspected(odd))

        assert row is not None
        assert row.shape == (FACTS_BYTES,)
        assert decode_facts(row, opened(b"bytes")) == inspected(odd)


def test_similar_images_are_compared_even_if_their_hashes_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitft.features.fingerprints.near_pairs", lambda _: [])
    found = Fingerprints("none")
    pictures = [scene(0), read(encoded(scene(0), 60)), scene(1)]
    found.by_digest = {str(i): fingerprint_of(picture) for i, picture in enumerate(pictures)}

    assert found.duplicate_groups() == {}
    groups = found.duplicate_groups([(0, 1), (0, 2), (1, 2)])
    assert groups.keys() == {"0", "1"}
    assert groups["0"] == groups["1"]


def test_facts_that_do_not_fit_into_a_row_are_not_cached() -> None:
    room = 160 - len('[160, 120, [""]]')

    assert encode_facts(inspected(("x" * room,))) is not None
    assert encode_facts(inspected(("x" * (room + 1),))) is None


def test_cached_facts_are_not_used_if_the_image_has_too_many_pixels() -> None:
    row = encode_facts(inspected((), 160, 120))
    assert row is not None

    assert decode_facts(row, opened(b"bytes", max_pixels=160 * 120)) is not None
    assert decode_facts(row, opened(b"bytes", max_pixels=160 * 120 - 1)) is None


@pytest.mark.parametrize("text", ["[0, 5, []]", "[5, 0, []]", "[5, 5]", "[5, 5, [1]]", "{", ""])
def test_damaged_facts_are_not_used(text: str) -> None:
    row = np.frombuffer(text.encode().ljust(FACTS_BYTES), dtype=np.uint8)

    assert decode_facts(row, opened(b"bytes")) is None


def test_the_key_of_facts_depends_on_the_content_and_on_the_suffix_in_any_case() -> None:
    assert facts_key("cat/0.jpg", "1") == facts_key("dog/9.JPG", "1")
    assert facts_key("cat/0.jpg", "1") != facts_key("cat/0.png", "1")
    assert facts_key("cat/0.jpg", "1") != facts_key("cat/0.jpg", "2")


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

    (remark,) = hidden_damage(damaged)

    assert remark.startswith("damaged JPEG data: part of the image may be wrong (")
    assert len(remark) <= len("damaged JPEG data: part of the image may be wrong ()") + 60
    assert hidden_damage(data) == ()
    assert hidden_damage(b"\x89PNG" + damaged) == ()
    assert remark in Fingerprints("none").inspect(opened(damaged))[0].odd


@pytest.mark.parametrize(
    ("message", "is_damage"),
    [
        ("Corrupt JPEG data: premature end of data segment", True),
        ("Corrupt JPEG data: bad ICC marker", False),
        ("Unsupported color conversion request", False),
        ("Invalid ICC marker", False),
    ],
)
def test_only_corrupt_image_data_is_damage(
    monkeypatch: pytest.MonkeyPatch, message: str, is_damage: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError(message)

    monkeypatch.setattr("vitft.features.fingerprints.simplejpeg.decode_jpeg", refuse)

    assert bool(hidden_damage(encoded(scene(0)))) == is_damage


def test_fingerprints_of_no_images_are_an_empty_table() -> None:
    assert Fingerprints("none").table([]).shape == (0, FINGERPRINT_BYTES)


def test_the_table_has_a_row_for_each_digest_in_its_order() -> None:
    fingerprints = Fingerprints("none")
    for seed in range(3):
        fingerprints.add(*fingerprints.inspect(opened(encoded(scene(seed)))))
    first, second, third = fingerprints.by_digest

    table = fingerprints.table([third, first])

    assert np.array_equal(table[0], fingerprints.by_digest[third])
    assert np.array_equal(table[1], fingerprints.by_digest[first])
    assert not np.array_equal(table[0], fingerprints.by_digest[second])


def test_the_first_fingerprint_of_a_digest_is_kept() -> None:
    fingerprints, file = Fingerprints("none"), inspected(())
    fingerprints.add(file, np.zeros(FINGERPRINT_BYTES, np.uint8))
    fingerprints.add(file, np.ones(FINGERPRINT_BYTES, np.uint8))

    assert not fingerprints.by_digest[file.sha256].any()


def test_near_duplicates_form_a_group_named_by_its_first_image(tmp_path: Path) -> None:
    root = scenes_folder(tmp_path / "pets")
    (root / "dog" / "smaller.jpg").write_bytes(encoded(scene(100).resize((112, 84)), 70))
    fingerprints = Fingerprints("none")
    found = fingerprint_folder(scan(root), fingerprints, max_pixels=10**6)
    digest = {file.path: file.sha256 for file in found.good}

    first = digest["dog/0.jpg"]
    assert fingerprints.duplicate_groups() == {first: first, digest["dog/smaller.jpg"]: first}


def test_fingerprints_of_several_processes_are_merged_in_the_order_of_the_files(
    tmp_path: Path,
) -> None:
    whole = Fingerprints("none")
    found = fingerprint_folder(scan(scenes_folder(tmp_path / "pets")), whole, max_pixels=10**6).good
    items = list(whole.by_digest.items())
    merged = Fingerprints("none")

    merged.merge(found, [dict(items[1::2]), dict(items[::2])])

    assert list(merged.by_digest) == [file.sha256 for file in found] == [key for key, _ in items]
    assert all(np.array_equal(merged.by_digest[key], row) for key, row in items)


def test_unreadable_files_of_a_folder_are_listed_unless_they_are_refused(tmp_path: Path) -> None:
    root = scenes_folder(tmp_path / "pets", each=1)
    for i in range(11):
        (root / "cat" / f"torn{i}.jpg").write_bytes(b"\xff\xd8\xff")
    advanced: list[int] = []

    found = fingerprint_folder(
        scan(root), Fingerprints("none"), max_pixels=10**6, progress=advanced.append
    )

    assert (len(found.good), len(found.bad), sum(advanced)) == (2, 11, 13)
    with pytest.raises(DataError):
        fingerprint_folder(scan(root), Fingerprints("none"), max_pixels=10**6, allow_bad=False)


def test_fingerprints_are_written_at_the_end_of_a_pass(tmp_path: Path) -> None:
    root = scenes_folder(tmp_path / "pets", each=2)
    fingerprint_folder(scan(root), Fingerprints(str(tmp_path / "c")), max_pixels=10**6)

    store = fingerprint_store(str(tmp_path / "c"), ())

    assert store is not None
    assert len(store.places) == 4


def test_images_of_other_grey_ranges_have_other_fingerprints(tmp_path: Path) -> None:
    plain = fingerprint_store(str(tmp_path), ())
    ranged = fingerprint_store(str(tmp_path), (0, 4095))

    assert plain is not None
    assert ranged is not None
    assert plain.folder != ranged.folder
    assert fingerprint_store("none", ()) is None


def test_only_a_chosen_cache_folder_must_be_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITFT_CACHE", str(tmp_path / "file"))

    assert fingerprint_store("", ()) is None
    assert "fingerprints are not cached" in capsys.readouterr().err
    with pytest.raises(RunError):
        fingerprint_store(str(tmp_path / "file"), ())
