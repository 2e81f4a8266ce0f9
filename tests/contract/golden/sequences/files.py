"""Weight files, architectures, tables of predictions and the server, and what is told of them."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from openpyxl import load_workbook
from PIL import Image
from safetensors.torch import save_file

from tests.contract.app_client import served
from tests.contract.built.weights import checkpoints, folders, google, state, unfit
from tests.contract.golden.readers import flat_lines, shown
from tests.contract.golden.sequences.commands import FINETUNE, all_shown, draw_data
from vitft.models import (
    RopeConfig,
    VisionTransformer,
    ViTConfig,
    architecture_config,
    architecture_names,
)

SMALL = {
    "image_size": (16, 16), "patch_size": (8, 8), "width": 64, "depth": 1, "heads": 1,
    "num_classes": 3,
}  # fmt: skip
PARTS: dict[str, dict[str, object]] = {
    "registers": {"registers": 3},
    "registers-without-positions": {"registers": 2, "prefix_positions": False},
    "mean": {"pool": "mean", "class_token": False, "norm_before_pool": True},
    "map": {"pool": "map", "pool_heads": 1, "class_token": False},
    "distilled": {"distilled": True},
    "pre-logits": {"pre_logits": True},
    "post-norm": {"norm": "post"},
    "scaled": {"layer_scale": 0.1},
    "stem": {"stem": (1, 1), "patch_size": (8, 8)},
    "gated": {"gated_mlp": True, "mlp_norm": True},
    "rotary": {"rope": RopeConfig(), "positions": False},
    "rms": {"norm_layer": "rmsnorm", "attn_norm": True, "qkv_bias": False, "proj_bias": False},
    "normed": {"embed_norm": True, "patch_norm": True, "final_norm": False},
    "grey": {"in_channels": 1},
    "oblong": {"image_size": (16, 32)},
    "headless": {"num_classes": 0},
}
"""Models of one optional part each."""


def weight_files() -> Iterator[str]:
    """What is told of weight files of all kinds, and of what fits another size and head.

    Lines that were shown of the first file are left out.
    """
    save_file(state(), "plain.safetensors")
    lines = ["weights show plain.safetensors"]
    for build in (checkpoints, folders, google, unfit):
        place = Path(build.__name__)
        place.mkdir()
        build(place)
        lines += [f"weights show '{path}' --allow-pickle" for path in sorted(place.iterdir())]
    for options in ("", "--classes 5", "--classes 0", "--image-size 24", "--image-size 16 40"):
        lines += [f"weights inspect plain.safetensors {options}"]
    for name, parts in PARTS.items():
        torch.manual_seed(0)
        config = ViTConfig(**{**SMALL, **parts})  # type: ignore[arg-type]
        save_file(VisionTransformer(config).state_dict(), f"{name}.safetensors")
        lines += [f"weights show {name}.safetensors"]
        lines += [f"weights inspect {name}.safetensors --classes 2 --image-size 32"]
    known: set[str] = set()
    for line in lines:
        text = shown(*shlex.split(line)).splitlines()
        yield "\n".join(part for part in text if part not in known)
        known = known or {*text}


def architectures() -> Iterator[str]:
    """The catalogue, and every named architecture with what differs from a small plain one."""
    yield from all_shown("weights list --all")
    usual = asdict(ViTConfig(**SMALL))  # type: ignore[arg-type]
    for name in architecture_names():
        found = asdict(architecture_config(name))
        differ = {key: value for key, value in found.items() if value != usual[key]}
        yield f"{name}: {', '.join(f'{key}={value}' for key, value in differ.items())}"


def draw_new() -> None:
    """Draw images for prediction: plain, dark, turned, animated, of 16 bits and damaged."""
    Path("new").mkdir()
    leaf = Image.open(min(Path("classes/ash").iterdir())).convert("RGB")
    leaf.save("new/leaf.png")
    leaf.point(lambda v: v // 20).save("new/dark.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    leaf.resize((24, 16)).save("new/turned.jpg", exif=exif, quality=95)
    leaf.save("new/two.gif", save_all=True, append_images=[leaf.rotate(90)])
    grey = np.asarray(leaf.convert("L"), np.uint16) * 200
    Image.fromarray(grey).save("new/sixteen.png")
    Path("new/broken.jpg").write_bytes(b"no image")
    Path("new/=1+1.png").write_bytes(Path("new/leaf.png").read_bytes())


def table_text(path: Path) -> str:
    """Return the rows of a file of predictions as text."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        rows = [str(table.schema.remove_metadata()), *map(str, table.to_pylist())]
    elif path.suffix == ".xlsx":
        sheet = load_workbook(path).active
        assert sheet is not None
        rows = [" | ".join(f"{c.value} ({c.number_format})" for c in row) for row in sheet.rows]
        rows += [f"{sheet.freeze_panes} {sheet.auto_filter.ref}"]
        rows += [f"{k} {v.width:.1f}" for k, v in sheet.column_dimensions.items()]
    else:
        rows = path.read_text(encoding="utf-8-sig").splitlines()
    return "\n".join([f"--- {path.name}", *rows])


