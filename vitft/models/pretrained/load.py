"""`load_pretrained`: from a name or a file to a model that is ready to use or to fine-tune.

The steps live in `source` (what the weights are) and `adapt` (making them fit); here stand the
choices between them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vitft.data.transforms import EvalTransform
from vitft.models.checkpoint import build_model, holds_timm
from vitft.models.pretrained.adapt import Adapted, PosEmbed, adapt, undistilled
from vitft.models.pretrained.catalog import Entry
from vitft.models.pretrained.locate import locate
from vitft.models.pretrained.report import LoadReport
from vitft.models.pretrained.source import Source, open_source
from vitft.models.pretrained.timm_weights import load_timm, reload_timm
from vitft.models.registry import describe
from vitft.models.timm_model import Model
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import Pool, ViTConfig, as_pair
from vitft.system.errors import UsageError, WeightsError

PreLogits = Literal["keep", "drop"]


def load_pretrained(  # noqa: PLR0913 - one choice each, all keyword-only
    name_or_path: str | Path,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    pre_logits: PreLogits = "drop",
    pool: Pool | None = None,
    pos_embed: PosEmbed = "bicubic",
    drop_path: float = 0.0,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    allow_pickle: bool = False,
    sha256: str | None = None,
) -> tuple[VisionTransformer, LoadReport]:
    """Load a Vision Transformer from the catalogue, a weight file or a run folder.

    Args:
        name_or_path: A name of the catalogue; or hf:owner/name[@revision]; or a .safetensors, .npz
            or .pth file with the names of timm, Hugging Face, Google or vitft; or a folder that
            holds model.safetensors.
        num_classes: A new zero head with as many outputs; 0 for none; None keeps the file's.
        image_size: Side or (height, width) in pixels; default: as trained.
        patch_size: Side or (height, width) in pixels; default: as trained.
        in_channels: Planes of the input image; default: as trained.
        pre_logits: What becomes of the Linear + Tanh in front of the pretrained head.
        pool: What the head reads; default: as in the file.
        pos_embed: How positions are resized: timm's rule or Google's.
        drop_path: Stochastic depth of the last block, from 0 up to 1.
        mean: Channel means in 0..1, instead of what is known of the weights; together with `std`.
        std: Channel standard deviations.
        allow_pickle: Read .pth, .pt and .bin files (with `weights_only=True`).
        sha256: Digest that the file must have.

    Returns:
        The model in eval mode, on the CPU in float32, and what was loaded, dropped and resized.

    Raises:
        WeightsError: Not found, refused, damaged, unmapped, or not to be used in this way.
        UsageError: An impossible image size, class count or statistic.
    """
    source = open_source(name_or_path, allow_pickle=allow_pickle, sha256=sha256)
    check_head(source, pre_logits, num_classes)
    built = source.architecture
    wanted = replace(
        built if num_classes is None else undistilled(built),
        num_classes=built.num_classes if num_classes is None else num_classes,
        image_size=built.image_size if image_size is None else as_pair(image_size),
        patch_size=built.patch_size if patch_size is None else as_pair(patch_size),
        in_channels=in_channels or built.in_channels,
        pre_logits=pre_logits == "keep",
        pool=built.pool if pool is None else pool,
        drop_path=drop_path,
    )
    transform, statistics = statistics_of(source, wanted, mean, std)
    adapted = adapt(
        source.tensors, built, wanted, new_head=num_classes is not None, pos_embed=pos_embed
    )
    # Files in half precision are widened; what is float32 already stays mapped, not copied.
    tensors = {name: tensor.float() for name, tensor in adapted.tensors.items()}
    model = build_model(tensors, wanted)
    return model, report_on(
        model,
        source,
        adapted,
        kept_head=num_classes is None,
        positions=positions_of(built, wanted, pos_embed),
        transform=transform,
        statistics=statistics,
    )


def check_head(source: Source, choice: PreLogits, num_classes: int | None) -> None:
    """Refuse to keep what is not there, and to keep a head without what it was trained on."""
    has = source.architecture.pre_logits
    if source.foreign_head and num_classes is None and source.architecture.num_classes:
        raise WeightsError(
            f"the head of {source.name} cannot be used: {source.foreign_head}",
            fix="give num_classes for a new head on the class token",
        )
    if choice == "keep" and not has:
        raise WeightsError(
            f"{source.name} has no pre_logits to keep",
            fix="use pre_logits drop, or weights that have it, e.g. vit_base_patch16_224_in21k",
        )
    if choice == "drop" and has and num_classes is None and source.architecture.num_classes:
        raise WeightsError(
            f"the head of {source.name} was trained behind pre_logits and means nothing without",
            fix="give num_classes for a new head, or keep pre_logits too (pre_logits keep)",
        )


def statistics_of(
    source: Source,
    wanted: ViTConfig,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> tuple[EvalTransform, str]:
    """The transform for the wanted model, and where its mean and std come from."""
    known, count = source.transform, wanted.in_channels
    said = source.statistics_source
    if len(known.mean) != count:
        said += f", spread over {count} channels" if count > 1 else ", averaged for one channel"
    transform = replace(
        known,
        image_size=wanted.image_size,
        mean=spread(known.mean, count),
        std=spread(known.std, count),
    )
    if mean is None and std is None:
        return transform, said
    if mean is None or std is None or len(mean) != wanted.in_channels:
        raise UsageError(
            f"mean is {mean} and std is {std}, for {wanted.in_channels} channels",
            fix="give both, with one number per channel, e.g. 0.5 0.5 0.5",
        )
    return replace(transform, mean=tuple(mean), std=tuple(std)), "as given by --mean and --std"


def spread(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Channel statistics for another number of channels, as `adapt` treats the kernels."""
    if len(values) == channels:
        return values
    if channels == 1:
        return (sum(values) / len(values),)
    return tuple(values[i % len(values)] for i in range(channels))


