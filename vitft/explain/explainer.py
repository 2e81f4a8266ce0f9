"""Explanations of image files: a heat map over each image and, optionally, arrays of values."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitft.data.images import (
    Pixels,
    decode,
    in_order,
    jpeg_uri,
    read_bytes,
    stack_batches,
    thumbnail_jpeg,
)
from vitft.data.listed_files import is_missing
from vitft.data.split import run_manifest
from vitft.data.transforms import EvalTransform
from vitft.explain.attribution import (
    attention_maps,
    attention_title,
    explain,
    map_title,
    relevance_map,
    scale_maps,
)
from vitft.explain.heatmaps import (
    MEANINGS,
    MIN_SIDE_PX,
    Method,
    colour_bar,
    enlarged,
    heads_sheet,
    overlay,
    png_bytes,
    with_legend,
)
from vitft.features.ood import Reference, read_reference
from vitft.metrics.outputs import Outputs
from vitft.metrics.results import Results
from vitft.models.checkpoint import build_model
from vitft.models.find import find_model
from vitft.models.pretrained.weights import load_classifier, log_assumptions, open_pretrained
from vitft.models.timm_model import Model
from vitft.models.vit_config import ViTConfig
from vitft.predict.engine import Engine, notes_on
from vitft.predict.postprocess import Postprocess, Scores
from vitft.predict.rows import Prediction
from vitft.predict.torch_engine import Predictor
from vitft.report.html import render
from vitft.system.device import pick_device
from vitft.system.errors import ImageError, UsageError
from vitft.system.files import write_atomically, writing
from vitft.system.suggest import suggest
from vitft.system.text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedModel:
    """A model with its preprocessing and its classes."""

    name: str
    net: Model
    transform: EvalTransform
    outputs: Outputs
    """Classes or labels, which are indices if they have no names."""
    split: str = ""  # digest of the split with which the model was trained; empty if unknown
    run: Path | None = None  # the run directory; None for pretrained weights
    results: Results | None = None  # numbers of the run that the model file contains
    reference: Reference | None = None  # statistics of the run's training features, if it has them

    def inputs(self, pixels: Pixels) -> torch.Tensor:
        """Normalise images (B, S, S, 3) and move them to the device of the model."""
        device = next(self.net.parameters()).device
        return self.transform.normalise(torch.from_numpy(pixels).to(device))


def class_index(name: str, classes: Sequence[str]) -> int:
    """Return the index of the class with this name."""
    if name in classes:
        return classes.index(name)
    near = suggest(name, classes, cutoff=0, inside=True, most=3)
    raise UsageError(
        f"the model has no class {name!r}",
        fix=f"use one of its classes, e.g. {', '.join(near)}"
        if near
        else "remove the class and use the method rollout, because the model has no classes",
    )


def load_run_model(run: str | None, *, device: str = "auto") -> ExplainedModel:
    """Load the model of a run, a checkpoint or `hf:owner/name` (default: the latest run)."""
    path = find_model(run)
    state, card = load_classifier(path)
    net = build_model(state, card.architecture).to(pick_device(device))
    folder = path.resolve().parent
    return ExplainedModel(
        name=folder.name if path.name == "model.safetensors" else path.stem,
        net=net,
        transform=card.transform,
        outputs=card if card.classes else Outputs.of(map(str, range(net.config.num_classes))),
        split=card.split,
        run=folder,
        results=card.run,
        reference=read_reference(path.parent, net.feature_size, net.config),
    )


def load_weights_model(
    name: str, *, allow_pickle: bool = False, device: str = "auto"
) -> ExplainedModel:
    """Load pretrained weights, including their classification head if it is usable."""
    source = open_pretrained(name, allow_pickle=allow_pickle)
    log_assumptions(source)
    tensors, config = source.tensors, source.architecture
    if source.unusable_head:  # its input is not the feature computed by this model
        tensors = {n: t for n, t in tensors.items() if not n.startswith("head")}
    net = build_model({n: t.float() for n, t in tensors.items()}, config)
    return ExplainedModel(
        name=source.name,
        net=net.to(pick_device(device)),
        transform=source.transform,
        outputs=Outputs.of(
            source.classes[: config.num_classes] or map(str, range(config.num_classes))
        ),
    )


def validation_files(run: Path | None) -> list[str]:
    """Return the paths of a run's validation images that still exist, in split order."""
    manifest = None if run is None else run_manifest(run)
    names = map(manifest.locate, manifest.val) if manifest else ()
    return [name for name in names if not is_missing(name)]


