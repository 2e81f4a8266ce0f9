"""Facts about weights from the config.json (and preprocessor_config.json) in the same folder.

The files may come from timm, from transformers or from an attacker. The type of every value is
therefore checked, nothing is executed, and shapes are used only if they match the tensors.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vitft.data.images import GreyRange
from vitft.data.transforms import CROP_MODES, RESAMPLING, Fit
from vitft.models.card import timm_modules
from vitft.models.registry import architecture_config
from vitft.models.vit_config import Activation, RopeConfig, ViTConfig
from vitft.system.errors import UsageError, WeightsError
from vitft.system.files import read_regular

_MAX_STATED_SIDE = 16384
_LARGEST_GREY = 1e38  # maximum absolute value of the limits of a grey range, as in `EvalTransform`
_PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # as in transformers
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarFacts:
    """Facts about a model that its tensors do not show; unstated facts have defaults."""

    heads: int | None = None
    image_size: tuple[int, int] | None = None  # height and width in pixels
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: float | None = None
    interpolation: str | None = None
    fit: Fit = "crop"
    grey_range: GreyRange = ()  # values shown as black and as white
    norm_eps: float | None = None  # epsilon of the LayerNorms
    activation: Activation | None = None
    pool: str = ""  # input of the head, as named by timm, e.g. token or avg
    is_named: bool = False  # whether the next three facts are known, not assumed
    rope: RopeConfig | None = None
    pool_heads: int = 0
    final_norm: bool = True
    classes: tuple[str, ...] = ()
    published: str = ""
    """Name under which the weights are published, e.g. vit_tiny_patch16_224.augreg_in21k_ft_in1k;
    it may also be that of the weights they were fine-tuned from."""
    source: str = ""  # origin of mean and std
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _JsonTable:
    """JSON object with typed access to its values; errors name the file and the key."""

    path: Path
    values: Mapping[str, Any]

    def wrong(self, key: str, wanted: str) -> WeightsError:
        found = str(self.values.get(key))[:60]
        return WeightsError(
            f"{self.path}: {key} is {found} instead of {wanted}", fix="correct or remove the file"
        )

    def checked(self, key: str, wanted: str, is_right: Callable[[Any], bool]) -> Any:  # noqa: ANN401
        value = self.values.get(key)
        if value is not None and not is_right(value):
            raise self.wrong(key, wanted)
        return value

    def table(self, key: str) -> "_JsonTable":
        value = self.checked(key, "an object", lambda value: isinstance(value, dict))
        return _JsonTable(self.path, value or {})

    def text(self, key: str) -> str | None:
        return self.checked(key, "a string", lambda value: isinstance(value, str))

    def whole(self, key: str, most: int) -> int | None:
        return self.checked(
            key, f"an integer from 0 to {most}", lambda n: type(n) is int and 0 <= n <= most
        )

    def number(self, key: str) -> float | None:
        value = self.checked(key, "a number", _is_number)
        return None if value is None else float(value)

    def numbers(self, key: str) -> tuple[float, ...] | None:
        def is_right(items: Any) -> bool:  # noqa: ANN401
            return isinstance(items, list) and 0 < len(items) <= 16 and all(map(_is_number, items))

        value = self.checked(key, "a list of 1 to 16 numbers", is_right)
        return None if value is None else tuple(map(float, value))

    def bounds(self, key: str) -> tuple[float, ...]:
        """Return two numbers, the lower one first, or () if the key is absent."""
        ends = self.numbers(key) or ()
        if ends and not (len(ends) == 2 and -_LARGEST_GREY <= ends[0] < ends[1] <= _LARGEST_GREY):
            raise self.wrong(key, "two numbers, the lower one first")
        return ends

    def size(self, key: str) -> tuple[int, int] | None:
        """Return height and width from 224, [224, 224] or [3, 224, 224], or None if absent."""
        value = self.values.get(key)
        if value is None:
            return None
        sides = list(value[-2:]) if isinstance(value, list) else [value, value]
        if len(sides) != 2 or not all(type(s) is int and 0 < s <= _MAX_STATED_SIDE for s in sides):
            raise self.wrong(key, f"a size of 1 to {_MAX_STATED_SIDE} pixels")
        return sides[0], sides[1]


def _is_number(value: object) -> bool:
    """Return whether a JSON value is a finite number."""
    return type(value) in (int, float) and abs(cast("float", value)) <= sys.float_info.max


def read_sidecar(path: Path) -> SidecarFacts:
    """Return the facts in the files next to a weight file, or defaults if there is no config.json.

    Raises:
        WeightsError: A file or a value in it is invalid, or the activation is not supported.
    """
    config = read_table_file(path.parent / "config.json")
    if config is None:
        return SidecarFacts()
    if "vision_config" in config.values:  # CLIP and SigLIP with their text towers
        config = config.table("vision_config")
    is_hf = any(key in config.values for key in ("hidden_act", "num_attention_heads"))
    if is_hf or config.text("model_type") in _TOWER_DEFAULTS:
        return _hf_facts(config, read_table_file(path.parent / "preprocessor_config.json"))
    # Older files of timm have the statistics at the top level instead of in pretrained_cfg
    cfg = config.table("pretrained_cfg") if "pretrained_cfg" in config.values else config
    arguments = config.table("model_args")
    pool = arguments.text("global_pool") or config.text("global_pool")
    known, name = None, config.text("architecture") or ""
    if name in timm_modules():
        try:
            known = architecture_config(name)
        except UsageError as error:
            raise WeightsError(f"{config.path}: {error.problem}", fix=error.fix) from error
    tag = cfg.text("tag")
    return SidecarFacts(
        **(_architecture_facts(arguments, known) if known else {}),
        pool=pool or (timm_pool(known) if known else ""),
        heads=arguments.whole("num_heads", 1024) or (known.heads if known else None),
        norm_eps=known.norm_eps if known else None,
        activation=_stated_activation(arguments, "act_layer")
        or (known.activation if known else None),
        image_size=arguments.size("img_size") or cfg.size("input_size"),
        classes=_stated_classes(cfg, "label_names") or _stated_classes(config, "label_names"),
        published=f"{name}.{tag}" if name and tag else "",
        **_timm_preprocessing_facts(cfg),
    )


def read_table_file(path: Path) -> _JsonTable | None:
    """Return the object in a JSON file, or None if it does not exist; raise an error if invalid."""
    if not path.is_file():
        return None
    fix = "correct or remove the file"
    try:
        values = json.loads(read_regular(path, limit=16 * 2**20))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON: {str(error)[:100]}", fix=fix) from error
    if not isinstance(values, dict):
        raise WeightsError(f"{path} does not contain a JSON object", fix=fix)
    return _JsonTable(path, values)


def _architecture_facts(arguments: _JsonTable, known: ViTConfig) -> dict[str, Any]:
    """Return the facts about architecture `known`, as built by timm, that no tensor shows."""
    heads = arguments.whole("attn_pool_num_heads", 1024) or known.pool_heads
    has_rope = arguments.values.get("use_rot_pos_emb", known.rope is not None)
    names = ("use_post_transformer_norm", "use_fc_norm", "final_norm")
    norms = [arguments.values[name] for name in names if name in arguments.values]
    rope = (known.rope or RopeConfig()) if has_rope else None
    if rope is not None:
        base, offset = arguments.number("rope_temperature"), arguments.number("rope_grid_offset")
        kind, order = arguments.text("rope_type"), arguments.text("rope_grid_indexing")
        half = arguments.values.get("rope_rotate_half")
        has_grid = "ref_feat_shape" in arguments.values
        try:
            rope = RopeConfig(
                unit=rope.unit if kind is None else kind == "dinov3",
                base=rope.base if base is None else base,
                offset=rope.offset if offset is None else offset,
                grid=arguments.size("ref_feat_shape") if has_grid else rope.grid,
                x_first=rope.x_first if order is None else order == "xy",
                halves=rope.halves if half is None else bool(half),
            )
        except UsageError as error:
            raise WeightsError(f"{arguments.path}: {error.problem}", fix=error.fix) from error
    return {
        "is_named": True,
        "rope": rope,
        "pool_heads": 0 if heads == arguments.whole("num_heads", 1024) else heads,
        "final_norm": any(norms) if norms else known.final_norm,
    }


def timm_pool(config: ViTConfig) -> str:
    """Return timm's name for a model's pooling."""
    return {"cls": "token", "mean": "avg", "map": "map"}[config.pool]


def _timm_preprocessing_facts(cfg: _JsonTable) -> dict[str, Any]:
    """Return the fields of `SidecarFacts` that timm's pretrained_cfg contains."""
    mean, std = cfg.numbers("mean"), cfg.numbers("std")
    names = ("", "random", *RESAMPLING)  # "random" is an option for training
    known = cfg.checked("interpolation", f"one of {', '.join(RESAMPLING)}", names.__contains__)
    return {
        "mean": mean if std else None,
        "std": std if mean else None,
        "crop": cfg.number("crop_pct"),
        "interpolation": known if known in RESAMPLING else None,
        "fit": CROP_MODES.get(cfg.text("crop_mode") or "", "crop"),
        "source": f"from {cfg.path}" if mean and std else "",
    }


