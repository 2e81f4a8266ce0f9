"""Python API for notebooks and programs: `vitft.finetune` and `vitft.load`.

These functions write the same files as the commands and raise the errors that the commands print.
They print nothing and, before returning, restore the random state, the number of threads, the
signal handlers and the environment variables that they have set.
"""

import contextlib
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Unpack

import numpy as np
import torch
from PIL import Image

from vitft.config.run import (
    FINETUNE_OPTIONS,
    SETTINGS,
    find_setting,
    joined_settings,
    requested_config,
)
from vitft.config.schema import require
from vitft.config.sections import TrainSpec
from vitft.data.demo import demo_data
from vitft.data.image_table import Images
from vitft.data.images import (
    array_from_tensor,
    image_from_array,
    in_chunks,
    in_order,
    upright_rgb,
)
from vitft.data.transforms import EvalTransform
from vitft.explain.attribution import explain as explain_inputs
from vitft.explain.attribution import map_title, scale_maps
from vitft.explain.explainer import class_index
from vitft.explain.heatmaps import (
    MEANINGS,
    MethodOptions,
    check_picture_side,
    chosen_method,
    enlarged,
    overlay,
    with_legend,
)
from vitft.metrics.results import Results
from vitft.models.find import find_model
from vitft.models.pretrained.text import PROMPTS
from vitft.predict.embeddings import (
    Embeddings,
    check_zero_shot,
    chosen_weights,
    list_images,
    load_embedder,
    write_zero_shot,
)
from vitft.predict.engine import LoadedImage, OnnxEngine, Pipeline, Views, notes_on
from vitft.predict.pictures import (
    PICTURE_TYPES,
    Picture,
    numbered_batches,
    picture_name,
    read_picture,
)
from vitft.predict.postprocess import Postprocess, ScoreArray
from vitft.predict.request import PREDICT_DTYPES, Marks
from vitft.predict.threshold import marking
from vitft.predict.torch_engine import PREDICT_BATCH_SIZE, Predictor, open_engine
from vitft.report.notebook import Explanation, Predictions, trained_card
from vitft.report.run_page import report_of_new_run
from vitft.system.device import caller_state_preserved, pick_device
from vitft.system.errors import ImageError, UsageError, VitftError
from vitft.system.imports import require_extra
from vitft.system.suggest import suggest
from vitft.training.checks import check_request
from vitft.training.run import Result, run_finetuning

_OPTION = re.compile(
    r"`[^`]*`|(?<![^\s(])--(?P<name>[a-z-]*[a-z])(?![\w/-])"
    r"(?: (?!(?:to|or|and|if|with|finds|has|does|cannot|combines|selects|is|nor|uses)\b)"
    r"(?P<value>'[^']*'|\"[^\"]*\"|[\w:.,/\\@~+-]*\w)(?=[\s,.;:?)]|$))?"
)
"""A command, or an option perhaps followed by its value, in the text of an error."""
_FLAGS = frozenset(option.keyword for option in FINETUNE_OPTIONS if option.type is bool)

_Given = ParamSpec("_Given")
_Outcome = TypeVar("_Outcome")


def _in_python(function: Callable[_Given, _Outcome]) -> Callable[_Given, _Outcome]:
    """Let errors call an option of the command by the name of the argument of the function."""
    known = {*inspect.signature(function).parameters, *MethodOptions.__annotations__}

    def as_argument(match: re.Match[str]) -> str:
        name, value = (match["name"] or "").replace("-", "_"), match["value"] or ""
        name = "about" if name == "class" else name
        if name not in known:  # or a command
            return match[0]
        if name in _FLAGS or not value:
            return f"{name} {value}".rstrip()
        bare = value.strip("'\"")
        return f"{name}={value}" if re.fullmatch(r"-?\d+(\.\d+)?", value) else f'{name}="{bare}"'

    @wraps(function)
    def translated(*args: _Given.args, **arguments: _Given.kwargs) -> _Outcome:
        try:
            return function(*args, **arguments)
        except VitftError as error:
            error.problem = _OPTION.sub(as_argument, error.problem)
            error.fix = _OPTION.sub(as_argument, error.fix)
            raise

    return translated


