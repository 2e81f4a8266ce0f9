"""The engine of a trained model, by the format of its file."""

from pathlib import Path

import pytest

from tests.predict.test_onnx_engine import description, foreign_graph
from tests.support.export_run import make_run
from vitft.predict.onnx_engine import OnnxEngine
from vitft.predict.open_engine import open_engine
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import UsageError


def test_a_checkpoint_runs_in_torch_and_a_graph_in_onnxruntime(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    graph = foreign_graph(tmp_path / "m.ONNX", vitft=description())

    engine = open_engine(str(run), "cpu")

    assert isinstance(engine, Predictor)
    assert engine.device.type == "cpu"
    for device in ("auto", "cpu"):
        assert isinstance(open_engine(str(graph), device), OnnxEngine)
    assert isinstance(open_engine(str(graph)), OnnxEngine)
    with pytest.raises(UsageError, match="device cuda:1 cannot be used with the ONNX graph"):
        open_engine(str(graph), "cuda:1")
    with pytest.raises(UsageError, match="cannot use device 'abc'"):
        open_engine(str(run), "abc")
