"""Multi-label models are recognised from their files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from tests.predict.test_onnx_engine import description, foreign_graph
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.vit import VisionTransformer
from vitft.predict.answer_kind import gives_several


@pytest.mark.parametrize("thresholds", [(), (0.5, 0.4, 0.3)])
def test_the_card_of_a_checkpoint_decides(
    tmp_path: Path, tiny_vit: VisionTransformer, thresholds: tuple[float, ...]
) -> None:
    card = Card(
        architecture=tiny_vit.config,
        transform=EvalTransform(image_size=(16, 16)),
        classes=("a", "b", "c"),
    )
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, tiny_vit.state_dict(), replace(card, thresholds=thresholds))

    assert gives_several(str(path)) is bool(thresholds)


@pytest.mark.parametrize("thresholds", [[], [0.5, 0.4, 0.3]])
def test_the_description_of_a_graph_decides(tmp_path: Path, thresholds: list[float]) -> None:
    path = foreign_graph(tmp_path / "m.ONNX", vitft=description(thresholds=thresholds))

    assert gives_several(str(path)) is bool(thresholds)


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_the_config_beside_the_weights_of_another_tool_decides(
    tmp_path: Path, tiny_vit: VisionTransformer, problem: str
) -> None:
    save_file({k: v.numpy() for k, v in tiny_vit.state_dict().items()}, tmp_path / "m.safetensors")
    names = {str(i): name for i, name in enumerate("abc")}
    facts = {"problem_type": problem, "id2label": names}
    (tmp_path / "config.json").write_text(json.dumps(facts))

    assert gives_several(str(tmp_path / "m.safetensors")) is problem.startswith("multi")