def _options_as_arguments(function: Callable[_Given, _Outcome]) -> Callable[_Given, _Outcome]:
    """Give `finetune` a docstring that describes all options, and errors with a fix.

    An unknown or unnamed argument is a UsageError. The signature stays the same.
    """
    known, run = inspect.signature(function).parameters, _in_python(function)

    @wraps(function)
    def checked(*args: _Given.args, **arguments: _Given.kwargs) -> _Outcome:
        if "freeze" in arguments and "train" not in arguments:  # its former name
            arguments["train"] = arguments.pop("freeze")
        if args:
            named = (  # a table is not printed
                f"{name}={'...' if hasattr(value, 'columns') else repr(value)}"
                for name, value in zip(known, args, strict=False)
            )
            raise UsageError("the arguments of finetune are named", fix=f"use {', '.join(named)}")
        if unknown := next((name for name in arguments if name not in known), None):
            near, setting = suggest(unknown, known), find_setting(unknown)
            fix = f"use {near[0]}" if near else f"use one of {', '.join(known)}"
            if setting and (not near or unknown.lower() in SETTINGS[setting].aliases.split()):
                option = SETTINGS[setting]
                fix = (
                    f"use {option.keyword}" if option.help else f'use settings={{"{setting}": ...}}'
                )
            raise UsageError(f"unknown argument {unknown}", fix=fix)
        return run(*args, **arguments)

    described = "".join(
        textwrap.fill(f"{option.keyword}: {option.text}.", 92, initial_indent=" " * 4,
                      subsequent_indent=" " * 8) + "\n"
        for option in FINETUNE_OPTIONS
    )  # fmt: skip
    checked.__doc__ = inspect.cleandoc(str(function.__doc__)).replace(
        "Args:\n", f"Args:\n{described}", 1
    )
    return checked


def _check_argument_types(arguments: Mapping[str, object], settings: object) -> None:
    """Raise a UsageError if a path or `settings` has a type that `finetune` does not accept."""
    for name in ("data", "weights", "out", "recipe", "classes", "like", "fixes", "cache"):
        value, fix = arguments[name], 'pass one path or name, e.g. data="photos"'
        if hasattr(value, "to_csv"):
            fix = f'write a table with {name}.to_csv("{name}.csv", index=False), and pass '
            fix += f'{name}="{name}.csv"'
        require(
            isinstance(value, str | os.PathLike | None),
            f"invalid {name}: expected a string or a path, got {type(value).__name__}",
            fix=fix,
        )
    require(
        isinstance(settings, Mapping | None),
        f"invalid settings: expected a mapping, got {type(settings).__name__}",
        fix='pass settings by name, e.g. settings={"optim.ema": 0.9}',
    )


@_options_as_arguments
def finetune(  # noqa: D417, PLR0913 - the options of the command, which the decorator describes
    *,
    data: str | os.PathLike[str],
    weights: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    recipe: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    split: Literal["content", "random", "time", "reference"] | None = None,
    classes: str | os.PathLike[str] | None = None,
    like: str | os.PathLike[str] | None = None,
    val_from: Literal["auto", "test"] | None = None,
    fixes: str | os.PathLike[str] | None = None,
    group_duplicates: bool | None = None,
    group_by: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    fit: Literal["auto", "crop", "squash", "pad"] | None = None,
    pre_logits: Literal["keep", "drop"] | None = None,
    keep_head: bool | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    allow_pickle: bool | None = None,
    train: str | None = None,
    budget: str | None = None,
    teacher: str | os.PathLike[str] | None = None,
    solver: Literal["lbfgs", "sgd", "adamw"] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    views: int | None = None,
    keep_adapter: bool | None = None,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    tracker: str | Sequence[str] | None = None,
    settings: Mapping[str, object] | None = None,
) -> Result:
    """Fine-tune pretrained weights on a folder of images.

    Equivalent to `vitft finetune`. An omitted argument takes its value from the recipe if the
    recipe sets it, and otherwise defaults to the same value as the command-line option (see
    `vitft finetune --help`).

    Args:
        out: Run directory, new or empty. Default: `runs/<time>-<data>`.
        recipe: Name of a recipe, or path to a TOML file with settings.
        seed: Seed for the split and the training; `settings={"train.seed": 1}` keeps the split.
        settings: Any other settings by dotted name, e.g. `{"optim.ema": 0.999}`; see
            docs/settings.md.

    Returns:
        The run directory, with report.html, and its metrics. After Ctrl-C, the best weights so far
        are saved, and `interrupted` is set.

    Raises:
        VitftError: The run failed; the command would print the same error. Its message calls
            arguments by their names (`batch_size`) or settings (`optim.batch_size`).
    """
    arguments = {k: v for k, v in locals().items() if k != "settings"}
    _check_argument_types(arguments, settings)
    more = (settings or {}).items()
    named = joined_settings(arguments, more, "by an argument and by `settings`")
    config = requested_config(os.fspath(recipe or "") or None, named)
    config = replace(config, data=demo_data(config.data))
    where = None if out is None else os.fspath(out)
    config, listed, run = check_request(config, where)
    result = run_finetuning(config, out=run, folder=listed)
    if result.figures:
        report_of_new_run(result.run)
    return result


