"""The Vision Transformer in plain NumPy: an independent implementation, for tests and for speed.

Classifying a few images with this model takes less time than importing torch. Given the same file,
it computes the same float32 results as `vit.VisionTransformer`, up to rounding, but the two share
no code. This model cannot be trained, runs only on the CPU, and does not support hybrids,
convolutional stems or timm models.

Notation: B images, S image side in pixels (the height and width may differ), P patches, N tokens
(prefix + P), D width, H heads, K head width, C classes.

Sources: Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929; Hendrycks & Gimpel 2016 (GELU),
1606.08415; the layout of safetensors files, https://github.com/huggingface/safetensors.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from vitft.data.transforms import EvalTransform
from vitft.metrics.calibration import softmax
from vitft.models.card import Card, CheckpointFile
from vitft.models.vit_config import ViTConfig

Float32Array = np.ndarray[Any, np.dtype[np.float32]]
_Uint8Array = np.ndarray[Any, np.dtype[np.uint8]]

_MAX_GRID_CELLS = 4096  # number of patches above which attention maps would take too much memory
_MAX_NORM = 1e6
"""Euclidean norm of a tensor above which float32 results could overflow, or depend on the order of
additions; trained weights are far below it."""
_ROWS = 16
"""Number of rows of the hidden layer passed to GELU at once, so that they stay in the CPU cache."""
_TAIL = (
    -0.004772713412583007, 0.16212970454817136, -0.1169266968126065, 0.6784044098003498,
    -0.7767180176870074, 0.8124795498247189, -0.2879519273475093, 0.03335568965996974,
)  # fmt: skip
_BEND = 0.28
"""For x >= 0, (1 - Phi(x)) exp(x^2 / 2) is approximated by a polynomial in 1 / (1 + BEND x) with
the coefficients `_TAIL`. They were fitted to scipy's erfcx; the error of x Phi(x) is below 2e-9."""


