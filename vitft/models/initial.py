"""Initial model of a run, with pretrained or random weights.

Random weights are initialised by `VisionTransformer.init_weights` for vitft's own Vision
Transformers, and by timm for timm models.
"""

import logging
from dataclasses import asdict, replace

import torch
from torch import Tensor

from vitft.config.run import check_patches
from vitft.config.sections import ModelSpec, WeightsSpec
from vitft.data.image_table import Images
from vitft.data.inspection import OpenedImage, inspect_file
from vitft.data.transforms import EvalTransform
from vitft.models.pretrained.adapt import check_statistics
from vitft.models.pretrained.load import load_backbone
from vitft.models.pretrained.locate import RANDOM
from vitft.models.pretrained.report import LoadReport
from vitft.models.pretrained.weights import UNSTATED
from vitft.models.registry import describe_vit
from vitft.models.timm_model import Model
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig, as_pair
from vitft.system.errors import DataError, ImageError
from vitft.system.text import count, labelled, shell_quote

log = logging.getLogger(__name__)


def load_initial_model(
    weights: WeightsSpec,
    shape: ModelSpec,
    folder: Images,
    *,
    max_pixels: int,
    drop_path: float,
    seed: int,
    keep_head: bool = False,
    announce: bool = True,
) -> tuple[Model, LoadReport]:
    """Return the initial model and its load report; `announce` logs them.

    The head is initialised to zero. With `keep_head`, a head in the file for the same classes is
    kept.

    If the name of the weights is `none`, `shape` describes the architecture of a new model for the
    images, of which those with more than `max_pixels` pixels are not read. If the name is
    `random:NAME`, the model has the architecture and transform of NAME, but random weights.

    Raises:
        WeightsError: The weights cannot be found, fetched or loaded.
        DataError: A new model cannot be built for these images.
        UsageError: A setting does not suit the model.
    """
    model: Model
    if weights.name == "none":
        model, report = _new_model(
            weights, shape, folder, max_pixels=max_pixels, drop_path=drop_path, seed=seed
        )
    else:
        model, report = load_backbone(
            weights.name,
            num_classes=len(folder.outputs),
            classes=folder.outputs if keep_head else (),
            image_size=weights.image_size,
            pre_logits=weights.pre_logits,
            pos_embed=weights.pos_embed,
            mean=weights.mean,
            std=weights.std,
            allow_pickle=weights.allow_pickle,
            drop_path=drop_path,
            seed=seed,
        )
    report = replace(report, transform=fitted(report.transform, weights))
    if announce:
        _log_model(weights.name, report)
    return model, report


def _log_model(weights: str, report: LoadReport) -> None:
    """Log which weights were loaded into a model, and how; what was assumed is always shown."""
    if weights.startswith(RANDOM):
        random = f"random weights instead of {weights.removeprefix(RANDOM)}"
        log.info(replace(report, source=random).headline())
        return
    log.info(report.headline())
    for line in report.lines():
        log.debug(line)
    for note in report.notes:
        log.info(labelled("Note", note))
    if report.statistics_source == UNSTATED:
        assumed = "mean and std 0.5 are assumed: the weights do not state them (--mean, --std)"
        log.info(labelled("Note", assumed))


def fitted(transform: EvalTransform, weights: WeightsSpec) -> EvalTransform:
    """Return a transform with its resizing method and crop replaced by the settings, if set."""
    fit = transform.fit if weights.fit == "auto" else weights.fit
    crop = transform.crop if weights.fit in ("auto", "crop") else 1.0
    return replace(transform, fit=fit, crop=weights.crop or crop)


def _new_model(
    weights: WeightsSpec,
    spec: ModelSpec,
    folder: Images,
    *,
    max_pixels: int,
    drop_path: float,
    seed: int,
) -> tuple[VisionTransformer, LoadReport]:
    """Return a randomly initialised model for the images of a folder, and its report."""

    def size_and_grey(opened: OpenedImage) -> tuple[tuple[int, int], bool]:
        red, green, blue = (channel.tobytes() for channel in opened.image.split())
        return (opened.image.height, opened.image.width), red == green == blue

    # Up to 63 images show the common size, and whether all are grey
    files, root = folder.rows[:: max(1, len(folder.rows) // 32)], str(folder.root)
    found = [inspect_file(root, file, size_and_grey, max_pixels=max_pixels) for file in files]
    readable = [each for each in found if not isinstance(each, ImageError)]
    if not readable:
        reasons = [each.reason for each in found if isinstance(each, ImageError)]
        raise DataError(
            f"no readable image found in {root} after trying {count(len(files), 'image')} "
            f"({reasons[-1] if reasons else 'the folder is empty'})",
            fix=f"run `vitft check {shell_quote(str(root))}` to see what is wrong with each image",
        )
    sizes = {size for size, _ in readable}
    own_size = sizes.pop() if len(sizes) == 1 else None
    is_grey = all(grey for _, grey in readable)
    # All but two of the settings have the same names as `ViTConfig` fields.
    shape = asdict(spec) | {"patch_size": as_pair(spec.patch_size)}
    shape["in_channels"] = shape.pop("channels") or (1 if is_grey else 3)
    waves = shape.pop("positions") == "waves"
    image_size = weights.image_size or own_size
    if image_size is None or (not weights.image_size and max(image_size) > 256):
        reason = "differ in size, so a new model needs an input size"
        if image_size is not None:
            reason = f"are {image_size[1]}x{image_size[0]} pixels, which is too large for the "
            reason += "default input size of a new model"
        fix = "set an input size, e.g. --image-size 64"
        raise DataError(f"the images in {folder.root} {reason}", fix=fix)
    check_patches(image_size, spec.patch_size)
    classes = len(folder.outputs)
    config = ViTConfig(image_size=image_size, num_classes=classes, drop_path=drop_path, **shape)
    given = check_statistics(weights.mean, weights.std, config.in_channels)
    half = (0.5,) * config.in_channels
    mean, std = given or (half, half)
    torch.manual_seed(seed)
    model = VisionTransformer(config).eval()
    if waves and model.pos_embed is not None:
        with torch.no_grad():
            model.pos_embed[0, config.num_prefix :] = sinusoidal_positions(config.grid, spec.width)
    return model, LoadReport(
        source="random initialisation",
        flavour="vitft",
        architecture=describe_vit(config),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        head=f"new, {config.num_classes} classes, initialised to zero",
        positions="random",
        transform=EvalTransform(
            image_size=config.image_size,
            crop=1.0,  # the whole image
            mean=mean,
            std=std,
        ),
        statistics_source="given by --mean and --std"
        if given
        else "default (change with --mean and --std)",
        provenance={"name": "none"},
    )


def sinusoidal_positions(grid: tuple[int, int], width: int) -> Tensor:
    """Return sine-cosine embeddings of the row and column of each patch: (P, `width`).

    The P patches are in row-major order, and `width` must be a multiple of 4.

    Source: Beyer et al. 2022, "Better plain ViT baselines", https://arxiv.org/abs/2205.01580; the
    longest wavelength is shorter than in the paper because the grids here are small.
    """
    frequencies = 100 ** -torch.linspace(0, 1, width // 4)
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    y, x = rows.flatten()[:, None] * frequencies, columns.flatten()[:, None] * frequencies
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)
