"""Embeddings: the pooled feature of each image, and classifiers from class names alone.

Features are computed with a run or with pretrained weights, and cached as in training. Importing
this module does not import torch.
"""

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from vitft.config.run import Config
from vitft.config.schema import require
from vitft.config.sections import TrainSpec, WeightsSpec
from vitft.data.image_table import Images, Row
from vitft.data.images import (
    MAX_PIXELS,
    check_any_readable,
    in_order,
    is_dark,
    log_inspection,
    may_be_wide,
)
from vitft.data.listed_files import check_some_exist
from vitft.data.sources import sources
from vitft.data.transforms import eval_view
from vitft.models.find import find_model
from vitft.models.pretrained.catalog import check_weights_name
from vitft.models.pretrained.text import PROMPTS, check_names, prompt_head
from vitft.predict.engine import warn_of_dark
from vitft.predict.output import in_utf8
from vitft.system.errors import DataError
from vitft.system.files import temporary_file, writing
from vitft.system.imports import require_extra
from vitft.system.rundir import MODEL, plan_run
from vitft.system.text import listing

if TYPE_CHECKING:
    from vitft.features.extract import FrozenPipeline

_AT_ONCE = 4096  # number of vectors that are normalised together
_Vectors = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each readable image, in the order in which the images were given."""

    path: tuple[str, ...]
    sha256: tuple[str, ...]  # hexadecimal digest of each file
    vector: _Vectors  # (n, D), each of length 1, so that dot products are cosine similarities
    model: str  # identifies the model: only vectors of the same one can be compared
    precision: str  # number format in which the features were computed, `fp32` or `bf16`
    skipped: tuple[tuple[str, str], ...]  # paths of unreadable files, with the reasons

    def most_similar(self, vector: _Vectors, count: int = 10) -> list[tuple[str, float]]:
        """Return the paths of the images most similar to a vector (D,), with the similarities."""
        size, given = self.vector.shape[1], np.shape(vector)
        problem = f"the vector has the shape {given} instead of ({size},)"
        require(given == (size,), problem, fix="use a vector of the same model, e.g. vector[0]")
        length = max(1e-12, float(np.linalg.norm(vector)))
        cosines = np.clip(self.vector @ vector / length, -1, 1)
        nearest = np.argsort(-cosines, kind="stable")[:count]
        return [(self.path[i], round(float(cosines[i]), 6)) for i in nearest]

    def save(self, out: str | os.PathLike[str]) -> None:
        """Write path, sha256 and vector as columns of a Parquet file, or as arrays of an .npz.

        The metadata of the Parquet file, or two more arrays, have the model and the precision.
        """
        out = Path(out)
        origin: dict[str, Any] = {"model": self.model, "precision": self.precision}
        check_vector_file(out, name=str(out))
        columns: dict[str, Any] = {"path": [*map(in_utf8, self.path)], "sha256": self.sha256}
        with writing(out), temporary_file(out) as (descriptor, temporary):
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                if out.suffix.lower() == ".npz":
                    np.savez(file, **columns, vector=self.vector, **origin)
                else:
                    import pyarrow as pa
                    import pyarrow.parquet as pq

                    flat, size = pa.array(self.vector.reshape(-1)), self.vector.shape[1]
                    columns["vector"] = pa.FixedSizeListArray.from_arrays(flat, size)
                    pq.write_table(pa.table(columns, metadata=origin), file)
            temporary.replace(out)


def check_vector_file(out: Path, *, name: str) -> None:
    """Check that vectors can be written in the format of the suffix; `name` is shown in errors."""
    problem = f"cannot infer a format from the suffix of {name}"
    fix = "use a name that ends with .parquet or .npz"
    require(out.suffix.lower() in (".npz", ".parquet"), problem, fix=fix)
    if out.suffix.lower() == ".parquet":
        require_extra("parquet", feature=name)


def list_images(names: Sequence[str], stdin: BinaryIO | None = None) -> Images:
    """Return the images of files, folders, patterns and lists, without opening them."""
    found = [*sources(names, stdin=stdin or io.BytesIO())]
    for source in found:
        if not (source.path or source.error):
            what = "a web address" if source.url else "an image on standard input"
            problem = f"{source.name} is {what}, but this command reads files"
            raise DataError(problem, fix="save the image, and use the file")
    check_some_exist([source.path for source in found])
    bad = tuple((source.name, source.error) for source in found if source.error)
    good = [source for source in found if not source.error]
    shown = {source.path: source.name for source in good}
    return Images(Path(), (), [Row(s.path, 0) for s in good], bad=bad, shown_paths=shown)


def chosen_weights(
    run: str | None, weights: str | None, *, allow_pickle: bool
) -> WeightsSpec | None:
    """Check that the weights exist or, without any, the run, before torch is imported."""
    if weights is None:
        require(not allow_pickle, "--allow-pickle needs --weights", fix="remove --allow-pickle")
        find_model(run)
        return None
    check_weights_name(weights, allow_pickle=allow_pickle)
    return WeightsSpec(name=weights, allow_pickle=allow_pickle)


def load_features(
    run: str | None, weights: WeightsSpec | None, config: Config
) -> tuple["FrozenPipeline", tuple[str, ...]]:
    """Load a model cut after its pooled feature, from weights or a run, with the run's classes."""
    from vitft.features.extract import build_pipeline, load_pipeline
    from vitft.models.checkpoint import build_model
    from vitft.models.pretrained.weights import load_classifier

    if weights is not None:
        config = replace(config, weights=weights)
        return load_pipeline(Images(Path(), (), ()), "head", config)[0], ()
    tensors, card = load_classifier(find_model(run))
    model = build_model(tensors, card.architecture)
    return build_pipeline(model, card.transform, "head", config), card.classes


