"""`open_pretrained`: find, fetch, read, convert and check pretrained weights.

The result has vitft's tensor names and a known architecture; `load` adapts it to a different image
size or class count. `load_classifier` opens trained models, of vitft and of other tools.

The config.json and preprocessor_config.json next to a weight file may come from timm, from
transformers or from an attacker. The type of every value is therefore checked, nothing is executed,
and shapes are used only if they match the tensors.
"""

import contextlib
import functools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta
from torch import Tensor

from vitft.data.transforms import CROP_MODES, RESAMPLING, EvalTransform
from vitft.metrics.results import Results
from vitft.models.card import (
    RUN_KEY,
    Card,
    Provenance,
    config_beside,
    foreign_thresholds,
    lacks_card,
    timm_modules,
)
from vitft.models.checkpoint import load_checkpoint
from vitft.models.pretrained.catalog import (
    CatalogEntry,
    entries_by_name,
    file_and_part,
    file_name,
    find_entry,
    is_timm,
    locate,
)
from vitft.models.pretrained.convert import (
    Flavour,
    PosEmbed,
    SidecarFacts,
    convert,
    infer_with_head,
)
from vitft.models.pretrained.fetch import fetch
from vitft.models.pretrained.read import JsonTable, RawWeights, read_table_file, read_weights
from vitft.models.registry import architecture_config
from vitft.models.vit_config import TIMM_POOLS, Activation, RopeConfig, ViTConfig
from vitft.system.errors import RunError, UsageError, WeightsError
from vitft.system.structure import Natural
from vitft.system.text import count, distinct_names, labelled, shell_quote

_Heads = Annotated[int, Meta(ge=0, le=1024)]
_ClassNames = Annotated[tuple[str, ...], Meta(max_length=1_000_000)]
_PIL_FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # as in transformers
_ACTIVATION_NAMES: Mapping[str, Activation] = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_tanh", "gelu_pytorch_tanh", "gelu_new"), "gelu_tanh"),
    **dict.fromkeys(("quick_gelu", "quickgelu"), "quick_gelu"),
}
"""Mapping from the names of activation functions in timm and transformers to vitft's names."""
_TOWER_DEFAULTS: Mapping[str, tuple[Activation, float]] = {
    "clip_vision_model": ("quick_gelu", 1e-5),
    "siglip_vision_model": ("gelu_tanh", 1e-6),
    "siglip2_vision_model": ("gelu_tanh", 1e-6),
}
"""Activation function and epsilon of the LayerNorms in transformers, by model type. Published
config.json files of these models omit values that equal the defaults."""


def read_sidecar(path: Path) -> SidecarFacts:
    """Return the facts in the files next to a weight file, or defaults without config.json."""
    config = read_table_file(path.parent / "config.json")
    if config is None:
        return SidecarFacts()
    if "vision_config" in config.values:  # CLIP and SigLIP with their text towers
        config = config.table("vision_config")
    is_hf = any(key in config.values for key in ("hidden_act", "num_attention_heads"))
    try:
        if is_hf or config.get("model_type", str) in _TOWER_DEFAULTS:
            return _hf_facts(config, read_table_file(path.parent / "preprocessor_config.json"))
        return _timm_facts(config)
    except UsageError as error:
        raise WeightsError(f"{config.path}: {error.problem}", fix=error.fix) from error


def _timm_facts(config: JsonTable) -> SidecarFacts:
    # Older files of timm have the statistics at the top level instead of in pretrained_cfg
    cfg = config.table("pretrained_cfg") if "pretrained_cfg" in config.values else config
    arguments = config.table("model_args")
    name, tag = config.get("architecture", str) or "", cfg.get("tag", str)
    known: dict[str, Any] = {}
    if name in timm_modules():
        known = _architecture_facts(architecture_config(name))
        if pool_heads := arguments.get("attn_pool_num_heads", _Heads) or known["pool_heads"]:
            is_usual = pool_heads == arguments.get("num_heads", _Heads)
            known["pool_heads"] = 0 if is_usual else pool_heads
        norms = ("use_post_transformer_norm", "use_fc_norm", "final_norm")
        if stated := [arguments.values[one] for one in norms if one in arguments.values]:
            known["final_norm"] = any(stated)
        known["rope"] = _stated_rope(arguments, known["rope"])
    facts = {
        "pool": arguments.get("global_pool", str) or config.get("global_pool", str),
        "heads": arguments.get("num_heads", _Heads),
        "activation": _stated_activation(arguments, "act_layer"),
        "image_size": arguments.size("img_size") or cfg.size("input_size"),
        "classes": _stated_classes(cfg, "label_names") or _stated_classes(config, "label_names"),
        "published": f"{name}.{tag}" if name and tag else "",
    }
    facts = {name: value for name, value in facts.items() if value}
    return SidecarFacts(**known | facts, **_timm_pixels(cfg))


