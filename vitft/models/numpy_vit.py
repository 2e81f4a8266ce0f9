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

import functools
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import numpy as np

from vitft.data.transforms import EvalTransform
from vitft.metrics.calibration import softmax
from vitft.models.card import Card
from vitft.models.checkpoint_file import CheckpointFile
from vitft.models.vit_config import ViTConfig

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

Float32Array = np.ndarray[Any, np.dtype[np.float32]]
Uint8Array = np.ndarray[Any, np.dtype[np.uint8]]

MAX_GRID_CELLS = 4096
"""Number of patches above which attention maps would take too much memory."""
MAX_NORM = 1e6
"""Euclidean norm of a tensor above which float32 results could overflow, or depend on the order of
additions; trained weights are far below it."""
ROWS = 16
"""Number of rows of the hidden layer passed to GELU at once, so that they stay in the CPU cache."""
TAIL = (
    -0.004772713412583007, 0.16212970454817136, -0.1169266968126065, 0.6784044098003498,
    -0.7767180176870074, 0.8124795498247189, -0.2879519273475093, 0.03335568965996974,
)  # fmt: skip
BEND = 0.28
"""For x >= 0, (1 - Phi(x)) exp(x^2 / 2) is approximated by a polynomial in 1 / (1 + BEND x) with
the coefficients `TAIL`. They were fitted to scipy's erfcx; the error of x Phi(x) is below 2e-9.
"""