def load_embedder(
    run: str | None, weights: WeightsSpec | None, train: TrainSpec
) -> Callable[[Images], Embeddings]:
    """Return a function that computes the embeddings of images, or reads them from the cache.

    They are features of the last block, also for a head that reads several blocks. If no image is
    readable, it raises a DataError.
    """
    from vitft.features.cache import key_of
    from vitft.features.extract import inspect_dataset, log_cached_features

    pipeline, _ = load_features(run, weights, Config(train=train))
    whole = pipeline.open_extractor()
    assert whole is not None
    extractor, view = whole.of_last_block(), eval_view(pipeline.transform)
    model = key_of(extractor.space["prefix"], view.settings).hex()[:16]
    options: Any = {"max_pixels": MAX_PIXELS, "extractor": extractor, "view": view}

    def embed(images: Images) -> Embeddings:
        before = extractor.computed
        inspected, shown = inspect_dataset(images, allow_bad=True, **options), images.shown_paths
        bad = tuple((shown.get(path, path), reason) for path, reason in inspected.bad)
        inspected = replace(inspected, bad=bad)
        log_inspection(inspected)
        check_any_readable(inspected)
        if not pipeline.transform.grey_range:
            files = (inspected.locate(r) for r in inspected.rows if may_be_wide(r.path))
            warn_of_dark(sum(in_order(is_dark, files, workers=extractor.workers)))
        log_cached_features(inspected, extractor.computed - before)
        paths, digests = zip(*((r.path, r.sha256) for r in inspected.rows), strict=True)
        vectors: _Vectors = extractor.rows(digests, view).numpy()
        for i in range(0, len(vectors), _AT_ONCE):
            part = vectors[i : i + _AT_ONCE]
            part /= np.linalg.norm(part, axis=1, keepdims=True).clip(1e-12)
        precision = "bf16" if extractor.precision == "bf16" else "fp32"
        paths = tuple(shown[path] for path in paths)
        return Embeddings(paths, digests, vectors, model, precision, inspected.bad)

    return embed


# a classifier from class names alone: pretrained weights with a head from prompts -----------------

_IMAGES = 200  # number of images that show the usual length of an embedding


def check_zero_shot(weights: str, classes: Sequence[str], prompts: Sequence[str], out: str) -> Path:
    """Check the arguments of `write_zero_shot` before torch is imported; return the new folder."""
    check_names(classes, prompts)
    check_weights_name(weights, allow_pickle=None)
    require_extra("transformers", feature="a head from class names")
    return plan_run(out, "")


def write_zero_shot(
    images: Images,
    *,
    weights: str,
    classes: Sequence[str],
    prompts: Sequence[str] = PROMPTS,
    out: Path,
    train: TrainSpec,
) -> Path:
    """Write a model for the classes to a folder, and return its path. No label is used.

    Some of the images show the length of their embeddings, by which the head is divided. This
    affects the probabilities only (see `PromptHead`).

    Raises:
        DataError: No image is readable.
        WeightsError, UsageError: As for `prompt_head`.
        RunError: The folder cannot be written.
    """
    names = sorted(classes)  # as folders are, so that --keep-head finds the same order
    head = prompt_head(weights, names, prompts)
    from vitft.features.extract import inspect_with, load_pipeline
    from vitft.models.card import Card
    from vitft.models.checkpoint import save_checkpoint

    images, train = replace(images, classes=tuple(names)), replace(train, precision="fp32")
    config = Config(weights=WeightsSpec(name=weights), train=train)
    pipeline, report = load_pipeline(images, "head", config)
    some = replace(images, rows=images.rows[:: -(-len(images.rows) // _IMAGES)])
    found, features = inspect_with(pipeline, some, allow_bad=True)
    check_any_readable(found)
    weight, bias = head.scaled(features([row.sha256 for row in found.rows]))
    card = Card(
        architecture=pipeline.model.config,
        transform=report.transform,
        classes=images.classes,
        weights={**report.provenance, "prompts": listing(prompts, len(prompts))},
        pos_embed=report.positions,
    )
    out.mkdir(parents=True, exist_ok=True)
    state = {**pipeline.model.state_dict(), "head.weight": weight, "head.bias": bias}
    save_checkpoint(out / MODEL, state, card)
    return out / MODEL
