"""From other tools' tensors to vitft's names and layouts, which are timm's, and the architecture.

Pure functions over dictionaries of tensors. Every name in a file is converted, listed as dropped or
listed in an error. Values do not change, with one exception: if the file contains register tokens,
the position embedding of the class token is added to the class token, as in timm. The architecture
is inferred from the shapes.

Notation: D width, H heads, K head width.

Sources: transformers' `modeling_vit.py` (old and new names), `modeling_deit.py` and
`modeling_dinov2.py`; torchvision's `vision_transformer.py`; OpenAI's CLIP `model.py`; vit_jax
`checkpoint.py`, big_vision `models/vit.py` (Google's layout); timm's `_convert_dinov2` (Meta's
names).
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitft.models.card import first_five, tensor_mismatch
from vitft.models.checkpoint import facts_of
from vitft.models.vit_config import (
    SIZES,
    TIMM_POOLS,
    Activation,
    Pool,
    RopeConfig,
    ViTConfig,
    may_have,
    stem_stride,
    vit_shapes,
)
from vitft.system.errors import UsageError, WeightsError

PosEmbed = Literal["bicubic", "jax", "bilinear"]  # `bilinear`: SigLIP 2 NaFlex
Flavour = Literal["timm", "hf", "npz", "torchvision", "clip", "vitft"]

ROOT = re.compile(
    r"((?:[^./:]+[./:])*?)(?:patch_embed\.proj\.weight|cls_token|conv_proj\.weight|class_embedding"
    r"|embedding/kernel|(?:(?:vit|deit|dinov2|dinov2_with_registers|vision_model)\.)?embeddings\."
    r"(?:cls_token|class_embedding|patch_embeddings?(?:\.projection)?\.weight))"
)
"""Pattern for a tensor that every Vision Transformer has, after the root that its names share."""
_FLAVOURS: Mapping[str, Flavour] = {
    "embedding/kernel": "npz", "conv_proj.weight": "torchvision", "class_embedding": "clip",
}  # fmt: skip
_EXTRA = re.compile(
    r"([\w.]+\.)?mask(ed)?_(token|embed)$|decoder\w*[./]|decoder_pos_embed$|(heads?(\.head)?|classifier)\.\d"
    r"|(criterion|\w*loss\w*|projector|predictor|fc|mlp_head)\.|proj$|logit_(scale|bias)$"
    r"|(text_model|text_projection|visual_projection)\."
)
"""Pattern for tensors that are not part of the ViT: of pretraining, other heads, a text tower."""

_HF_PREFIX = re.compile(r"^(vit|deit|dinov2|dinov2_with_registers|vision_model)\.")
_OUTER = {
    "cls_token": "cls class_token class_embedding embeddings.cls_token embeddings.class_embedding",
    "dist_token": "embeddings.distillation_token",
    "register_tokens": "embeddings.register_tokens",
    "pos_embed": "pos_embedding positional_embedding encoder.pos_embedding "
    "embeddings.position_embeddings embeddings.position_embedding.weight "
    "Transformer.posembed_input.pos_embedding",
    "patch_embed.proj": "embedding conv_proj conv1 embeddings.patch_embedding "
    "embeddings.patch_embeddings embeddings.patch_embeddings.projection",
    "patch_embed.backbone.stem.conv": "conv_root",
    "patch_embed.backbone.stem.norm": "gn_root",
    "norm_pre": "ln_pre pre_layrnorm",  # spelled like this in transformers
    "norm": "norm ln_post encoder.ln layernorm post_layernorm Transformer.encoder_norm",
    "pre_logits.fc": "pre_logits pooler.dense",
    "head": "head heads heads.head classifier cls_classifier",
    "head_dist": "distillation_classifier",
    "attn_pool.latent": "head.probe",
    "attn_pool.qkv.weight": "head.attention.in_proj_weight",
    "attn_pool.qkv.bias": "head.attention.in_proj_bias",
    "attn_pool.proj": "head.attention.out_proj",
    "attn_pool.norm": "head.layernorm",
    "attn_pool.mlp.fc1": "head.mlp.fc1",
    "attn_pool.mlp.fc2": "head.mlp.fc2",
}
"""For each of vitft's names, those of transformers, torchvision, OpenAI's CLIP and Google."""
_INNER = {
    "norm1": "norm1 ln_1 layer_norm1 layernorm_before LayerNorm_0",
    "norm2": "norm2 ln_2 layer_norm2 layernorm_after LayerNorm_1 LayerNorm_2",
    **{
        f"attn.{letter}_proj": f"attention.attention.{word} attention.{letter}_proj "
        f"self_attn.{letter}_proj MultiHeadDotProductAttention.{word}"
        for letter, word in (("q", "query"), ("k", "key"), ("v", "value"))
    },
    "attn.qkv.weight": "attn.in_proj_weight self_attention.in_proj_weight",
    "attn.qkv.bias": "attn.in_proj_bias self_attention.in_proj_bias",
    "attn.proj": "attn.out_proj self_attn.out_proj self_attention.out_proj attention.o_proj "
    "attention.output.dense MultiHeadDotProductAttention.out",
    "mlp.fc1_g": "mlp.gate_proj",
    "mlp.fc1_x": "mlp.up_proj",
    "mlp.fc1": "mlp.fc1 mlp.0 mlp.linear_1 mlp.c_fc intermediate.dense MlpBlock.Dense_0 "
    "mlp.weights_in",  # SwiGLU: gate and value in one matrix, as here
    "mlp.fc2": "mlp.fc2 mlp.3 mlp.linear_2 mlp.c_proj output.dense MlpBlock.Dense_1 "
    "mlp.weights_out mlp.down_proj",
    "ls1.gamma": "layer_scale1.lambda1",
    "ls2.gamma": "layer_scale2.lambda1",
}
"""The same for names in a block, without the numbers of Google's modules."""
_OUTER_NAMES, _BLOCK_NAMES = (
    {theirs: ours for ours, names in table.items() for theirs in names.split()}
    for table in (_OUTER, _INNER)
)

