"""The commands as functions, for notebooks and programs: `vitft.finetune` and `vitft.load`.

They say and write what the commands do, and raise the errors that the commands print.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from vitft.config.run import config_from_table, merge_settings, read_recipe
from vitft.data.images import DECODER_ERRORS, ORIENTATIONS, orientation_of, read_bytes, to_rgb
from vitft.features.ood import read_reference
from vitft.models.find import find_model
from vitft.predict.engine import Floats, Judge, Looked, Prediction, Views, judged
from vitft.predict.torch_engine import BATCH, Predictor
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
    """The model of a run folder, a checkpoint file or `hf:owner/name`; by default the latest run.

    Raises:
        RunError: There is none, or it is damaged.
    """
    name = None if run is None else os.fspath(run)
    return Trained(Predictor.from_run(name, device=device), find_model(name).parent)


class Trained:
    """A trained model: ask it about images.

    Wherever images are taken, a single one will do; they may be paths, bytes, PIL images or arrays.
    """

    def __init__(self, predictor: Predictor, home: Path) -> None:
        self.predictor, self.home = predictor, home
        self.reference = read_reference(home, predictor.feature_size)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the model's scores."""
        return self.predictor.classes

    def predict(
        self, images: Picture | Iterable[Picture], *, top_k: int = 1, threshold: float = 0.0
    ) -> list[Prediction]:
        """One answer per image, in order, with calibrated probabilities.

        What is no image gets an answer whose `error` says why; nothing is raised for it.

        Args:
            images: One or several.
            top_k: Classes per answer.
            threshold: Answers whose probability is smaller are noted as `not sure`.
        """
        judge = Judge(
            classes=self.classes, top_k=top_k, threshold=threshold, reference=self.reference
        )
        found: list[Prediction] = []
        for chunk in chunks(images):
            found += judged(self.predictor, [self.looked(i, p) for i, p in chunk], judge)
        return found

    def features(self, images: Picture | Iterable[Picture]) -> Floats:
        """What the head reads of each image: float32 (n, D).

        Raises:
            ImageError: One of them is no image.
        """
        parts = [
            self.predictor.features(np.stack([self.view(i, picture) for i, picture in chunk]))
            for chunk in chunks(images)
        ]
        return np.concatenate([np.empty((0, self.predictor.feature_size), np.float32), *parts])

    def explain(self, image: Picture, *, about: str | None = None) -> Image.Image:
        """What the model saw of an image, with the places that spoke for a class laid over.

        Args:
            image: One.
            about: The class; default: the model's answer.

        Raises:
            ImageError: It is no image.
            UsageError: No such class, or a model of timm, whose attention cannot be seen.
        """
        import torch

        from vitft.explain import overlay, relevance_map
        from vitft.models.timm_model import own

        model = own(self.predictor.model, "explain")
        if about is not None and about not in self.classes:
            raise UsageError(
                f"the model has no class {about!r}", fix=f"one of {', '.join(self.classes[:20])}"
            )
        view = self.view(0, image)
        target = None if about is None else torch.tensor([self.classes.index(about)])
        heat = relevance_map(model, self.predictor.inputs(view[None]), target)[0]
        return overlay(Image.fromarray(view), heat)

    def looked(self, place: int, picture: Picture) -> Looked:
        """An image on its way, or why it is none."""
        try:
            return Looked(name_of(place, picture), self.view(place, picture))
        except ImageError as error:
            return Looked(name_of(place, picture), None, error.reason)

    def view(self, place: int, picture: Picture) -> Views:
        """What the model is shown: (S, S, 3).

        Raises:
            ImageError: It is no image.
        """
        name = name_of(place, picture)
        if isinstance(picture, bytes):
            return self.predictor.view(picture, name)
        if isinstance(picture, str | os.PathLike):
            return self.predictor.view(read_bytes(picture), name)
        if isinstance(picture, np.ndarray):
            picture = from_array(picture)
        return self.predictor.transform.pixels(upright(picture, name))


def upright(picture: Image.Image, name: str) -> Image.Image:
    """A PIL image as RGB, turned as its EXIF data say.

    Raises:
        ImageError: It was opened from a damaged file.
    """
    try:
        picture.load()
        turn = ORIENTATIONS.get(orientation_of(picture) or 1)
        rgb = to_rgb(picture)
        return rgb if turn is None else rgb.transpose(turn)
    except DECODER_ERRORS as error:
        raise ImageError(name, f"damaged image ({error})") from error


def from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    """An array as an image.

    Raises:
        UsageError: Not uint8, or neither (H, W, 3) nor (H, W).
    """
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    if array.dtype != np.uint8 or not fits or not array.size:
        raise UsageError(
            f"an array of {array.dtype} {array.shape} is no image",
            fix="give uint8 from 0 to 255, (H, W, 3) in RGB or (H, W) in grey",
        )
    return Image.fromarray(array)


def name_of(place: int, picture: Picture) -> str:
    """What an answer calls its image: the path, or its number from 0."""
    return os.fspath(picture) if isinstance(picture, str | os.PathLike) else str(place)


def chunks(images: Picture | Iterable[Picture]) -> Iterator[list[tuple[int, Picture]]]:
    """Numbered images, a batch at a time; a single one is one of one."""
    is_stack = isinstance(images, np.ndarray) and images.ndim > 3
    one = (str, os.PathLike, bytes, Image.Image, np.ndarray)
    if isinstance(images, one) and not is_stack:
        images = [images]
    numbered = enumerate(cast("Iterable[Picture]", images))
    while chunk := list(islice(numbered, BATCH)):
        yield chunk
