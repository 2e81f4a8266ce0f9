"""Digest of an exported ONNX graph, in the last bytes of the file itself.

An ONNX file is a protobuf message. Entries that are appended to the bytes of such a message belong
to it, so every tool reads the digest as one more entry of the metadata (`vitft.sha256`), and the
digest covers every byte before it. Imports neither torch nor onnx.
"""

import hashlib
import mmap
from collections.abc import Mapping
from pathlib import Path

from vitft.models.pretrained.fetch import sha256_of
from vitft.system.files import write_atomically

_DIGEST_KEY = "vitft.sha256"
_DATA_DIGEST_KEY = "vitft.data_sha256"  # key of the digest of model.onnx.data, if any
_METADATA_FIELD = 0x72  # tag of `metadata_props` in a `ModelProto`: field 14, with a length
CHANGED = "the sha256 of the contents differs from the recorded one"


def _metadata_entry(key: str, value: str) -> bytes:
    """Return a metadata entry as protobuf; key and value have less than 124 bytes together."""
    pair = b"".join(
        bytes([tag, len(text)]) + text
        for tag, text in ((0x0A, key.encode()), (0x12, value.encode()))
    )
    assert len(pair) < 128  # longer messages need a length of several bytes
    return bytes([_METADATA_FIELD, len(pair)]) + pair


_DIGEST_SIZE = len(_metadata_entry(_DIGEST_KEY, "0" * 64))


def _data_file(graph: Path) -> Path:
    """Return the path of the file with the weights of a large graph."""
    return graph.with_name(f"{graph.name}.data")


def add_graph_digest(graph: Path) -> None:
    """Append the digest of a graph, and of its data file if any, to a file that has none."""
    content = graph.read_bytes()
    if _data_file(graph).is_file():
        content += _metadata_entry(_DATA_DIGEST_KEY, sha256_of(_data_file(graph)))
    digest = hashlib.sha256(content).hexdigest()
    write_atomically(graph, [content, _metadata_entry(_DIGEST_KEY, digest)])


def has_changed(graph: Path) -> bool:
    """Return whether a file ends with a digest, and its contents do not match it."""
    if (found := _recorded_digest(graph)) is None:
        return False
    with (
        graph.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content)[:-_DIGEST_SIZE] as before,
    ):
        return found != hashlib.sha256(before).hexdigest().encode()


def _recorded_digest(graph: Path) -> bytes | None:
    """Return the digest at the end of a file, or None if the file does not end with one."""
    with graph.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _DIGEST_SIZE))
        entry = file.read()
    return entry[-64:] if entry.startswith(_metadata_entry(_DIGEST_KEY, "0" * 64)[:-64]) else None


def contradicts_metadata(graph: Path, metadata: Mapping[str, str]) -> bool:
    """Return whether the metadata of a graph contain a digest that its files do not match.

    This finds what `has_changed` cannot: a digest that is no longer at the end of the file, because
    another tool has written the graph again, and a damaged data file.
    """
    if _DIGEST_KEY in metadata and _recorded_digest(graph) != metadata[_DIGEST_KEY].encode():
        return True
    recorded = metadata.get(_DATA_DIGEST_KEY)
    return recorded is not None and recorded != sha256_of(_data_file(graph))
