"""Samples of tar shards: columns, labels, groups, splits, and hostile shards."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.download.test_archive import plain, tar_bytes
from tests.support.pictures import encoded, scene
from tests.support.shards import json_text, shard, write_shards
from vitft.config import DataSpec
from vitft.data import Images, measure_grey_range, prepare_data, read_bytes, scan, sources
from vitft.system import DataError, ImageError

PICTURES = [encoded(scene(i, (32, 32))) for i in range(4)]


def scanned(data: str, **settings: str) -> Images:
    spec = DataSpec(**settings)  # type: ignore[arg-type]
    return scan(prepare_data(data, spec), spec)


def labels(folder: Images) -> dict[str, str]:
    return {file.path: folder.classes[file.label] for file in folder.rows}


def test_fields_may_contain_groups_and_several_labels(tmp_path: Path) -> None:
    rows = [["cat", "indoors"], ["dog"], []]
    content = shard(
        {
            f"k{i}": {"jpg": PICTURES[i], "json": json_text(labels=row, patient=f"p{i % 2}")}
            for i, row in enumerate(rows)
        }
    )

    folder = scanned(write_shards(tmp_path / "s", [content]))

    assert folder.labels == ("cat", "dog", "indoors")
    assert labels(folder)["part-00.tar/k0.jpg"] == "cat|indoors"
    assert [file.group for file in sorted(folder.rows, key=lambda f: f.path)] == ["p0", "p1", "p0"]


def test_the_names_of_shards_may_divide_the_data(tmp_path: Path) -> None:
    for number, part in enumerate(("train", "validation")):
        samples = {
            f"{kind}{i}": {"jpg": PICTURES[i + 2 * number], "cls": kind.encode()}
            for i, kind in enumerate(("cat", "dog"))
        }
        (tmp_path / f"set-{part}-0.tar").write_bytes(shard(samples))
    data = f"wds:{tmp_path}/set-{{train,validation}}-0.tar"

    folder, undivided = scanned(data), scanned(data, split_column="none")

    assert {file.path: file.split for file in folder.rows} == {
        f"set-{name}-0.tar/{kind}{i}.jpg": part
        for name, part in (("train", "train"), ("validation", "val"))
        for i, kind in enumerate(("cat", "dog"))
    }
    assert any("divide the data into train and val" in note for note in folder.notes)
    assert undivided.layout == "classes"


def test_one_of_several_images_of_a_sample_is_chosen(tmp_path: Path) -> None:
    masks = {
        f"k{i}": {"jpg": PICTURES[i], "mask.png": PICTURES[i + 2], "cls": kind}
        for i, kind in enumerate((b"cat", b"dog"))
    }
    main = scanned(write_shards(tmp_path / "one", [shard(masks)]))
    mask = scanned(write_shards(tmp_path / "one", [shard(masks)]), path_column="mask.png")

    assert [*labels(main)] == ["part-00.tar/k0.jpg", "part-00.tar/k1.jpg"]
    assert [*labels(mask)] == ["part-00.tar/k0.mask.png", "part-00.tar/k1.mask.png"]

    two = {key: {**members, "png": PICTURES[3]} for key, members in masks.items()}
    with pytest.raises(DataError, match=r"no path column. Columns found: jpg, mask\.png") as error:
        scanned(write_shards(tmp_path / "two", [shard(two)]))
    assert "data.path_column=NAME" in error.value.fix
    with pytest.raises(DataError, match=r"each sample has several images \(jpg, mask\.png"):
        list(sources([write_shards(tmp_path / "two", [shard(two)])]))


def test_members_that_are_not_used_are_counted(tmp_path: Path) -> None:
    samples = {f"k{i}": {"jpg": PICTURES[i], "cls": b"ab"[i : i + 1]} for i in range(2)}
    samples |= {"k2": {"cls": b"a"}, "k3": {"npy": b"x"}, ".k4": {"jpg": b"x"}}

    folder = scanned(write_shards(tmp_path / "s", [shard(samples)]))

    assert len(folder.rows) == 2
    assert "not used: 1 sample without an image" in folder.notes
    assert any("1 .npy" in note for note in folder.notes)


WHOLE = shard({f"k{i}": {"jpg": data, "cls": b"cat"} for i, data in enumerate(PICTURES)})
SECOND = 512 - len(PICTURES[0]) // -512 * 512  # where the second header begins
HUGE = tarfile.TarInfo("a.jpg")
HUGE.size = 10**12
MORE = tarfile.TarInfo("a.jpg")
MORE.size = 10**13 + 1
END = len(WHOLE.rstrip(b"\0")) // -512 * -512  # of the last member
# contract/commands/shards.toml has more, and data/download/test_archive.py those of all archives.
HOSTILE = {
    "a huge size": (HUGE.tobuf() + b"\0" * 1024, "'a.jpg' unpack to 1,000,000,000,000"),
    "truncated within a member": (WHOLE[:1600], "its end marker is missing|unexpected end"),
    "without an end marker": (WHOLE.rstrip(b"\0"), "damaged|end marker"),
    "damaged header": (WHOLE[:SECOND] + b"x" * 512 + WHOLE[SECOND + 512 :], "damaged"),
    "a long text": (tar_bytes(plain("a.txt", b"x" * (2**20 + 1))), "1,048,577 bytes, more than"),
    "more than 10 TB": (MORE.tobuf(tarfile.GNU_FORMAT) + bytes(1024), "'a.jpg' unpack to"),
    "cut after its last member": (WHOLE[: END - 512], "unexpected end of data"),
    "without the blocks of its end": (WHOLE[:END], "its end marker is missing"),
    "empty": (b"", "not an uncompressed tar file"),
    "not a tar file": (b"x" * 2000, "not an uncompressed tar file"),
}


@pytest.mark.parametrize(("content", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_or_damaged_shard_is_one_sentence(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    data = write_shards(tmp_path / "s", [WHOLE, content])

    with pytest.raises(DataError, match=reason) as error:
        prepare_data(data, DataSpec())

    assert str(tmp_path / "s" / "part-01.tar") in error.value.problem
    assert "\n" not in error.value.problem


def test_mutants_of_a_shard_are_read_or_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        mutant = bytearray(WHOLE)
        for place in random.integers(0, len(WHOLE), 8):
            mutant[place] = random.integers(0, 256)
        (tmp_path / "a.tar").write_bytes(mutant)
        try:
            prepare_data(f"wds:{tmp_path}/a.tar", DataSpec())
        except DataError:
            refused += 1
    assert refused  # the others have changed pixels, labels or names


def test_a_changed_shard_is_indexed_again_and_never_misread(tmp_path: Path) -> None:
    def content(order: list[int]) -> bytes:
        kinds = (b"cat", b"dog")
        return shard({f"k{i}": {"jpg": PICTURES[i], "cls": kinds[i % 2]} for i in order})

    data = write_shards(tmp_path / "s", [content([0, 1]), content([2, 3])])
    folder = scanned(data)
    path = f"{folder.root}/part-01.tar/k2.jpg"
    assert read_bytes(path) == PICTURES[2]

    (tmp_path / "s" / "part-01.tar").write_bytes(content([3, 2, 1]))
    with pytest.raises(ImageError, match=r"the shard part-01\.tar has changed"):
        read_bytes(path)

    assert len(scanned(data).rows) == 5
    assert read_bytes(path) == PICTURES[2]


def test_members_of_gnu_and_ustar_files_are_found(tmp_path: Path) -> None:
    name = f"{'folder/' * 20}a"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
            for key, kind, picture in ((name, b"cat", 0), ("ö", b"dog", 1)):
                for suffix, data in (("jpg", PICTURES[picture]), ("cls", kind)):
                    info = tarfile.TarInfo(f"{key}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))

        folder = scanned(write_shards(tmp_path / str(form), [buffer.getvalue()]))

        assert read_bytes(f"{folder.root}/part-00.tar/{name}.jpg") == PICTURES[0]
        assert read_bytes(f"{folder.root}/part-00.tar/ö.jpg") == PICTURES[1]
        with pytest.raises(ImageError, match="not found"):
            read_bytes(f"{folder.root}/part-00.tar/ü.jpg")


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_the_grey_range_of_a_copy_is_measured(tmp_path: Path, suffix: str) -> None:
    samples = {}
    for i, kind in enumerate((b"cat", b"dog")):
        buffer = io.BytesIO()
        values = np.linspace(100, 4000 - i, 64, dtype=np.uint16).reshape(8, 8)
        Image.fromarray(values).save(buffer, suffix.upper())
        samples[f"k{i}"] = {suffix: buffer.getvalue(), "cls": kind}

    folder = scanned(write_shards(tmp_path / "s", [shard(samples)]))

    assert measure_grey_range(folder, max_pixels=10**6) == (100, 4000)
