"""The digest at the end of an ONNX graph: readable by onnx, and wrong after any change."""

import hashlib
from pathlib import Path

import onnx
import pytest

from vitft.models.graph_digest import (
    add_graph_digest,
    contradicts_metadata,
    data_file,
    has_changed,
    recorded_digest,
)


def metadata_of(path: Path) -> dict[str, str]:
    model = onnx.load_model_from_string(path.read_bytes())
    return {entry.key: entry.value for entry in model.metadata_props}


def write_graph(path: Path, *, megabytes: int = 0) -> bytes:
    """Write a model without layers but with a long text, and return its bytes."""
    model = onnx.ModelProto(ir_version=8, doc_string="x" * (megabytes * 2**20))
    model.metadata_props.add(key="classes", value="a, b")
    path.write_bytes(model.SerializeToString())
    return path.read_bytes()


@pytest.mark.parametrize("megabytes", [0, 1, 3])
def test_onnx_reads_the_digest_of_all_bytes_before_it(tmp_path: Path, megabytes: int) -> None:
    graph = tmp_path / "model.onnx"
    before = write_graph(graph, megabytes=megabytes)

    add_graph_digest(graph)

    digest = hashlib.sha256(before).hexdigest()
    assert graph.read_bytes().startswith(before)
    assert metadata_of(graph) == {"classes": "a, b", "vitft.sha256": digest}
    assert recorded_digest(graph) == digest.encode()
    assert not has_changed(graph)
    assert not contradicts_metadata(graph, metadata_of(graph))


@pytest.mark.parametrize("place", [0, 1000, 2**20 - 1, 2**20, -1, -64, -83])
def test_a_change_of_any_byte_is_found(tmp_path: Path, place: int) -> None:
    graph = tmp_path / "model.onnx"
    write_graph(graph, megabytes=2)
    add_graph_digest(graph)
    content = bytearray(graph.read_bytes())

    content[place] ^= 1
    graph.write_bytes(content)

    assert has_changed(graph)


def test_a_graph_without_a_digest_at_its_end_counts_as_unchanged(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    for content in (b"", b"\x08\x08", write_graph(graph), write_graph(graph, megabytes=1)):
        graph.write_bytes(content)
        assert recorded_digest(graph) is None
        assert not has_changed(graph)
        assert not contradicts_metadata(graph, {})


def test_a_digest_that_another_tool_moved_is_found_by_the_metadata(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    write_graph(graph)
    add_graph_digest(graph)
    metadata = metadata_of(graph)

    graph.write_bytes(graph.read_bytes() + b"\x08\x08")  # an entry that ends the message anew

    assert not has_changed(graph)
    assert contradicts_metadata(graph, metadata)


def test_the_digest_covers_the_file_of_the_weights(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    write_graph(graph)
    data_file(graph).write_bytes(b"weights")

    add_graph_digest(graph)

    metadata = metadata_of(graph)
    assert data_file(graph) == tmp_path / "model.onnx.data"
    assert metadata["vitft.data_sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert not has_changed(graph)
    assert not contradicts_metadata(graph, metadata)
    data_file(graph).write_bytes(b"Weights")
    assert not has_changed(graph)
    assert contradicts_metadata(graph, metadata)


def test_a_file_of_nothing_but_a_digest_has_one(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"")

    add_graph_digest(graph)

    assert recorded_digest(graph) == hashlib.sha256(b"").hexdigest().encode()
    assert not has_changed(graph)