def _hf_facts(config: _JsonTable, processor: _JsonTable | None) -> SidecarFacts:
    """Return the facts in transformers' config.json and preprocessor_config.json."""
    if processor is None and "pretrained_cfg" in config.values:
        processor = config
    kind, is_gated = config.text("model_type") or "", config.values.get("use_gated_mlp")
    if is_gated and config.text("hidden_act") not in ("silu", "swish"):
        raise config.wrong("hidden_act", "silu, the only activation of gated MLPs in vitft")
    is_rotary = kind == "dinov3_vit"
    rope = RopeConfig(base=config.number("rope_theta") or 100.0) if is_rotary else None
    activation, norm_eps = _TOWER_DEFAULTS.get(kind, (None, None))
    return SidecarFacts(
        is_named=True,
        rope=rope,
        heads=config.whole("num_attention_heads", 1024),
        image_size=config.size("image_size"),
        classes=_stated_classes(config, "id2label"),
        activation=None if is_gated else _stated_activation(config, "hidden_act") or activation,
        norm_eps=config.checked(
            "layer_norm_eps", "a number between 0 and 1", lambda n: _is_number(n) and 0 < n < 1
        )
        or norm_eps,
        **(_hf_preprocessing(processor) if processor else {}),
    )


def _hf_preprocessing(processor: _JsonTable) -> dict[str, Any]:
    """Return the fields of `SidecarFacts` given by transformers' image processor settings."""
    if "pretrained_cfg" in processor.values:  # the processor for timm models
        cfg = processor.table("pretrained_cfg")
        return _timm_preprocessing_facts(cfg) | {"grey_range": cfg.bounds("grey_range")}
    mean, std = processor.numbers("image_mean"), processor.numbers("image_std")
    if processor.values.get("do_normalize") is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    number = processor.whole("resample", 5)
    fields: dict[str, Any] = {
        "mean": mean if std else None,
        "std": std if mean else None,
        "interpolation": _PIL_FILTERS.get(number) if number else None,
        "source": f"from {processor.path}" if mean and std else "",
        "fit": "squash",  # transformers' ViT processor ignores the aspect ratio
        "crop": 1.0,
    }
    size = processor.values.get("size")
    if isinstance(size, dict) and "shortest_edge" in size and "crop_size" in processor.values:
        shortest = processor.table("size").whole("shortest_edge", _MAX_STATED_SIDE)
        is_table = isinstance(processor.values["crop_size"], dict)
        cut = processor.table("crop_size") if is_table else processor
        side = cut.whole("height" if is_table else "crop_size", _MAX_STATED_SIDE)
        if shortest and side and side <= shortest:
            fields |= {"fit": "crop", "crop": side / shortest}
    return fields


def _stated_classes(table: _JsonTable, key: str) -> tuple[str, ...]:
    """Return class names from a list or {"0": name, ...}, or () if `key` is absent."""
    value = table.values.get(key)
    if value is None:
        return ()
    if isinstance(value, dict):
        value = [value.get(str(i)) for i in range(len(value))]
    is_list = isinstance(value, list) and len(value) <= 1_000_000
    if not is_list or not all(isinstance(item, str) for item in value):
        raise table.wrong(key, "a list of class names, or class names for 0, 1, 2 and so on")
    return tuple(value)


def _stated_activation(table: _JsonTable, key: str) -> Activation | None:
    """Return the activation function named in the file, or None if there is none."""
    name = table.text(key)
    if name is not None and name not in _ACTIVATION_NAMES:
        raise WeightsError(
            f"{table.path}: {key} is {name}, but vitft supports only GELU and its approximations",
            fix="use weights trained with GELU",
        )
    return _ACTIVATION_NAMES[name] if name else None
