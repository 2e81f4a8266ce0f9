"""`load_pretrained` and `load_backbone`: from a name or file to a model that is ready to use.

`load_pretrained` builds vitft's own Vision Transformer; `load_backbone` also builds timm models.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from vitft.models.card import Provenance
from vitft.models.checkpoint import build_model, holds_timm
from vitft.models.pretrained.adapt import (
    PosEmbed,
    adapt,
    adapt_statistics,
    check_statistics,
    target_config,
)
from vitft.models.pretrained.catalog import CatalogEntry
from vitft.models.pretrained.locate import RANDOM, locate
from vitft.models.pretrained.report import LoadReport, describe_file, describe_positions
from vitft.models.pretrained.timm_weights import load_timm, reload_timm
from vitft.models.pretrained.weights import open_pretrained
from vitft.models.registry import describe_vit
from vitft.models.timm_model import Model, untrained
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import Pool, as_pair
from vitft.system.errors import UsageError, WeightsError
from vitft.system.text import listing


def load_pretrained(  # noqa: PLR0913 - independent keyword-only options
    name_or_path: str | Path,
    *,
    num_classes: int | None = None,
    classes: Sequence[str] = (),
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    pre_logits: Literal["keep", "drop"] = "drop",
    pool: Pool | None = None,
    pos_embed: PosEmbed = "bicubic",
    drop_path: float = 0.0,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    allow_pickle: bool = False,
    sha256: str | None = None,
) -> tuple[VisionTransformer, LoadReport]:
    """Load a Vision Transformer from the catalogue, the hub, a weight file or a run directory.

    Args:
        name_or_path: A catalogue name; `hf:owner/name[@revision]`; a .safetensors, .npz, .pth, .pt
            or .bin file with the tensor names of timm, Hugging Face, Google or vitft; or a folder
            that contains model.safetensors.
        num_classes: Number of classes of a new, zero-initialised head; 0 for no head; None to keep
            the head in the file.
        classes: Names of the classes. A head in the file for exactly these classes is kept, even if
            `num_classes` is given.
        image_size: Side or (height, width) of the images in pixels (default: as trained).
        patch_size: Side or (height, width) of a patch in pixels (default: as trained).
        in_channels: Number of channels of the images (default: as trained).
        pre_logits: Whether to keep or drop the Linear + Tanh before the pretrained head.
        pool: Input of the head (default: as in the file).
        pos_embed: Method for resampling position embeddings: timm's (bicubic) or Google's (jax).
            SigLIP 2 NaFlex always uses its own (bilinear).
        drop_path: Stochastic depth rate of the last block, in [0, 1).
        mean: Channel means in [0, 1], specified together with `std` (default: the values
            used with the pretrained weights).
        std: Channel standard deviations, specified together with `mean`.
        allow_pickle: Whether to read .pth, .pt and .bin files too (with `weights_only=True`).
        sha256: Expected digest of the file.

    Returns:
        The model in eval mode, on the CPU in float32, and a report of what was loaded.

    Raises:
        WeightsError: The weights cannot be found, are rejected or damaged, or do not suit the
            options.
        UsageError: An option is invalid, e.g. the image size, the class count or the statistics.
        ResourceError: The disk is full.
    """
    weights = open_pretrained(name_or_path, allow_pickle=allow_pickle, sha256=sha256)
    notes = [*weights.notes]
    if classes and weights.stated_classes:
        # A head for the same classes is kept, for the last block
        shape, tensors = weights.architecture, dict(weights.tensors)
        is_usable = not (weights.unusable_head or shape.distilled or shape.pre_logits)
        is_kept = is_usable and weights.stated_classes == tuple(classes)
        how = "kept" if is_kept else f"not used: it is for {listing(weights.stated_classes)}"
        if is_kept and shape.read_blocks > 1:
            tensors |= {f"head.{n}": tensors.pop(f"last_head.{n}") for n in ("weight", "bias")}
            weights = replace(weights, tensors=tensors, architecture=replace(shape, read_blocks=1))
        notes.append(f"the head of {weights.name} is {how}")
        num_classes = None if is_kept else num_classes
    source, new_head = weights.architecture, num_classes is not None
    keeps_head = not new_head and source.num_classes > 0
    if weights.unusable_head and keeps_head:
        raise WeightsError(
            f"cannot use the head of {weights.name}: {weights.unusable_head}",
            fix="set num_classes to create a new head on the class token",
        )
    if pre_logits == "keep" and not source.pre_logits:
        raise WeightsError(
            f"{weights.name} has no pre_logits layer to keep",
            fix='use --set weights.pre_logits=drop (in Python: pre_logits="drop"), or weights that '
            "have the layer, e.g. vit_base_patch16_224_in21k",
        )
    if pre_logits == "drop" and source.pre_logits and keeps_head:
        raise WeightsError(
            f"the head of {weights.name} works only with its pre_logits layer",
            fix='use pre_logits="keep", or set num_classes to create a new head',
        )
    target = target_config(
        source,
        num_classes,
        image_size,
        patch_size=source.patch_size if patch_size is None else as_pair(patch_size),
        in_channels=in_channels or source.in_channels,
        pre_logits=pre_logits == "keep",
        pool=source.pool if pool is None else pool,
        drop_path=drop_path,
    )
    # The evaluation transform of the target model
    known, channels = weights.transform, target.in_channels
    given, origin = check_statistics(mean, std, channels), "given by --mean and --std"
    if given is None:
        given = adapt_statistics(known.mean, channels), adapt_statistics(known.std, channels)
        how = (
            f", repeated for {channels} channels" if channels > 1 else ", averaged for one channel"
        )
        origin = weights.statistics_source + (how if len(known.mean) != channels else "")
    pos_embed = weights.resampling or pos_embed
    adapted = adapt(weights.tensors, source, target, new_head=new_head, pos_embed=pos_embed)
    # Half precision is converted to float32; float32 tensors stay memory-mapped without a copy.
    model = build_model({n: tensor.float() for n, tensor in adapted.tensors.items()}, target)
    notes += adapted.notes
    if keeps_head and target.pool != source.pool:
        notes.append(
            "the head was trained with different pooling. Set num_classes to create a new head"
        )
    if keeps_head and not bool(weights.tensors["head.weight"].any()):
        notes.append("the head in the file is all zeros. Set num_classes to create a new head")
    head = f"{target.num_classes} classes"
    head = f"new, {head}, initialised to zero" if new_head else f"kept, {head}"
    kept: Literal["kept", "dropped"] = "kept" if target.pre_logits else "dropped"
    return model, LoadReport(
        source=weights.provenance["source"],
        flavour=weights.flavour,
        architecture=describe_vit(target),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        loaded=adapted.loaded,
        dropped=(*weights.dropped, *adapted.dropped),
        head=head if target.num_classes else "none: the model returns features",
        pre_logits=kept if source.pre_logits else "none",
        positions=describe_positions(source, target, pos_embed),
        transform=replace(known, image_size=target.image_size, mean=given[0], std=given[1]),
        statistics_source=origin,
        provenance=weights.provenance,
        classes=() if new_head else weights.classes,
        notes=tuple(notes),
    )


def inspect(
    name_or_path: str | Path,
    *,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    pos_embed: PosEmbed = "bicubic",
    allow_pickle: bool = False,
) -> list[str]:
    """Describe weights and, if `classes` or `image_size` is given, the effects of loading them.

    Raises:
        WeightsError: The weights cannot be found, are refused, damaged, or not a supported ViT.
        UsageError: The image size or the number of classes is invalid.
    """
    weights = open_pretrained(name_or_path, allow_pickle=allow_pickle)
    lines = describe_file(weights)
    if classes is None and image_size is None:
        return lines
    _, report = load_pretrained(
        name_or_path,
        num_classes=classes,
        image_size=image_size,
        pre_logits="keep" if weights.architecture.pre_logits and classes is None else "drop",
        pos_embed=pos_embed,
        allow_pickle=allow_pickle,
    )
    lines += ["with these options:", *report.lines()[1:]]
    new = (note for note in report.notes if note not in weights.notes)
    return lines + [f"{'note:':<12}{note}" for note in new]


def load_backbone(
    name_or_path: str | Path,
    *,
    num_classes: int,
    image_size: int | tuple[int, int] | None = None,
    seed: int = 0,
    **options: Any,  # noqa: ANN401 - those of load_pretrained
) -> tuple[Model, LoadReport]:
    """Load a Vision Transformer or timm model with a new zero-initialised head for fine-tuning.

    The arguments are the same as for `load_pretrained`, but the name can also be one of these:

    - `timm:NAME` or `timm:NAME=FILE`, with the options drop_path, mean, std and allow_pickle only.
    - A run directory or checkpoint of a timm model, with the option drop_path only.
    - `random:NAME`. The model has the architecture and transform of NAME, but new random weights
      drawn with `seed`. For `random:timm:NAME`, nothing is downloaded.

    For timm models, pre_logits="keep" and pos_embed="jax" are rejected.
    """
    sizes: Any = {"num_classes": num_classes, "image_size": image_size}
    if isinstance(name_or_path, str) and name_or_path.startswith(RANDOM):
        original, drop_path = name_or_path.removeprefix(RANDOM), options.get("drop_path", 0.0)
        found = locate(original)
        model: Model
        torch.manual_seed(seed)
        if isinstance(found, CatalogEntry) and found.is_timm:
            sizes |= {key: options.get(key) for key in ("mean", "std")}
            model, report = load_timm(found, **sizes, drop_path=drop_path, is_random=True)
        else:
            pretrained, report = load_backbone(original, **sizes, **options)
            torch.manual_seed(seed)
            model = untrained(pretrained.config, drop_path=drop_path)
        provenance: Provenance = {"name": name_or_path}
        return model.eval(), replace(report, provenance=provenance, positions="random")
    found = locate(name_or_path)
    if not (found.is_timm if isinstance(found, CatalogEntry) else holds_timm(found)):
        return load_pretrained(name_or_path, **sizes, **options)
    if options.get("pre_logits") == "keep" or options.get("pos_embed", "bicubic") != "bicubic":
        raise UsageError(
            "timm models do not support weights.pre_logits=keep or weights.pos_embed=jax",
            fix="omit these settings, because timm resizes position embeddings itself",
        )
    sizes["drop_path"] = options.get("drop_path", 0.0)
    if isinstance(found, CatalogEntry):
        sizes |= {key: options.get(key) for key in ("mean", "std")}
        return load_timm(found, **sizes, allow_pickle=bool(options.get("allow_pickle")))
    return reload_timm(found, **sizes, classes=options.get("classes", ()))