class NumpyModel:
    """A Vision Transformer that needs only NumPy, with the steps of `VisionTransformer`.

    Args:
        config: Architecture, without a stem or convolutions.
        weights: Tensors under timm's names.
        threads: Number of threads for the layers that process tokens independently.
    """

    def __init__(
        self, config: ViTConfig, weights: Mapping[str, Float32Array], *, threads: int = 1
    ) -> None:
        self.threads, self.config, self.weights = threads, config, weights
        self.helpers = ThreadPoolExecutor(threads, thread_name_prefix="vitft-tokens")
        self.width, self.depth, self.heads = config.width, config.depth, config.heads
        self.num_read, self.num_prefix = config.num_read, config.num_prefix
        self.feature_size = config.feature_size
        self.turns = _rotations(config) if config.rope else None

    def __getitem__(self, name: str) -> Float32Array:
        return self.weights[name]

    def features(self, pixels: Float32Array, intermediate: int = 0) -> Float32Array:
        """Return pooled features (B, `feature_size`) of normalised pixels (B, S, S, channels).

        If `intermediate` is not 0, the intermediate feature of the first `intermediate` blocks
        follows: (B, `feature_size` + D).
        """
        x, earlier, more = self.embed(pixels), [], []  # x is (B, N, D)
        for i in range(self.depth):
            is_last = i == self.depth - 1 and self.config.pool == "cls"
            x = self.block(x, f"blocks.{i}.", self.num_read if is_last else x.shape[1])
            if self.depth - self.config.read_blocks <= i < self.depth - 1:
                earlier.append(self.summarise(x))
            if i + 1 == intermediate:
                more.append(self.intermediate_feature(x))
        x = self.norm_if_there(x, "norm.")
        if self.config.pool == "map":
            last = self.attention_pool(x)
        elif self.config.pool == "mean":
            last = self.norm_if_there(x[:, self.num_prefix :].mean(axis=1), "fc_norm.")
        else:
            last = x.reshape(len(x), -1)  # only the class tokens are left
        parts = [last, *earlier, *more]
        return np.concatenate(parts, axis=1) if len(parts) > 1 else last

    def intermediate_feature(self, x: Float32Array) -> Float32Array:
        if self.config.pool == "cls":
            return self.norm_if_there(x[:, 0], "norm.")
        mean = x[:, self.num_prefix :].mean(axis=1)
        return self.norm_if_there(self.norm_if_there(mean, "norm."), "fc_norm.")

    def summarise(self, x: Float32Array) -> Float32Array:
        if self.config.pool == "mean":
            return self.intermediate_feature(x)
        both = np.stack([x[:, 0], x[:, self.num_prefix :].mean(axis=1)], axis=1)
        return self.norm_if_there(both, "norm.").reshape(len(x), -1)

    def attention_pool(self, x: Float32Array) -> Float32Array:
        heads, d = self.config.pool_heads or self.heads, self.width
        query = self.linear(self["attn_pool.latent"], "attn_pool.q.")  # (1, 1, D)
        kv = self.each(lambda part: self.linear(part, "attn_pool.kv."), x)  # (B, N, 2 * D)
        q, k, v = (_by_head(part, heads) for part in (query, kv[..., :d], kv[..., d:]))
        pooled = self.linear(_mix_values(q, k, v), "attn_pool.proj.")  # (B, 1, D)
        hidden = self.norm(pooled, "attn_pool.norm.")
        return (pooled + self.mlp(hidden, "attn_pool.mlp.", is_gated=False))[:, 0]

    def embed(self, pixels: Float32Array) -> Float32Array:
        """Convert normalised pixels (B, S, S, channels) to tokens (B, N, D) (equation 1)."""
        kernel = self["patch_embed.proj.weight"]  # (D, channels, p, p)
        down, across = kernel.shape[2:]
        height, width, channels = pixels.shape[1:]
        grid = pixels.reshape(-1, height // down, down, width // across, across, channels)
        patches = grid.transpose(0, 1, 3, 5, 2, 4).reshape(len(pixels), -1, kernel[0].size)
        x = patches @ kernel.reshape(len(kernel), -1).T
        x += self.weights.get("patch_embed.proj.bias", np.float32(0))
        x = self.norm_if_there(x, "patch_embed.norm.")
        table = self.weights.get("pos_embed", np.float32(0))
        names = [n for n in ("cls_token", "dist_token", "reg_token") if n in self.weights]
        prefix = [np.broadcast_to(self[n], (len(x), *self[n].shape[1:])) for n in names]
        if self.config.prefix_positions:
            x = np.concatenate([*prefix, x], axis=1) + table
        else:
            x = np.concatenate([*prefix, x + table], axis=1)
        return self.norm_if_there(x, "norm_pre.")

    def block(self, x: Float32Array, name: str, rows: int) -> Float32Array:
        """Return the first `rows` tokens after one encoder layer (equations 2, 3): (B, rows, D)."""
        kept = x[:, :rows]
        if self.config.norm == "post":
            mixed = self.scaled(self.attention(x, name, rows), f"{name}ls1.")
            kept = self.norm(kept + mixed, f"{name}norm1.")
            hidden = self.scaled(self.mlp(kept, f"{name}mlp."), f"{name}ls2.")
            return self.norm(kept + hidden, f"{name}norm2.")
        mixed = self.attention(self.norm(x, f"{name}norm1."), name, rows)
        kept = kept + self.scaled(mixed, f"{name}ls1.")
        hidden = self.mlp(self.norm(kept, f"{name}norm2."), f"{name}mlp.")
        return kept + self.scaled(hidden, f"{name}ls2.")

    def attention(self, x: Float32Array, name: str, rows: int) -> Float32Array:
        """Return the attention output of the first `rows` tokens (appendix A): (B, rows, D)."""
        weight = self[f"{name}attn.qkv.weight"]  # stacked rows for queries, keys and values
        bias = self.weights.get(f"{name}attn.qkv.bias", np.zeros(len(weight), np.float32))
        d = self.width
        q = self.turned(_by_head(x[:, :rows] @ weight[:d].T + bias[:d], self.heads))
        kv = self.each(lambda part: part @ weight[d:].T + bias[d:], x)  # (B, N, 2 * D)
        k = self.turned(_by_head(kv[..., :d], self.heads))  # (B, H, N, K)
        mixed = _mix_values(q, k, _by_head(kv[..., d:], self.heads))
        mixed = self.norm_if_there(mixed, f"{name}attn.norm.")
        return self.each(lambda part: self.linear(part, f"{name}attn.proj."), mixed)

    def turned(self, x: Float32Array) -> Float32Array:
        """Apply rotary position embeddings, if any, to the first M tokens (B, H, M, K)."""
        if self.turns is None:
            return x
        cos, sin = (table[: x.shape[2]] for table in self.turns)  # (M, K / 2)
        half = x.shape[3] // 2
        first, second = slice(0, None, 2), slice(1, None, 2)
        if self.config.rope and self.config.rope.halves:
            first, second = slice(half), slice(half, None)
        result = np.empty_like(x)
        result[..., first] = x[..., first] * cos - x[..., second] * sin
        result[..., second] = x[..., second] * cos + x[..., first] * sin
        return result

    def mlp(self, x: Float32Array, name: str, *, is_gated: bool | None = None) -> Float32Array:
        gated = self.config.gated_mlp if is_gated is None else is_gated
        activation = _swiglu if gated else _GELUS[self.config.activation]

        def of_tokens(part: Float32Array) -> Float32Array:
            hidden = self.linear(part, f"{name}fc1.")
            parts = [activation(hidden[i : i + _ROWS]) for i in range(0, len(hidden), _ROWS)]
            hidden = self.norm_if_there(np.concatenate(parts), f"{name}norm.")
            return self.linear(hidden, f"{name}fc2.")

        return self.each(of_tokens, x)

    def each(
        self, function: Callable[[Float32Array], Float32Array], x: Float32Array
    ) -> Float32Array:
        """Apply a function of tokens (n, D) to all tokens (B, N, D), in parallel threads."""
        function = strictly(function)
        flat = x.reshape(-1, x.shape[-1])
        if self.threads == 1 or len(flat) < 2 * _ROWS:
            done = function(flat)
        else:
            done = np.concatenate([*self.helpers.map(function, np.array_split(flat, self.threads))])
        return done.reshape(*x.shape[:-1], -1)

    def linear(self, x: Float32Array, name: str) -> Float32Array:
        out = x @ self[f"{name}weight"].T
        out += self.weights.get(f"{name}bias", np.float32(0))
        return out

    def norm_if_there(self, x: Float32Array, name: str) -> Float32Array:
        return self.norm(x, name) if f"{name}weight" in self.weights else x

    def norm(self, x: Float32Array, name: str) -> Float32Array:
        is_rms = self.config.norm_layer == "rmsnorm"
        centred = x.copy() if is_rms else x - x.mean(axis=-1, keepdims=True)
        variance = np.einsum("...d,...d->...", centred, centred)[..., None] / x.shape[-1]
        if not np.isfinite(variance).all():  # dividing by infinity would hide an overflow
            raise FloatingPointError("the variance of a token overflows")
        centred /= np.sqrt(variance + np.float32(self.config.norm_eps))
        return centred * self[f"{name}weight"] + self.weights.get(f"{name}bias", np.float32(0))

    def scaled(self, x: Float32Array, name: str) -> Float32Array:
        gamma = self.weights.get(f"{name}gamma")
        return x if gamma is None else x * gamma

    def classify(self, features: Float32Array) -> Float32Array:
        if self.config.distilled:  # mean of the two heads' logits
            cls, dist = features[:, : self.width], features[:, self.width :]
            return _as_floats((self.linear(cls, "head.") + self.linear(dist, "head_dist.")) / 2)
        if self.config.pre_logits:
            features = np.tanh(self.linear(features, "pre_logits.fc."))
        return self.linear(features, "head.")


strictly = np.errstate(over="raise", invalid="raise", divide="raise")
"""Decorator with which overflow and undefined results raise FloatingPointError. By default, NumPy
only warns, but an infinite value can lead to a result that is wrong."""


def _gelu(x: Float32Array) -> Float32Array:
    """Return the exact GELU, x Phi(x), where Phi is the standard normal distribution function.

    Phi(x) is 1 - r(x) for x >= 0 and r(-x) otherwise, so in both cases the result is
    max(x, 0) - |x| r(|x|). Here, r(x) is exp(-x^2 / 2) times the polynomial with the coefficients
    `_TAIL`.
    """
    size = np.abs(x)
    t = 1 / (1 + np.float32(_BEND) * size)
    tail = np.full_like(t, _TAIL[-1])
    for coefficient in _TAIL[-2::-1]:
        tail *= t
        tail += np.float32(coefficient)
    tail *= np.exp(np.square(x) * np.float32(-0.5))
    tail *= size
    return _as_floats(np.maximum(x, 0) - tail)


def _gelu_tanh(x: Float32Array) -> Float32Array:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return _as_floats(np.float32(0.5) * x * (1 + np.tanh(inner)))


def _sigmoid_gelu(x: Float32Array) -> Float32Array:
    """Return x sigmoid(1.702 x), with tanh."""
    return _as_floats(np.float32(0.5) * x * (1 + np.tanh(np.float32(0.851) * x)))


def _swiglu(hidden: Float32Array) -> Float32Array:
    """Return silu(gate) * value; silu(x) = x sigmoid(x), which with tanh cannot overflow."""
    gate, value = np.split(hidden, 2, axis=-1)
    return _as_floats(np.float32(0.5) * gate * (1 + np.tanh(np.float32(0.5) * gate)) * value)


def _by_head(x: Float32Array, heads: int) -> Float32Array:
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)  # (B, H, N, K)


