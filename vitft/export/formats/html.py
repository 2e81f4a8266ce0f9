"""Export format --html: one page that classifies images in a browser, without a network or server.

The page (`export/page`) contains the model, an engine in plain JavaScript, a user interface and
facts about the run. The engine (`resize.js`, `weights.js`, `model.js`) reproduces Pillow's resizing
and `models.numpy_vit`, and runs in a worker (`worker.js`). The content security policy forbids
every connection and every script except the page's own, which is allowed by its digest.

Python cannot run the engine, so the export is verified with `models.numpy_vit` on the weights in
the page. When the page is opened, it compares its logits for a test pattern with NumPy's.
"""

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitft.data.transforms import EvalTransform
from vitft.export.formats.base import ExportFormat, OpenedModel, compare_exports
from vitft.export.formats.onnx import resize_obstacle
from vitft.export.formats.timm import unsupported_part
from vitft.export.trained import TrainedRun
from vitft.features.ood import Reference, read_reference
from vitft.messages.results import accuracy_text, chance_clause
from vitft.metrics.outputs import Outputs
from vitft.models.card import Card
from vitft.models.find import PAGE_FILE
from vitft.models.numpy_vit import Float32Array, NumpyModel, normalise, numpy_supports, strictly
from vitft.models.vit_config import ViTConfig
from vitft.predict.postprocess import not_finite
from vitft.report.html import digest_source, page_parts
from vitft.system.errors import RunError
from vitft.system.files import write_atomically
from vitft.system.imports import version
from vitft.system.structure import structured
from vitft.system.text import count, listing, percent

_PAGE_FOLDER = Path(__file__).parents[1] / "page"
_ENGINE = ("resize.js", "weights.js", "model.js", "worker.js")
_PART_BYTES = 3 * 2**20
"""Maximum number of bytes in one element of the page; browsers limit the length of text nodes."""


def html_page(
    card: Card,
    weights: Mapping[str, Float32Array],
    reference: Reference | None,
    bits: Literal[8, 16],
    facts: Mapping[str, Any],
) -> str:
    """Return the page for a model with weights of 8 or 16 bits; it shows the facts as text."""
    described, data = _store_model(weights, reference, bits)
    model = NumpyModel(card.vit, _read_tensors(described, data))
    size = sum(tensor.nbytes for tensor in model.weights.values())
    # The page tests itself on a pattern: one view (1, S, S, channels).
    shape = 1, *card.transform.image_size, card.transform.channels
    i = np.arange(math.prod(shape))
    view = ((i * 31 + (i >> 5) * 17) % 256).astype(np.uint8).reshape(shape)
    read = {"num_read": card.vit.num_read, "num_prefix": card.vit.num_prefix}
    meta = {
        **facts,
        "config": asdict(card.vit) | read,
        "transform": card.transform.to_json(),
        "thresholds": (),
        **card.table,
        "tensors": described,
        "limit": None if reference is None else reference.limit,
        "intermediate": 0 if reference is None else reference.intermediate_blocks,
        "self_test": _scores(model, normalise(view, card.transform))[0].tolist(),
        "workers": max(1, min(_MAX_WORKERS, _WORKER_BYTES // size)),
    }
    page, style, script = page_parts(_PAGE_FOLDER)
    parts = {
        "policy": f"default-src 'none'; style-src {digest_source(style)}; "
        f"script-src {digest_source(script)}; worker-src blob:; "
        "img-src blob: data:; connect-src 'none'; base-uri 'none'; "
        "form-action 'none'; trusted-types vitft-worker; require-trusted-types-for 'script'",
        "style": style,
        "script": script,
        "meta": json.dumps(meta, allow_nan=False).replace("<", "\\u003c"),  # cannot end the block
        "engine": "".join((_PAGE_FOLDER / name).read_text("utf-8") for name in _ENGINE),
        "weights": "\n".join(
            '<script class="weights" type="application/octet-stream">'
            f"{base64.b64encode(data[i : i + _PART_BYTES]).decode()}</script>"
            for i in range(0, len(data), _PART_BYTES)
        ),
    }
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], page)


