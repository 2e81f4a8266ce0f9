"""Relevance overlays for a stream of predictions."""

from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from vitft.explain.attribution import relevance_map
from vitft.explain.explainer import safe_stem
from vitft.explain.heatmaps import overlay, png_bytes
from vitft.models.timm_model import require_vit
from vitft.predict.engine import Engine
from vitft.predict.prediction import Prediction
from vitft.predict.torch_engine import Predictor
from vitft.system.files import write_atomically, writing


def illustrate_predictions(
    engine: Engine, predictions: Iterator[Prediction], folder: Path
) -> Iterator[Prediction]:
    """Yield the same predictions, and write a relevance overlay of each that has a view.

    Raises:
        UsageError: The model is one of timm's, whose attention is not accessible.
    """
    assert isinstance(engine, Predictor)
    model = require_vit(engine.model, "--explain")
    with writing(folder, option="--explain"):
        folder.mkdir(parents=True, exist_ok=True)
    for number, prediction in enumerate(predictions, start=1):
        if prediction.view is not None:
            torch.set_num_threads(engine.workers)  # the engine's workers set it to 1
            heat = relevance_map(model, engine.inputs(prediction.view[None]))[0]
            picture = png_bytes(overlay(Image.fromarray(prediction.view), heat))
            name = f"{number:06}-{safe_stem(prediction.path)}.png"
            write_atomically(folder / name, picture)
        yield prediction
