"""The commands as functions, for notebooks and programs: `vitft.finetune` and `vitft.load`.

They say and write what the commands do, and raise the errors that the commands print.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from vitft.config.run import config_from_table, merge_settings, read_recipe
from vitft.data.images import DAMAGE, TURNS, orientation_of, read_bytes, to_rgb
from vitft.explain import overlay, relevance_map
from vitft.models.find import find_model
from vitft.models.timm_model import own
from vitft.predict.engine import LoadedImage, Pipeline, Views
from vitft.predict.postprocess import FloatArray, Postprocess
from vitft.predict.prediction import Prediction
from vitft.predict.torch_engine import BATCH_SIZE, Predictor
from vitft.system.errors import ImageError, UsageError
from vitft.training.run import Result

Picture = str | os.PathLike[str] | bytes | Image.Image | np.ndarray[Any, Any]
"""A path, the bytes of a file, a PIL image, or an array uint8 (H, W, 3) or (H, W)."""


def finetune(
    *,
    data: str | os.PathLike[str],
    weights: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    recipe: str | None = None,
    **settings: Any,  # noqa: ANN401
) -> Result:
    """Fine-tune pretrained weights on a folder of images, as `vitft finetune` does.

    Args:
        data: A folder with one folder per class.
        weights: A name of the catalogue or a weight file.
        out: The run folder, new or empty; default: `runs/<when>-<data>`.
        recipe: A recipe or TOML file that the settings are laid over.
        **settings: The command's options by name (`freeze="none"`, `epochs=5`, `lr=1e-4`), or any
            setting by its section and name with two underscores (`optim__solver="adamw"`).

    Returns:
        The run folder and the figures of eval.json. Ctrl-C keeps the best weights so far and
        returns with `interrupted` set.

    Raises:
        VitftError: What the command would print; see `vitft.system.errors`.
    """
    from vitft.data.demo import demo_data
    from vitft.training.preflight import check_request
    from vitft.training.run import finetune as train

    named = [("data.path", os.fspath(data)), ("weights.name", os.fspath(weights))]
    named += [pair for name, value in settings.items() for pair in named_setting(name, value)]
    config = demo_data(
        config_from_table(merge_settings(read_recipe(recipe) if recipe else {}, named))
    )
    return train(config, out=check_request(config, None if out is None else os.fspath(out)))


def named_setting(name: str, value: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    """The settings that a keyword stands for, by their dotted keys.

    Raises:
        UsageError: The command has no such option.
    """
    from vitft.config.options import FINETUNE_OPTIONS

    if "__" in name:
        return [(name.replace("__", ".", 1), value)]
    if name == "seed":
        return [("data.seed", value), ("train.seed", value)]
    keys = {option[2:].replace("-", "_"): key for option, key, _, _ in FINETUNE_OPTIONS}
    if name not in keys:
        raise UsageError(
            f"finetune has no setting {name!r}",
            fix=f"use one of {', '.join(sorted(keys))}, seed, or section__name",
        )
    return [(keys[name], value)]


def load(run: str | os.PathLike[str] | None = None, *, device: str = "auto") -> "Trained":
    """Load the model of a run folder, a checkpoint or `hf:owner/name`; by default the latest run.

    Raises:
        RunError: There is no such model, or it is damaged.
    """
    name = None if run is None else os.fspath(run)
    return Trained(Predictor.from_run(name, device=device), find_model(name).parent)


class Trained:
    """A trained model that classifies images.

    Every method takes paths, bytes, PIL images or arrays, a single image or several.
    """

    def __init__(self, predictor: Predictor, folder: Path) -> None:
        self.predictor = predictor
        self.postprocess = Postprocess.for_run(folder, predictor.classes, predictor.feature_size)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the model's logits."""
        return self.predictor.classes

    def predict(
        self, images: Picture | Iterable[Picture], *, top_k: int = 1, threshold: float = 0.0
    ) -> list[Prediction]:
        """Return one prediction per image, in order, with calibrated probabilities.

        The prediction for an unusable image has an `error`; no exception is raised for it.

        Args:
            images: One image or several.
            top_k: Classes per prediction.
            threshold: Predictions with a smaller probability have the note `not sure`.
        """
        postprocess = replace(self.postprocess, top_k=top_k, threshold=threshold)
        pipeline = Pipeline(self.predictor, postprocess)
        predictions: list[Prediction] = []
        for batch in numbered_batches(images):
            predictions += pipeline.predict_batch([self.load_image(i, p) for i, p in batch])
        return predictions

    def features(self, images: Picture | Iterable[Picture]) -> FloatArray:
        """Return the input of the head for each image: float32 (n, D).

        Raises:
            ImageError: One of the images is unusable.
        """
        parts = [
            self.predictor.scores(np.stack([self.view(i, p) for i, p in batch])).features
            for batch in numbered_batches(images)
        ]
        return np.concatenate([np.empty((0, self.predictor.feature_size), np.float32), *parts])

    def explain(self, image: Picture, *, about: str | None = None) -> Image.Image:
        """Return the preprocessed image under its relevance for a class.

        Args:
            image: One image.
            about: The class; default: the most probable one.

        Raises:
            ImageError: The image is unusable.
            UsageError: There is no such class, or the model is one of timm's, whose attention is
                not accessible.
        """
        model = own(self.predictor.model, "explain")
        if about is not None and about not in self.classes:
            raise UsageError(
                f"the model has no class {about!r}",
                fix=f"use one of {', '.join(self.classes[:20])}",
            )
        view = self.view(0, image)
        target = None if about is None else torch.tensor([self.classes.index(about)])
        heat = relevance_map(model, self.predictor.inputs(view[None]), target)[0]
        return overlay(Image.fromarray(view), heat)

    def load_image(self, index: int, picture: Picture) -> LoadedImage:
        """Preprocess an image; the result has an error if it is unusable."""
        try:
            return LoadedImage(picture_name(index, picture), self.view(index, picture))
        except ImageError as error:
            return LoadedImage(picture_name(index, picture), None, error.reason)

    def view(self, index: int, picture: Picture) -> Views:
        """Preprocess an image: (S, S, 3).

        Raises:
            ImageError: It is unusable.
        """
        name = picture_name(index, picture)
        if isinstance(picture, bytes):
            return self.predictor.view(picture, name)
        if isinstance(picture, str | os.PathLike):
            return self.predictor.view(read_bytes(picture), name)
        if isinstance(picture, np.ndarray):
            picture = image_from_array(picture)
        return self.predictor.transform.pixels(upright_rgb(picture, name))