def read_page(page: str) -> tuple[dict[str, Any], dict[str, Float32Array]]:
    """Return the facts of a page written by `html_page`, and its tensors by name."""
    meta = re.search(r'<script id="meta" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert meta is not None
    parts = re.findall(
        r'<script class="weights" type="application/octet-stream">(.*?)</script>', page
    )
    facts = json.loads(meta[1])
    return facts, _read_tensors(facts["tensors"], b"".join(map(base64.b64decode, parts)))


# tensors of `export --html` as bytes, with 8 or 16 bits per weight; read by `page/weights.js` -----

_BLOCK = 64
"""Number of weights that share a scale. With 8 bits, the probabilities of a ViT-Tiny for 40 flower
photos change by up to 0.019 with this block size, and by up to 0.033 with one scale per row."""
_TYPES: Mapping[Literal[8, 16], str] = {8: "i8", 16: "f16"}
_DTYPES: Mapping[str, str] = {"f32": "<f4", "f16": "<f2", "i8": "i1"}


def _store_model(
    weights: Mapping[str, Float32Array], reference: Reference | None, bits: Literal[8, 16]
) -> tuple[list[dict[str, Any]], bytes]:
    """Return the name, shape, type and block of each tensor, and all tensors as bytes, in order."""
    # Matrices have 8 or 16 bits, statistics for out-of-distribution notes 16, the rest is float32.
    # A block is the number of weights that share a scale, or 0 for float32.
    statistics = {} if reference is None else {
        f"reference.{name}": array
        for name, array in reference.arrays().items()
        if array.ndim  # the numbers are in the description
    }  # fmt: skip
    described, parts = list[dict[str, Any]](), list[bytes]()
    for name, tensor in {**weights, **statistics}.items():
        is_matrix = tensor.ndim > 1 and len(tensor) > 1
        kind = _TYPES[16 if name in statistics else bits] if is_matrix else "f32"
        columns = tensor[0].size
        block = (_BLOCK if columns % _BLOCK == 0 else columns) if is_matrix else 0
        described.append({"name": name, "shape": [*tensor.shape], "type": kind, "block": block})
        values = np.asarray(tensor, np.float32)
        if block:
            values = values.reshape(-1, block)
            largest = np.float32(127 if kind == "i8" else 1)
            scales = np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-30) / largest
            values = np.rint(values / scales) if kind == "i8" else values / scales
            parts.append(scales.astype("<f4").tobytes())
        parts.append(values.astype(_DTYPES[kind]).tobytes())
    return described, b"".join(parts)