_MAX_ON_SHEET, _SHEET_SIDE = 48, 320
"""Maximum number of images on the overview page, and of pixels of their longer sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedImage:
    """Explanation of one image."""

    path: str
    answer: str = ""  # name of the predicted class; empty if the model has no classes
    probability: float | None = None
    notes: tuple[str, ...] = ()  # notes on the prediction, as in `vitft predict`
    shown: str = ""
    """Name of the class that the map explains; empty if the method does not depend on a class."""
    file: Path | None = None
    """Path of the heat map over the image; None if the image cannot be read."""
    heads: Path | None = None  # path of the picture of all blocks and heads; None if there is none
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Explainer:
    """Explainer that writes one heat map per image and, optionally, a file of arrays."""

    model: ExplainedModel
    method: Method
    out: Path
    postprocess: Postprocess
    """Function that converts scores to predictions; unused if the model has no classes."""
    target: int | None = None
    """Index of the class to explain by relevance; None for the predicted class of each image."""
    arrays: bool = False
    size: int = MIN_SIDE_PX  # minimum length of the shorter side of a picture, in pixels
    legend: bool = False  # whether a picture has a colour bar below it
    tiles: list[dict[str, Any]] = field(default_factory=list)
    """Explained images on the overview page, with data URIs of the image and of its map."""

    def images(self, paths: Iterable[str]) -> Iterator[ExplainedImage]:
        """Yield one result per path, in order, once the files for the image have been written."""
        paths, notes = list(paths), dict[int, tuple[str, ...]]()

        def view(numbered: tuple[int, str]) -> Pixels | ImageError:
            number, path = numbered
            try:
                data = read_bytes(path)
                transform = self.model.transform
                notes[number] = notes_on(data, transform)
                return transform.pixels(decode(data, path, grey_range=transform.grey_range).image)
            except ImageError as error:  # the new one has no traceback, which would keep the bytes
                return ImageError(path, error.reason)

        views = in_order(view, enumerate(paths), workers=2)
        for numbers, pixels, failed in stack_batches(views, 8):
            errors = {number: error.reason for number, error in failed}
            results = dict(zip(numbers, self._explain_batch(pixels), strict=True))
            for number in sorted((*errors, *results)):
                path = paths[number]
                if number in errors:
                    yield ExplainedImage(path=path, error=errors[number])
                else:
                    yield self._write_image(number, path, *results[number], notes=notes[number])

    def _explain_batch(
        self, pixels: Pixels
    ) -> Iterator[tuple[Pixels, NDArray[np.float32], Scores]]:
        """Yield each preprocessed image (S, S, 3), its map (gh, gw) and its scores."""
        if not len(pixels):
            return
        target = None if self.target is None else torch.full((len(pixels),), self.target)
        inputs = self.model.inputs(pixels)
        values, logits = explain(self.model.net, inputs, self.method, target)
        features = np.empty((len(pixels), 0), np.float32)
        if (reference := self.postprocess.reference) is not None:
            with torch.no_grad():
                both = self.model.net.features(inputs, reference.intermediate_blocks)
                features = both.float().cpu().numpy()
        head, intermediate = np.split(features, [self.model.net.feature_size], axis=1)
        for i, (view, heat) in enumerate(zip(pixels, values, strict=True)):
            one = slice(i, i + 1)
            yield view, heat, Scores(logits[one], head[one], intermediate[one])

    def _write_image(
        self,
        number: int,
        path: str,
        pixels: Pixels,
        heat: NDArray[np.float32],
        scores: Scores,
        *,
        notes: tuple[str, ...],
    ) -> ExplainedImage:
        """Write the files that explain an image (S, S, 3), given its map (gh, gw) and scores."""
        stem, model = f"{number + 1:03}-{safe_stem(path)}", self.model
        result = ExplainedImage(path=path, file=self.out / f"{stem}.png", notes=notes)
        if classes := model.outputs.classes:
            view = model.transform.without_border(pixels)
            (prediction,) = self.postprocess([path], scores, views=[view])
            first = prediction.classes[0]
            explained = first if self.target is None else classes[self.target]
            result = replace(
                result,
                answer=prediction.answer or "no label",
                probability=prediction.probability,
                notes=(*prediction.notes, *notes),
                shown=explained if self.method.name == "relevance" else "",
            )
        picture = enlarged(Image.fromarray(pixels), self.size)
        blended = overlay(picture, scale_maps(heat[None])[0])
        title = map_title(model.net, self.method)
        shown = with_legend(blended, title) if self.legend else blended
        write_into(self.out, f"{stem}.png", png_bytes(shown))
        if len(self.tiles) < _MAX_ON_SHEET:
            # The text is not drawn, because no font has the characters of all languages.
            tile = {
                "view": jpeg_uri(thumbnail_jpeg(picture, _SHEET_SIDE)),
                "map": jpeg_uri(thumbnail_jpeg(blended, _SHEET_SIDE)),
                "name": Path(path).name,
                "about": result.shown if result.shown != result.answer else "",
            }
            self.tiles.append({**asdict(result), **tile})
        arrays = {"heat": heat, "logits": scores.logits[0]}
        is_overview = self.method == Method(name="attention", fusion=self.method.fusion)
        if model.net.attends and (is_overview or self.arrays):
            with torch.no_grad():
                blocks, _ = attention_maps(model.net, model.inputs(pixels[None]))
            arrays["attention"] = torch.cat(blocks).float().cpu().numpy()  # (L, H, N, N)
            if is_overview:
                config = model.net.config
                maps, name = head_maps(config, arrays["attention"]), attention_title(config)
                heads = heads_sheet(maps, name, self.size, legend=self.legend)
                file = write_into(self.out, f"{stem}-heads.png", png_bytes(heads))
                result = replace(result, heads=file)
        if self.arrays:
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)
            write_into(self.out, f"{stem}.npz", buffer.getvalue())
        return result

    def finish(self) -> Path | None:
        """Write the overview page and return its path, or None for fewer than two images."""
        if len(self.tiles) < 2:
            return None
        view = {
            "title": f"{count(len(self.tiles), 'image')} explained",
            "model": self.model.name,
            "map_name": map_title(self.model.net, self.method),
            "meaning": MEANINGS[self.method.name],
            "bar": jpeg_uri(thumbnail_jpeg(colour_bar(), 256)),
            "tiles": self.tiles,
        }
        return write_into(self.out, "sheet.html", b"".join(render("sheet.html.j2", view)))


def head_maps(config: ViTConfig, maps: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the attention (L, H, gh, gw) to each patch, each map scaled to [0, 1].

    `maps` (L, H, N, N) are averaged over the tokens that the classifier reads.
    """
    rows = slice(config.num_read) if config.pool == "cls" else slice(config.num_prefix, None)
    patches = maps[:, :, rows].mean(axis=2)[..., config.num_prefix :]  # (L, H, P)
    flat = patches.reshape(-1, *config.grid)
    return scale_maps(flat).reshape(*patches.shape[:2], *config.grid)