@_in_python
def load(run: str | os.PathLike[str] | None = None, *, device: str = "auto") -> "Trained":
    """Load a trained model, by default that of the latest run.

    Args:
        run: Run directory, export, checkpoint, ONNX graph from `vitft export`, or `hf:owner/name`.
        device: Device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`. ONNX graphs run on the CPU.

    Raises:
        RunError: The model does not exist, is damaged or has no classes.
        WeightsError: The repository `hf:owner/name` cannot be found.
        UsageError: The device cannot be used, or onnxruntime is not installed.
    """
    name = None if run is None else os.fspath(run)
    return Trained(open_engine(name, device), name)


@_in_python
def embed(
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    run: str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] | None = None,
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
    cache: str | os.PathLike[str] = "",
    device: str = "auto",
    allow_pickle: bool = False,
) -> Embeddings:
    """Return one vector for each image file; unreadable files are in `skipped`.

    Args:
        images: Files, folders, patterns or lists of paths.
        run: Run directory, export or checkpoint. Default: the latest run.
        weights: Pretrained weights instead of a run, as in `finetune`.
        dtype: Number format of the computation. Default: bf16 where it is faster.
        cache: Folder of cached features, or `none`. Default: that of `finetune`.
        device: Device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        allow_pickle: Whether `weights` may be a .pth file, which is a pickle.

    Raises:
        VitftError: The command would print the same error.
    """
    fix = "use only one of them"
    require(run is None or weights is None, "run and weights cannot be combined", fix=fix)
    fix = f"use one of {', '.join(PREDICT_DTYPES)}"
    require(dtype in PREDICT_DTYPES, f"invalid dtype={dtype!r}", fix=fix)
    model, name = (None if one is None else os.fspath(one) for one in (run, weights))
    spec = chosen_weights(model, name, allow_pickle=allow_pickle)
    pick_device(device)
    listed = _listed(images, "embed")
    train = TrainSpec(device=device, precision=dtype, cache=os.fspath(cache))
    with caller_state_preserved(gpu=device != "cpu"):
        return load_embedder(model, spec, train)(listed)


@_in_python
def zeroshot(
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    classes: Sequence[str],
    weights: str | os.PathLike[str],
    prompts: Sequence[str] = PROMPTS,
    out: str | os.PathLike[str] = "zeroshot",
    cache: str | os.PathLike[str] = "",
    device: str = "auto",
) -> Path:
    """Write a classifier from class names alone, and return its path, for `load`.

    Args:
        images: Files, folders, patterns or lists of paths, without labels. They set the scale of
            the probabilities.
        classes: Two or more class names, as a list or separated by commas.
        weights: CLIP or SigLIP with its text tower: `hf:owner/name` or a folder.
        prompts: Texts with {} for the class name, whose embeddings are averaged.
        out: New folder for the model.
        cache: Folder of cached features, or `none`. Default: that of `finetune`.
        device: Device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.

    Raises:
        VitftError: The command would print the same error.
    """
    name, train = os.fspath(weights), TrainSpec(device=device, cache=os.fspath(cache))
    if isinstance(classes, str):  # not a sequence of letters
        classes = [one.strip() for one in classes.split(",")]
    prompts = [prompts] if isinstance(prompts, str) else prompts
    folder = check_zero_shot(name, classes, prompts, os.fspath(out))
    pick_device(device)
    listed = _listed(images, "zeroshot")
    options: Any = {"classes": classes, "prompts": prompts, "out": folder, "train": train}
    with caller_state_preserved(gpu=device != "cpu"):
        return write_zero_shot(listed, weights=name, **options)


