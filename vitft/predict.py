"""`vitft predict`: a trained model and images in, one answer per image out, in order.

The model, the class names and the transform all come from one checkpoint. Printing is the
console's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from vitft.checkpoint import Card, build_model, load_checkpoint
from vitft.data.folder import image_files
from vitft.data.loading import decoded
from vitft.device import pick_device
from vitft.errors import DataError, ImageError, RunError
from vitft.loop import autocast
from vitft.model import VisionTransformer
from vitft.rundir import find_model

BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answer for one input: classes with probabilities, best first, or why there is none."""

    path: str
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    """Shares of one, over all classes of the model, in the order of `classes`."""
    error: str = ""


class Predictor:
    """A loaded model that names images."""

    def __init__(
        self, model: VisionTransformer, card: Card, *, device: str = "auto", precision: str = "fp32"
    ) -> None:
        if not card.classes:
            raise RunError(
                "the checkpoint holds a backbone without classes",
                fix="fine-tune it first: vitft finetune --data DIR --weights FILE",
            )
        self.device = pick_device(device)
        self.model, self.card, self.precision = model.eval().to(self.device), card, precision

    @classmethod
    def from_run(cls, run: str | None, *, device: str = "auto", precision: str = "fp32") -> Self:
        """The model of a run folder or checkpoint file; by default of the latest run.

        Raises:
            RunError: There is none, or it is damaged.
        """
        state, card = load_checkpoint(find_model(run))
        return cls(build_model(state, card.architecture), card, device=device, precision=precision)

    def stream(self, paths: Iterable[str], *, top_k: int = 1) -> Iterator[Prediction]:
        """One prediction per path, in order; a file that is no image gets its reason instead."""
        names, sources = iter(paths), []

        def told() -> Iterator[str]:
            for name in names:
                sources.append(name)
                yield name

        images = decoded(
            told(),
            lambda _, image: self.card.transform.pixels(image),
            workers=torch.get_num_threads(),
        )
        while group := list(islice(images, BATCH)):
            batch_names, sources[: len(group)] = sources[: len(group)], []
            answers = iter(self.answers([a for a in group if isinstance(a, np.ndarray)], top_k))
            for name, item in zip(batch_names, group, strict=True):
                if isinstance(item, ImageError):
                    yield Prediction(path=name, error=item.reason)
                else:
                    classes, probabilities = next(answers)
                    yield Prediction(path=name, classes=classes, probabilities=probabilities)

    @torch.inference_mode()
    def logits(self, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
        """Calibrated class scores (B, C), float32, of transformed images (B, S, S, 3)."""
        inputs = self.card.transform.normalise(torch.from_numpy(pixels).to(self.device))
        with autocast(self.device, self.precision):
            return self.model(inputs).float() / self.card.temperature

    def answers(
        self, images: list[np.ndarray[Any, np.dtype[np.uint8]]], top_k: int
    ) -> list[tuple[tuple[str, ...], tuple[float, ...]]]:
        """The `top_k` classes of each image with their probabilities."""
        if not images:
            return []
        shares = self.logits(np.stack(images)).softmax(dim=-1)  # (B, C)
        best = shares.topk(min(top_k, shares.shape[-1]), dim=-1)
        return [
            (tuple(self.card.classes[i] for i in indices), tuple(values))
            for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def expand(inputs: Iterable[str]) -> Iterator[str]:
    """Files as they are, folders as all images below them, sorted.

    Raises:
        DataError: A folder holds no image.
    """
    for name in inputs:
        if not Path(name).is_dir():
            yield name
            continue
        files = image_files(Path(name))
        if not files:
            raise DataError(
                f"no images in {name}", fix="give a folder that holds .jpg, .png, .webp ... files"
            )
        yield from files