def write_into(folder: Path, name: str, content: bytes) -> Path:
    """Write a file to a folder, which is created if necessary, and return its path."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / name, content)
    return folder / name


def safe_stem(path: str) -> str:
    """Return at most 50 characters of a file's stem, with unsafe characters replaced by `_`."""
    return re.sub(r"[^\w.-]+", "_", Path(path).stem)[:50]


def illustrate_predictions(
    engine: Engine, predictions: Iterator[Prediction], folder: Path
) -> Iterator[Prediction]:
    """Yield the predictions unchanged, and write a relevance overlay for each one with a `view`."""
    assert isinstance(engine, Predictor)
    with writing(folder, option="--explain"):
        folder.mkdir(parents=True, exist_ok=True)
    for number, prediction in enumerate(predictions, start=1):
        if prediction.view is not None:
            torch.set_num_threads(engine.workers)  # the engine's workers set it to 1
            assert prediction.logits is not None
            target = torch.tensor([int(prediction.logits.argmax())])  # with --tta, of the average
            inputs = engine.inputs(prediction.view[None])
            heat = relevance_map(engine.model, inputs, target)[0]
            picture = png_bytes(overlay(enlarged(Image.fromarray(prediction.view)), heat))
            name = f"{number:06}-{safe_stem(prediction.path)}.png"
            write_atomically(folder / name, picture)
        yield prediction
