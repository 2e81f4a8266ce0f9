"""The model that a run starts from: pretrained, or with random weights in the shape of `[model]`.

The initialisation itself is `VisionTransformer.init_weights`.
"""

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitft.config.sections import ModelSpec, WeightsSpec
from vitft.data.folder import Folder
from vitft.data.inspection import OpenedImage, inspect_file
from vitft.data.transforms import EvalTransform
from vitft.models.pretrained import LoadReport, load_backbone
from vitft.models.registry import describe_vit
from vitft.models.timm_model import Model, untrained
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import DataError, ImageError
from vitft.system.text import count

log = logging.getLogger(__name__)

NUM_INSPECTED = 32
"""Number of images that are opened to find out their size and whether they are grey."""
MAX_OWN_SIDE = 256
"""Largest side in pixels at which a new model reads the images at their own size."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Properties shared by a sample of a folder's images."""

    size: tuple[int, int] | None
    """Height and width in pixels; None if the images differ in size."""
    is_grey: bool
    """Whether no image has colours."""


def load_initial_model(
    weights: WeightsSpec,
    shape: ModelSpec,
    folder: Folder,
    *,
    max_pixels: int,
    drop_path: float,
    seed: int,
) -> tuple[Model, LoadReport]:
    """Return the model that training starts from, with a zero head, and log what was loaded.

    Args:
        weights: Which weights to load. The name `none` is a new model in the shape of `shape`;
            `random:NAME` is the architecture and transform of NAME with new random weights, the
            baseline that shows what pretraining contributes.
        shape: The architecture of a new model; ignored for every other name.
        folder: The images; gives the number of classes.
        max_pixels: Images with more pixels are not read.
        drop_path: Stochastic depth of the last block.
        seed: Seed of random weights.

    Raises:
        WeightsError: The weights cannot be found or loaded.
        DataError: A new model cannot be built for these images.
        UsageError: An image size that the patches do not tile.
    """
    if weights.name == "none":
        new, report = new_model(
            weights, shape, folder, max_pixels=max_pixels, drop_path=drop_path, seed=seed
        )
        log_lines(report)
        return new, report
    name = weights.name.removeprefix("random:")
    model, report = load_backbone(
        name,
        num_classes=len(folder.classes),
        image_size=weights.image_size,
        pre_logits=weights.pre_logits,
        pos_embed=weights.pos_embed,
        mean=weights.mean,
        std=weights.std,
        allow_pickle=weights.allow_pickle,
        drop_path=drop_path,
    )
    if name == weights.name:
        log_lines(report)
        return model, report
    log.info(f"random weights in the architecture of {name}")
    torch.manual_seed(seed)
    model = untrained(model.config).eval()
    return model, replace(report, provenance={"name": weights.name}, positions="random")


def log_lines(report: LoadReport) -> None:
    """Log a report, one fact per line."""
    for line in report.lines():
        log.info(line)


