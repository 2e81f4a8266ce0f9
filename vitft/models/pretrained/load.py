"""Initial models: pretrained weights adapted to a task, or random ones, with a report.

`load_pretrained` builds vitft's own Vision Transformer, `load_backbone` also timm models, which
timm builds and adapts, and `load_initial_model` the model that the settings of a run describe.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.config.run import Config, check_patches
from vitft.data.image_table import Images
from vitft.data.images import OpenedImage, inspect_file
from vitft.data.transforms import EvalTransform
from vitft.models.card import AnyConfig, Provenance, TimmConfig
from vitft.models.checkpoint import build_model, load_checkpoint, on_meta
from vitft.models.pretrained.catalog import (
    RANDOM,
    CatalogEntry,
    complete_entry,
    fact_lines,
    file_name,
    is_timm,
    locate,
)
from vitft.models.pretrained.convert import PosEmbed
from vitft.models.pretrained.fetch import fetch
from vitft.models.pretrained.read import read_weights
from vitft.models.pretrained.weights import UNSTATED, descended, open_pretrained, weights_errors
from vitft.models.timm_model import Model, TimmModel, untrained
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import SIZE_LETTERS, SIZES, Pool, ViTConfig, as_pair, conv_strides
from vitft.system.errors import DataError, ImageError, RunError, UsageError, WeightsError
from vitft.system.text import count, format_size, labelled, listing, shell_quote

log = logging.getLogger(__name__)

_FLAVOURS = {
    "timm": "timm",
    "hf": "Hugging Face",
    "npz": "Google (JAX)",
    "torchvision": "torchvision",
    "clip": "OpenAI's CLIP",
    "vitft": "vitft checkpoint",
}
_Sides = int | tuple[int, int] | None  # pixels; None for the size used in training


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Record of everything kept, dropped, resized or assumed when a model was loaded."""

    source: str
    flavour: str  # naming scheme of the file: timm, hf, npz or vitft
    architecture: str  # human-readable description, e.g. "ViT-B/16 224 px"
    parameters: int
    loaded: int = 0  # number of the model's tensors that come from the file
    dropped: tuple[str, ...] = ()  # tensors in the file that were not used, each with its shape
    head: str
    pre_logits: Literal["kept", "dropped", "none"] = "none"
    positions: str = "as loaded"  # e.g. "14x14 -> 24x24, bicubic"
    transform: EvalTransform
    statistics_source: str  # origin of mean and std
    provenance: Provenance
    classes: tuple[str, ...] = field(default=(), repr=False)  # if the head was kept
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """Return a one-line summary of the report."""
        path = Path(self.source)
        source = file_name(path) if path.is_absolute() else self.source
        size = count(self.parameters, "parameter")
        if self.parameters >= 100_000:
            size = f"{self.parameters / 1e6:,.1f} million parameters"
        resized = f", positions {self.positions}" if "->" in self.positions else ""
        return labelled("Model", f"{self.architecture}, {size}, {source}{resized}")

    def lines(self) -> list[str]:
        """Return the lines of the report, one fact per line, without its notes."""
        rows = {
            "weights": f"{self.source} ({self.flavour})",
            "model": f"{self.architecture}, {self.parameters:,} parameters",
            "loaded": f"{self.loaded} tensors",
            "dropped": ", ".join(self.dropped) or "nothing",
            "head": self.head,
            "pre_logits": self.pre_logits,
            "positions": self.positions,
            "pixels": f"{_describe_statistics(self.transform)}: {self.statistics_source}",
        }
        return fact_lines(rows.items())