def rounded(text: str) -> str:
    """Return a text with three digits of long numbers."""
    long = re.compile(r"\b\d(?:\.\d+)?e-\d+|\b\d\.\d{4,}")
    return long.sub(lambda found: f"{float(found[0]):.3f}", text)


def predictions() -> Iterator[str]:
    """Tables of predictions and evaluations, with three digits."""
    yield from map(rounded, all_predictions())


def all_predictions() -> Iterator[str]:
    """Tables of predictions in every format, of one class and of several labels, and resumed."""
    draw_data()
    draw_new()
    list(all_shown(
        f"{FINETUNE} one --data groups.csv --cache none",
        f"{FINETUNE} several --data several.csv --set data.label=rust,scab --cache none",
    ))  # fmt: skip
    for run, options in (
        ("one", ""), ("one", "--top-k 3 --threshold 0.9"), ("one", "--precision 0.7"),
        ("one", "--tta"), ("several", ""), ("several", "--threshold 0.9"),
    ):  # fmt: skip
        for suffix in ("csv", "jsonl", "parquet", "xlsx"):
            out = Path(f"out.{suffix}")
            out.unlink(missing_ok=True)
            line = f"predict new --run {run} {options} --device cpu --out {out}"
            yield from all_shown(line)
            yield table_text(out)
        yield from all_shown(*(
            f"predict new --run {run} {options} --device cpu --format {form}"
            for form in ("table", "json")
        ))  # fmt: skip
    yield from all_shown(
        "predict new missing.png --run one --device cpu --out again.csv",
        "predict new --run one --device cpu --out again.csv",
        "predict new --run one --device cpu --out again.csv --resume",
        "predict new/leaf.png --run one --device cpu --out again.csv --resume",
        "predict new --run one --device cpu --out nowhere/again.csv",
    )
    yield from all_shown(*(
        f"evaluate --data {data} --run {run} --device cpu {options}"
        for data, run, options in (
            ("classes", "one", ""), ("classes", "one", "-v --threshold 0.6"),
            ("groups.csv", "one", "--precision 0.7 --out judged"),
            ("several.csv", "several", "--set data.label=rust,scab"),
            ("several.csv", "one", "--set data.label=rust,scab"),
            ("classes", "several", ""),
        )
    ))  # fmt: skip
    yield table_text(Path("judged/predictions.csv"))
    yield "\n".join(flat_lines(json.loads(Path("judged/eval.json").read_text())))


def server() -> Iterator[str]:
    """The description of the server's routes, and what is told of its model."""
    draw_data()
    draw_new()
    list(all_shown(f"{FINETUNE} one --data groups.csv --cache none"))
    with served("one") as client:
        for address in ("/openapi.json", "/labels", "/healthz"):
            yield f"--- {address}"
            yield "\n".join(flat_lines(client.ask("GET", address).json))
        photo = Path("new/turned.jpg").read_bytes()
        for address in ("/predict", "/predict?top_k=2"):
            answer = client.ask("POST", address, photo, {"content-type": "image/jpeg"})
            yield "\n".join([f"--- {address} {answer.status}", *flat_lines(answer.json)])
    yield shown("serve", "--help")
