"""Files as an attacker would write them: valid digests and checksums around wrong content."""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from vitft.data import EvalTransform
from vitft.models import Card, ViTConfig, vit_shapes

SMALL = ViTConfig(
    image_size=(16, 16), patch_size=(8, 8), width=8, depth=1, heads=2, mlp_ratio=1.0, num_classes=3
)
CARD: Mapping[str, Any] = json.loads(
    Card(
        architecture=SMALL,
        transform=EvalTransform(image_size=(16, 16)),
        classes=("cat", "dog", "owl"),
        weights={"name": "tiny"},
    ).to_json()
)
"""Card of `SMALL`, as `Card.to_json` writes it."""

Arrays = dict[str, np.ndarray[Any, Any]]


def small_weights(config: ViTConfig = SMALL) -> Arrays:
    """Return random weights for a configuration."""
    random = np.random.default_rng(0)
    return {
        name: random.normal(0, 0.2, facts.shape).astype(np.float32)
        for name, facts in vit_shapes(config).items()
    }


def write_checkpoint(path: Path, card: str, weights: Arrays) -> Path:
    """Write a checkpoint with any card and tensors, and a digest that matches them."""
    arrays = {name: np.ascontiguousarray(weights[name]) for name in sorted(weights)}
    digest = hashlib.sha256(card.encode())
    for name, array in arrays.items():
        digest.update(f"\n{name} torch.{array.dtype} {array.shape}\n".encode() + array.tobytes())
    metadata = {"vitft.format": "1", "vitft.card": card, "vitft.sha256": digest.hexdigest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(save(arrays, metadata={"format": "pt", **metadata}))
    return path


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    """Return `CARD` as JSON after a change in place."""
    card = copy.deepcopy(dict(CARD))
    change(card)
    return json.dumps(card)


def setting(place: str, value: object) -> str:
    """Return `CARD` as JSON with another value at a dotted place, or without it if `...`."""

    def change(card: dict[str, Any]) -> None:
        *parents, last = place.split(".")
        for name in parents:
            card = card[name]
        card.pop(last, None)
        if value is not ...:
            card[last] = value

    return changed(change)