def upright_rgb(picture: Image.Image, name: str) -> Image.Image:
    """Convert a PIL image to RGB and apply its EXIF orientation.

    Raises:
        ImageError: It was opened from a damaged file.
    """
    try:
        picture.load()
        turn = TURNS.get(orientation_of(picture) or 1)
        rgb = to_rgb(picture)
        return rgb if turn is None else rgb.transpose(turn)
    except DAMAGE as error:
        raise ImageError(name, f"damaged image ({error})") from error


def image_from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    """Convert an array to an image.

    Raises:
        UsageError: It is not uint8, or neither (H, W, 3) nor (H, W).
    """
    has_shape = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    if array.dtype != np.uint8 or not has_shape or not array.size:
        raise UsageError(
            f"an array of {array.dtype} {array.shape} cannot be used as an image",
            fix="give uint8 from 0 to 255: (H, W, 3) in RGB, or (H, W) in grey",
        )
    return Image.fromarray(array)


def picture_name(index: int, picture: Picture) -> str:
    """Return the path of an image, or its index where it has none."""
    return os.fspath(picture) if isinstance(picture, str | os.PathLike) else str(index)


def numbered_batches(
    images: Picture | Iterable[Picture],
) -> Iterator[list[tuple[int, Picture]]]:
    """Yield images with their indices, one batch at a time; also takes a single image."""
    is_stack = isinstance(images, np.ndarray) and images.ndim > 3
    single = (str, os.PathLike, bytes, Image.Image, np.ndarray)
    if isinstance(images, single) and not is_stack:
        images = [images]
    numbered = enumerate(cast("Iterable[Picture]", images))
    while batch := list(islice(numbered, BATCH_SIZE)):
        yield batch