def _describe(config: AnyConfig) -> str:
    """Return the name of an architecture in the notation of papers, e.g. "ViT-B/16 224 px"."""
    if isinstance(config, TimmConfig):
        return f"timm's {config.timm}, {format_size(config.image_size)} px"
    named = {(size.width, size.depth, size.heads): name for name, size in SIZES.items()}
    name = named.get((config.width, config.depth, config.heads))
    size, extras = f"-{SIZE_LETTERS[name]}" if name else "", list[str]()
    if not name:
        extras += [count(config.depth, "block"), f"width {config.width}"]
        extras.append(count(config.heads, "head"))
    if config.stem is not None:
        extras.append(f"ResNet stem {'-'.join(str(n) for n in config.stem) or 'of one layer'}")
    if config.convs:
        channels = ", ".join(str(n) for n in config.convs)
        extras.append(f"{count(len(config.convs), 'convolution')} ({channels} channels)")
    extras += ["distilled"] * config.distilled + ["LayerScale"] * bool(config.layer_scale)
    extras += [count(config.registers, "register")] * bool(config.registers)
    extras += [config.activation] * (config.activation != "gelu")
    extras += ["SwiGLU"] * config.gated_mlp + ["RMSNorm"] * (config.norm_layer == "rmsnorm")
    extras += ["rotary positions"] * bool(config.rope)
    extras += ["attention pooling"] * (config.pool == "map")
    extras += ["no final norm"] * (not config.final_norm)
    extras += ["LayerNorm before the first block"] * config.embed_norm
    extras += ["no class token"] * (not config.class_token)
    extras += ["post-norm"] * (config.norm == "post")
    extras += [count(config.in_channels, "channel")] * (config.in_channels != 3)
    tail = "".join(f", {extra}" for extra in extras)
    return f"ViT{size}/{format_size(config.patch_size)} {format_size(config.image_size)} px{tail}"


def _describe_statistics(transform: EvalTransform) -> str:
    """Return mean and std as text; equal values of all channels are written once."""
    values = [v[:1] if len({*v}) == 1 else v for v in (transform.mean, transform.std)]
    mean, std = (" ".join(f"{number:.4g}" for number in numbers) for numbers in values)
    return f"mean {mean}, std {std}"


