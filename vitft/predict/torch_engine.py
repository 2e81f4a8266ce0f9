"""The torch engine, which scores batches of images.

The model, class names and transform come from one checkpoint. Images are read in `engine`, and
scores are converted into predictions in `postprocess`.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self, cast

import numpy as np
import torch
from torch import Tensor

from vitft.data.images import MAX_PIXELS
from vitft.data.sources import ImageSource
from vitft.features.ood import Reference, read_reference
from vitft.models.card import Card
from vitft.models.checkpoint import build_model
from vitft.models.find import find_model
from vitft.models.pretrained.weights import load_classifier
from vitft.models.timm_model import Model
from vitft.predict.engine import Engine, OnnxEngine, Pipeline, Views
from vitft.predict.postprocess import Postprocess, Scores
from vitft.predict.request import not_for_graphs
from vitft.predict.rows import Prediction
from vitft.system.cores import usable_cores
from vitft.system.device import (
    BatchLimit,
    exact_float32,
    pick_device,
    pick_precision,
    start_reading,
    to_device,
)
from vitft.system.errors import RunError

if TYPE_CHECKING:
    from vitft.features.cut import Prefix

PREDICT_BATCH_SIZE = 32  # number of images per call to `scores` if each call uses all cores
_WORKER_BATCH_SIZE = {"cpu": 16, "cuda": 256, "mps": 32}
"""Number of images per batch by device type. Larger batches do not help on a CPU
(benchmarks/notebook/speed.md). On a GPU, Python takes as long to start a large batch as a small
one."""
_CLOSE_CALL = 4.0
"""An image is scored in float32 if the gap between its two largest logits is less than this many
times the typical bf16 error of the gap."""
_BF16_ERROR = 0.0155
"""Typical relative error of a bf16 feature, as a ratio of norms (benchmarks/notebook/predict.md).
For a model whose error is larger for noise images, that error is used."""


class Predictor(Engine):
    """An `Engine` in torch: a loaded model that classifies images, from vitft or timm.

    `device` is a name as in `train.device`. The precision `bf16` computes features with bf16
    weights and uses the fast JPEG decoder; images whose most probable class could change due to
    bf16 are scored again in float32. `auto` is either that or `fp32`.
    """

    def __init__(
        self,
        model: Model,
        card: Card,
        *,
        device: str = "auto",
        precision: str = "fp32",
        reference: Reference | None = None,
    ) -> None:
        if not card.classes:
            raise RunError(
                "the checkpoint contains a backbone without classes",
                fix="fine-tune it first: vitft finetune --data DIR --weights FILE",
            )
        self.device = pick_device(device)
        self.model, self.card = model.eval().to(self.device), card
        if precision == "auto":  # bf16 where it is faster, and close calls are known to be found
            is_safe = model.casts_to_bf16 and not card.several
            is_fast = pick_precision("auto", self.device) == "bf16"
            precision = "bf16" if is_safe and is_fast else "fp32"
        self.precision = precision
        if precision != "fp32":
            card.require_one_class(f"--dtype {precision}")
        self.outputs, self.transform = card, card.transform
        self.split, self.results = card.split, card.run
        self.prompts = card.weights.get("prompts", "")
        self.feature_size, self.reference = model.feature_size, reference
        self.intermediate = reference.intermediate_blocks if reference else 0
        self.batch, self.workers = _WORKER_BATCH_SIZE[self.device.type], usable_cores()
        self.in_workers = self.device.type == "cpu"
        self.limit = BatchLimit(self.batch, fix="use --device cpu or a smaller model")
        self.bf16_prefix: Prefix | None = None  # computes features in bf16, as extraction does
        self.bf16_error = _BF16_ERROR
        if precision != "fp32":
            from vitft.features import cut  # imports torch's optimisers

            whole = cut.Prefix(self.model, len(model.blocks), intermediate=self.intermediate)
            self.bf16_prefix = whole.in_precision("bf16")
            self.bf16_error = max(_BF16_ERROR, self.probe_error(self.bf16_prefix))

    @classmethod
    def from_run(
        cls,
        run: str | None,
        *,
        device: str = "auto",
        precision: str = "fp32",
        digest: Callable[[], str] | None = None,
    ) -> Self:
        """Load the model of a run directory, a checkpoint or `hf:owner/name`, or the latest run.

        `digest` returns the digest of the checkpoint, if the caller computes it.

        Raises:
            RunError: The model does not exist or is damaged, or has no classes.
            WeightsError: The repository `hf:owner/name` cannot be found.
            UsageError: The device cannot be used, or bf16 is requested for a multi-label model.
        """
        path = find_model(run)
        state, card = load_classifier(path, digest=digest)
        model = build_model(state, card.architecture)
        reference = read_reference(path.parent, model.feature_size, model.config)
        return cls(model, card, device=device, precision=precision, reference=reference)

    def stream(self, paths: Iterable[str], *, top_k: int = 1) -> Iterator[Prediction]:
        """Yield one prediction per path, in order; its `error` is set if the file is unusable."""
        pipeline = Pipeline(self, Postprocess(outputs=self.outputs, top_k=top_k))
        return pipeline.predict(ImageSource(path, path) for path in paths)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        before = torch.get_num_threads()
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def enter_worker(self) -> None:
        if self.in_workers:  # they use one core each
            torch.set_num_threads(1)  # in this thread, and in threads that start later

    def view(self, data: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Views:
        reduced = self.bf16_prefix is not None
        fast = self.transform.fast_view(data, max_pixels=max_pixels) if reduced else None
        return super().view(data, name, max_pixels=max_pixels) if fast is None else fast[0]

    @torch.inference_mode()
    def scores(self, views: Views) -> Scores:
        return self.start([*views])()

    def start(self, views: Sequence[Views]) -> Callable[[], Scores]:
        """Start to score views, as `Engine.start`; a ResourceError says that one does not fit."""
        shape, is_gpu = (len(views), *views[0].shape), self.device.type == "cuda"
        pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=is_gpu)  # copied without waiting
        np.stack(views, out=pixels.numpy())
        started = self.limit.split(lambda part: self.start_part(pixels[part]), len(views))

        def finish() -> Scores:
            found = [wait() for wait in started]
            features, logits = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
            return Scores(logits, *np.split(features, [self.feature_size], axis=1))

        return finish

    @torch.inference_mode()
    def start_part(self, pixels: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        """Start to compute features, also intermediate ones, and logits, in float32 on the CPU."""
        inputs = self.inputs(pixels)
        with exact_float32(self.device):
            if self.bf16_prefix is None:
                features, logits = self.float32_scores(inputs)
                read = start_reading([features, logits])
                return lambda: (read()[0], read()[1])
            read = start_reading(self.bf16_scores(inputs, self.bf16_prefix))
        if self.device.type == "cuda":
            return lambda: self.settle(inputs, *read())
        settled = self.settle(inputs, *read())  # here: MPS may not support several threads
        return lambda: settled

    def inputs(self, views: Views | Tensor) -> Tensor:
        """Normalise images (B, S, S, 3) and return pixels (B, channels, S, S) on the device."""
        return self.card.transform.normalise(to_device(torch.as_tensor(views), self.device))

    def float32_scores(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits in float32, for pixels (B, channels, S, S)."""
        features = self.model.features(inputs, self.intermediate)
        logits = self.model.classify(features[:, : self.feature_size])
        return features.float(), logits.float()

    @torch.inference_mode()
    def settle(
        self, inputs: Tensor, features: Tensor, logits: Tensor, close: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute close calls again in float32; return all features and logits, on the CPU."""
        rows = close.nonzero()[:, 0]
        if len(rows):
            chosen = inputs[to_device(rows, self.device)]
            with exact_float32(self.device):
                found = self.limit.split(lambda part: self.float32_scores(chosen[part]), len(rows))
            exact = start_reading([torch.cat(parts) for parts in zip(*found, strict=True)])()
            features[rows], logits[rows] = exact[0], exact[1]
        return features, logits

    @torch.inference_mode()
    def probe_error(self, prefix: "Prefix") -> float:
        """Return the largest relative error of a bf16 feature of two noise images."""
        from vitft.features.cut import run_prefix  # imports torch's optimisers

        shape = (2, *self.transform.image_size, 3)
        noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        inputs = self.inputs(noise)
        with exact_float32(self.device):
            exact, found = self.model.features(inputs).float(), run_prefix(prefix, inputs).float()
        found = found[:, : self.feature_size]
        return float(((found - exact).norm(dim=1) / exact.norm(dim=1)).max())

    def bf16_scores(self, inputs: Tensor, prefix: "Prefix") -> tuple[Tensor, Tensor, Tensor]:
        """Return features and logits, and whether the top two logits of an image are too close.

        The error of a bf16 feature has a random direction and a norm of about `bf16_error` times
        the norm of the feature, so the typical error of the gap between two logits follows from
        `gap_change`. The estimate for an image does not depend on the rest of the batch. In
        contrast, `training.finish` uses the largest change that it observes.
        """
        from vitft.features.cut import run_prefix  # imports torch's optimisers

        features = run_prefix(prefix, inputs).float()
        read = features[:, : self.feature_size]
        logits = self.model.classify(read)
        if logits.shape[1] == 1:
            return features, logits, torch.zeros_like(logits[:, 0], dtype=torch.bool)
        best = logits.topk(2, dim=1)
        gap = best.values[:, 0] - best.values[:, 1]
        typical = self.bf16_error * gap_change(self.model, read, best.indices)
        return features, logits, gap < _CLOSE_CALL * typical


def gap_change(model: Model, features: Tensor, pairs: Tensor) -> Tensor:
    """Return the typical change (B,) of the gap between the logits of class pairs (B, 2).

    It assumes that the features change by their own norm in a random direction.
    """
    heads = [h for h in (model.head, getattr(model, "head_dist", None)) if h is not None]
    weights = [cast("Tensor", head.weight) for head in heads]  # each (C, head inputs)
    parts = [weight[pairs[:, 0]] - weight[pairs[:, 1]] for weight in weights]  # (B, head inputs)
    rows, inputs = torch.cat(parts, dim=1) / len(heads), model.pre_logits(features)
    return inputs.norm(dim=1) * rows.norm(dim=1) / math.sqrt(rows.shape[1])


def open_engine(run: str | None, device: str = "auto") -> Predictor | OnnxEngine:
    """Return the engine that computes the scores: onnxruntime for ONNX graphs, otherwise torch."""
    path = find_model(run, graphs=True)
    if path.suffix.lower() != ".onnx":
        pick_device(device)
        return Predictor.from_run(run, device=device)
    if device not in ("auto", "cpu"):
        raise not_for_graphs(f"device {device}", path)
    return OnnxEngine(path)
