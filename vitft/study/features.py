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
from vitft.data.folder import Checked, CheckedFile, File, Folder, check_images
from vitft.data.images import open_image
from vitft.data.loading import in_order
from vitft.data.transforms import EvalTransform
from vitft.features.cut import cut_model
from vitft.features.extract import Extractor, gone, make_extractor, plain
from vitft.features.scan import look_at, say_oddities
from vitft.models.freeze import freeze_model
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


class Eyes:
    """A backbone at work on a folder."""

    def __init__(self, contestant: Contestant, folder: Folder, config: Config) -> None:
        self.folder, self.config = folder, config
        model, transform = backbone(contestant.weights, len(folder.classes), config)
        device = pick_device(config.train.device)
        freeze_model(model, "head")
        cut = cut_model(model.to(device), "head")
        precision = pick_precision(config.train.precision, device)
        extractor = make_extractor(cut, config, transform, precision)
        assert extractor is not None
        self.extractor: Extractor = extractor
        self.transform = transform
        self.has_seen = False
        """Whether every image has been looked at."""
        log.info(
            f"{contestant.name}: {model.feature_size} numbers per "
            f"image, on {describe_device(device)} in {precision}"
        )

    def examine(self) -> Checked:
        """Look at every image of the folder, computing its row on the way."""
        checked = look_at(self.folder, self.extractor, self.transform, self.config)
        self.has_seen = True
        return checked

    def rows(self, files: Sequence[CheckedFile]) -> Tensor:
        """One row per image, (n, D), computed where it is not known."""
        view, named = plain(self.transform), [File(file.path, file.label) for file in files]
        if not self.has_seen:
            with console.Progress("images to features", len(files)) as progress:
                try:
                    self.extractor.compute(
                        str(self.folder.root), named, view, progress=progress.advance
                    )
                except ImageError as error:
                    raise gone(error) from error
        return self.extractor.rows([file.sha256 for file in files], view)


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


def checked_only(folder: Folder, config: Config) -> Checked:
    """Every image looked at, where no backbone looks."""
    with console.Progress("checking images", len(folder.files)) as progress:
        checked = check_images(
            folder,
            max_pixels=config.data.max_pixels,
            workers=torch.get_num_threads(),
            progress=lambda done, _: progress.advance(done - progress.done),
        )
    say_oddities(checked)
    return checked


def baselines(folder: Folder, files: Sequence[CheckedFile], config: Config) -> dict[str, Tensor]:
    """Small pictures and colours of the images, from one pass over them: name to (n, D)."""

    def one(file: CheckedFile) -> tuple[Floats, Floats] | ImageError:
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
                raise gone(found)
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
