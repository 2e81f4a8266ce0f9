"""The NumPy engine: one image per core, and no scores from a damaged file."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.vit import VisionTransformer
from vitft.predict.numpy_engine import FEW_IMAGES, NumpyEngine, in_background, start_digest
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import RunError


@pytest.fixture
def model(tmp_path: Path, tiny_vit: VisionTransformer) -> Path:
    tiny_vit.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    card = Card(
        architecture=tiny_vit.config,
        transform=EvalTransform(image_size=(16, 16), mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1)),
        classes=("blue", "green", "red"),
    )
    save_checkpoint(tmp_path / "m.safetensors", tiny_vit.state_dict(), card)
    return tmp_path / "m.safetensors"


def opened(model: Path) -> NumpyEngine:
    engine = NumpyEngine.open(model)
    assert engine is not None
    return engine


VIEWS = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)


def test_scores_are_those_of_torch(model: Path) -> None:
    engine, exact = opened(model), Predictor.from_run(str(model), device="cpu")

    found, expected = engine.scores(VIEWS), exact.scores(VIEWS)

    assert found.logits == pytest.approx(expected.logits, abs=1e-4)
    assert found.features == pytest.approx(expected.features, abs=1e-4)
    assert engine.start(VIEWS)().logits.tolist() == found.logits.tolist()


def test_an_engine_has_the_facts_of_its_card_and_scores_one_image_per_worker(model: Path) -> None:
    engine = opened(model)

    assert (engine.batch, engine.in_workers, engine.feature_size) == (1, True, 32)
    assert 1 <= engine.workers <= 4
    assert engine.workers <= FEW_IMAGES
    assert engine.classes == ("blue", "green", "red")
    assert (engine.thresholds, engine.facts) == ((), {})
    assert engine.transform.mean == (0.1, 0.2, 0.3)
    image = Image.fromarray(VIEWS[0])
    assert (engine.view_of(image) == engine.transform.pixels(image)).all()


def test_weights_without_a_card_need_torch(tmp_path: Path, tiny_vit: VisionTransformer) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "m.safetensors"
    save_file({k: v.numpy() for k, v in tiny_vit.state_dict().items()}, path)

    assert NumpyEngine.open(path) is None
    assert start_digest(path) is None


def test_the_digest_is_computed_for_whoever_waits_for_it(model: Path) -> None:
    wait = start_digest(model)

    assert wait is not None
    assert wait() == opened(model).opened.digest()


@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_a_damaged_file_gives_no_scores(
    model: Path, tiny_vit: VisionTransformer, scale: float
) -> None:
    state = {k: v * scale if "mlp" in k else v for k, v in tiny_vit.state_dict().items()}
    card = opened(model).opened.card
    save_checkpoint(model, state, replace(card))
    data = bytearray(model.read_bytes())
    data[-100] ^= 1
    model.write_bytes(data)

    engine = NumpyEngine.open(model)
    if engine is not None:  # torch computes with weights this large
        with pytest.raises(RunError, match="damaged checkpoint"):
            engine.scores(VIEWS)


def test_an_overflow_is_an_error_unless_the_file_is_damaged(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(model)

    def overflow(*_: object) -> None:
        raise FloatingPointError("overflow encountered")

    monkeypatch.setattr("vitft.predict.numpy_engine.strictly", lambda _: overflow)
    with pytest.raises(RunError, match="not finite"):
        engine.scores(VIEWS)
    engine.digest = lambda: "another"
    with pytest.raises(RunError, match="damaged checkpoint"):
        engine.scores(VIEWS)


def test_work_in_the_background_goes_on_while_the_caller_works() -> None:
    begun, threads = threading.Event(), list[int]()

    def work() -> str:
        threads.append(threading.get_ident())
        begun.set()
        time.sleep(0.05)
        return "done"

    wait = in_background(work)

    assert begun.wait(5)
    assert wait() == "done"
    assert wait() == "done"
    assert threads != [threading.get_ident()]
    assert len(threads) == 1
