"""Weights, small pictures or colours: whatever makes one row of numbers of an image.

Backbones go the way of `finetune --freeze head` and share its cache: an image that either has
seen is not computed again.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitft.config.run import Config
from vitft.data.folder import File, Folder
from vitft.data.images import open_image
from vitft.data.inspection import InspectedFile, InspectedFolder
from vitft.data.loading import in_order
from vitft.data.transforms import EvalTransform
from vitft.features.extract import vanished_error
from vitft.features.pipeline import build_pipeline, inspect_images
from vitft.features.views import eval_view
from vitft.models.pretrained import load_backbone
from vitft.models.pretrained.catalog import CatalogEntry
from vitft.models.pretrained.locate import locate
from vitft.models.pretrained.timm_weights import complete_entry, timm_transform
from vitft.models.timm_model import Model, TimmConfig, untrained
from vitft.study.plan import Contestant
from vitft.system import console
from vitft.system.device import describe_device, pick_device, pick_precision
from vitft.system.errors import ImageError

log = logging.getLogger(__name__)

Floats = np.ndarray[Any, np.dtype[np.float32]]

SEEN = EvalTransform(image_size=(128, 128), crop=1.0, interpolation="bilinear", fit="squash")
"""What the baselines see: the whole picture, in a square."""
PIXELS = 32
"""Side of the small picture in pixels."""
LEVELS = 8
"""Of each colour channel in the histogram."""


class BackboneFeatures:
    """The features of a folder's images by the backbone of a contestant."""

    def __init__(self, contestant: Contestant, folder: Folder, config: Config) -> None:
        self.folder, self.config = folder, config
        model, transform = backbone(contestant.weights, len(folder.classes), config)
        device = pick_device(config.train.device)
        precision = pick_precision(config.train.precision, device)
        pipeline = build_pipeline(
            model, transform, "head", config.train, device=device, precision=precision
        )
        extractor = pipeline.open_extractor(config.train, max_pixels=config.data.max_pixels)
        assert extractor is not None
        self.extractor, self.view = extractor, eval_view(transform)
        self.is_complete = False
        """Whether the features of every image are cached."""
        log.info(
            f"{contestant.name}: {model.feature_size} numbers per "
            f"image, on {describe_device(device)} in {precision}"
        )

    def inspect(self) -> InspectedFolder:
        """Inspect every image of the folder and compute its features in the same pass."""
        inspected = inspect_images(
            self.folder,
            extractor=self.extractor,
            view=self.view,
            max_pixels=self.config.data.max_pixels,
            allow_bad=self.config.data.allow_bad,
        )
        self.is_complete = True
        return inspected

    def rows(self, files: Sequence[InspectedFile]) -> Tensor:
        """One row per image, (n, D), computed where it is not known."""
        listed = [File(file.path, file.label) for file in files]
        if not self.is_complete:
            with console.Progress("images to features", len(files)) as progress:
                try:
                    self.extractor.compute(
                        str(self.folder.root), listed, self.view, progress=progress.advance
                    )
                except ImageError as error:
                    raise vanished_error(error) from error
        return self.extractor.rows([file.sha256 for file in files], self.view)


def backbone(weights: str, classes: int, config: Config) -> tuple[Model, EvalTransform]:
    """A model and how it sees images; what is random needs nothing fetched if timm builds it.

    Random weights are those of `finetune --weights random:NAME --seed 0`.
    """
    name = weights.removeprefix("random:")
    is_random, found = name != weights, locate(name)
    if is_random and isinstance(found, CatalogEntry) and found.is_timm:
        entry = complete_entry(found)
        wanted = TimmConfig(
            timm=entry.architecture, image_size=entry.image_size, num_classes=classes
        )
        torch.manual_seed(config.train.seed)
        return untrained(wanted).eval(), timm_transform(entry, entry.image_size, None, None)
    model, report = load_backbone(
        name, num_classes=classes, allow_pickle=config.weights.allow_pickle
    )
    if is_random:
        torch.manual_seed(config.train.seed)
        model = untrained(model.config).eval()
    else:
        for line in report.lines():
            log.info(line)
    return model, report.transform


def baselines(folder: Folder, files: Sequence[InspectedFile], config: Config) -> dict[str, Tensor]:
    """Small pictures and colours of the images, from one pass over them: name to (n, D)."""

    def one(file: InspectedFile) -> tuple[Floats, Floats] | ImageError:
        try:
            image = open_image(f"{folder.root}/{file.path}", max_pixels=config.data.max_pixels)
        except ImageError as error:
            return ImageError(file.path, error.reason)
        seen = SEEN.pixels(image)
        return small_picture(seen), colours(seen)

    pixels, histograms = [], []
    with console.Progress("pixels and colours", len(files)) as progress:
        for found in in_order(one, files, workers=torch.get_num_threads()):
            if isinstance(found, ImageError):
                raise vanished_error(found)
            pixels.append(found[0])
            histograms.append(found[1])
            progress.advance()
    return {
        "pixels": torch.from_numpy(np.stack(pixels)),
        "histogram": torch.from_numpy(np.stack(histograms)),
    }


def small_picture(seen: np.ndarray[Any, np.dtype[np.uint8]]) -> Floats:
    """A view (S, S, 3) as the means of its squares, 0 to 1: (PIXELS * PIXELS * 3,)."""
    side = len(seen) // PIXELS
    squares = seen.reshape(PIXELS, side, PIXELS, side, 3)
    return (squares.mean(axis=(1, 3), dtype=np.float32) / 255).ravel()


def colours(seen: np.ndarray[Any, np.dtype[np.uint8]]) -> Floats:
    """How often each of LEVELS^3 colours occurs in a view (S, S, 3).

    Square roots of the shares, which a linear head tells apart better than the shares
    (Hellinger's distance, as in Arandjelovic & Zisserman 2012).
    """
    levels = seen.reshape(-1, 3).astype(np.int64) * LEVELS // 256
    numbers = (levels[:, 0] * LEVELS + levels[:, 1]) * LEVELS + levels[:, 2]
    counts = np.bincount(numbers, minlength=LEVELS**3)
    return np.sqrt(counts / len(numbers)).astype(np.float32)
