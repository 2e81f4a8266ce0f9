"""Facts about weights from the config.json (and preprocessor_config.json) in the same folder.

The files may come from timm, from transformers or from an attacker. The type of every value is
therefore checked, nothing is executed, and shapes are used only if they match the tensors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from vitft.data.transforms import CROP_MODES, RESAMPLING
from vitft.models.card import timm_modules
from vitft.models.pretrained.infer import SidecarFacts
from vitft.models.registry import architecture_config
from vitft.models.vit_config import Activation, RopeConfig, ViTConfig
from vitft.system.errors import UsageError, WeightsError
from vitft.system.files import read_regular
from vitft.system.structure import Natural, Range, StructureError, structured

_Side = Annotated[int, Range(ge=1, le=16384)]
_Heads = Annotated[int, Range(ge=0, le=1024)]
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


@dataclass(frozen=True, slots=True)
class _JsonTable:
    """JSON object with typed access to its values; errors name the file and the key."""

    path: Path
    values: Mapping[str, Any]

    def get(self, key: str, kind: Any, *, is_needed: bool = False) -> Any:  # noqa: ANN401
        """Return a value of an annotated type, or None if it is absent or null."""
        value = self.values.get(key)
        try:
            return structured(value, kind, key) if is_needed or value is not None else None
        except StructureError as error:
            raise WeightsError(f"{self.path}: {error}", fix="correct or remove the file") from error

    def table(self, key: str) -> "_JsonTable":
        return _JsonTable(self.path, self.get(key, dict[str, Any]) or {})

    def size(self, key: str) -> tuple[int, int] | None:
        """Return height and width from 224, [224, 224] or [3, 224, 224], or None if absent."""
        value = self.values.get(key)
        sides = value[-2:] if isinstance(value, list) else [value, value]
        pair = tuple[_Side, _Side]
        return None if value is None else _JsonTable(self.path, {key: sides}).get(key, pair)


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
    if is_hf or config.get("model_type", str) in _TOWER_DEFAULTS:
        return _hf_facts(config, read_table_file(path.parent / "preprocessor_config.json"))
    # Older files of timm have the statistics at the top level instead of in pretrained_cfg
    cfg = config.table("pretrained_cfg") if "pretrained_cfg" in config.values else config
    arguments = config.table("model_args")
    pool = arguments.get("global_pool", str) or config.get("global_pool", str)
    known, name = None, config.get("architecture", str) or ""
    if name in timm_modules():
        try:
            known = architecture_config(name)
        except UsageError as error:
            raise WeightsError(f"{config.path}: {error.problem}", fix=error.fix) from error
    tag = cfg.get("tag", str)
    return SidecarFacts(
        **(_architecture_facts(arguments, known) if known else {}),
        pool=pool or (timm_pool(known) if known else ""),
        heads=arguments.get("num_heads", _Heads) or (known.heads if known else None),
        norm_eps=known.norm_eps if known else None,
        activation=_stated_activation(arguments, "act_layer")
        or (known.activation if known else None),
        image_size=arguments.size("img_size") or cfg.size("input_size"),
        classes=_stated_classes(cfg, "label_names") or _stated_classes(config, "label_names"),
        published=f"{name}.{tag}" if name and tag else "",
        **_timm_pixels(cfg),
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
    heads = arguments.get("attn_pool_num_heads", _Heads) or known.pool_heads
    has_rope = arguments.values.get("use_rot_pos_emb", known.rope is not None)
    names = ("use_post_transformer_norm", "use_fc_norm", "final_norm")
    norms = [arguments.values[name] for name in names if name in arguments.values]
    rope = (known.rope or RopeConfig()) if has_rope else None
    if rope is not None:
        base = arguments.get("rope_temperature", float)
        offset = arguments.get("rope_grid_offset", float)
        kind, order = (arguments.get(f"rope_{key}", str) for key in ("type", "grid_indexing"))
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
        "pool_heads": 0 if heads == arguments.get("num_heads", _Heads) else heads,
        "final_norm": any(norms) if norms else known.final_norm,
    }


def timm_pool(config: ViTConfig) -> str:
    """Return timm's name for a model's pooling."""
    return {"cls": "token", "mean": "avg", "map": "map"}[config.pool]


def _timm_pixels(cfg: _JsonTable) -> dict[str, Any]:
    """Return the preprocessing in timm's pretrained_cfg, as facts."""
    known = cfg.get("interpolation", Literal["", "random", *RESAMPLING])  # "random": in training
    pixels = {
        **_statistics(cfg, "mean", "std"),
        "crop": cfg.get("crop_pct", float),
        "interpolation": known if known in RESAMPLING else None,
        "fit": CROP_MODES.get(cfg.get("crop_mode", str) or ""),
        "grey_range": cfg.get("grey_range", tuple[float, ...]),
    }
    return _as_facts(pixels, cfg.path)


def _statistics(table: _JsonTable, *keys: str) -> dict[str, Any]:
    """Return the mean and std if both are stated."""
    mean, std = (table.get(key, tuple[float, ...]) for key in keys)
    return {"mean": mean, "std": std} if mean and std else {}


def _as_facts(pixels: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the fields of `SidecarFacts` for a file's preprocessing; None is not stated."""
    stated = {name: value for name, value in pixels.items() if value is not None}
    return {"pixels": stated, "source": f"from {path}" if "mean" in stated else ""}


def _hf_facts(config: _JsonTable, processor: _JsonTable | None) -> SidecarFacts:
    """Return the facts in transformers' config.json and preprocessor_config.json."""
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
        norm_eps=config.get("layer_norm_eps", Annotated[float, Range(gt=0, lt=1)]) or norm_eps,
        **(_hf_pixels(processor) if processor else {}),
    )


def _hf_pixels(processor: _JsonTable) -> dict[str, Any]:
    """Return the preprocessing in transformers' image processor settings, as facts."""
    if "pretrained_cfg" in processor.values:  # the processor for timm models
        return _timm_pixels(processor.table("pretrained_cfg"))
    statistics = _statistics(processor, "image_mean", "image_std")
    if processor.values.get("do_normalize") is False:
        statistics = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    number = processor.get("resample", Annotated[int, Range(ge=0, le=5)])
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


def _stated_classes(table: _JsonTable, key: str) -> tuple[str, ...]:
    """Return class names from a list or {"0": name, ...}, or () if `key` is absent."""
    value = table.values.get(key)
    if value is None:
        return ()
    if isinstance(value, dict):
        value = [value.get(str(i)) for i in range(len(value))]
    is_list = isinstance(value, list) and len(value) <= 1_000_000
    if not is_list or not all(isinstance(item, str) for item in value):
        raise WeightsError(
            f"{table.path}: {key} is not a list of class names, or class names for 0, 1, 2 and so "
            "on",
            fix="correct or remove the file",
        )
    return tuple(value)


def _stated_activation(table: _JsonTable, key: str) -> Activation | None:
    """Return the activation function named in the file, or None if there is none."""
    name = table.get(key, str)
    if name is not None and name not in _ACTIVATION_NAMES:
        raise WeightsError(
            f"{table.path}: {key} is {name}, but vitft supports only GELU and its approximations",
            fix="use weights trained with GELU",
        )
    return _ACTIVATION_NAMES[name] if name else None
