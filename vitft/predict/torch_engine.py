"""`vitft predict` through torch: a trained model that scores views, many at a time.

The model, the class names and the transform all come from one checkpoint. Reading images, and what
scores come to, is `answering`'s; printing is the console's.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor

from vitft.data.images import MAX_PIXELS
from vitft.data.sources import ImageSource
from vitft.data.sources import expand as expand
from vitft.data.transforms import EvalTransform
from vitft.models.checkpoint import Card, build_model, load_checkpoint
from vitft.models.find import find_model
from vitft.models.timm_model import Model, TimmModel
from vitft.predict.engine import (
    Engine,
    Floats,
    Judge,
    Prediction,
    Scores,
    Views,
    answers,
    documented_view,
)
from vitft.system.device import pick_device
from vitft.system.errors import RunError

if TYPE_CHECKING:
    from vitft.features.cut import Prefix

BATCH = 32
"""Views per call where torch spreads one call over all cores."""
PER_WORKER = {"cpu": 16, "cuda": 128, "mps": 32}
"""Views per call of a stream; on a CPU one core gains nothing from more (docs/experiments.md)."""
CLOSE = 4.0
"""Scores of two classes nearer than so many typical errors of bf16 are computed in float32."""
ROUNDING = 0.0155
"""Length of the error of a bf16 feature as a share of its own (docs/experiments.md)."""


class Predictor:
    """A loaded model that names images.

    Args:
        model: Ours or timm's, with a head.
        card: Of the model.
        device: auto, cpu, cuda, cuda:1, mps.
        precision: `bf16` computes features with bf16 weights and views JPEGs by the fast way; where
            that could have changed the answer, float32 has the last word.
    """

    def __init__(
        self, model: Model, card: Card, *, device: str = "auto", precision: str = "fp32"
    ) -> None:
        if not card.classes:
            raise RunError(
                "the checkpoint holds a backbone without classes",
                fix="fine-tune it first: vitft finetune --data DIR --weights FILE",
            )
        self.device = pick_device(own_device(device))
        self.model, self.card, self.precision = model.eval().to(self.device), card, precision
        self.batch, self.workers = PER_WORKER[self.device.type], torch.get_num_threads()
        self.in_workers = self.device.type == "cpu"
        self.lean: Prefix | None = None if precision == "fp32" else lean_prefix(model)

    @classmethod
    def from_run(
        cls,
        run: str | None,
        *,
        device: str = "auto",
        precision: str = "fp32",
        digest: Callable[[], str] | None = None,
    ) -> Self:
        """The model of a run folder or checkpoint file; by default of the latest run.

        `digest` is that of `load_checkpoint`.

        Raises:
            RunError: There is none, or it is damaged.
        """
        state, card = load_checkpoint(find_model(run), digest=digest)
        return cls(build_model(state, card.architecture), card, device=device, precision=precision)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the scores."""
        return self.card.classes

    @property
    def feature_size(self) -> int:
        """Numbers in the feature of one image."""
        return self.model.feature_size

    @property
    def transform(self) -> EvalTransform:
        """How an image becomes the model's input."""
        return self.card.transform

    def stream(self, paths: Iterable[str], *, top_k: int = 1) -> Iterator[Prediction]:
        """One prediction per path, in order; a file that is no image gets its reason instead."""
        judge = Judge(classes=self.card.classes, top_k=top_k)
        return self.answers((ImageSource(path, path) for path in paths), judge)

    def answers(
        self, sources: Iterable[ImageSource], judge: Judge, *, through: Engine | None = None
    ) -> Iterator[Prediction]:
        """One prediction per source, in order; `through` wraps this engine in another."""
        before = torch.get_num_threads()
        try:
            yield from answers(through or self, sources, judge)
        finally:
            torch.set_num_threads(before)

    def work_together(self) -> None:
        """Let all cores compute each batch: for fewer images than would keep them busy apart."""
        self.in_workers = False

    def enter_worker(self) -> None:
        """One core decodes and computes: no thread of it ever waits for another."""
        if self.in_workers:
            torch.set_num_threads(1)  # of this thread

    def view(self, data: bytes, name: str) -> Views:
        """The model's view (S, S, 3) of a file's bytes.

        Raises:
            ImageError: They are no whole image.
        """
        if self.lean is not None:
            from vitft.data.jpeg import fast_view

            quick = fast_view(data, self.transform, max_pixels=MAX_PIXELS)
            if quick is not None:
                return quick[0]
        return documented_view(data, name, self.transform)

    @torch.inference_mode()
    def scores(self, views: Views) -> Scores:
        """Scores and features of views (B, S, S, 3)."""
        inputs = self.inputs(views)
        if self.lean is None:
            features = self.model.features(inputs)
            logits = self.model.classify(features)
        else:
            features, logits = self.confirmed(inputs)
        return Scores(logits.float().cpu().numpy(), features.float().cpu().numpy())

    @torch.inference_mode()
    def logits(self, pixels: Views) -> Tensor:
        """Calibrated class scores (B, C), float32, of transformed images (B, S, S, 3)."""
        return self.model.classify(self.model.features(self.inputs(pixels))).float()

    @torch.inference_mode()
    def features(self, pixels: Views) -> Floats:
        """What the head reads of transformed images (B, S, S, 3): (B, D), float32."""
        features: Floats = self.model.features(self.inputs(pixels)).float().cpu().numpy()
        return features

    def inputs(self, views: Views) -> Tensor:
        """Normalised pixels (B, 3, S, S) on the device."""
        return self.card.transform.normalise(torch.from_numpy(views).to(self.device))

    def confirmed(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features and scores in bf16, close calls in float32.

        The rounding of a feature is a vector of about `ROUNDING` times its length that points
        anywhere, so it moves the gap between two classes by that, times the distance of their rows
        of the head, over sqrt(D). Gaps below `CLOSE` times as much are computed again. The rule
        looks at one image alone, so an answer does not depend on its neighbours.
        """
        from vitft.features.cut import run_prefix

        assert self.lean is not None
        features = run_prefix(self.lean, inputs).float()
        logits = self.model.classify(features)
        if logits.shape[1] > 1:
            best = logits.topk(2, dim=1)
            gap = best.values[:, 0] - best.values[:, 1]
            close = gap < CLOSE * rounding(self.model, features, best.indices)
            if bool(close.any()):
                exact = self.model.features(inputs[close])
                features[close], logits[close] = exact, self.model.classify(exact)
        return features, logits


def rounding(model: Model, features: Tensor, pairs: Tensor) -> Tensor:
    """How far bf16 typically moves the gap between two classes (B, 2) of each feature: (B,)."""
    heads = [h for h in (model.head, getattr(model, "head_dist", None)) if h is not None]
    weights = [cast("Tensor", head.weight) for head in heads]  # each (C, D)
    parts = [weight[pairs[:, 0]] - weight[pairs[:, 1]] for weight in weights]  # (B, D)
    rows, read = torch.cat(parts, dim=1) / len(heads), model.pre_logits(features)
    return ROUNDING * read.norm(dim=1) * rows.norm(dim=1) / math.sqrt(rows.shape[1])


def lean_prefix(model: Model) -> "Prefix":
    """A copy of the model that computes features in bf16, as the feature pass does."""
    from vitft.features.cut import Prefix  # not at the top: it brings the optimisers of torch

    depth = 0 if isinstance(model, TimmModel) else model.config.depth
    return Prefix(model, depth).in_precision("bf16")


def own_device(wanted: str) -> str:
    """Of several processes on one machine (torchrun) each takes its own GPU."""
    rank = os.environ.get("LOCAL_RANK", "")
    if wanted == "auto" and rank.isdigit() and torch.cuda.device_count() > 1:
        return f"cuda:{int(rank) % torch.cuda.device_count()}"
    return wanted
