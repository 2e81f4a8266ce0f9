"""`vitft export`: the trained model as files for other tools, compared before it is called done.

`--safetensors` writes one self-describing file, which our own loader opens, and beside it the
config.json by which `timm.create_model("local-dir:DIR", pretrained=True)` opens it.
"""

import hashlib
import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vitft.checkpoint import Card, build_model, load_checkpoint, save_checkpoint
from vitft.config import read_toml
from vitft.data.loading import decoded
from vitft.data.split import Manifest
from vitft.errors import ImageError, RunError, VitftError
from vitft.files import write_atomically
from vitft.model import SIZES
from vitft.predict import Predictor
from vitft.rundir import MODEL, RunDir, find_model, writable

CONFIG = "config.json"
COMPARED = 64
"""How many validation images an export is compared on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written and how it compares with the run."""

    folder: Path
    images: int
    """How many of the user's validation images were compared; 0 if they are gone."""
    difference: float
    """Largest difference of a logit."""
    changed: int
    """How many images have another best class."""
    notes: tuple[str, ...]


def export_safetensors(run: str | None, out: Path) -> Exported:
    """Write `out/model.safetensors` and `out/config.json` and compare them with the run.

    Raises:
        RunError: No such run, `out` holds other files or cannot be written, or the export
            answers differently.
    """
    source = find_model(run)
    state, card = load_checkpoint(source)
    prepare_folder(out)
    (out / CONFIG).unlink(missing_ok=True)  # of an older export, and then of another model
    save_checkpoint(out / MODEL, {name: t.float() for name, t in state.items()}, card)
    reason = not_for_timm(card)
    if not reason:
        write_atomically(out / CONFIG, json.dumps(timm_config(card), indent=2) + "\n")
    pixels = validation_pixels(source.parent, card)
    original = Predictor(build_model(state, card.architecture), card)
    again = Predictor.from_run(str(out))
    before, after = original.logits(pixels[0]), again.logits(pixels[0])
    changed = int((before.argmax(dim=-1) != after.argmax(dim=-1)).sum())
    difference = (before - after).abs().max().item()
    if changed or difference > 1e-4:
        raise RunError(
            f"the export answers differently: logits by up to {difference:.2g}, "
            f"{changed} classes changed",
            fix="this should not happen; keep the run folder and report it",
        )
    return Exported(
        folder=out,
        images=pixels[1],
        difference=difference,
        changed=changed,
        notes=(reason,) if reason else (),
    )


def prepare_folder(out: Path) -> None:
    """Make the folder; an older export in it may be replaced, anything else may not.

    Raises:
        RunError: It holds something else, or cannot be made or written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot write {out}: {error.strerror}", fix="choose another folder with --out"
        ) from error
    foreign = [path.name for path in out.iterdir() if path.name not in (MODEL, CONFIG)]
    if foreign:
        raise RunError(f"folder {out} holds other files ({foreign[0]})", fix="choose another --out")
    if not writable(out):
        raise RunError(f"cannot write into {out}", fix="choose another folder with --out")


def validation_pixels(run: Path, card: Card) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], int]:
    """Some validation images of the run as the model sees them, (B, S, S, 3), and their count.

    Without them (the data moved, or the run is a bare file) it is noise and the count is 0.
    """
    try:
        data = Path(read_toml(run / "config.toml")["data"]["path"]).expanduser()
        manifest = Manifest.read(RunDir(run).split, data)
        same = (row for row in manifest.val if is_unchanged(manifest.locate(row), row.sha256))
        paths = (manifest.locate(row) for row in islice(same, COMPARED))
        views = decoded(paths, lambda _, image: card.transform.pixels(image))
        found = [view for view in views if not isinstance(view, ImageError)]
    except (VitftError, KeyError):
        found = []
    if found:
        return np.stack(found), len(found)
    noise = np.random.default_rng(0).integers(0, 256, (8, *card.transform.image_size, 3))
    return noise.astype(np.uint8), 0


def is_unchanged(path: str, sha256: str) -> bool:
    """Whether the image is still the one that the run saw."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def not_for_timm(card: Card) -> str:
    """Why timm cannot open this model exactly, or nothing."""
    shape = card.architecture
    odd_parts = {
        "pre_logits": shape.pre_logits,
        "a post-norm encoder": shape.norm == "post",
        "two class tokens": shape.distilled,
        "another LayerNorm eps": shape.norm_eps != 1e-6,
        "a hybrid's stem": shape.stem is not None,
    }
    odd = [name for name, there in odd_parts.items() if there]
    return (
        f"the model has {odd[0]}: timm has no such layer under this name, so only vitft opens the "
        "file; no config.json is written"
        if odd
        else ""
    )


def timm_config(card: Card) -> dict[str, Any]:
    """The config.json of timm's hub format, for a model that timm can build (`not_for_timm`)."""
    shape, transform = card.architecture, card.transform
    rows, columns = shape.image_size
    pool = "token" if shape.pool == "cls" else "avg"
    arguments = {
        "img_size": [rows, columns],
        "patch_size": list(shape.patch_size),
        "in_chans": shape.in_channels,
        "embed_dim": shape.width,
        "depth": shape.depth,
        "num_heads": shape.heads,
        "mlp_ratio": shape.mlp_ratio,
        "qkv_bias": shape.qkv_bias,
        "reg_tokens": shape.registers,
        "no_embed_class": not shape.prefix_positions,
        "global_pool": pool,
    }
    if shape.layer_scale:
        arguments["init_values"] = shape.layer_scale
    return {
        "architecture": timm_name(card),
        "num_classes": shape.num_classes,
        "num_features": shape.width,
        "global_pool": pool,
        "label_names": list(card.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [shape.in_channels, rows, columns],
            "fixed_input_size": True,
            "num_classes": shape.num_classes,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "interpolation": transform.interpolation,
            "crop_pct": transform.crop,
            "crop_mode": "center" if transform.fit == "crop" else "squash",
            "mean": list(transform.mean),
            "std": list(transform.std),
        },
    }


def timm_name(card: Card) -> str:
    """The timm entry point whose defaults `model_args` turns into this architecture."""
    known = {"tiny": (16,), "small": (16, 32), "base": (8, 16, 32), "large": (16, 32)}
    shape, patch = card.architecture, card.architecture.patch_size[0]
    for size, patches in known.items():
        row = SIZES[size]
        if (row.width, row.depth, row.heads) == (shape.width, shape.depth, shape.heads):
            return f"vit_{size}_patch{patch if patch in patches else 16}_224"
    return "vit_base_patch16_224"
