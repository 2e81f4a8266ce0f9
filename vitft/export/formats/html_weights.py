"""Tensors of `export --html` as bytes, with 8 or 16 bits per weight; read by `page/weights.js`.

A matrix is stored in blocks of weights that share a scale: the float32 scales of all blocks, then
the weights divided by their scale, as 8-bit integers or as float16. Vectors and position embeddings
are stored in float32. All numbers are little-endian.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

from vitft.models.numpy_vit import Float32Array

Bits = Literal[8, 16]
BLOCK = 64
"""Number of weights that share a scale. With 8 bits, the probabilities of a ViT-Tiny for 40 flower
photos change by up to 0.019 with this block size, and by up to 0.033 with one scale per row."""
_TYPES: Mapping[Bits, str] = {8: "i8", 16: "f16"}
_DTYPES: Mapping[str, str] = {"f32": "<f4", "f16": "<f2", "i8": "i1"}


class _StoredTensor(TypedDict):
    """Description of a tensor in the page."""

    name: str
    shape: list[int]
    type: str
    """Type of the stored numbers: `f32`, `f16` or `i8`."""
    block: int
    """Number of weights that share a scale; 0 for float32, which has no scales."""


class StoredTensors(NamedTuple):
    """Tensors as bytes, one after the other, with their descriptions."""

    described: list[_StoredTensor]
    data: bytes


def store_tensors(
    tensors: Mapping[str, Float32Array], bits: Bits, *, exact: Sequence[str] = ()
) -> StoredTensors:
    """Store matrices in 8 or 16 bits, and vectors and position embeddings in float32.

    Args:
        tensors: Tensors by name.
        bits: Bits per weight of a matrix.
        exact: Names of matrices that are always stored in 16 bits.
    """
    described, parts = list[_StoredTensor](), list[bytes]()
    for name, tensor in tensors.items():
        is_matrix = tensor.ndim > 1 and len(tensor) > 1
        kind = _TYPES[16 if name in exact else bits] if is_matrix else "f32"
        columns = tensor[0].size
        block = (BLOCK if columns % BLOCK == 0 else columns) if is_matrix else 0
        described.append({"name": name, "shape": [*tensor.shape], "type": kind, "block": block})
        parts += stored(np.asarray(tensor, np.float32), kind, block)
    return StoredTensors(described, b"".join(parts))


def stored(tensor: Float32Array, kind: str, block: int) -> list[bytes]:
    """Return the scales and the rounded weights of a tensor as bytes."""
    if not block:
        return [tensor.astype(_DTYPES[kind]).tobytes()]
    blocks = tensor.reshape(-1, block)
    largest = 127 if kind == "i8" else 1
    scales = np.maximum(np.abs(blocks).max(axis=1, keepdims=True), 1e-30) / np.float32(largest)
    scaled = blocks / scales
    rounded = np.rint(scaled) if kind == "i8" else scaled
    return [scales.astype("<f4").tobytes(), rounded.astype(_DTYPES[kind]).tobytes()]


def read_tensors(described: Sequence[Mapping[str, Any]], data: bytes) -> dict[str, Float32Array]:
    """Return the tensors by name, as the page reads them.

    Raises:
        ValueError: There are more or fewer bytes than described.
    """
    tensors, at = dict[str, Float32Array](), 0

    def read(dtype: str, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        nonlocal at
        values = np.frombuffer(data, dtype, count, at)
        at += values.nbytes
        return values

    for tensor in described:
        size, block = math.prod(tensor["shape"]), tensor["block"]
        scales = read("<f4", size // block)[:, None] if block else np.float32(1)
        values = read(_DTYPES[tensor["type"]], size).astype(np.float32)
        whole = values.reshape(-1, block) * scales if block else values
        tensors[tensor["name"]] = whole.reshape(tensor["shape"])
    if at != len(data):
        raise ValueError(f"found {len(data)} bytes of weights instead of {at}")
    return tensors
