"""The Vision Transformer in plain NumPy: an independent implementation, for tests and for speed.

Predicting a few images takes less time than importing torch. From the same file, the model computes
in float32 what `vit.VisionTransformer` computes, but it shares no code with it. It cannot be
trained, runs on the CPU only, and supports neither hybrids nor timm models.

Notation: B images, P patches, N tokens (prefix + P), D width, H heads, K head width, C classes.

Sources: Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929; Hendrycks & Gimpel 2016 (GELU),
1606.08415; the layout of safetensors files, https://github.com/huggingface/safetensors.
"""

import hashlib
import json
import math
import mmap
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitft.data.transforms import EvalTransform
from vitft.metrics.calibration import softmax

Float32Array = np.ndarray[Any, np.dtype[np.float32]]
Uint8Array = np.ndarray[Any, np.dtype[np.uint8]]

ROWS = 16
"""Number of rows of the hidden layer passed to GELU at once, so that they stay in the CPU cache."""
TAIL = (
    -0.004772713412583007, 0.16212970454817136, -0.1169266968126065, 0.6784044098003498,
    -0.7767180176870074, 0.8124795498247189, -0.2879519273475093, 0.03335568965996974,
)  # fmt: skip
BEND = 0.28
"""For x >= 0, (1 - Phi(x)) exp(x^2 / 2) is a polynomial in 1 / (1 + BEND x) with the coefficients
`TAIL`: a least-squares fit to scipy's erfcx; the error of x Phi(x) is below 2e-9."""

CONFIG_FIELDS = {
    "image_size", "patch_size", "in_channels", "width", "depth", "heads", "mlp_ratio", "qkv_bias",
    "num_classes", "pre_logits", "pool", "drop_path", "norm", "norm_eps", "layer_scale",
    "registers", "prefix_positions", "distilled", "stem", "convs", "read_blocks",
}  # fmt: skip
NEW_FIELDS = {"convs", "read_blocks"}
"""Fields that older files do not have."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """Memory-mapped safetensors file: metadata, and tensors as views."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, Float32Array]
    chunks: tuple[tuple[bytes, memoryview], ...]
    """Input of the digest after the card: a header line and the bytes of each tensor."""

    def digest(self) -> str:
        """Return the same digest as `checkpoint.state_digest`. Reads the whole file."""
        digest = hashlib.sha256(self.metadata["vitft.card"].encode())
        for line, data in self.chunks:
            digest.update(line)
            digest.update(data)
        return digest.hexdigest()

    def is_whole(self) -> bool:
        """Return whether the file is unchanged since it was written. Reads the whole file."""
        known = {"format": "pt", "vitft.format": "1", "vitft.card": self.metadata["vitft.card"]}
        return self.metadata == known | {"vitft.sha256": self.digest()}