def new_model(
    weights: WeightsSpec,
    spec: ModelSpec,
    folder: Folder,
    *,
    max_pixels: int,
    drop_path: float,
    seed: int,
) -> tuple[VisionTransformer, LoadReport]:
    """Return a randomly initialised model for the images of a folder, and its report.

    Raises:
        DataError: None of the first images can be read, they differ in size and no size is given,
            or the number of channel statistics does not match them.
        UsageError: The patches do not tile the images.
    """
    facts = sample_facts(folder, max_pixels)
    channels = spec.channels or (1 if facts.is_grey else 3)
    size = weights.image_size or common_size(folder, facts)
    config = ViTConfig(
        image_size=size,
        patch_size=(spec.patch_size, spec.patch_size),
        in_channels=channels,
        width=spec.width,
        depth=spec.depth,
        heads=spec.heads,
        mlp_ratio=spec.mlp_ratio,
        num_classes=len(folder.classes),
        pool=spec.pool,
        drop_path=drop_path,
        norm=spec.norm,
        layer_scale=spec.layer_scale,
        registers=spec.registers,
        convs=spec.convs,
    )
    torch.manual_seed(seed)
    model = VisionTransformer(config).eval()
    if spec.positions == "waves":
        with torch.no_grad():
            model.pos_embed[0, config.num_prefix :] = sinusoidal_positions(config.grid, spec.width)
    half = (0.5,) * channels
    return model, LoadReport(
        source="none: random initialisation",
        flavour="vitft",
        architecture=describe_vit(config),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        loaded=0,
        dropped=(),
        head=f"new, {len(folder.classes)} classes, zero",
        pre_logits="none",
        positions="random",
        transform=EvalTransform(
            image_size=size,
            crop=1.0,  # the whole image
            mean=checked_statistics(weights.mean, channels) or half,
            std=checked_statistics(weights.std, channels) or half,
        ),
        statistics_source="as given"
        if weights.mean is not None
        else "0.5 unless --mean and --std are given",
        provenance={"name": "none"},
    )


def sinusoidal_positions(grid: tuple[int, int], width: int) -> Tensor:
    """Return sines and cosines of the row and the column of each patch: (P, D).

    Source: Beyer et al. 2022, "Better plain ViT baselines", https://arxiv.org/abs/2205.01580; the
    longest wavelength is shorter than theirs because the grids here are small.
    """
    frequencies = 100 ** -torch.linspace(0, 1, width // 4)
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    y, x = rows.flatten()[:, None] * frequencies, columns.flatten()[:, None] * frequencies
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)


def sample_facts(folder: Folder, max_pixels: int) -> ImageFacts:
    """Open a few images spread over a folder and return what they have in common.

    Raises:
        DataError: None of them can be read.
    """
    files = folder.files[:: max(1, len(folder.files) // NUM_INSPECTED)]
    root = str(folder.root)
    found = [inspect_file(root, file, size_and_grey, max_pixels=max_pixels) for file in files]
    readable = [each for each in found if not isinstance(each, ImageError)]
    if not readable:
        reasons = [each.reason for each in found if isinstance(each, ImageError)]
        raise DataError(
            f"none of the {count(len(files), 'image')} of {root} that were tried could be read "
            f"({reasons[-1] if reasons else 'the folder is empty'})",
            fix=f"run `vitft check {root}` to find out what is wrong with them",
        )
    sizes = {size for size, _ in readable}
    return ImageFacts(
        sizes.pop() if len(sizes) == 1 else None, is_grey=all(is_grey for _, is_grey in readable)
    )


def size_and_grey(opened: OpenedImage) -> tuple[tuple[int, int], bool]:
    """Return height and width of an image, and whether its three channels are equal."""
    image = opened.image
    red, green, blue = (channel.tobytes() for channel in image.split())
    return (image.height, image.width), red == green == blue


def common_size(folder: Folder, facts: ImageFacts) -> tuple[int, int]:
    """Return the size of the images themselves, if they all have the same small size."""
    if facts.size is None:
        raise DataError(
            f"the images of {folder.root} differ in size, so a new model needs an input size",
            fix="choose one, e.g. --image-size 64",
        )
    if max(facts.size) > MAX_OWN_SIDE:
        raise DataError(
            f"the images of {folder.root} have {facts.size[1]}x{facts.size[0]} pixels, which is "
            "too large for the default input size of a new model",
            fix="choose an input size, e.g. --image-size 64",
        )
    return facts.size


def checked_statistics(values: tuple[float, ...] | None, channels: int) -> tuple[float, ...] | None:
    """Return channel statistics given by the user.

    Raises:
        DataError: There is not exactly one value per channel.
    """
    if values is not None and len(values) != channels:
        raise DataError(
            f"{len(values)} channel statistics are given, but the images have "
            f"{count(channels, 'channel')}",
            fix="give one value per channel with --mean and --std, or set model.channels",
        )
    return values
