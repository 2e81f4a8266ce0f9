"""The model that a run begins with: pretrained, or at random in the shape of `[model]`.

How a random one is initialised stands in `model.VisionTransformer.init_weights`.
"""

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitft.config.run import Config
from vitft.data.folder import Folder, counted
from vitft.data.images import decode, read_bytes
from vitft.data.transforms import EvalTransform
from vitft.models.pretrained import LoadReport, load_backbone
from vitft.models.registry import describe
from vitft.models.timm_model import Model, untrained
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import DataError, ImageError

log = logging.getLogger(__name__)

LOOKS = 32
"""Images that are opened to see how large they are and whether they have colours."""
LARGEST = 256
"""Side in pixels up to which the images' own size is taken for the model's."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What some images of a folder have in common."""

    size: tuple[int, int] | None
    """Height and width, if it is one for all."""
    grey: bool
    """Whether none has colours."""


def load_weights(config: Config, folder: Folder) -> tuple[Model, LoadReport]:
    """The pretrained model with a zero head; says what was loaded, dropped and resized.

    `none` is a new model in the shape of `[model]`; `random:NAME` is the architecture and transform
    of NAME with fresh random weights: the baseline that shows what pretraining is worth.
    """
    spec = config.weights
    if spec.name == "none":
        new, report = new_model(config, folder)
        for line in report.lines():
            log.info(line)
        return new, report
    name = spec.name.removeprefix("random:")
    model, report = load_backbone(
        name,
        num_classes=len(folder.classes),
        image_size=spec.image_size,
        pre_logits=spec.pre_logits,
        pos_embed=spec.pos_embed,
        mean=spec.mean,
        std=spec.std,
        allow_pickle=spec.allow_pickle,
        drop_path=config.train.drop_path,
    )
    if name == spec.name:
        for line in report.lines():
            log.info(line)
        return model, report
    log.info(f"random weights in the architecture of {name}")
    torch.manual_seed(config.train.seed)
    model = untrained(model.config).eval()
    return model, replace(report, provenance={"name": spec.name}, positions="random")


def new_model(config: Config, folder: Folder) -> tuple[VisionTransformer, LoadReport]:
    """An untrained model for the images of a folder, and what there is to say of it.

    Raises:
        DataError: None of the first images can be read, or they are of several sizes and none was
            named.
        UsageError: Patches that do not tile the images, or statistics for other channels.
    """
    spec, seen = config.model, looked_at(folder, config.data.max_pixels)
    channels = spec.channels or (1 if seen.grey else 3)
    size = config.weights.image_size or own_size(folder, seen)
    shape = ViTConfig(
        image_size=size,
        patch_size=(spec.patch_size, spec.patch_size),
        in_channels=channels,
        width=spec.width,
        depth=spec.depth,
        heads=spec.heads,
        mlp_ratio=spec.mlp_ratio,
        num_classes=len(folder.classes),
        pool=spec.pool,
        drop_path=config.train.drop_path,
        norm=spec.norm,
        layer_scale=spec.layer_scale,
        registers=spec.registers,
        convs=spec.convs,
    )
    torch.manual_seed(config.train.seed)
    model = VisionTransformer(shape).eval()
    if spec.positions == "waves":
        with torch.no_grad():
            model.pos_embed[0, shape.num_prefix :] = waves(shape.grid, shape.width)
    named = config.weights.mean is not None
    return model, LoadReport(
        source="none: it begins at random",
        flavour="vitft",
        architecture=describe(shape),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        loaded=0,
        dropped=(),
        head=f"new, {len(folder.classes)} classes, zero",
        pre_logits="none",
        positions="random",
        transform=transform_for(config, size, channels),
        statistics_source="as given" if named else "0.5 unless --mean and --std say otherwise",
        provenance={"name": "none"},
    )


def waves(grid: tuple[int, int], width: int) -> Tensor:
    """Sines and cosines of the row and the column of each patch: (P, D).

    Source: Beyer et al. 2022, "Better plain ViT baselines", https://arxiv.org/abs/2205.01580; the
    slowest wave is shorter than theirs because the grids here are small.
    """
    pace = 100 ** -torch.linspace(0, 1, width // 4)
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    down, across = rows.flatten()[:, None] * pace, columns.flatten()[:, None] * pace
    return torch.cat([across.sin(), across.cos(), down.sin(), down.cos()], dim=1)


def looked_at(folder: Folder, max_pixels: int) -> Seen:
    """A few images spread over a folder, opened."""
    files = folder.files[:: max(1, len(folder.files) // LOOKS)]
    sizes, colourful, error = set(), False, None
    for file in files:
        try:
            path = f"{folder.root}/{file.path}"
            picture = decode(read_bytes(path, max_pixels=max_pixels), path, max_pixels=max_pixels)
        except ImageError as broken:
            error = broken
            continue
        sizes.add((picture.image.height, picture.image.width))
        red, green, blue = picture.image.split()
        colourful = colourful or not red.tobytes() == green.tobytes() == blue.tobytes()
    if not sizes:
        raise DataError(
            f"none of {counted(len(files), 'image')} of {folder.root} could be read "
            f"({error.reason if error else 'there are none'})",
            fix="repair them, or see with `vitft check` what is wrong with them",
        )
    return Seen(sizes.pop() if len(sizes) == 1 else None, grey=not colourful)


def own_size(folder: Folder, seen: Seen) -> tuple[int, int]:
    """The size of the images themselves, where it is one and small."""
    if seen.size is None or max(seen.size) > LARGEST:
        found = "of several sizes" if seen.size is None else f"{seen.size[1]}x{seen.size[0]} pixels"
        raise DataError(
            f"the images of {folder.root} are {found}: at which size shall a new model see them?",
            fix="name it, e.g. --image-size 64",
        )
    return seen.size


def transform_for(config: Config, size: tuple[int, int], channels: int) -> EvalTransform:
    """The whole image in the model's size, its values around zero."""
    half = (0.5,) * channels
    return EvalTransform(
        image_size=size,
        crop=1.0,
        mean=matched(config.weights.mean, channels) or half,
        std=matched(config.weights.std, channels) or half,
    )


def matched(values: tuple[float, ...] | None, channels: int) -> tuple[float, ...] | None:
    """Named statistics, one a channel.

    Raises:
        DataError: More or fewer.
    """
    if values is not None and len(values) != channels:
        raise DataError(
            f"{len(values)} channel statistics are named, but the images have {channels} channels",
            fix="give as many numbers to --mean and --std, or set model.channels",
        )
    return values