def _report(
    model: Model,
    provenance: Provenance,
    transform: EvalTransform,
    origin: str,
    **found: Any,  # noqa: ANN401 - other fields
) -> LoadReport:
    """Return the report on a model; `found` replaces what is usual for a model with a new head."""
    classes = model.config.num_classes
    usual: dict[str, Any] = {
        "source": provenance.get("source", ""),
        "flavour": "vitft",
        "architecture": _describe(model.config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "loaded": len(model.net.state_dict()) if isinstance(model, TimmModel) else 0,
        "head": f"new, {classes} classes, initialised to zero" if classes else "none",
        "transform": transform,
        "statistics_source": origin,
        "provenance": provenance,
    }
    return LoadReport(**usual | found)


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
        why = weights.unusable_head or f"it is for {listing(weights.stated_classes)}"
        how = "kept" if is_kept else f"not used: {why}"
        if is_kept and shape.read_blocks > 1:
            tensors |= {f"head.{n}": tensors.pop(f"last_head.{n}") for n in ("weight", "bias")}
            weights = replace(weights, tensors=tensors, architecture=replace(shape, read_blocks=1))
        notes.append(f"the head of {weights.name} is {how}")
        num_classes = None if is_kept else num_classes
    source, new_head = weights.architecture, num_classes is not None
    keeps_head = not new_head and source.num_classes > 0
    if weights.unusable_head and not new_head:
        raise WeightsError(
            f"cannot use the head of {weights.name}: {weights.unusable_head}",
            fix="set num_classes to create a new head",
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
    target = _target_config(
        source,
        num_classes,
        image_size,
        patch_size=source.patch_size if patch_size is None else as_pair(patch_size),
        in_channels=in_channels or source.in_channels,
        pre_logits=pre_logits == "keep",
        pool=source.pool if pool is None else pool,
        drop_path=drop_path,
    )
    transform, origin = _with_statistics(
        replace(weights.transform, image_size=target.image_size),
        weights.statistics_source,
        (mean, std),
        target.in_channels,
    )
    pos_embed = weights.resampling or pos_embed
    tensors, dropped, changes = adapt(
        weights.tensors, source, target, new_head=new_head, pos_embed=pos_embed
    )
    # Half precision is converted to float32; float32 tensors stay memory-mapped without a copy.
    state = {name: tensor.float() for name, tensor in tensors.items()}
    if new_head and num_classes:
        # Zeros, so that the first loss is ln(C): Dosovitskiy et al. 2021, appendix B.1.1
        state["head.weight"] = torch.zeros(num_classes, target.width)
        state["head.bias"] = torch.zeros(num_classes)
    model = build_model(state, target)
    notes += changes
    if keeps_head and target.pool != source.pool:
        notes.append(
            "the head was trained with different pooling. Set num_classes to create a new head"
        )
    if keeps_head and not bool(weights.tensors["head.weight"].any()):
        notes.append("the head in the file is all zeros. Set num_classes to create a new head")
    kept = "kept" if target.pre_logits else "dropped"
    head = {} if new_head else {"head": f"kept, {target.num_classes} classes"}
    head = head if target.num_classes else {"head": "none: the model returns features"}
    before, after = (f"{rows}x{columns}" for rows, columns in (source.grid, target.grid))
    grid = f"{before} as loaded" if before == after else f"{before} -> {after}, {pos_embed}"
    return model, _report(
        model,
        weights.provenance,
        transform,
        origin,
        flavour=weights.flavour,
        loaded=len(tensors),
        dropped=(*weights.dropped, *dropped),
        pre_logits=kept if source.pre_logits else "none",
        positions=grid if target.positions else f"{after} rotary, not learned",
        classes=() if new_head else weights.classes,
        notes=tuple(notes),
        **head,
    )


# adaptation of weights with vitft's names; B images, P patches, N tokens --------------------------


def _resize_positions(pos: Tensor, source: ViTConfig, target: ViTConfig, mode: PosEmbed) -> Tensor:
    """Resample position embeddings (1, prefix + rows*columns, D) for the target's grid of patches.

    The rule is timm's (bicubic), SigLIP 2 NaFlex's (bilinear) or Google's (jax).

    Source: Dosovitskiy et al. 2021, section 3.2, https://arxiv.org/abs/2010.11929
    """
    if source.grid == target.grid:
        return pos
    prefix, grid = source.num_placed_prefix, target.grid
    table = pos[:, prefix:].float().unflatten(1, source.grid).permute(0, 3, 1, 2)  # (1, D, g, g)
    if mode != "jax":
        table = F.interpolate(table, grid, mode=mode, align_corners=False, antialias=True)
    else:  # scipy.ndimage.zoom(order=1), as in vit_jax's checkpoint.py; zoom computes in float64
        table = F.interpolate(table.double(), grid, mode="bilinear", align_corners=True)
    patches = table.flatten(2).mT.to(pos.dtype)  # (1, P, D)
    return torch.cat([pos[:, :prefix], patches], dim=1)


def adapt(
    tensors: Mapping[str, Tensor],
    source: ViTConfig,
    target: ViTConfig,
    *,
    new_head: bool,
    pos_embed: PosEmbed,
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Return `tensors` for another architecture, those dropped, and notes on those changed.

    The tensors are not modified in place. With `new_head`, there is no head.
    """
    result, notes = dict(tensors), list[str]()
    unused = ["head.", "head_dist.", "last_head."] * new_head
    unused += ["pre_logits."] * (not target.pre_logits) + ["attn_pool."] * (target.pool != "map")
    gone = [name for name in result if name.startswith(tuple(unused))]
    dropped = [f"{name} {tuple(result.pop(name).shape)}" for name in gone]
    if source.distilled and not target.distilled:
        registers = [result.pop(n) for n in ("dist_token", "reg_token") if n in result]
        result["reg_token"] = torch.cat(registers, dim=1)
        notes.append(
            "the distillation token is used as a register, and the head reads only the class token"
        )
    if (old := source.last_norm) != (new := target.last_norm):
        for name in [n for n in result if n.startswith(f"{old}.")]:
            result[new + name.removeprefix(old)] = result.pop(name)
        notes.append(f"{old} in the file is loaded as {new} because pool={target.pool}")
    if source.positions:
        result["pos_embed"] = _resize_positions(result["pos_embed"], source, target, pos_embed)
    if source.in_channels != target.in_channels:
        first = f"{source.first_conv}.weight"
        result[first] = _fit_channels(result[first], target.in_channels)
        how = "summed" if target.in_channels == 1 else "repeated and scaled"
        notes.append(
            f"the kernels for {count(source.in_channels, 'channel')} are {how} to fit "
            f"{count(target.in_channels, 'channel')}"
        )
    if source.patch_size != target.patch_size:
        strides = conv_strides(source.convs, source.patch_size)
        if strides != conv_strides(target.convs, target.patch_size):
            raise UsageError(
                f"the convolutional stem supports patch size {source.patch_size}, but not "
                f"{target.patch_size}",
                fix="omit the patch size to use the patch size of the weights",
            )
        # Beyer et al. 2023 (FlexiViT), section 3.4, https://arxiv.org/abs/2212.08013
        from timm.layers import resample_patch_embed  # takes seconds to import

        kernel = result["patch_embed.proj.weight"]
        sides = target.patch_size[0] // target.stride, target.patch_size[1] // target.stride
        result["patch_embed.proj.weight"] = resample_patch_embed(kernel, [*sides])
        notes.append(
            f"patch kernels {kernel.shape[2]}x{kernel.shape[3]} -> {sides[0]}x{sides[1]} "
            "(pseudo-inverse of bicubic resizing)"
        )
    return result, dropped, notes


def _target_config(
    source: ViTConfig,
    num_classes: int | None,
    image_size: _Sides,
    **changes: Any,  # noqa: ANN401 - fields of ViTConfig
) -> ViTConfig:
    """Return the configuration for a class count, if it has a new head, and an image size."""
    if num_classes is not None:  # the distillation token, which had a head, becomes a register
        changes |= {"num_classes": num_classes, "distilled": False, "read_blocks": 1}
        changes["registers"] = source.registers + source.distilled
    if image_size is not None:
        changes["image_size"] = as_pair(image_size)
    if changes.get("pool", source.pool) != source.pool:
        changes |= {"norm_before_pool": False, "pool_heads": 0}
    return replace(source, **changes)


def _with_statistics(
    transform: EvalTransform,
    origin: str,
    given: tuple[tuple[float, ...] | None, tuple[float, ...] | None],
    channels: int,
) -> tuple[EvalTransform, str]:
    """Return a transform with the given mean and std, or its own, and their origin.

    Its own are averaged or repeated for another number of channels, as are kernels.
    """
    mean, std = given
    if mean is not None and std is not None and len(mean) == channels:
        return replace(transform, mean=tuple(mean), std=tuple(std)), "given by --mean and --std"
    if mean is not None or std is not None:
        raise UsageError(
            f"mean is {mean} and std is {std}, but the model has {count(channels, 'channel')}",
            fix="pass both, with one value per channel, e.g. --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5",
        )
    if (known := len(transform.mean)) == channels:
        return transform, origin
    how = "averaged for one channel" if channels == 1 else f"repeated for {channels} channels"
    mean, std = (
        (sum(own) / known,) if channels == 1 else tuple(own[i % known] for i in range(channels))
        for own in (transform.mean, transform.std)
    )
    return replace(transform, mean=mean, std=std), f"{origin}, {how}"


def _fit_channels(kernel: Tensor, channels: int) -> Tensor:
    """Adapt kernels (outputs, old, height, width) to a different number of input channels.

    For one channel, the kernels are summed over the input channels, which keeps the response to a
    grey image. For other numbers, they are repeated and scaled so that the response to equal
    channels keeps its magnitude. This is timm's `adapt_input_conv`.
    """
    old = kernel.shape[1]
    if channels == 1:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, [i % old for i in range(channels)]] * (old / channels)


def inspect(
    name_or_path: str | Path,
    *,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    allow_pickle: bool = False,
) -> list[str]:
    """Describe weights and, if `classes` or `image_size` is given, the effects of loading them."""
    weights = open_pretrained(name_or_path, allow_pickle=allow_pickle)
    config, transform, tensors = weights.architecture, weights.transform, weights.tensors
    head = "none"
    if "head.weight" in tensors:
        names = f" ({listing(weights.classes, 3)})" if weights.classes else ""
        head = f"{len(tensors['head.weight'])} classes{names}"
        if not bool(tensors["head.weight"].any()):
            head += ", all zeros (untrained)"
        elif weights.unusable_head:
            head += f" (cannot be used: {weights.unusable_head})"
    size = sum(tensor.numel() for tensor in tensors.values())
    facts = {
        "file": weights.provenance["source"],
        "sha256": weights.provenance["sha256"],
        "format": _FLAVOURS[weights.flavour],
        "model": f"{_describe(config)}, {size:,} parameters",
        "head": head,
        "pre_logits": "yes" if config.pre_logits else "no",
        "positions": "{}x{} patches and ".format(*config.grid)
        + count(config.num_placed_prefix, "prefix token"),
        "pixels": f"{_describe_statistics(transform)}, {transform.interpolation}, "
        f"{transform.fit} {transform.crop:g}: {weights.statistics_source}",
        "unused": ", ".join(weights.dropped) or "nothing",
    }
    notes = [("note", note) for note in weights.notes]
    lines = fact_lines([*facts.items(), *notes])
    if classes is None and image_size is None:
        return lines
    _, report = load_pretrained(
        name_or_path,
        num_classes=classes,
        image_size=image_size,
        pre_logits="keep" if config.pre_logits and classes is None else "drop",
        allow_pickle=allow_pickle,
    )
    new = [("note", note) for note in report.notes if note not in weights.notes]
    return [*lines, "with these options:", *report.lines()[1:], *fact_lines(new)]


def load_backbone(
    name_or_path: str | Path,
    *,
    num_classes: int,
    image_size: _Sides = None,
    seed: int = 0,
    **options: Any,  # noqa: ANN401 - those of load_pretrained
) -> tuple[Model, LoadReport]:
    """Load a Vision Transformer or timm model with a new zero-initialised head for fine-tuning.

    The arguments are the same as for `load_pretrained`, but the name can also be one of these:

    - `timm:NAME` or `timm:NAME=FILE`, with the options drop_path, mean, std and allow_pickle only.
    - A run directory or checkpoint of a timm model, with the option drop_path only.
    - `random:NAME`. The model has the architecture and transform of NAME, but new random weights
      from `seed`.

    For timm models, pre_logits="keep" and pos_embed="jax" are rejected.
    """
    sizes: Any = {"num_classes": num_classes, "image_size": image_size}
    if isinstance(name_or_path, str) and name_or_path.startswith(RANDOM):
        original = name_or_path.removeprefix(RANDOM)
        found = locate(original)
        model: Model
        torch.manual_seed(seed)
        if isinstance(found, CatalogEntry) and found.is_timm:
            model, report = _load_timm(found, options, **sizes, is_random=True)
        else:
            pretrained, report = load_backbone(original, **sizes, **options)
            torch.manual_seed(seed)
            model = untrained(pretrained.config, drop_path=options.get("drop_path", 0.0))
        provenance: Provenance = {"name": name_or_path}
        return model.eval(), replace(report, provenance=provenance, positions="random")
    found = locate(name_or_path)
    if not is_timm(found):
        return load_pretrained(name_or_path, **sizes, **options)
    if options.get("pre_logits") == "keep" or options.get("pos_embed", "bicubic") != "bicubic":
        raise UsageError(
            "timm models do not support weights.pre_logits=keep or weights.pos_embed=jax",
            fix="omit these settings, because timm resizes position embeddings itself",
        )
    if isinstance(found, CatalogEntry):
        return _load_timm(found, options, **sizes)
    return _reload_timm(found, options, **sizes)


def _load_timm(
    entry: CatalogEntry,
    options: Mapping[str, Any],
    *,
    num_classes: int,
    image_size: _Sides,
    is_random: bool = False,
) -> tuple[TimmModel, LoadReport]:
    """Return a timm model with pretrained or random weights and a zero head, and a report."""
    mean, std, may_pickle = (options.get(name) for name in ("mean", "std", "allow_pickle"))
    entry = complete_entry(entry, is_published=not (is_random or entry.local))
    sides = entry.image_size if image_size is None else as_pair(image_size)
    config = TimmConfig(
        timm=entry.architecture,
        image_size=sides,
        sized=sides != entry.image_size and bool(entry.options["fixed_input_size"]),
        num_classes=num_classes,
    )
    transform = EvalTransform(image_size=sides, **entry.pixels)
    transform, origin = _with_statistics(transform, "from timm", (mean, std), len(entry.mean))
    source: dict[str, Any] = {}
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    old_classes = 0
    provenance: Provenance = {"name": entry.name, "source": entry.local or "random"}
    path: str | Path = entry.local or entry.name
    if entry.local and not is_random:
        names: list[str] = []
        with contextlib.suppress(RunError):  # reported below
            names = [*on_meta(config.without_head()).state_dict()]
        raw = read_weights(Path(entry.local), allow_pickle=bool(may_pickle), names=names)
        source, dropped, notes = {"tensors": raw.tensors}, raw.dropped, raw.notes
        provenance["sha256"] = raw.sha256
    elif not is_random:
        path, provenance = fetch(entry)
        source, old_classes = {"file": path}, entry.num_classes
    try:
        model = TimmModel(config, **source, drop_path=options.get("drop_path", 0.0))
    except (RuntimeError, ValueError, KeyError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(
            f"{path} does not match timm's {config.timm} at {sides[0]}x{sides[1]} pixels: {reason}",
            fix=f"omit --image-size (default: {format_size(entry.image_size)} pixels), or choose "
            "other weights",
        ) from error
    if "tensors" in source:
        old_classes = len(source["tensors"].get(f"{model.head_name}.weight", ()))
    return model, _report(
        model,
        provenance,
        transform,
        origin,
        flavour="timm",
        dropped=(*_dropped_head(model, old_classes), *dropped),
        notes=notes,
        positions="resized by timm" if config.sized else "as loaded",
    )


def _reload_timm(
    path: Path, options: Mapping[str, Any], *, num_classes: int, image_size: _Sides
) -> tuple[TimmModel, LoadReport]:
    """Return the timm model of a checkpoint, with its head if it suits `classes`, and a report."""
    classes, drop_path = options.get("classes", ()), options.get("drop_path", 0.0)
    with weights_errors():
        tensors, card = load_checkpoint(path)
        old = build_model(tensors, card.architecture)
    assert isinstance(old, TimmModel)
    if image_size is not None and as_pair(image_size) != old.config.image_size:
        raise UsageError(
            f"{path} was fine-tuned at {format_size(old.config.image_size)} pixels, and this size "
            "cannot be changed",
            fix="omit --image-size, or start from timm:NAME again",
        )
    model = TimmModel(replace(old.config, num_classes=num_classes), drop_path=drop_path)
    model.net.load_state_dict(old.net.state_dict())
    if is_kept := tuple(classes) == card.classes:
        model.head.load_state_dict(old.head.state_dict())
    note = f"the head of {file_name(path)} is {'kept' if is_kept else 'not used'}"
    provenance = descended({"name": file_name(path), "source": str(path)}, card.weights)
    return model, _report(
        model,
        provenance,
        card.transform,
        "from the checkpoint",
        dropped=() if is_kept else _dropped_head(model, len(card.classes)),
        notes=(note,) if classes else (),
        **{"head": "kept"} if is_kept else {},
    )


def _dropped_head(model: TimmModel, classes: int) -> tuple[str, ...]:
    """Return the description of a head for so many classes, if there are any."""
    return (f"{model.head_name} ({classes} classes)",) if classes else ()


# the model that the settings of a run describe ----------------------------------------------------


def load_initial_model(
    config: Config, folder: Images, *, keep_head: bool, announce: bool
) -> tuple[Model, LoadReport]:
    """Return the initial model of a run and its load report; `announce` logs them.

    The head is initialised to zero. With `keep_head`, a head in the file for the same classes is
    kept.

    If the name of the weights is `none`, `config.model` describes the architecture of a new model
    for the images. If it is `random:NAME`, the model has the architecture and transform of NAME,
    but random weights.
    """
    weights, train = config.weights, config.train
    model: Model
    names = folder.outputs.classes
    if weights.name == "none":
        model, report = _new_model(config, folder)
    else:
        options = ["image_size", "pre_logits", "pos_embed", "mean", "std", "allow_pickle"]
        model, report = load_backbone(
            weights.name,
            num_classes=len(names),
            classes=names if keep_head or weights.keep_head else (),
            drop_path=train.drop_path,
            seed=train.seed,
            **{name: getattr(weights, name) for name in options},
        )
    if weights.keep_head and not report.head.startswith("kept"):
        raise UsageError(
            f"--keep-head cannot be used: {weights.name} has no head for {listing(names)}",
            fix="use a run or a model from `vitft zeroshot` with the classes of the data",
        )
    # The settings of the resizing method and of the crop
    transform = report.transform
    fit = transform.fit if weights.fit == "auto" else weights.fit
    crop = weights.crop or (transform.crop if weights.fit in ("auto", "crop") else 1.0)
    report = replace(report, transform=replace(transform, fit=fit, crop=crop))
    if not announce:
        return model, report
    if weights.name.startswith(RANDOM):
        random = f"random weights instead of {weights.name.removeprefix(RANDOM)}"
        log.info(replace(report, source=random).headline())
        return model, report
    log.info(report.headline())
    for line in report.lines():
        log.debug(line)
    notes = [*report.notes]
    if report.statistics_source == UNSTATED:
        notes.append("mean and std 0.5 are assumed: the weights do not state them (--mean, --std)")
    for note in notes:
        log.info(labelled("Note", note))
    return model, report


def _new_model(config: Config, folder: Images) -> tuple[VisionTransformer, LoadReport]:
    """Return a randomly initialised model for the images of a folder, and its report."""
    weights, spec, most = config.weights, config.model, config.data.max_pixels

    def size_and_grey(opened: OpenedImage) -> tuple[tuple[int, int], bool]:
        red, green, blue = (channel.tobytes() for channel in opened.image.split())
        return (opened.image.height, opened.image.width), red == green == blue

    # Up to 63 images show the common size, and whether all are grey
    files, root = folder.rows[:: max(1, len(folder.rows) // 32)], str(folder.root)
    found = [inspect_file(root, file, size_and_grey, max_pixels=most) for file in files]
    readable = [each for each in found if not isinstance(each, ImageError)]
    if not readable:
        raise DataError(
            f"no readable image found in {root} after trying {count(len(files), 'image')}",
            fix=f"run `vitft check {shell_quote(root)}` to see what is wrong with each image",
        )
    sizes = {size for size, _ in readable}
    image_size = weights.image_size or (sizes.pop() if len(sizes) == 1 else None)
    if image_size is None or (not weights.image_size and max(image_size) > 256):
        raise DataError(
            f"the images in {root} differ in size, or their sides are longer than 256 pixels",
            fix="set the input size of the new model, e.g. --image-size 64",
        )
    check_patches(image_size, spec.patch_size)
    # All but two of the settings have the same names as `ViTConfig` fields.
    shape = asdict(spec) | {"patch_size": as_pair(spec.patch_size)}
    shape["in_channels"] = shape.pop("channels") or (1 if all(g for _, g in readable) else 3)
    waves = shape.pop("positions") == "waves"
    classes = len(folder.outputs.classes)
    shape |= {"num_classes": classes, "drop_path": config.train.drop_path}
    vit = ViTConfig(image_size=image_size, **shape)
    half = (0.5,) * vit.in_channels
    transform, origin = _with_statistics(
        EvalTransform(image_size=image_size, crop=1.0, mean=half, std=half),
        "default (change with --mean and --std)",
        (weights.mean, weights.std),
        vit.in_channels,
    )
    torch.manual_seed(config.train.seed)
    model = VisionTransformer(vit).eval()
    if waves and model.pos_embed is not None:
        with torch.no_grad():
            model.pos_embed[0, vit.num_prefix :] = sinusoidal_positions(vit.grid, spec.width)
    return model, _report(
        model,
        {"name": "none"},
        transform,
        origin,
        source="random initialisation",
        positions="random",
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
