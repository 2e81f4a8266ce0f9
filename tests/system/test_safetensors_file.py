"""Headers of safetensors files, and views of their tensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from vitft.system import map_tensors, read_header, with_sorted_metadata

TENSORS: dict[str, Any] = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.ones(2, np.float16),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "m.safetensors").write_bytes(save(TENSORS, metadata={"x": "1"}))
    return tmp_path / "m.safetensors"


def test_the_header_has_types_shapes_and_metadata(path: Path) -> None:
    header = read_header(path)

    assert header.tensors == {"b": ("F32", (2, 3)), "a": ("F16", (2,))}
    assert header.metadata == {"x": "1"}
    assert header.size == path.stat().st_size - 6 * 4 - 2 * 2
    path.write_bytes(save(TENSORS))
    assert read_header(path).metadata == {}


def test_tensors_are_mapped_in_the_order_of_their_names(path: Path) -> None:
    found = map_tensors(path, read_header(path))

    assert [*found] == ["a", "b"]
    assert np.frombuffer(found["b"], np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.frombuffer(found["a"], np.float16).tolist() == [1, 1]


@pytest.mark.parametrize("change", [b"x", None])
def test_a_file_whose_size_has_changed_is_refused(path: Path, change: bytes | None) -> None:
    header, content = read_header(path), path.read_bytes()
    path.write_bytes(content + change if change else content[:-1])

    with pytest.raises(ValueError, match="its size has changed"):
        map_tensors(path, header)


ENTRY = b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}}, "."),
        ({"x": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}, "."),
        ({"x": {"dtype": "odd", "shape": [1], "data_offsets": [0, 1]}}, "."),
        (b"[]", "."),
        (b"{", "."),
        (b'{"x":%b,"x":%b}' % (ENTRY, ENTRY), "'x' appears twice"),
        (b'{"\\ud800":%b}' % ENTRY, "."),  # cannot be encoded
        (b'{"__metadata__":{"a":"\\ud800"},"x":%b}' % ENTRY, "."),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, fields: Any, reason: str) -> None:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + b"1")

    with pytest.raises(ValueError, match=reason):
        read_header(tmp_path / "a")


def test_metadata_is_sorted_and_tensors_begin_at_a_multiple_of_8(tmp_path: Path) -> None:
    for names in (["z", "y", "\u00e4"], ["\u00e4", "z", "y"]):
        content = save(TENSORS, metadata={name: name * 2 for name in names})

        header, data = with_sorted_metadata(content)

        whole = header + bytes(data)
        length = int.from_bytes(whole[:8], "little")
        assert len(header) == 8 + length
        assert length % 8 == 0
        fields = json.loads(whole[8 : 8 + length])
        assert [*fields["__metadata__"].items()] == [
            ("y", "yy"),
            ("z", "zz"),
            ("\u00e4", "\u00e4" * 2),
        ]
        assert next(iter(fields)) == "__metadata__"
        assert "\u00e4".encode() in header  # not escaped
        assert b": " not in header
        for name, array in load(whole).items():
            assert (array == TENSORS[name]).all()
        (tmp_path / "a").write_bytes(whole)
        assert read_header(tmp_path / "a").metadata["z"] == "zz"
    assert with_sorted_metadata(save(TENSORS))[0].count(b'"__metadata__":{}') == 1
