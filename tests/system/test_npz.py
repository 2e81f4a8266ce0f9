"""Archives of arrays whose sizes and types are checked before memory is allocated."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitft.system import read_npy, read_npz


def npy(array: Any, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), **options)
    buffer.seek(0)
    return buffer


def size_of(buffer: io.BytesIO) -> int:
    return len(buffer.getvalue())


def test_arrays_are_read_by_name_with_their_types_and_shapes(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "f": np.linspace(0, 1, 6).reshape(2, 3),
        "h": np.ones(3, np.float16),
        "i": np.arange(-2, 4, dtype=np.int16),
        "u": np.arange(4, dtype=np.uint8),
        "b": np.array([True, False]),
        "order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "number": np.float32(7),
        "empty": np.empty((0, 3)),
    }
    np.savez_compressed(tmp_path / "a.npz", **arrays)

    found = read_npz(tmp_path / "a.npz")

    assert [*found] == [*arrays]
    for name, array in arrays.items():
        assert found[name].dtype == np.asarray(array).dtype
        assert found[name].shape == np.shape(array)
        assert (found[name] == array).all()
    found["f"][0] = 5  # arrays can be changed


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array(["x"]), "which is not a numeric type"),
        (np.ones(2, np.complex64), "which is not a numeric type"),
        (np.ones(2, np.longdouble), "which is not a numeric type"),
        (np.ones(2, ">f4"), "big-endian numbers are not supported"),
    ],
)
def test_other_types_are_refused(array: Any, reason: str) -> None:
    file = npy(array)

    with pytest.raises(ValueError, match=reason):
        read_npy(file, size_of(file))


@pytest.mark.parametrize("more", [-1, 1, 8])
def test_a_shape_that_does_not_match_the_size_is_refused(more: int) -> None:
    file = npy(np.ones((2, 3)))

    with pytest.raises(ValueError, match=r"shape \(2, 3\) does not match"):
        read_npy(file, size_of(file) + more)


def test_a_negative_length_is_refused() -> None:
    content = npy(np.ones((4, 3))).getvalue().replace(b"(4, 3)", b"(-4,-3")
    content = content.replace(b"(-4,-3,", b"(-4,-3)")

    with pytest.raises(ValueError, match=r"does not match|\(-4"):
        read_npy(io.BytesIO(content), len(content))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)

    with pytest.raises(ValueError, match=r"."):
        read_npz(tmp_path / "a.npz")
