"""The commands as functions, for notebooks and programs: `vitft.finetune` and `vitft.load`.

They say and write what the commands do, and raise the errors that the commands print.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from PIL import Image

from vitft.config.options import option_settings
from vitft.config.run import config_from_table, merge_settings, read_recipe
from vitft.data.demo import demo_data
from vitft.data.images import DAMAGE, TURNS, orientation_of, read_bytes, to_rgb
from vitft.features.ood import read_reference
from vitft.models.find import find_model
from vitft.predict.engine import Floats, Judge, Looked, Prediction, Views, judged
from vitft.predict.torch_engine import BATCH, Predictor
from vitft.system.errors import ImageError, UsageError
from vitft.training.checks import check_request
from vitft.training.run import Result
from vitft.training.run import finetune as train

Picture = str | os.PathLike[str] | bytes | Image.Image | np.ndarray[Any, Any]
"""A path, the bytes of a file, a PIL image, or an array uint8 (H, W, 3) or (H, W)."""


def finetune(  # noqa: PLR0913 - the options of the command, see `config.options`
    *,
    data: str | os.PathLike[str],
    weights: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    recipe: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    split: Literal["random", "reference"] | None = None,
    fixes: str | os.PathLike[str] | None = None,
    group_duplicates: bool = False,
    image_size: int | tuple[int, int] | None = None,
    pre_logits: Literal["keep", "drop"] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    allow_pickle: bool = False,
    freeze: str | None = None,
    solver: Literal["lbfgs", "sgd", "adamw"] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    views: int | None = None,
    keep_adapter: bool = False,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    tracker: str | Sequence[str] | None = None,
    settings: Mapping[str, object] | None = None,
) -> Result:
    """Fine-tune pretrained weights on a folder of images.

    Does what `vitft finetune` does; an argument that is left out has the default of the command's
    option (see `vitft finetune --help`) or, with `recipe`, the value of the recipe.

    Args:
        data: Image folder with one folder per class, .npz file, `torchvision:CIFAR10` or `demo`.
        weights: Catalogue name, weight file, `hf:owner/name`, `timm:name`, `demo`, or `none` to
            train from scratch.
        out: Run directory, new or empty. Default: `runs/<time>-<data>`.
        recipe: Name of a recipe or a TOML file with settings.
        seed: Seed of the split, the batch order and the augmentation.
        split: How validation images are chosen.
        fixes: CSV of images to leave out or relabel, as written by `vitft check`.
        group_duplicates: Keep near-duplicates of an image on one side of the split.
        image_size: Input size in pixels: one side, or height and width.
        pre_logits: What to do with a Linear + Tanh in front of the pretrained head.
        mean: Channel means for normalisation, in 0..1.
        std: Channel standard deviations for normalisation.
        allow_pickle: Read .pth files (with weights_only=True).
        freeze: What trains: `head`, `pre_logits`, `blocks:N`, `lora` or `none` (nothing is frozen),
            or several stages, e.g. `head,none`.
        solver: `lbfgs` fits a head on cached features; `sgd` and `adamw` train in steps.
        epochs: Passes over the training images.
        batch_size: Images per step.
        lr: Peak learning rate.
        views: Number of augmented views of each training image to cache.
        keep_adapter: With `freeze="lora"`, also write the adapter, for peft.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        cache: Folder of cached features, or `none`.
        tracker: Experiment trackers to log to: `tensorboard`, `mlflow`, `wandb`.
        settings: Any other settings by dotted name, e.g. `{"optim.ema": 0.999}`; see
            docs/settings.md.

    Returns:
        The run directory and its metrics. After Ctrl-C the best weights so far are saved, and
        `interrupted` is set.

    Raises:
        VitftError: The error that the command would print; see `vitft.system.errors`.
    """
    options = option_settings({k: v for k, v in locals().items() if k != "settings"})
    table = read_recipe(os.fspath(recipe)) if recipe else {}
    named = [*options, *(settings or {}).items()]
    config = demo_data(config_from_table(merge_settings(table, named)))
    return train(config, out=check_request(config, None if out is None else os.fspath(out)))


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

    def __repr__(self) -> str:
        return f"Trained(run='{self.home}', classes={len(self.classes)})"

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
        from vitft.models.timm_model import require_vit

        model = require_vit(self.predictor.model, "explain")
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
        turn = TURNS.get(orientation_of(picture) or 1)
        rgb = to_rgb(picture)
        return rgb if turn is None else rgb.transpose(turn)
    except DAMAGE as error:
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