_OTHER_WEIGHTS = (
    "use timm:NAME=FILE with timm's name for the model, or the weights of a plain Vision "
    "Transformer, e.g. one listed by `vitft weights list`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarFacts:
    """Facts about a model that its tensors do not show; those not stated have the defaults."""

    heads: int | None = None
    image_size: tuple[int, int] | None = None  # height and width in pixels
    pixels: Mapping[str, Any] = field(default_factory=dict)  # other fields of `EvalTransform`
    norm_eps: float | None = None  # epsilon of the LayerNorms
    activation: Activation | None = None
    pool: str = ""  # input of the head, as named by timm, e.g. token or avg
    unusable_head: str = ""  # reason that the layout shows, as of `PretrainedWeights`
    is_named: bool = False  # whether the next three facts are known, not assumed
    rope: RopeConfig | None = None
    pool_heads: int = 0
    final_norm: bool = True
    classes: tuple[str, ...] = ()
    published: str = ""
    """Name under which the weights are published, e.g. vit_tiny_patch16_224.augreg_in21k_ft_in1k;
    it may also be that of the weights they were fine-tuned from."""
    source: str = ""  # origin of mean and std
    resampling: PosEmbed | None = None  # of position embeddings; None if the user may choose one
    notes: tuple[str, ...] = ()


def convert(
    tensors: Mapping[str, Tensor], facts: SidecarFacts
) -> tuple[Flavour, dict[str, Tensor], SidecarFacts, tuple[str, ...]]:
    """Detect the naming scheme of tensors; convert their names, layout and dtype (to float32).

    Returns:
        The scheme, the tensors, `facts` and what the layout shows, and descriptions of the tensors
        that are not used.
    """
    names = {name: tensor for name, tensor in tensors.items() if not _EXTRA.match(name)}
    unused = described({name: tensor for name, tensor in tensors.items() if name not in names})
    flavour = _flavour_of(names)
    if flavour == "npz":
        names, heads = _convert_npz(names)
        facts = replace(facts, heads=heads or facts.heads)
    elif flavour != "timm":
        if "classifier.weight" in names and any(n.startswith("vision_model.") for n in names):
            facts = replace(facts, unusable_head="the head expects the mean of the patch tokens")
        names = _rename_all(names)
        # SigLIP 2 NaFlex projects patches by a linear layer; images may have any number of them
        if names.get("patch_embed.proj.weight", torch.empty(())).ndim == 2:
            facts = replace(facts, resampling="bilinear")
        names = _tower_layout(names)
        if flavour == "clip":
            facts = replace(facts, norm_eps=facts.norm_eps or 1e-5)
    rotates = flavour == "timm" and _may_rotate(names)
    names = from_timm_names(names)
    if "register_tokens" in names:
        names["reg_token"] = names.pop("register_tokens")  # these have no position embeddings
        if {"cls_token", "pos_embed"} <= names.keys():  # as in timm
            names["cls_token"] = names["cls_token"] + names["pos_embed"][:, :1]
            names["pos_embed"] = names["pos_embed"][:, 1:]
    refuse_unmapped(name for name in names if not may_have(name))
    whole = [name for name, tensor in names.items() if not tensor.is_floating_point()]
    if whole:
        raise WeightsError(
            f"{whole[0]} has dtype {names[whole[0]].dtype}, not a floating-point type",
            fix="use the original weights, because quantised ones cannot be fine-tuned",
        )
    if rotates and not facts.is_named:
        raise WeightsError(
            "the model seems to have rotary position embeddings, but their settings are not in "
            "the file",
            fix="put timm's config.json next to the file, or use a name from `vitft weights list`",
        )
    return flavour, {n: t.float().contiguous() for n, t in names.items()}, facts, unused


def described(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the names and shapes of unused tensors, or the sizes of groups with one first part."""
    groups: dict[str, list[str]] = {}
    for name in tensors:
        groups.setdefault(re.split(r"[./:]", name)[0], []).append(name)
    return tuple(
        f"{names[0]} {tuple(tensors[names[0]].shape)}"
        if len(names) == 1
        else f"{group} ({len(names):,} tensors)"
        for group, names in groups.items()
    )


def _flavour_of(names: Collection[str]) -> Flavour:
    """Return the naming scheme of tensors."""
    if "cls_token" in names or any(n.startswith("blocks.") and may_have(n) for n in names):
        return "timm"
    if any(_HF_PREFIX.sub("", n).startswith("embeddings.") for n in names):
        return "hf"
    for sign, flavour in _FLAVOURS.items():
        if sign in names:
            return flavour
    raise WeightsError(
        f"these are not the tensors of a plain Vision Transformer: {first_five(sorted(names))}"
        if names
        else "the file contains no tensors",
        fix=_OTHER_WEIGHTS,
    )


def _our_name(name: str) -> str | None:
    """Return vitft's or timm's name for a tensor of another tool, if there is one."""
    name = _HF_PREFIX.sub("", name.replace("/", "."))
    name = re.sub(r"\b(MultiHeadDotProductAttention|MlpBlock)_\d", r"\1", name)
    name = re.sub(r"\.(kernel|scale)$", ".weight", name)
    block = re.fullmatch(
        r"(?:(?:model|encoder|[tT]ransformer)\.)?"
        r"(?:layers?\.(?:encoder_layer_)?|resblocks\.|encoderblock_)(\d{1,4})\.(.+)",
        name,
    )
    unit = re.fullmatch(r"block(\d)\.unit(\d{1,2})\.(conv|gn)(\d|_proj)\.(weight|bias)", name)
    if unit:
        kind = "conv" if unit[3] == "conv" else "norm"
        part = f"downsample.{kind}" if unit[4] == "_proj" else f"{kind}{unit[4]}"
        place = f"stages.{int(unit[1]) - 1}.blocks.{int(unit[2]) - 1}"
        return f"patch_embed.backbone.{place}.{part}.{unit[5]}"
    names, inner = (_BLOCK_NAMES, block[2]) if block else (_OUTER_NAMES, name)
    stem, _, leaf = inner.rpartition(".")
    ours = names.get(inner)
    if ours is None and stem in names and leaf in ("weight", "bias"):
        ours = f"{names[stem]}.{leaf}"
    return f"blocks.{int(block[1])}.{ours}" if block and ours else ours


def _convert_npz(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int | None]:
    """Convert tensors from Google's layout; return them and the number of heads, if known."""
    scanned = "Transformer/encoderblock/"
    unstacked = {n: t for n, t in tensors.items() if not n.startswith(scanned)}
    for name, stack in tensors.items():
        if name.startswith(scanned) and stack.ndim:  # all blocks in one array, as in big_vision
            for i, tensor in enumerate(stack):
                unstacked[f"Transformer/encoderblock_{i}/{name.removeprefix(scanned)}"] = tensor
    names = _rename_all(unstacked)
    queries = [t for n, t in names.items() if n.endswith("attn.q_proj.weight") and t.ndim == 3]
    heads = queries[0].shape[1] if queries else None  # kernels of q, k, v are (D, H, K)
    if not any("backbone.stages" in name for name in names):  # as in timm for a root without stages
        names = {n.replace("backbone.stem.", "backbone."): t for n, t in names.items()}
    return {n: _from_flax(n, t) for n, t in names.items()}, heads


def _from_flax(name: str, array: Tensor) -> Tensor:
    """Convert an array from Flax's layout to torch's."""
    if re.search(r"attn\.[qkv]_proj\.weight$", name) and array.ndim == 3:
        return array.flatten(1).T  # (D, H, K) -> (H*K, D)
    if re.search(r"attn\.[qkv]_proj\.bias$", name) or ("backbone" in name and "norm" in name):
        return array.flatten()  # (H, K) -> (H*K,); (1, 1, 1, channels) -> (channels,)
    if name.endswith("attn.proj.weight") and array.ndim == 3:
        return array.flatten(0, 1).T  # (H, K, D) -> (D, H*K)
    if name.startswith("patch_embed") and array.ndim == 4:
        return array.permute(3, 2, 0, 1)  # (height, width, channels, D) -> (D, channels, h, w)
    if name.endswith("weight") and array.ndim == 2:
        return array.T  # (inputs, outputs) -> (outputs, inputs)
    return array


def _tower_layout(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a vision tower (CLIP, SigLIP, DINOv3), or of any ViT, as in timm."""
    result = dict(tensors)
    for name in {"cls_token", "pos_embed"} & result.keys():  # (D,) or (N, D) in CLIP and SigLIP
        result[name] = result[name][(None,) * (3 - result[name].ndim)]
    kernel = result.get("patch_embed.proj.weight")
    if kernel is not None and kernel.ndim == 2:  # (D, h*w*3) -> (D, 3, h, w) for square patches
        side = math.isqrt(kernel.shape[1] // 3)
        if 3 * side**2 == kernel.shape[1]:
            kernel = kernel.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)
            result["patch_embed.proj.weight"] = kernel
    for leaf in ("weight", "bias"):
        fused = result.pop(f"attn_pool.qkv.{leaf}", None)
        if fused is not None:
            width = fused.shape[0] // 3
            result[f"attn_pool.q.{leaf}"] = fused[:width]
            result[f"attn_pool.kv.{leaf}"] = fused[width:]
    if not any(".mlp.fc1_g." in name for name in result):
        result = {name.replace(".mlp.fc1_x.", ".mlp.fc1."): t for name, t in result.items()}
    return result


def _rename_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under vitft's names."""
    pairs = [(name, _our_name(name)) for name in tensors]
    refuse_unmapped(name for name, ours in pairs if ours is None)
    result: dict[str, Tensor] = {}
    for name, ours in pairs:
        if ours in result:
            raise WeightsError(
                f"two tensors in the file map to {ours}, and one of them is {name}",
                fix="save the model again with a single naming scheme",
            )
        result[str(ours)] = tensors[name]
    return result


def refuse_unmapped(names: Iterable[str]) -> None:
    """Raise a WeightsError if there are tensors that have no counterpart in vitft."""
    if unknown := sorted(names):
        raise WeightsError(f"unknown tensors: {first_five(unknown)}", fix=_OTHER_WEIGHTS)


# conversion of tensor names and layouts between timm's EVA models and vitft -----------------------

_OTHER_NAMES = (
    (re.compile(r"(blocks\.\d+\.)gamma_([12])"), r"\1ls\2.gamma"),
    (re.compile(r"(blocks\.\d+\.mlp\.)w12\b"), r"\1fc1"),  # Meta's DINOv2-giant
    (re.compile(r"(blocks\.\d+\.mlp\.)w3\b"), r"\1fc2"),
)
"""Pairs of a regular expression for a tensor name in another library and vitft's replacement."""


def from_timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a timm network's tensors under vitft's names and in vitft's layout.

    Tensors that cannot be combined, because one is missing or differs in shape, are left unchanged.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for pattern, ours in _OTHER_NAMES:
            name = pattern.sub(ours, name)
        result[name] = tensor
    for name in [n for n in result if n.endswith((".attn.q_bias", ".attn.q_proj.bias"))]:
        place, ending = name.rsplit(".attn.q", 1)
        if f"{place}.attn.v{ending}" in result:  # the keys need no biases
            result.setdefault(f"{place}.attn.k{ending}", torch.zeros_like(result[name]))
    groups = {
        "attn.q_bias": ("attn.k_bias", "attn.v_bias", "attn.qkv.bias"),
        "attn.q_proj.bias": ("attn.k_proj.bias", "attn.v_proj.bias", "attn.qkv.bias"),
        "attn.q_proj.weight": ("attn.k_proj.weight", "attn.v_proj.weight", "attn.qkv.weight"),
        "mlp.fc1_g.weight": ("mlp.fc1_x.weight", "mlp.fc1.weight"),
        "mlp.fc1_g.bias": ("mlp.fc1_x.bias", "mlp.fc1.bias"),
    }
    for first, (*others, fused) in groups.items():
        for name in [n for n in result if n.endswith(f".{first}")]:
            place = name.removesuffix(first)
            names = [name, *(place + other for other in others)]
            shapes = {result[n].shape if n in result else None for n in names}
            if len(shapes) == 1:
                result[place + fused] = torch.cat([result.pop(n) for n in names])
    return result


def _may_rotate(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether timm's names suggest rotary position embeddings, which are not stored.

    The signs occur almost exclusively in published models with rotary position embeddings.
    """
    gated = {n for n in tensors if n.endswith((".mlp.fc1_g.weight", ".attn.q_proj.weight"))}
    first, last = (tensors.get(f"blocks.0.mlp.{n}.weight") for n in ("fc1", "fc2"))
    is_packed = first is not None and last is not None and first.shape[:1] != last.shape[1:]
    has_separate_bias = "blocks.0.attn.q_bias" in tensors
    is_perception_encoder = "norm_pre.weight" in tensors and "attn_pool.latent" in tensors
    return (
        "pos_embed" not in tensors
        or (bool(gated) and "blocks.0.norm1.bias" in tensors)
        or (is_packed and has_separate_bias)
        or is_perception_encoder
        or "blocks.0.gamma_1" in tensors
    )


def infer_with_head(tensors: Mapping[str, Tensor], facts: SidecarFacts) -> tuple[ViTConfig, str]:
    """Return the architecture, without an unusable head, and why it is unusable, or ""."""
    body = {n: t for n, t in tensors.items() if not n.startswith(("head.", "head_dist."))}
    config, reason = infer_config(body, facts), facts.unusable_head
    if len(body) == len(tensors):
        return config, ""
    whole = replace(config, num_classes=_shape_of(tensors, "head.weight", 2)[0])
    if facts.pool not in ("", TIMM_POOLS[config.pool]):
        reason = f"the head expects timm's {facts.pool} pooling"
    elif mismatch := tensor_mismatch(facts_of(tensors), vit_shapes(whole)):
        reason = f"the head does not fit the model ({mismatch})"
    return config if reason else whole, reason


def infer_config(tensors: Mapping[str, Tensor], facts: SidecarFacts) -> ViTConfig:
    """Return the architecture, inferred from tensor shapes and, where needed, from `facts`."""
    numbers = {int(m[1]) for name in tensors if (m := re.match(r"blocks\.(\d{1,4})\.", name))}
    gap = next((i for i in range(len(numbers)) if i not in numbers), None)
    if not numbers or gap is not None:
        raise WeightsError(
            f"block {gap or 0} is missing from the weights, which have {len(numbers)} blocks",
            fix="save or download the file again, because it is incomplete",
        )
    stem = _stem_of(tensors)
    kernel = _shape_of(tensors, "patch_embed.proj.weight", 4)  # (D, channels, height, width)
    stride = 1 if stem is None else stem_stride(stem)
    root = "patch_embed.backbone.stem.conv.weight" if stem else "patch_embed.backbone.conv.weight"
    channels = kernel[1] if stem is None else _shape_of(tensors, root, 4)[1]
    width, patch = kernel[0], (kernel[2] * stride, kernel[3] * stride)
    registers = _shape_of(tensors, "reg_token", 3)[1] if "reg_token" in tensors else 0
    class_token = "cls_token" in tensors
    prefix = class_token + ("dist_token" in tensors) + registers
    if "pos_embed" in tensors:
        positions = _shape_of(tensors, "pos_embed", 3)[1]
        (rows, columns), has_places = _grid_of(positions, prefix, patch, facts.image_size)
    elif facts.image_size is not None:
        height, across = facts.image_size
        rows, columns, has_places = height // patch[0], across // patch[1], True
    else:
        raise WeightsError(
            "pos_embed is missing from the weights, and the image size is not stated",
            fix="put a config.json that states the image size next to the weight file",
        )
    hidden = _shape_of(tensors, "blocks.0.mlp.fc2.weight", 2)[1]
    ratio = hidden / width
    if int(width * ratio) != hidden:  # the same computation as in the model
        ratio = math.nextafter(ratio, math.inf)
    head = tensors.get("head.weight")
    has_bias = "blocks.0.norm1.bias" in tensors or "blocks.0.norm1.weight" not in tensors
    heads = facts.heads
    if heads is None:  # the usual number for this width
        named = {size.width: size.heads for size in SIZES.values()}
        heads = named.get(width, width // 64 if width % 64 == 0 else None)
    if not heads or width % heads:
        raise WeightsError(
            f"the number of attention heads is unknown for a width of {width}"
            if heads is None
            else f"the width {width} is not a multiple of the number of attention heads, {heads}",
            fix='set "num_attention_heads" in a config.json next to the weight file',
        )
    # The last norm may be missing only if the architecture is known; otherwise, its absence means
    # that the file is damaged
    has_fc_norm = "fc_norm.weight" in tensors
    is_mean = has_fc_norm or facts.pool == "avg" or not class_token
    has_norm = facts.final_norm or has_fc_norm or "norm.weight" in tensors
    pool: Pool = "map" if "attn_pool.latent" in tensors else "mean" if is_mean else "cls"
    try:
        config = ViTConfig(
            image_size=(rows * patch[0], columns * patch[1]),
            patch_size=patch,
            in_channels=channels,
            width=width,
            depth=len(numbers),
            heads=heads,
            mlp_ratio=ratio,
            qkv_bias="blocks.0.attn.qkv.bias" in tensors,
            proj_bias="blocks.0.attn.proj.bias" in tensors,
            gated_mlp=_shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)[0] == 2 * hidden,
            num_classes=0 if head is None else _shape_of(tensors, "head.weight", 2)[0],
            pre_logits="pre_logits.fc.weight" in tensors,
            norm_eps=1e-6 if facts.norm_eps is None else facts.norm_eps,
            layer_scale=1e-5 if "blocks.0.ls1.gamma" in tensors else 0.0,
            registers=registers,
            prefix_positions=has_places,
            distilled="dist_token" in tensors,
            stem=stem,
            class_token=class_token,
            activation=facts.activation or "gelu",
            positions="pos_embed" in tensors,
            rope=facts.rope,
            norm_layer="layernorm" if has_bias else "rmsnorm",
            embed_norm="norm_pre.weight" in tensors,
            patch_norm="patch_embed.norm.weight" in tensors,
            attn_norm="blocks.0.attn.norm.weight" in tensors,
            mlp_norm="blocks.0.mlp.norm.weight" in tensors,
            pool=pool,
            pool_heads=facts.pool_heads if pool == "map" else 0,
            final_norm=has_norm,
            norm_before_pool=pool == "mean" and has_norm and not has_fc_norm,
        )
    except UsageError as error:  # an error in the file, e.g. an empty kernel
        raise WeightsError(
            f"the tensors do not form a valid Vision Transformer: {error.problem}",
            fix="use other weights",
        ) from error
    if mismatch := tensor_mismatch(facts_of(tensors), vit_shapes(config)):
        is_part = mismatch.startswith("missing")
        raise WeightsError(
            f"the weights do not match a width of {width}, {len(numbers)} blocks and patches of "
            f"{patch[0]}x{patch[1]}: {mismatch}",
            fix="save or download the file again, because it is probably "
            + ("incomplete or edited" if is_part else "a mixture of two models"),
        )
    return config


def _stem_of(tensors: Mapping[str, Tensor]) -> tuple[int, ...] | None:
    """Return the number of bottlenecks per stage of a hybrid's ResNet, or None for a plain ViT."""
    place = re.compile(r"patch_embed\.backbone\.(?:stages\.(\d)\.blocks\.(\d{1,2})\.)?")
    found = [m for name in tensors if (m := place.match(name))]
    if not found:
        return None
    blocks = {(int(m[1]), int(m[2])) for m in found if m[1]}
    last = max(blocks, default=(-1,))[0]
    return tuple(sum(stage == i for stage, _ in blocks) for i in range(last + 1))


def _shape_of(tensors: Mapping[str, Tensor], name: str, dimensions: int) -> tuple[int, ...]:
    """Return the shape of a required tensor, after checking its number of dimensions."""
    shape = tuple(tensors[name].shape) if name in tensors else None
    if shape is None or len(shape) != dimensions or 0 in shape:
        raise WeightsError(
            f"{name} is missing from the weights"
            if shape is None
            else f"{name} has unexpected shape {shape}",
            fix="use the weights of a plain Vision Transformer, in which this tensor has "
            f"{dimensions} dimensions",
        )
    return shape


def _grid_of(
    positions: int, prefix: int, patch: tuple[int, int], image_size: tuple[int, int] | None
) -> tuple[tuple[int, int], bool]:
    """Return the patch grid, and whether the prefix tokens have position embeddings, too."""
    if image_size is not None:
        rows, columns = image_size[0] // patch[0], image_size[1] // patch[1]
        for leading in (prefix, 0):
            if rows * columns == positions - leading > 0:
                return (rows, columns), leading > 0
    side = math.isqrt(positions)
    if prefix and side * side == positions:
        return (side, side), False
    side = math.isqrt(max(positions - prefix, 0))
    if side == 0 or side * side != positions - prefix:
        raise WeightsError(
            f"{positions - prefix} position embeddings do not form a square grid of patches",
            fix="put a config.json that states the image size next to the weight file",
        )
    return (side, side), prefix > 0