def positions_of(built: ViTConfig, wanted: ViTConfig, pos_embed: PosEmbed) -> str:
    """What became of the position table, in words."""
    before, after = (f"{rows}x{columns}" for rows, columns in (built.grid, wanted.grid))
    return f"{before} as loaded" if before == after else f"{before} -> {after}, {pos_embed}"


def report_on(
    model: VisionTransformer,
    source: Source,
    adapted: Adapted,
    *,
    kept_head: bool,
    positions: str,
    transform: EvalTransform,
    statistics: str,
) -> LoadReport:
    """Everything a user should know about what was loaded."""
    config = model.config
    classes = config.num_classes
    notes = [*source.notes, *adapted.notes]
    if kept_head and classes and config.pool != source.architecture.pool:
        notes.append("the head was trained on another pooling: give num_classes for a new one")
    if kept_head and classes and not bool(source.tensors["head.weight"].any()):
        notes.append("the head in the file is all zeros, so it tells nothing: give num_classes")
    had = source.architecture.pre_logits
    return LoadReport(
        source=source.origin,
        flavour=source.flavour,
        architecture=describe(config),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        loaded=adapted.loaded,
        dropped=(*source.dropped, *adapted.dropped),
        head=head_in_words(classes, kept=kept_head),
        pre_logits=("kept" if config.pre_logits else "dropped") if had else "none",
        positions=positions,
        transform=transform,
        statistics_source=statistics,
        provenance=source.provenance,
        classes=source.classes if kept_head else (),
        notes=tuple(notes),
    )


def head_in_words(classes: int, *, kept: bool) -> str:
    """What stands at the model's end."""
    if not classes:
        return "none: the model returns features"
    return f"kept, {classes} classes" if kept else f"new, {classes} classes, zero"


def load_backbone(
    name_or_path: str | Path,
    *,
    num_classes: int,
    image_size: int | tuple[int, int] | None = None,
    **options: Any,  # noqa: ANN401 - those of load_pretrained
) -> tuple[Model, LoadReport]:
    """A model with a new zero head, ready to fine-tune.

    Args:
        name_or_path: As for `load_pretrained`, or `timm:NAME`, or a run of either kind.
        num_classes: Outputs of the head.
        image_size: Side or (height, width) in pixels; default: as trained.
        options: The other arguments of `load_pretrained`. A model of timm takes mean and std and
            refuses those that would change it.

    Raises:
        WeightsError: Not found, refused, damaged, or not to be used in this way.
        UsageError: An impossible image size, or an option that does not concern a model of timm.
    """
    found = locate(name_or_path)
    sizes: Any = {"num_classes": num_classes, "image_size": image_size}
    if isinstance(found, Entry) and found.is_of_timm:
        refuse_what_is_ours(options)
        return load_timm(found, **sizes, mean=options.get("mean"), std=options.get("std"))
    if isinstance(found, Path) and holds_timm(found):
        refuse_what_is_ours(options)
        return reload_timm(found, **sizes)
    return load_pretrained(name_or_path, **sizes, **options)


def refuse_what_is_ours(options: dict[str, Any]) -> None:
    """Refuse settings that only our own model has."""
    if options.get("pre_logits") == "keep" or options.get("pos_embed", "bicubic") != "bicubic":
        raise UsageError(
            "weights.pre_logits and weights.pos_embed do not concern a model of timm",
            fix="leave them out; timm resizes positions by its own rule",
        )