def _listed(images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], name: str) -> Images:
    """Return the images that the function `name` was given, without opening them."""
    names = [*images] if isinstance(images, Iterable) and not isinstance(images, str) else [images]
    is_named = bool(names) and all(isinstance(name, str | os.PathLike) for name in names)
    fix = "pass paths. For other images, use vitft.load(run).features(images)"
    require(is_named, f"{name} needs one or more paths of images", fix=fix)
    return list_images([os.fspath(name) for name in names])


class Trained:
    """A trained model that classifies images.

    Images are paths, bytes, PIL images, arrays or tensors (see `Picture`). `predict` and `features`
    accept one image or several. A model from an ONNX graph has no `features` and no `explain`.
    """

    def __init__(self, engine: Predictor | OnnxEngine, run: str | None) -> None:
        path = find_model(run, graphs=True)
        self.engine, self.path, self.folder = engine, path, path.parent
        self.postprocess = Postprocess.for_run(run, engine)
        resizes = isinstance(engine, OnnxEngine) and engine.any_size
        self._prepares = None if resizes else engine.transform  # what `prepare` applies to images

    def __repr__(self) -> str:
        return f"Trained(run='{self.folder}', classes={len(self.classes)})"

    def _repr_html_(self) -> str:
        height, width = self.transform.image_size
        facts = [("input", f"{height} × {width} pixels")]
        next_step = 'model.predict("photo.jpg")'
        if isinstance(self.engine, Predictor):
            parameters = sum(one.numel() for one in self.engine.model.parameters())
            facts += [("parameters", f"{parameters:,}"), ("device", str(self.engine.device))]
            next_step += ', model.explain("photo.jpg")'
        facts += [("files", str(self.folder)), ("next", next_step)]
        return trained_card(self.postprocess.describe(), self.classes, facts)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.engine.outputs.classes

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Minimum probability at which a multi-label model assigns each label.

        The tuple is empty for a model that gives each image exactly one class.
        """
        return self.engine.outputs.thresholds

    @property
    def transform(self) -> EvalTransform:
        """Transform that prepares an image for the model."""
        return self.engine.transform

    @property
    def results(self) -> Results:
        """Name and time of the run, its accuracy (`headline`) and what else it measured."""
        assert self.postprocess.run is not None
        return self.postprocess.run

    @_in_python
    def predict(
        self,
        images: Picture | LoadedImage | Iterable[Picture | LoadedImage],
        *,
        top_k: int = 1,
        threshold: float = 0.0,
        precision: float | None = None,
        confidence: float | None = None,
        coverage: float | None = None,
    ) -> Predictions:
        """Return one prediction per image: the `top_k` most probable classes.

        Images may also be the results of `prepare`. In a notebook, the returned list is displayed
        as a table, with images for the first predictions.

        A prediction whose largest probability is below the threshold is marked `not sure`. A
        prediction of a multi-label model contains the probabilities of all labels; its `labels` are
        those whose probability reaches `threshold` or, by default, the label's own threshold. With
        `precision`, the threshold (of each label) is the smallest with this expected precision, as
        with `vitft predict --precision`, and with `confidence`, the precision is guaranteed as with
        `--confidence`. With `coverage`, each prediction has a `prediction_set`, as with
        `--coverage`. For an unusable image, array or tensor, no exception is raised; the prediction
        has an `error`.

        Raises:
            UsageError: `top_k` is not an integer of 1 or more, `threshold` or `precision` is not
                above 0 and at most 1 (a threshold of 0 stands for no threshold), both are given,
                no threshold reaches the precision, there are too few held-out images for the
                confidence or the coverage, or an image has an unsupported type.
            RunError: Some logits of the model are not finite, or there are no validation
                predictions from which to choose a threshold or sets.
        """
        if isinstance(top_k, np.integer):
            top_k = int(top_k)
        if type(top_k) is not int or top_k < 1:
            raise UsageError(f"invalid top_k={top_k!r}", fix="use an integer of 1 or more")
        marks = Marks(
            threshold=threshold or None,
            precision=precision,
            confidence=confidence,
            coverage=coverage,
        )
        postprocess = marking(replace(self.postprocess, top_k=top_k), marks, self.folder)
        pipeline = Pipeline(self.engine, postprocess, keep_views=True)
        predictions, loading = Predictions(), self._loading(images)
        first = [*islice(loading, PREDICT_BATCH_SIZE + 1)]
        if len(first) > PREDICT_BATCH_SIZE:
            predictions.add_batch(pipeline.run(chain(first, loading), lambda load: load()))
            return predictions
        # Too few for a batch per core: all cores score one batch at a time
        size = PREDICT_BATCH_SIZE if isinstance(self.engine, Predictor) else self.engine.batch
        for chunk in in_chunks(first, size):
            predictions.add_batch(pipeline.predict_batch([load() for load in chunk]))
        return predictions

    def prepare(self, images: Picture | Iterable[Picture]) -> list[LoadedImage]:
        """Decode and preprocess images, for `predict` in this process or another one.

        Several processes can thus prepare on CPUs what one with a GPU predicts. The objects can be
        pickled. `view` is the uint8 array (H, W, 3) that the model reads, or None with an `error`.

        Raises:
            UsageError: An image has an unsupported type, or the model is an ONNX graph that resizes
                images itself.
        """
        if self._prepares is None:
            problem = f"{self.path} is an ONNX graph that resizes images itself"
            raise UsageError(problem, fix="pass the images to `predict`")
        found = in_order(lambda load: load(), self._loading(images), workers=self.engine.workers)
        return [one._replace(transform=self._prepares) for one in found]

    def _loading(self, images: object) -> Iterator[Callable[[], LoadedImage]]:
        """Yield a function for each image that prepares it, in any thread."""
        reads_at_once = hasattr(images, "__next__")  # it may replace a file that it has named
        for ((index, picture),) in numbered_batches(images, 1):
            name = picture_name(index, picture)
            if reads_at_once and isinstance(picture, str | os.PathLike):
                with contextlib.suppress(ImageError):  # again below, with the reason
                    picture = read_picture(picture)
            load = partial(self.load_image, name, picture)
            if not isinstance(picture, str | os.PathLike | bytes):
                found = load()  # an object that may be shared, or change later
                load = partial(LoadedImage, *found)
            yield load

    def features(self, images: Picture | Iterable[Picture]) -> ScoreArray:
        """Return the input to the head for each of n images: float32 (n, `feature_size`).

        Raises:
            ImageError: An image is unusable.
            UsageError: An image has an unsupported type, or the model is an ONNX graph.
        """
        predictor = self.require_torch("features")
        parts = [np.empty((0, predictor.feature_size), np.float32)]
        for batch in numbered_batches(images, PREDICT_BATCH_SIZE):
            views = np.stack([self.view(picture_name(i, p), p) for i, p in batch])
            parts.append(predictor.scores(views).features)
        return np.concatenate(parts)

    @_in_python
    def explain(
        self,
        image: Picture,
        *,
        about: str | None = None,
        method: str = "relevance",
        size: int | None = None,
        legend: bool = False,
        **options: Unpack[MethodOptions],
    ) -> Explanation:
        """Return the preprocessed image overlaid with a map of what the model used.

        The returned PIL image also stores the map and, for relevance, the class and its
        probability.

        Args:
            image: The image (see `Picture`).
            about: Name of the class to explain (default: the most probable one), for relevance.
            method: `relevance`, `rollout` or `attention`, as in `vitft explain`.
            size: Minimum length of the shorter side of the picture, in pixels. Default: the size
                that the model receives.
            legend: Whether to add a colour bar below the picture.
            **options: Options of the method: `fusion` ("mean", "max" or "min") and `discard` (a
                fraction), `block` and `head` (indices that count from 0).

        Raises:
            ImageError: The image is unusable.
            UsageError: The class or the method does not exist, an option has no effect or is
                invalid, the image has an unsupported type, the model is an ONNX graph, or its
                structure does not support the method.
            RunError: The values of the map are not finite.
        """
        predictor = self.require_torch("explanations")
        chosen = chosen_method(method, options, about=about)
        check_picture_side(size)
        target = None if about is None else torch.tensor([class_index(about, self.classes)])
        name = picture_name(0, image)
        view = self.view(name, image)
        heat = explain_inputs(predictor.model, predictor.inputs(view[None]), chosen, target)[0]
        picture = Image.fromarray(view) if size is None else enlarged(Image.fromarray(view), size)
        blended = overlay(picture, scale_maps(heat)[0])
        title = map_title(predictor.model, chosen)
        shown = with_legend(blended, title) if legend else blended
        explained, probability = "", None
        if chosen.name == "relevance":
            postprocess = replace(self.postprocess, top_k=len(self.classes))
            (answer,) = Pipeline(predictor, postprocess).predict_batch([LoadedImage(name, view)])
            explained = answer.classes[0] if about is None else about
            probability = answer.probabilities[answer.classes.index(explained)]
        return Explanation(
            shown,
            picture,
            chosen.name,
            heat[0],
            explained,
            probability,
            map_name=title,
            meaning=MEANINGS[chosen.name],
        )

    def draw_patches(self, image: Picture) -> Image.Image:
        """Return a figure of how the model cuts an image into patches and turns them into tokens.

        Raises:
            ImageError: The image is unusable.
            UsageError: The image has an unsupported type, the model is an ONNX graph or a timm
                model, or matplotlib is not installed.
        """
        predictor = self.require_torch("tokens")
        require_extra("plots", feature="draw_patches")
        from vitft.explain.model_figures import patch_figure

        name = picture_name(0, image)
        figure = patch_figure(predictor.model, predictor.inputs, self.view(name, image), name)
        return Image.open(BytesIO(figure), formats=["PNG"])

    def require_torch(self, what: str) -> Predictor:
        """Return the engine, or raise a UsageError that names `what`, which ONNX graphs lack."""
        if isinstance(self.engine, Predictor):
            return self.engine
        raise UsageError(
            f"{self.path} is an ONNX graph, which gives predictions but no {what}",
            fix="load the run directory, or an export made with --safetensors, --timm or "
            "--transformers",
        )

    def load_image(self, name: str, picture: Picture | LoadedImage) -> LoadedImage:
        """Return the preprocessed image with a name, or an error if the image is unusable."""
        if isinstance(picture, LoadedImage):
            if self._prepares is None or picture.transform != self._prepares:
                problem = f"image {picture.path} was prepared by another model"
                raise UsageError(problem, fix="use `prepare` of the model that predicts")
            return picture
        try:
            picture = read_picture(picture)
            found = LoadedImage(name, self.view(name, picture))
            if isinstance(picture, bytes | Image.Image):
                found = found._replace(notes=notes_on(picture, self.transform))
            return found
        except ImageError as error:
            return LoadedImage(name, None, error.reason)

    def view(self, name: str, picture: Picture) -> Views:
        """Return the preprocessed image, as `Engine.view` does; errors refer to it as `name`."""
        picture = read_picture(picture)
        if isinstance(picture, bytes):
            return self.engine.view(picture, name)
        if isinstance(picture, torch.Tensor):
            picture = array_from_tensor(picture, name)
        if isinstance(picture, np.ndarray):
            picture = image_from_array(picture, name)
        if not isinstance(picture, Image.Image):
            raise UsageError(
                f"image {name} has unsupported type {type(picture).__name__}",
                fix=f"pass {PICTURE_TYPES}",
            )
        return self.engine.view_of(upright_rgb(picture, name, self.transform.grey_range))