def map_file(path: Path) -> MappedFile | None:
    """Return a memory-mapped checkpoint, or None for any other file (`checkpoint` reports why)."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > 100_000_000:  # the limit of the safetensors library
                return None
            header = json.loads(file.read(size))
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[8 + size :]
            metadata = header.pop("__metadata__")
            tensors, chunks = {}, []
            for name in sorted(header):
                begin, end = header[name]["data_offsets"]
                shape = tuple(header[name]["shape"])
                if header[name]["dtype"] != "F32" or end - begin != 4 * math.prod(shape):
                    return None
                data = mapped[begin:end]
                tensors[name] = np.frombuffer(data, np.float32).reshape(shape)
                chunks.append((f"\n{name} torch.float32 {shape}\n".encode(), data))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if "vitft.card" not in metadata:
        return None
    return MappedFile(metadata, tensors, tuple(chunks))


class NumpyModel:
    """A Vision Transformer that needs only NumPy.

    Args:
        settings: The card's `architecture`, which has the fields of `ViTConfig`.
        weights: Tensors under timm's names.
        threads: Number of threads for the layers that process tokens independently.
    """

    def __init__(
        self, settings: Mapping[str, Any], weights: Mapping[str, Float32Array], *, threads: int = 1
    ) -> None:
        self.threads = threads
        self.helpers = ThreadPoolExecutor(threads, thread_name_prefix="vitft-tokens")
        self.settings, self.weights = settings, weights
        self.width, self.depth = int(settings["width"]), int(settings["depth"])
        self.heads, self.eps = int(settings["heads"]), float(settings["norm_eps"])
        self.num_read = 2 if settings["distilled"] else 1
        self.num_prefix = self.num_read + int(settings["registers"])
        self.read_blocks = int(settings.get("read_blocks", 1))

    @property
    def feature_size(self) -> int:
        """Number of dimensions of an image's pooled feature."""
        reads = self.num_read if self.settings["pool"] == "cls" else 1
        return self.width * (reads + 2 * (self.read_blocks - 1))

    def __getitem__(self, name: str) -> Float32Array:
        return self.weights[name]

    def features(self, pixels: Float32Array) -> Float32Array:
        """Return pooled features (B, D) of normalised pixels (B, S, S, channels), channels last."""
        x, earlier = self.embed(pixels), []  # (B, N, D)
        for i in range(self.depth):
            is_last = i == self.depth - 1 and self.settings["pool"] == "cls"
            x = self.block(x, f"blocks.{i}.", self.num_read if is_last else x.shape[1])
            if self.depth - self.read_blocks <= i < self.depth - 1:
                earlier.append(self.summarise(x))
        if self.settings["pool"] == "mean":
            return self.norm(x[:, self.num_prefix :].mean(axis=1), "fc_norm.")
        last = self.norm(x, "norm.").reshape(len(x), -1)  # only the class tokens are left
        return np.concatenate([last, *earlier], axis=1) if earlier else last

    def summarise(self, x: Float32Array) -> Float32Array:
        """Return the normalised class token and mean patch token: (B, N, D) to (B, 2 * D)."""
        mean = x[:, self.num_prefix :].mean(axis=1, keepdims=True)
        return self.norm(np.concatenate([x[:, :1], mean], axis=1), "norm.").reshape(len(x), -1)

    def embed(self, pixels: Float32Array) -> Float32Array:
        """Return the projected patches with prefix tokens and positions (equation 1)."""
        kernel = self["patch_embed.proj.weight"]  # (D, channels, p, p)
        down, across = kernel.shape[2:]
        height, width, channels = pixels.shape[1:]
        grid = pixels.reshape(-1, height // down, down, width // across, across, channels)
        patches = grid.transpose(0, 1, 3, 5, 2, 4).reshape(len(pixels), -1, kernel[0].size)
        x = patches @ kernel.reshape(len(kernel), -1).T + self["patch_embed.proj.bias"]
        names = [n for n in ("cls_token", "dist_token", "reg_token") if n in self.weights]
        prefix = [np.broadcast_to(self[n], (len(x), *self[n].shape[1:])) for n in names]
        if self.settings["prefix_positions"]:
            return np.concatenate([*prefix, x], axis=1) + self["pos_embed"]
        return np.concatenate([*prefix, x + self["pos_embed"]], axis=1)

    def block(self, x: Float32Array, name: str, rows: int) -> Float32Array:
        """Return the first `rows` tokens after one encoder layer (equations 2 and 3)."""
        kept = x[:, :rows]
        if self.settings["norm"] == "post":
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
        """Apply two linear layers with a GELU in between to each token."""

        def of_tokens(part: Float32Array) -> Float32Array:
            hidden = self.linear(part, f"{name}mlp.fc1.")
            for i in range(0, len(hidden), ROWS):
                hidden[i : i + ROWS] = gelu(hidden[i : i + ROWS])
            return self.linear(hidden, f"{name}mlp.fc2.")

        return self.each(of_tokens, x)

    def each(
        self, function: Callable[[Float32Array], Float32Array], x: Float32Array
    ) -> Float32Array:
        """Apply a function of tokens (n, D) to all tokens (B, N, D), in parallel threads."""
        flat = x.reshape(-1, x.shape[-1])
        if self.threads == 1 or len(flat) < 2 * ROWS:
            done = function(flat)
        else:
            done = np.concatenate([*self.helpers.map(function, np.array_split(flat, self.threads))])
        return done.reshape(*x.shape[:-1], -1)

    def linear(self, x: Float32Array, name: str) -> Float32Array:
        """Apply a linear layer."""
        out = x @ self[f"{name}weight"].T
        out += self[f"{name}bias"]
        return out

    def norm(self, x: Float32Array, name: str) -> Float32Array:
        """Apply LayerNorm over the last axis."""
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.einsum("...d,...d->...", centred, centred)[..., None] / x.shape[-1]
        centred /= np.sqrt(variance + np.float32(self.eps))
        return centred * self[f"{name}weight"] + self[f"{name}bias"]

    def scaled(self, x: Float32Array, name: str) -> Float32Array:
        """Apply LayerScale, if the model has it."""
        gamma = self.weights.get(f"{name}gamma")
        return x if gamma is None else x * gamma

    def classify(self, features: Float32Array) -> Float32Array:
        """Return class scores (logits) from pooled features: (B, D) to (B, C)."""
        if self.settings["distilled"]:  # mean of two heads, one per class token
            cls, dist = features[:, : self.width], features[:, self.width :]
            return as_floats((self.linear(cls, "head.") + self.linear(dist, "head_dist.")) / 2)
        if self.settings["pre_logits"]:
            features = np.tanh(self.linear(features, "pre_logits.fc."))
        return self.linear(features, "head.")


def gelu(x: Float32Array) -> Float32Array:
    """Return the exact GELU, x Phi(x), where Phi is the normal distribution function.

    Phi(x) is 1 - r(x) for x >= 0 and r(-x) otherwise, so in both cases the result is
    max(x, 0) - |x| r(|x|), with r(x) = exp(-x^2 / 2) times the polynomial of `TAIL`.
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


def normalise(views: Uint8Array, transform: EvalTransform) -> Float32Array:
    """Normalise views with channels last: uint8 (B, S, S, 3) to float32 (B, S, S, channels)."""
    mean, std = np.array(transform.mean, np.float32), np.array(transform.std, np.float32)
    return (as_floats(views[..., : len(mean)]) / np.float32(255) - mean) / std


def as_floats(x: Any) -> Float32Array:  # noqa: ANN401 - any array of numbers
    """Return an array as float32, without a copy if it is float32 already."""
    return np.asarray(x, np.float32)


def numpy_supports(card: Mapping[str, Any]) -> bool:
    """Return whether this module supports everything in the card's architecture."""
    settings = card.get("architecture")
    if not isinstance(settings, dict) or settings.keys() | NEW_FIELDS != CONFIG_FIELDS:
        return False
    if settings["stem"] is not None or settings.get("convs"):
        return False
    has_head = settings["num_classes"] and card.get("classes")
    return bool(has_head) and settings["in_channels"] in (1, 3)


def open_model(
    path: Path, *, threads: int = 1
) -> tuple[NumpyModel, MappedFile, Mapping[str, Any]] | None:
    """Return a checkpoint's model, file and card, or None if only torch can open it.

    The file is not verified here: `MappedFile.is_whole` does so, and can run in parallel.
    """
    mapped = map_file(path)
    if mapped is None:
        return None
    try:
        card = json.loads(mapped.metadata["vitft.card"])
        if not numpy_supports(card):
            return None
        model = NumpyModel(card["architecture"], mapped.tensors, threads=threads)
        return model, mapped, card
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