def _read_tensors(described: Sequence[Mapping[str, Any]], data: bytes) -> dict[str, Float32Array]:
    """Return the tensors by name, as the page reads them."""
    tensors, at = dict[str, Float32Array](), 0

    def read(dtype: str, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        nonlocal at
        values = np.frombuffer(data, dtype, count, at)
        at += values.nbytes
        return values

    for tensor in described:
        size, block = math.prod(tensor["shape"]), tensor["block"]
        scales = read("<f4", size // block).repeat(block) if block else np.float32(1)
        values = read(_DTYPES[tensor["type"]], size).astype(np.float32)
        tensors[tensor["name"]] = (values * scales).reshape(tensor["shape"])
    return tensors


_MAX_PAGE_BYTES = 130_000_000
"""Maximum size of the page in bytes, enough for a ViT-B in 8 bits. Browsers need several times as
much memory for the text, the decoded weights and the model."""
_MAX_ERROR_ROUNDED = 3e-2
"""Maximum difference in a logit due to rounded weights, relative to the larger of 1 and the largest
logit; 8 bits are chosen only if the difference is at most half of this."""
_MAX_CHANGE, _MIN_TRIED = 0.01, 20
"""Maximum change in a probability due to 8-bit weights, and minimum number of validation images on
which to measure it; otherwise, 16 bits are used."""
_WORKER_BYTES, _MAX_WORKERS = 400_000_000, 4
"""Maximum total memory in bytes and maximum number of workers that run in parallel. Each worker has
its own copy of the model."""
_SPEED = 1.2e9
"""Multiply-adds per second of the engine on one core (V8, benchmarks/notebook/exports.md)."""


class HtmlFormat(ExportFormat):
    """The file index.html; 8-bit weights are tested on validation images."""

    name = "html"
    max_error = _MAX_ERROR_ROUNDED

    def obstacle(self) -> str:
        if part := unsupported_part("html", self.card.architecture):
            return part
        if not numpy_supports(self.card):
            return "the page can only run models with 1 or 3 channels and at most 4,096 patches"
        return resize_obstacle(self.card, "the page")

    def write(self, folder: Path) -> None:
        trained, config = self.trained, self.card.vit
        state = trained.state.items()  # without the tensors that the run's head does not need
        weights = {n: np.asarray(t.numpy()) for n, t in state if not n.startswith("last_head.")}
        parameters = sum(tensor.size for tensor in weights.values())
        size = parameters * (1 + 4 / _BLOCK) * 4 / 3  # base64 encodes 3 bytes as 4
        _refuse_large(size, "even with 8-bit weights")
        reference = read_reference(trained.run, config.feature_size, config)
        try:
            bits, reason = _choose_precision(trained, weights, self.plan.images)
            facts = _page_facts(trained, reference, reason, self.plan.licence)
            page = html_page(self.card, weights, reference, bits, facts)
        except FloatingPointError as error:
            raise not_finite() from error
        _refuse_large(len(page), reason)
        write_atomically(folder / PAGE_FILE, page)
        self.reason = reason

    def notes(self) -> Sequence[str]:
        config = self.card.vit
        tokens, width = config.num_prefix + math.prod(config.grid), config.width
        layers = (4 + 2 * config.mlp_ratio) * width**2 * tokens
        products = config.depth * (layers + 2 * tokens**2 * width)
        return [
            f"--html: {self.reason}",
            f"--html: an image takes {products / 1e9:.1f} billion multiply-adds, about "
            f"{max(0.1, products / _SPEED):.1f} s in a browser on one core of a laptop",
        ]

    def open(self, folder: Path) -> OpenedModel:
        meta, tensors = read_page((folder / PAGE_FILE).read_text(encoding="utf-8"))
        known = {field.name for field in fields(ViTConfig)}
        shape = {name: value for name, value in meta["config"].items() if name in known}
        model = NumpyModel(structured(shape, ViTConfig, "config"), tensors)
        transform = structured(meta["transform"], EvalTransform)
        return _opened(model, transform, Outputs.read(meta))


def _opened(model: NumpyModel, transform: EvalTransform, outputs: Outputs) -> OpenedModel:
    return OpenedModel(
        by=f"NumPy {np.__version__}",
        outputs=outputs,
        prepare=lambda image: normalise(transform.pixels(image), transform),
        logits=lambda inputs: np.asarray(_scores(model, inputs)),
    )


def _scores(model: NumpyModel, inputs: Float32Array) -> Float32Array:
    """Return the logits (B, C) of normalised views (B, S, S, channels)."""
    return strictly(model.classify)(strictly(model.features)(inputs))


# size and precision ------------------------------------------------------------------------------


def _refuse_large(size: float, how: str) -> None:
    """Raise a RunError if a page of `size` bytes is too large; `how` describes its weights."""
    if size > _MAX_PAGE_BYTES:
        raise RunError(
            f"--html would write a page of {size / 1e6:,.0f} MB, {how}. The limit is "
            f"{_MAX_PAGE_BYTES / 1e6:.0f} MB, because browsers need several times as much memory",
            fix="fine-tune a smaller model, such as ViT-S or ViT-B, or use --transformers-js on a "
            "web server",
        )


def _choose_precision(
    trained: TrainedRun, weights: Mapping[str, Float32Array], images: int
) -> tuple[Literal[8, 16], str]:
    """Return 8 bits if predictions and probabilities hardly change, or else 16, and the reason."""
    card, config = trained.card, trained.card.vit
    rounded = _read_tensors(*_store_model(weights, None, 8))
    exact, small = (
        _opened(NumpyModel(config, tensors), card.transform, card) for tensors in (weights, rounded)
    )
    (row,) = compare_exports(exact, {"html": (small, 0)}, trained.comparison_images(images))
    if row.images < _MIN_TRIED:
        few = f"testing 8 bits requires more than {count(row.images, 'validation image')}"
        return 16, f"16-bit weights, because {few}"
    moved, error = row.moved, row.difference / max(1.0, row.largest)
    own, other = (percent(right / row.images) for right in row.correct)
    also = f", and {other} with 8 bits" * (own != other)
    on = f"on only {count(row.images, 'validation image')}"
    measured = f"({on}, the model's accuracy is {own}{also})"
    if row.changed or moved > _MAX_CHANGE or error > _MAX_ERROR_ROUNDED / 2:
        changes = f"probabilities by up to {moved:.3g} and logits by up to {percent(error)}"
        few = count(row.changed, "prediction")
        return 16, f"16-bit weights: with 8 bits, {few} would change, {changes} {measured}"
    text = f"no prediction changes, and probabilities change by up to {moved:.3g}"
    return 8, f"8-bit weights: {text} {measured}"


# contents of the page ----------------------------------------------------------------------------


def _page_facts(
    trained: TrainedRun, reference: Reference | None, precision: str, licence: str
) -> dict[str, Any]:
    """Return the facts that the page shows about the model."""
    card, results = trained.card, trained.results
    accuracy, clause = accuracy_text(results) or "Not measured.", chance_clause(results)
    flagged = "Not flagged: the run has no statistics of the training images."
    if reference:
        unknown = "flagged, and how many images of unknown classes are flagged is not known"
        flagged = f"{reference.power() or unknown}.".capitalize()
    about = trained.sentences(licence, str)
    return {
        "title": f"{results.data or 'images'}: image classifier",
        "summary": f"{card.counted}: {listing(card.classes, 12)}. {accuracy}",
        "caution": f"This model is at chance level: it {clause}." if clause else "",
        "licence": f"Licence of the model: {about['licence']} Code of this page: vitft "
        f"{version('vitft')}, Apache-2.0.",
        "facts": [
            ("Model", about["model"]),
            ("Images", about["view"]),
            ("Data", about["data"]),
            ("Accuracy", accuracy),
            ("Images unlike the training images", flagged),
            ("Weights", f"{precision[0].upper()}{precision[1:]}."),
            ("Licence", about["licence"]),
        ],
        "table_title": f"{card.nouns[1].capitalize()}, with validation results",
        "table": trained.class_figures(),
    }
