"""Bounded readers of .npz and .safetensors files: all is checked before memory is allocated.

The safetensors library validates headers (offsets, sizes, no gaps), and this module rejects
duplicate names, huge headers and files that are not regular. Does not import torch.

Source: the layout of safetensors files, https://github.com/huggingface/safetensors.
"""

import json
import math
import mmap
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from vitft.system.files import open_regular
from vitft.system.structure import parse_json, structured

_MAX_EXPANSION = 20  # ratio of unpacked to packed size above which a large archive is rejected
_SMALL_BYTES, _LARGEST_BYTES = 2**26, 16 * 2**30
"""Unpacked size in bytes up to which any ratio is accepted, and maximum unpacked size in bytes."""

AnyArray = np.ndarray[Any, np.dtype[Any]]


def read_npz(path: Path) -> dict[str, AnyArray]:
    """Return the arrays in a .npz file, all of which must be numeric.

    Raises:
        OSError: The file is missing, not regular, or cannot be read.
        ValueError: The file is damaged, contains anything other than numeric arrays, or unpacks
            to an implausible size.
    """
    with open(path, "rb", opener=open_regular) as file:
        packed = file.seek(0, 2)
        try:
            with zipfile.ZipFile(file) as archive:
                check_expansion(sum(one.file_size for one in archive.infolist()), packed)
                arrays = {}
                for member in archive.infolist():
                    with archive.open(member) as content:
                        name = member.filename.removesuffix(".npy")
                        arrays[name] = read_npy(content, member.file_size)
                return arrays
        except (MemoryError, OSError, ValueError):
            raise
        except Exception as error:  # zipfile, zlib, tokenize and ast raise various errors
            raise ValueError(str(error) or type(error).__name__) from error


def check_expansion(unpacked: int, packed: int) -> None:
    """Reject an implausible unpacked size of a file of `packed` bytes, with a ValueError."""
    if unpacked > min(_LARGEST_BYTES, max(_SMALL_BYTES, _MAX_EXPANSION * packed)):
        raise ValueError(f"its {packed:,} bytes would unpack to {unpacked:,}")


def read_npy(file: IO[bytes], size: int) -> AnyArray:
    """Read a .npy file of `size` bytes; check the shape in its header before allocating memory.

    Raises:
        ValueError: The file is damaged, or does not contain plain numbers.
    """
    npy = np.lib.format
    is_first = npy.read_magic(file) == (1, 0)
    header = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
    shape, fortran, dtype = header(file)
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(f"an array has type {dtype}, which is not a numeric type")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"an array of {dtype} with shape {shape} does not match its {size} bytes")
    content = np.frombuffer(bytearray(file.read()), dtype.newbyteorder("<"))
    if dtype.byteorder == ">":
        raise ValueError("big-endian numbers are not supported")
    return content.reshape(shape, order="F" if fortran else "C")


# safetensors --------------------------------------------------------------------------------------

_MAX_HEADER_BYTES = 32 * 2**20
_MAX_TENSORS = 50_000


class TensorFacts(NamedTuple):
    """Type and shape of a tensor; the type is named as in safetensors headers, e.g. `F32`."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _SafetensorsHeader:
    """The header of a safetensors file."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorFacts]
    offsets: Mapping[str, tuple[int, int]]
    """Begin and end of each tensor in bytes, from the end of the header."""
    size: int  # number of bytes before the tensors


def read_header(path: Path) -> _SafetensorsHeader:
    """Return the header of a safetensors file, without reading its tensors.

    Raises:
        OSError: The file cannot be read or is not a regular file.
        ValueError: The header is damaged, contains a name twice, or is unreasonably large.
    """
    from safetensors import SafetensorError, safe_open  # does not import `safetensors.torch`

    with open(path, "rb", opener=open_regular) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError("its header is too long")
        text = file.read(length)
    if text.count(b'"data_offsets"') > _MAX_TENSORS:
        raise ValueError("it has too many tensors")
    try:
        with safe_open(path, framework="np"):  # checks everything but duplicates
            pass
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    fields = structured(parse_json(text), dict[str, Any])
    metadata = fields.pop("__metadata__", None) or {}
    tensors = {n: TensorFacts(f["dtype"], tuple(f["shape"])) for n, f in fields.items()}
    offsets = {name: tuple(facts["data_offsets"]) for name, facts in fields.items()}
    return _SafetensorsHeader(metadata, tensors, offsets, 8 + length)


def map_tensors(path: Path, header: _SafetensorsHeader) -> dict[str, memoryview]:
    """Memory-map the file and return a view of the bytes of each tensor, ordered by tensor name.

    Raises:
        OSError: The file cannot be read.
        ValueError: The size of the file has changed, or the file is empty.
    """
    with open(path, "rb", opener=open_regular) as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[header.size :]
    if len(mapped) != max((end for _, end in header.offsets.values()), default=0):
        raise ValueError("its size has changed")
    return {name: mapped[begin:end] for name, (begin, end) in sorted(header.offsets.items())}


def with_sorted_metadata(content: bytes) -> tuple[bytes, memoryview]:
    """Return the header and the tensors of a safetensors file, with its metadata sorted by name.

    The safetensors library writes the metadata in a random order, so files with the same metadata
    and tensors would otherwise differ in their bytes.
    """
    begin = 8 + int.from_bytes(content[:8], "little")
    fields = json.loads(content[8:begin])
    sorted_metadata = dict(sorted(fields.pop("__metadata__", {}).items()))
    text = json.dumps(
        {"__metadata__": sorted_metadata, **fields}, ensure_ascii=False, separators=(",", ":")
    )
    header = text.encode()
    header += b" " * (-len(header) % 8)  # tensors begin at a multiple of 8
    return len(header).to_bytes(8, "little") + header, memoryview(content)[begin:]
