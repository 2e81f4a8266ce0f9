"""Image features for a study: backbone features, small images and colour histograms.

Backbone features use the same pipeline and cache as `finetune --train head`, so features are not
computed twice.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitft.config.sections import DataSpec, TrainSpec
from vitft.data.folder import File, Folder
from vitft.data.images import GreyRange, open_image
from vitft.data.inspection import InspectedFile, InspectedFolder, in_order
from vitft.data.transforms import EvalTransform, eval_view
from vitft.features.extract import vanished_error
from vitft.features.pipeline import build_pipeline, inspect_dataset, log_cached_features
from vitft.models.initial import log_model
from vitft.models.pretrained.load import load_backbone
from vitft.models.pretrained.locate import RANDOM
from vitft.study.plan import FeatureSource
from vitft.system import console
from vitft.system.device import describe_device, pick_device, pick_precision
from vitft.system.errors import ImageError

log = logging.getLogger(__name__)

BASELINE_VIEW = EvalTransform(
    image_size=(128, 128), crop=1.0, interpolation="bilinear", fit="squash"
)
_SMALL_SIDE = 32  # pixels
_HISTOGRAM_LEVELS = 8
"""Number of levels per colour channel."""


class BackboneFeatures:
    """Features of a folder's images, computed by one backbone."""

    def __init__(
        self,
        folder: Folder,
        data: DataSpec,
        train: TrainSpec,
        source: FeatureSource,
        *,
        allow_pickle: bool,
        grey_range: GreyRange = (),
    ) -> None:
        self.folder, self.data = folder, data
        # Random weights are the same as in `finetune --weights random:NAME` with the same seed.
        model, report = load_backbone(
            source.weights,
            num_classes=len(folder.classes),
            allow_pickle=allow_pickle,
            seed=train.seed,
        )
        if not source.weights.startswith(RANDOM):
            log_model(source.weights, report)
        transform = replace(report.transform, grey_range=grey_range)
        device = pick_device(train.device)
        precision = pick_precision(train.precision, device)
        pipeline = build_pipeline(
            model, transform, "head", train, device=device, precision=precision
        )
        extractor = pipeline.open_extractor(train, max_pixels=data.max_pixels)
        assert extractor is not None
        self.extractor, self.view = extractor, eval_view(transform)
        self.is_complete = False  # whether the features of every image are cached
        log.info(
            f"{source.name}: {model.feature_size}-dimensional features, computed on "
            f"{describe_device(device)} in {precision}"
        )

    def inspect(self) -> InspectedFolder:
        """Inspect every image of the folder, computing its features in the same pass."""
        inspected = inspect_dataset(
            self.folder,
            extractor=self.extractor,
            view=self.view,
            max_pixels=self.data.max_pixels,
            allow_bad=self.data.allow_bad,
        )
        self.is_complete = True
        log_cached_features(inspected, self.extractor.computed)
        return inspected

    def rows(self, files: Sequence[InspectedFile]) -> Tensor:
        """Return the features (n, D) of the images, computing those that are not yet cached.

        Raises:
            DataError: A file has been deleted or replaced since the start of the study.
            DivergedError: Features are not finite, or are too large for further computation.
            RunError, ResourceError: The cache cannot be written.
        """
        listed = [File(file.path, file.label) for file in files]
        if not self.is_complete:
            with console.Progress("computing features", len(files)) as progress:
                try:
                    self.extractor.compute(
                        str(self.folder.root), listed, self.view, progress=progress.advance
                    )
                except ImageError as error:
                    raise vanished_error(error) from error
        return self.extractor.rows([file.sha256 for file in files], self.view)


def baseline_features(
    folder: Folder,
    files: Sequence[InspectedFile],
    *,
    max_pixels: int,
    grey_range: GreyRange = (),
) -> dict[str, Tensor]:
    """Return the features (n, D) of each baseline by its name, computed in one pass.

    Raises:
        DataError: A file has been deleted or replaced since the start of the study.
    """

    def features_of(
        file: InspectedFile,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | ImageError:
        try:
            path = f"{folder.root}/{file.path}"
            image = open_image(path, max_pixels=max_pixels, grey_range=grey_range)
        except ImageError as error:
            return ImageError(file.path, error.reason)
        pixels = BASELINE_VIEW.pixels(image)
        return small_image(pixels), colour_histogram(pixels)

    images, histograms = [], []
    with console.Progress("computing baselines", len(files)) as progress:
        for found in in_order(features_of, files, workers=torch.get_num_threads()):
            if isinstance(found, ImageError):
                raise vanished_error(found)
            images.append(found[0])
            histograms.append(found[1])
            progress.advance()
    return {
        "pixels": torch.from_numpy(np.stack(images)),
        "histogram": torch.from_numpy(np.stack(histograms)),
    }


def small_image(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Shrink an image (S, S, 3) by averaging square blocks: (_SMALL_SIDE**2 * 3,) from 0 to 1."""
    side = len(pixels) // _SMALL_SIDE
    squares = pixels.reshape(_SMALL_SIDE, side, _SMALL_SIDE, side, 3)
    return (squares.mean(axis=(1, 3), dtype=np.float32) / 255).ravel()


def colour_histogram(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the square root (_HISTOGRAM_LEVELS**3,) of each colour's fraction of an image.

    Square roots suit linear heads better than the fractions themselves (Hellinger distance, as in
    Arandjelovic & Zisserman 2012).
    """
    levels = pixels.reshape(-1, 3).astype(np.int64) * _HISTOGRAM_LEVELS // 256
    colours = (levels[:, 0] * _HISTOGRAM_LEVELS + levels[:, 1]) * _HISTOGRAM_LEVELS + levels[:, 2]
    counts = np.bincount(colours, minlength=_HISTOGRAM_LEVELS**3)
    return np.sqrt(counts / len(colours)).astype(np.float32)