class NumpyModel:
    """A Vision Transformer that needs only NumPy.

    Args:
        config: Architecture, without a stem or convolutions.
        weights: Tensors under timm's names.
        threads: Number of threads for the layers that process tokens independently.
    """

    def __init__(
        self, config: ViTConfig, weights: Mapping[str, Float32Array], *, threads: int = 1
    ) -> None:
        self.threads = threads
        self.helpers = ThreadPoolExecutor(threads, thread_name_prefix="vitft-tokens")
        self.config, self.weights = config, weights
        self.width, self.depth = config.width, config.depth
        self.heads, self.eps = config.heads, config.norm_eps
        self.num_read, self.num_prefix = config.num_read, config.num_prefix
        self.read_blocks = config.read_blocks

    @property
    def feature_size(self) -> int:
        """Number of dimensions of an image's pooled feature."""
        return self.config.feature_size

    def __getitem__(self, name: str) -> Float32Array:
        return self.weights[name]

    def features(self, pixels: Float32Array) -> Float32Array:
        """Return pooled features (B, `feature_size`) of normalised pixels (B, S, S, channels)."""
        x, earlier = self.embed(pixels), []  # (B, N, D)
        for i in range(self.depth):
            is_last = i == self.depth - 1 and self.config.pool == "cls"
            x = self.block(x, f"blocks.{i}.", self.num_read if is_last else x.shape[1])
            if self.depth - self.read_blocks <= i < self.depth - 1:
                earlier.append(self.summarise(x))
        if self.config.pool == "mean":
            x = self.norm(x, "norm.") if self.config.norm_before_pool else x
            mean = x[:, self.num_prefix :].mean(axis=1)
            return mean if self.config.norm_before_pool else self.norm(mean, "fc_norm.")
        last = self.norm(x, "norm.").reshape(len(x), -1)  # only the class tokens are left
        return np.concatenate([last, *earlier], axis=1) if earlier else last

    def summarise(self, x: Float32Array) -> Float32Array:
        """Return the normalised class token and mean patch token: (B, N, D) to (B, 2 * D)."""
        mean = x[:, self.num_prefix :].mean(axis=1, keepdims=True)
        return self.norm(np.concatenate([x[:, :1], mean], axis=1), "norm.").reshape(len(x), -1)

    def embed(self, pixels: Float32Array) -> Float32Array:
        """Convert normalised pixels to tokens with position embeddings (equation 1).

        Shapes: (B, S, S, channels) to (B, N, D).
        """
        kernel = self["patch_embed.proj.weight"]  # (D, channels, p, p)
        down, across = kernel.shape[2:]
        height, width, channels = pixels.shape[1:]
        grid = pixels.reshape(-1, height // down, down, width // across, across, channels)
        patches = grid.transpose(0, 1, 3, 5, 2, 4).reshape(len(pixels), -1, kernel[0].size)
        x = patches @ kernel.reshape(len(kernel), -1).T
        x += self.weights.get("patch_embed.proj.bias", np.float32(0))
        names = [n for n in ("cls_token", "dist_token", "reg_token") if n in self.weights]
        prefix = [np.broadcast_to(self[n], (len(x), *self[n].shape[1:])) for n in names]
        if self.config.prefix_positions:
            x = np.concatenate([*prefix, x], axis=1) + self["pos_embed"]
        else:
            x = np.concatenate([*prefix, x + self["pos_embed"]], axis=1)
        return self.norm(x, "norm_pre.") if self.config.embed_norm else x

    def block(self, x: Float32Array, name: str, rows: int) -> Float32Array:
        """Return the first `rows` tokens after one encoder layer (equations 2, 3): (B, rows, D)."""
        kept = x[:, :rows]
        if self.config.norm == "post":
            mixed = self.scaled(self.attention(x, name, rows), f"{name}ls1.")
            kept = self.norm(kept + mixed, f"{name}norm1.")
            return self.norm(
                kept + self.scaled(self.mlp(kept, name), f"{name}ls2."), f"{name}norm2."
            )
        mixed = self.attention(self.norm(x, f"{name}norm1."), name, rows)
        kept = kept + self.scaled(mixed, f"{name}ls1.")
        hidden = self.mlp(self.norm(kept, f"{name}norm2."), name)
        return kept + self.scaled(hidden, f"{name}ls2.")

    def attention(self, x: Float32Array, name: str, rows: int) -> Float32Array:
        """Return the attention output of the first `rows` tokens (appendix A): (B, rows, D)."""
        weight = self[f"{name}attn.qkv.weight"]  # stacked rows for queries, keys and values
        bias = self.weights.get(f"{name}attn.qkv.bias", np.zeros(len(weight), np.float32))
        d = self.width
        q = self.by_head(x[:, :rows] @ weight[:d].T + bias[:d])  # (B, H, rows, K)
        kv = self.each(lambda part: part @ weight[d:].T + bias[d:], x)  # (B, N, 2 * D)
        k, v = self.by_head(kv[..., :d]), self.by_head(kv[..., d:])  # each (B, H, N, K)
        weights = softmax(as_floats(q / math.sqrt(d // self.heads)) @ k.swapaxes(2, 3))
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(len(x), rows, d)
        return self.each(lambda part: self.linear(part, f"{name}attn.proj."), mixed)

    def by_head(self, x: Float32Array) -> Float32Array:
        """Split the last axis into heads: (B, N, D) to (B, H, N, K)."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(0, 2, 1, 3)

    def mlp(self, x: Float32Array, name: str) -> Float32Array:
        """Apply two linear layers with a GELU in between to each token: (B, N, D) to (B, N, D)."""
        activation = GELUS[self.config.activation]

        def of_tokens(part: Float32Array) -> Float32Array:
            hidden = self.linear(part, f"{name}mlp.fc1.")
            for i in range(0, len(hidden), ROWS):
                hidden[i : i + ROWS] = activation(hidden[i : i + ROWS])
            return self.linear(hidden, f"{name}mlp.fc2.")

        return self.each(of_tokens, x)

    def each(
        self, function: Callable[[Float32Array], Float32Array], x: Float32Array
    ) -> Float32Array:
        """Apply a function of tokens (n, D) to all tokens (B, N, D), in parallel threads.

        Raises:
            FloatingPointError: A result is not finite.
        """
        function = strictly(function)
        flat = x.reshape(-1, x.shape[-1])
        if self.threads == 1 or len(flat) < 2 * ROWS:
            done = function(flat)
        else:
            done = np.concatenate([*self.helpers.map(function, np.array_split(flat, self.threads))])
        return done.reshape(*x.shape[:-1], -1)

    def linear(self, x: Float32Array, name: str) -> Float32Array:
        """Apply the linear layer `name` to the last axis."""
        out = x @ self[f"{name}weight"].T
        out += self[f"{name}bias"]
        return out

    def norm(self, x: Float32Array, name: str) -> Float32Array:
        """Apply the LayerNorm `name` over the last axis.

        Raises:
            FloatingPointError: The variance of a token is not finite.
        """
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.einsum("...d,...d->...", centred, centred)[..., None] / x.shape[-1]
        if not np.isfinite(variance).all():  # dividing by infinity would hide an overflow
            raise FloatingPointError("the variance of a token overflows")
        centred /= np.sqrt(variance + np.float32(self.eps))
        return centred * self[f"{name}weight"] + self[f"{name}bias"]

    def scaled(self, x: Float32Array, name: str) -> Float32Array:
        """Apply the LayerScale `name`, if the model has it."""
        gamma = self.weights.get(f"{name}gamma")
        return x if gamma is None else x * gamma

    def classify(self, features: Float32Array) -> Float32Array:
        """Return class scores (logits) from pooled features: (B, `feature_size`) to (B, C)."""
        if self.config.distilled:  # mean of the two heads' logits
            cls, dist = features[:, : self.width], features[:, self.width :]
            return as_floats((self.linear(cls, "head.") + self.linear(dist, "head_dist.")) / 2)
        if self.config.pre_logits:
            features = np.tanh(self.linear(features, "pre_logits.fc."))
        return self.linear(features, "head.")


def strictly(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Wrap a function so that overflow and undefined results raise FloatingPointError.

    By default, NumPy only warns, and an infinite intermediate result can lead to a final result
    that is finite but wrong.
    """

    @functools.wraps(function)
    def checked(*args: Arguments.args, **options: Arguments.kwargs) -> Returned:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            return function(*args, **options)

    return checked


def gelu(x: Float32Array) -> Float32Array:
    """Return the exact GELU, x Phi(x), where Phi is the standard normal distribution function.

    Phi(x) is 1 - r(x) for x >= 0 and r(-x) otherwise, so in both cases the result is
    max(x, 0) - |x| r(|x|). Here, r(x) is exp(-x^2 / 2) times the polynomial with the coefficients
    `TAIL`.
    """
    size = np.abs(x)
    t = 1 / (1 + np.float32(BEND) * size)
    tail = np.full_like(t, TAIL[-1])
    for coefficient in TAIL[-2::-1]:
        tail *= t
        tail += np.float32(coefficient)
    tail *= np.exp(np.square(x) * np.float32(-0.5))
    tail *= size
    return as_floats(np.maximum(x, 0) - tail)


def gelu_tanh(x: Float32Array) -> Float32Array:
    """Return the approximation 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) of GELU."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return as_floats(np.float32(0.5) * x * (1 + np.tanh(inner)))


def sigmoid_gelu(x: Float32Array) -> Float32Array:
    """Return the approximation x sigmoid(1.702 x) of GELU; with tanh, it cannot overflow."""
    return as_floats(np.float32(0.5) * x * (1 + np.tanh(np.float32(0.851) * x)))


GELUS: Mapping[str, Callable[[Float32Array], Float32Array]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": sigmoid_gelu,
}
"""NumPy versions of the functions in `activations`."""


def normalise(views: Uint8Array, transform: EvalTransform) -> Float32Array:
    """Normalise channels-last views: uint8 (B, S, S, 3) to float32 (B, S, S, channels).

    If the transform has fewer than 3 channels, only the first ones are kept.
    """
    mean, std = np.array(transform.mean, np.float32), np.array(transform.std, np.float32)
    return (as_floats(views[..., : len(mean)]) / np.float32(255) - mean) / std


def as_floats(x: Any) -> Float32Array:  # noqa: ANN401 - any array of numbers
    """Convert an array to float32; an array that is already float32 is not copied."""
    return np.asarray(x, np.float32)


def numpy_supports(card: Card) -> bool:
    """Return whether this module can classify images with the model that a card describes."""
    shape = card.architecture
    if not isinstance(shape, ViTConfig) or shape.stem is not None or shape.convs:
        return False
    is_small = math.prod(shape.grid) <= MAX_GRID_CELLS  # attention maps are stored
    return is_small and bool(card.classes) and shape.in_channels in (1, 3)


def numpy_model(opened: CheckpointFile, *, threads: int = 1) -> NumpyModel | None:
    """Return the model of a checkpoint, or None if this module does not support it.

    Checkpoints in which the norm of a tensor exceeds `MAX_NORM` are not supported either,
    because different implementations could disagree on whether their results overflow.
    """
    shape = opened.card.architecture
    if not numpy_supports(opened.card) or not isinstance(shape, ViTConfig):
        return None
    weights = {
        name: np.frombuffer(opened.data[name], np.float32).reshape(facts.shape)
        for name, facts in opened.tensors.items()
    }
    with np.errstate(over="ignore"):
        if any(np.vdot(array, array) > MAX_NORM**2 for array in weights.values()):
            return None
    return NumpyModel(shape, weights, threads=threads)