def _mix_values(q: Float32Array, k: Float32Array, v: Float32Array) -> Float32Array:
    """Return the attention-weighted values for M queries (appendix A): (B, M, D)."""
    weights = softmax(_as_floats(q / math.sqrt(q.shape[-1])) @ k.swapaxes(2, 3))
    mixed = (weights @ v).transpose(0, 2, 1, 3)  # (B, M, H, K)
    return mixed.reshape(*mixed.shape[:2], -1)


def _rotations(config: ViTConfig) -> tuple[Float32Array, Float32Array]:
    """Return the cosines and sines (N, K / 2) of rotary position embeddings (see `Rotary`)."""
    rope, size = config.rope, config.width // config.heads
    assert rope is not None, "only for models with rotary position embeddings"
    axes: list[Any] = []
    for axis, count in enumerate(config.grid):
        if rope.unit:
            axes.append(2 * math.pi * ((2 * np.arange(count) + 1) / count - 1))
        else:
            scale = rope.grid[axis] / count if rope.grid else 1.0
            axes.append((np.arange(count) + rope.offset) * scale)
    places = np.meshgrid(*axes, indexing="ij")  # rows, columns
    frequencies = rope.base ** (-np.arange(size // 4) / (size // 4))
    ordered = places[::-1] if rope.x_first else places
    angles = [place.reshape(-1, 1) * frequencies for place in ordered]  # each (P, K / 4)
    prefix = np.zeros((config.num_prefix, size // 2))
    table = np.concatenate([prefix, np.concatenate(angles, axis=1)])
    return _as_floats(np.cos(table)), _as_floats(np.sin(table))


_GELUS: Mapping[str, Callable[[Float32Array], Float32Array]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _sigmoid_gelu,
}
"""NumPy versions of the activation functions in `layers`."""


def normalise(views: _Uint8Array, transform: EvalTransform) -> Float32Array:
    """Normalise channels-last views: uint8 (B, S, S, 3) to float32 (B, S, S, channels).

    If the transform has fewer than 3 channels, only that many leading channels are kept.
    """
    mean, std = np.array(transform.mean, np.float32), np.array(transform.std, np.float32)
    return (_as_floats(views[..., : len(mean)]) / np.float32(255) - mean) / std


def _as_floats(x: Any) -> Float32Array:  # noqa: ANN401 - any array of numbers
    return np.asarray(x, np.float32)  # an array that is already float32 is not copied


def numpy_supports(card: Card) -> bool:
    """Return whether this module can classify images with the model that a card describes."""
    shape = card.architecture
    if not isinstance(shape, ViTConfig) or shape.stem is not None or shape.convs:
        return False
    is_small = math.prod(shape.grid) <= _MAX_GRID_CELLS  # attention maps are stored
    return is_small and bool(card.classes) and shape.in_channels in (1, 3)


def numpy_model(opened: CheckpointFile, *, threads: int = 1) -> NumpyModel | None:
    """Return the model of a checkpoint, or None if this module does not support it.

    If the norm of a tensor exceeds `_MAX_NORM`, implementations could differ on an overflow.
    """
    if not numpy_supports(opened.card):
        return None
    weights = {
        name: np.frombuffer(opened.data[name], np.float32).reshape(facts.shape)
        for name, facts in opened.tensors.items()
    }
    with np.errstate(over="ignore"):
        if any(np.vdot(array, array) > _MAX_NORM**2 for array in weights.values()):
            return None
    return NumpyModel(opened.card.vit, weights, threads=threads)