def _architecture_facts(config: ViTConfig) -> dict[str, Any]:
    """Return what no tensor shows of an architecture."""
    names = ("heads", "norm_eps", "activation", "rope", "pool_heads", "final_norm")
    facts = {name: getattr(config, name) for name in names}
    return facts | {"pool": TIMM_POOLS[config.pool], "is_named": True}


def _stated_rope(arguments: JsonTable, rope: RopeConfig | None) -> RopeConfig | None:
    """Return the rotary position embeddings `rope` of an architecture with stated arguments."""
    if not arguments.values.get("use_rot_pos_emb", rope is not None):
        return None
    kind, order = (arguments.get(f"rope_{key}", str) for key in ("type", "grid_indexing"))
    given = {
        "unit": None if kind is None else kind == "dinov3",
        "base": arguments.get("rope_temperature", float),
        "offset": arguments.get("rope_grid_offset", float),
        "x_first": None if order is None else order == "xy",
        "halves": arguments.get("rope_rotate_half", bool),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if "ref_feat_shape" in arguments.values:
        given["grid"] = arguments.size("ref_feat_shape")
    return replace(rope or RopeConfig(), **given)


def _timm_pixels(cfg: JsonTable) -> dict[str, Any]:
    known = cfg.get("interpolation", Literal["", "random", *RESAMPLING])  # "random": in training
    pixels = {
        **_statistics(cfg, "mean", "std"),
        "crop": cfg.get("crop_pct", float),
        "interpolation": known if known in RESAMPLING else None,
        "fit": CROP_MODES.get(cfg.get("crop_mode", str) or ""),
        "grey_range": cfg.get("grey_range", tuple[float, ...]),
    }
    return _as_facts(pixels, cfg.path)


def _statistics(table: JsonTable, *keys: str) -> dict[str, Any]:
    mean, std = (table.get(key, tuple[float, ...]) for key in keys)
    return {"mean": mean, "std": std} if mean and std else {}


def _as_facts(pixels: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the fields of `SidecarFacts` for a file's preprocessing; None is not stated."""
    stated = {name: value for name, value in pixels.items() if value is not None}
    return {"pixels": stated, "source": f"from {path}" if "mean" in stated else ""}


def _hf_facts(config: JsonTable, processor: JsonTable | None) -> SidecarFacts:
    if processor is None and "pretrained_cfg" in config.values:
        processor = config
    kind, is_gated = config.get("model_type", str) or "", config.values.get("use_gated_mlp")
    if is_gated:
        config.get("hidden_act", Literal["silu", "swish"], is_needed=True)
    is_rotary = kind == "dinov3_vit"
    rope = RopeConfig(base=config.get("rope_theta", float) or 100.0) if is_rotary else None
    activation, norm_eps = _TOWER_DEFAULTS.get(kind, (None, None))
    return SidecarFacts(
        is_named=True,
        rope=rope,
        heads=config.get("num_attention_heads", _Heads),
        image_size=config.size("image_size"),
        classes=_stated_classes(config, "id2label"),
        activation=None if is_gated else _stated_activation(config, "hidden_act") or activation,
        norm_eps=config.get("layer_norm_eps", Annotated[float, Meta(gt=0, lt=1)]) or norm_eps,
        **(_hf_pixels(processor) if processor else {}),
    )


def _hf_pixels(processor: JsonTable) -> dict[str, Any]:
    """Return the preprocessing in transformers' image processor settings, as facts."""
    if "pretrained_cfg" in processor.values:  # the processor for timm models
        return _timm_pixels(processor.table("pretrained_cfg"))
    statistics = _statistics(processor, "image_mean", "image_std")
    if processor.values.get("do_normalize") is False:
        statistics = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    number = processor.get("resample", Annotated[int, Meta(ge=0, le=5)])
    pixels: dict[str, Any] = {
        **statistics,
        "interpolation": _PIL_FILTERS.get(number),
        "fit": "squash",  # transformers' ViT processor ignores the aspect ratio
        "crop": 1.0,
    }
    size = processor.values.get("size")
    if isinstance(size, dict) and "shortest_edge" in size and "crop_size" in processor.values:
        shortest = processor.table("size").get("shortest_edge", Natural)
        is_table = isinstance(processor.values["crop_size"], dict)
        cut = processor.table("crop_size") if is_table else processor
        side = cut.get("height" if is_table else "crop_size", Natural)
        if shortest and side and side <= shortest:
            pixels |= {"fit": "crop", "crop": side / shortest}
    return _as_facts(pixels, processor.path)


def _stated_classes(table: JsonTable, key: str) -> tuple[str, ...]:
    """Return class names from a list or {"0": name, ...}, or () if `key` is absent."""
    value = table.values.get(key)
    if isinstance(value, dict):
        value = [value.get(str(i)) for i in range(len(value))]
    return JsonTable(table.path, {key: value}).get(key, _ClassNames) or ()


def _stated_activation(table: JsonTable, key: str) -> Activation | None:
    name = table.get(key, str)
    if name is not None and name not in _ACTIVATION_NAMES:
        raise WeightsError(
            f"{table.path}: {key} is {name}, but vitft supports only GELU and its approximations",
            fix="use weights trained with GELU",
        )
    return _ACTIVATION_NAMES[name] if name else None


# facts about weight files that are named as published: preprocessing and ImageNet's class names ---


def _published_entry(name: str, config: ViTConfig) -> CatalogEntry | None:
    """Return the published weights with this name, or None if there are none of this shape."""
    known = name.removeprefix("timm/")  # as on the hub
    if known not in entries_by_name() and known.partition(".")[0] not in timm_modules():
        return None
    try:
        entry = find_entry(known)
        published = architecture_config(entry.name.partition(".")[0])
    except (WeightsError, UsageError):  # not published, or not supported by vitft's own model
        return None
    names = ("width", "depth", "patch_size", "in_channels")
    is_same = all(getattr(published, name) == getattr(config, name) for name in names)
    return entry if is_same else None


@functools.cache
def _label_set(name: str, config: ViTConfig) -> str:
    """Return timm's name of the label set of published weights, e.g. `imagenet-1k`, or ""."""
    entry = _published_entry(name, config) if config.num_classes else None
    if entry is None or entry.num_classes != config.num_classes:
        return ""
    from timm.data import infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": config.num_classes}) or ""
    # The last dataset in their name must be ImageNet, e.g. 1k of augreg_in21k_ft_in1k
    stated = re.findall(r"(?<![a-z])in(\d+k)", entry.name)
    return subset if stated and subset.split("-")[1:2] == stated[-1:] else ""


@functools.cache
def _imagenet_classes(subset: str) -> tuple[str, ...]:
    """Return a different name for each class of one of ImageNet's label sets, in timm's order.

    The name is the first word of the class in WordNet, e.g. `tench`, or all of them if several
    classes share it, followed by the identifier if these are equal: `crane (n02012849)`.
    """
    from timm.data import ImageNetInfo

    known = ImageNetInfo(subset)
    identifiers, words = known.label_names(), known.label_descriptions()
    first = [text.partition(",")[0] for text in words]
    uses = Counter(map(str.lower, first))
    names = [
        short if uses[short.lower()] == 1 else text
        for short, text in zip(first, words, strict=True)
    ]
    return distinct_names(names, identifiers)


# `open_pretrained`: find, fetch, read, convert and check pretrained weights -----------------------

UNSTATED = "not stated, so 0.5 is assumed. If you know the correct values, set --mean and --std"


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedWeights:
    """Weights as published, with vitft's tensor names."""

    flavour: Flavour
    tensors: Mapping[str, Tensor]  # those of a model built from `architecture`, and unusable heads
    architecture: ViTConfig
    transform: EvalTransform
    statistics_source: str  # origin of the transform's mean and std
    provenance: Provenance
    stated_classes: tuple[str, ...] = ()  # class names in the file or in the config.json next to it
    published: str = ""  # published name, or that of the file or its folder
    dropped: tuple[str, ...] = ()  # tensors that vitft does not use, each with its shape
    resampling: PosEmbed | None = None  # None if the user may choose one
    unusable_head: str = ""  # reason why the head cannot be used; empty if it can be used
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Catalogue name, or file name without suffix."""
        return self.provenance["name"]

    @property
    def label_set(self) -> str:
        """ImageNet's label set that names the classes, e.g. `imagenet-1k`; empty if none does."""
        return "" if self.stated_classes else _label_set(self.published, self.architecture)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names: as stated, or those of ImageNet if that is certain; otherwise empty."""
        return _imagenet_classes(self.label_set) if self.label_set else self.stated_classes


def open_pretrained(
    name_or_path: str | Path, *, allow_pickle: bool = False, sha256: str | None = None
) -> PretrainedWeights:
    """Find, fetch, read, convert and check pretrained weights; `sha256` is the expected digest.

    Raises:
        WeightsError: The weights cannot be found, are rejected or damaged, or are not a supported
        ViT.
        ResourceError: The disk is full.
    """
    found = locate(name_or_path)
    if is_timm(found):
        raise WeightsError(
            f"{name_or_path} is a timm model, not one of vitft's own Vision Transformers",
            fix="fine-tune it and use the run, or use a name from `vitft weights list`",
        )
    if isinstance(found, CatalogEntry):
        path, origin = fetch(found, allow_pickle=allow_pickle)
        digest = origin["sha256"]
        raw = read_weights(path, allow_pickle=allow_pickle, sha256=sha256, digest=digest)
        if found.is_hub_repository:
            return _from_raw(raw, read_sidecar(path), origin)
        known: dict[str, Any] = {}
        if found.architecture:
            config = replace(architecture_config(found.architecture), **found.options)
            known = _architecture_facts(config)
        facts = SidecarFacts(
            **known,
            image_size=found.image_size,
            pixels=found.pixels,
            published=found.name,
            source="from the catalogue",
            notes=(found.note,) if found.note else (),
        )
        return _from_raw(raw, facts, origin)
    raw = read_weights(found, allow_pickle=allow_pickle, sha256=sha256)
    name = file_name(file_and_part(found)[0])
    origin = {"name": name, "source": str(found), "sha256": raw.sha256}
    is_checkpoint = "vitft.card" in raw.metadata
    return _from_raw(raw, SidecarFacts() if is_checkpoint else read_sidecar(found), origin)


def _from_raw(raw: RawWeights, facts: SidecarFacts, provenance: Provenance) -> PretrainedWeights:
    """Convert and check the content of a weight file, using known facts about the weights."""
    if "vitft.card" in raw.metadata:
        # A checkpoint of vitft: its digest is verified, and its card describes the weights
        with weights_errors():
            tensors, card = load_checkpoint(raw.path)
        assert isinstance(card.architecture, ViTConfig)
        provenance = descended(provenance, card.weights)
        return PretrainedWeights(
            flavour="vitft",
            tensors=tensors,
            architecture=replace(card.architecture, drop_path=0.0),
            transform=card.transform,
            statistics_source="from the checkpoint's card",
            provenance=provenance,
            stated_classes=card.classes,
            notes=facts.notes,
        )
    try:
        flavour, tensors, facts, unused = convert(raw.tensors, facts)
        architecture, unusable_head = infer_with_head(tensors, facts)
    except WeightsError as error:
        raise WeightsError(f"{raw.path}: {error.problem}", fix=error.fix) from error
    notes = [*raw.notes, *facts.notes]
    if facts.heads is None:
        assumed = facts.activation is None
        keys = '{"num_attention_heads": N, "hidden_act": "quick_gelu"}'
        notes.append(
            f"{count(architecture.heads, 'head')}{f' and {architecture.activation}' * assumed} are "
            f"assumed, because the weights do not state them. To set them, put {keys} in a "
            "config.json next to them"
        )
    stated, actual = facts.image_size, architecture.image_size
    if stated is not None and stated != actual:
        notes.append(
            f"the stated image size, {stated[0]}x{stated[1]}, does not match the position "
            f"embeddings, which are for {actual[0]}x{actual[1]} pixels"
        )
    published = facts.published or provenance["name"].removeprefix("hf:")
    transform, source = _transform_of(facts, architecture, flavour, published, raw.path)
    classes = facts.classes if len(facts.classes) == len(tensors.get("head.weight", ())) else ()
    return PretrainedWeights(
        flavour=flavour,
        tensors=tensors,
        architecture=architecture,
        transform=transform,
        statistics_source=source,
        provenance=provenance,
        stated_classes=distinct_names(classes, range(len(classes))),
        published=published,
        dropped=(*raw.dropped, *unused),
        resampling=facts.resampling,
        unusable_head=unusable_head,
        notes=tuple(notes),
    )


def _transform_of(
    facts: SidecarFacts, config: ViTConfig, flavour: Flavour, published: str, path: Path
) -> tuple[EvalTransform, str]:
    """Return the evaluation transform that is stated or usual, and the origin of mean and std."""
    usual: dict[str, Any] = dict.fromkeys(("mean", "std"), (0.5,) * config.in_channels)
    source = UNSTATED
    if "mean" in facts.pixels:
        source = facts.source
    elif config.in_channels == 3 and (entry := _published_entry(published, config)):
        usual, source = entry.pixels, f"as published for {entry.name}"
    elif config.in_channels == 3 and (
        config.layer_scale or config.distilled or flavour == "torchvision"
    ):
        usual = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}  # ImageNet's
        kind = "of torchvision" if flavour == "torchvision" else "with LayerScale or distillation"
        source = f"as in all published models {kind}"
    elif config.in_channels == 3 and (
        flavour == "npz" or config.stem is not None or config.pre_logits
    ):
        source = "as in all of Google's Vision Transformers"
    try:
        transform = EvalTransform(image_size=config.image_size, **usual | {**facts.pixels})
        if len(transform.mean) != config.in_channels:
            raise UsageError(
                f"mean and std have {count(len(transform.mean), 'value')} each ({source}), but the "
                f"weights expect {count(config.in_channels, 'channel')}",
                fix="",
            )
    except UsageError as error:
        raise WeightsError(
            f"invalid preprocessing settings for {path}: {error.problem}",
            fix="correct or remove the config.json or preprocessor_config.json next to it",
        ) from error
    return transform, source


@contextlib.contextmanager
def weights_errors() -> Iterator[None]:
    """Convert a RunError about a checkpoint that serves as pretrained weights to a WeightsError."""
    try:
        yield
    except RunError as error:
        raise WeightsError(error.problem, fix=error.fix) from error


def descended(provenance: Provenance, parent: Provenance) -> Provenance:
    """Return `provenance` with the name and licence of the original weights, known to `parent`."""
    if ancestor := parent.get("from") or parent.get("name"):
        provenance = {**provenance, "from": ancestor}
    if licence := parent.get("licence"):
        provenance = {**provenance, "licence": licence}
    return provenance


log = logging.getLogger(__name__)


def load_classifier(
    path: Path, *, digest: Callable[[], str] | None = None
) -> tuple[Mapping[str, Tensor], Card]:
    """Return the tensors and the card of a trained model at a path from `find_model`.

    Like pretrained weights, a model from another tool is described by the config.json next to it.
    The tensors of a timm model have timm's names; all others have vitft's names. `digest` is as in
    `load_checkpoint`.

    Raises:
        RunError: The file is missing, damaged or not supported, or has no head for known classes.
    """
    if not lacks_card(path):
        return load_checkpoint(path, digest=digest)
    try:
        weights = open_pretrained(path)
    except WeightsError as error:
        raise RunError(error.problem, fix=error.fix) from error
    unnamed = "vitft did not write it, and no config.json next to it lists the classes"
    log_assumptions(weights)
    if reason := weights.unusable_head or ("" if weights.classes else unnamed):
        raise RunError(
            f"cannot classify with {path}: {reason}",
            fix="use it as pretrained weights: vitft finetune --data DIR --weights "
            f"{shell_quote(str(path))}. Published weights need their name, e.g. "
            "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors",
        )
    card = Card(
        architecture=weights.architecture,
        transform=weights.transform,
        classes=weights.classes,
        weights=weights.provenance,
        thresholds=foreign_thresholds(path),
        run=Results.from_json(config_beside(path).get(RUN_KEY)),
    )
    return weights.tensors, card


def log_assumptions(weights: PretrainedWeights) -> None:
    """Log what was assumed, and why the classes have the names of ImageNet if they are unnamed."""
    notes = [*weights.notes]
    if weights.label_set:
        notes.append(
            f"the class names come from {weights.label_set} in timm, because the weights are "
            f"named {weights.published} and have {len(weights.classes):,} outputs"
        )
    for note in notes:
        log.info(labelled("Note", note))
