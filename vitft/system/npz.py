"""Bounded reader for .npz files: sizes and types are checked before memory is allocated."""

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from vitft.system.files import open_regular

_MAX_EXPANSION = 20
"""Ratio of unpacked to packed size above which a large archive is rejected."""
SMALL_BYTES, LARGEST_BYTES = 2**26, 16 * 2**30
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
                check_unpacked_size(archive, packed)
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


def check_unpacked_size(archive: zipfile.ZipFile, packed: int) -> None:
    """Reject an archive with an implausible unpacked size in its directory, with a ValueError."""
    check_expansion(sum(member.file_size for member in archive.infolist()), packed)


def check_expansion(unpacked: int, packed: int) -> None:
    """Reject an implausible unpacked size of a file of `packed` bytes, with a ValueError."""
    if unpacked > min(LARGEST_BYTES, max(SMALL_BYTES, _MAX_EXPANSION * packed)):
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
