"""The model that is looked into: of a run, or pretrained weights as they are."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import torch

from vitft.config.run import read_toml
from vitft.data.loading import Pixels
from vitft.data.split import Manifest
from vitft.data.transforms import EvalTransform
from vitft.explain.attribution import explainable
from vitft.models.checkpoint import build_model, holds_timm, load_checkpoint
from vitft.models.find import find_model
from vitft.models.pretrained.catalog import CatalogEntry
from vitft.models.pretrained.locate import locate
from vitft.models.pretrained.weights import open_pretrained
from vitft.models.vit import VisionTransformer
from vitft.system.device import pick_device
from vitft.system.errors import UsageError, VitftError
from vitft.system.rundir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model with what is needed to show it images."""

    name: str
    """For titles: the run's folder or the weights' name."""
    model: VisionTransformer
    transform: EvalTransform
    classes: tuple[str, ...]
    """Names of the head's outputs; numbers where nobody named them; empty without a head."""
    run: Path | None = None
    """The run directory, if it is one."""

    @property
    def device(self) -> torch.device:
        return self.model.pos_embed.device

    def inputs(self, pixels: Pixels) -> torch.Tensor:
        """Views (B, S, S, 3) as the model takes them."""
        return self.transform.normalise(torch.from_numpy(pixels).to(self.device))

    def class_index(self, name: str) -> int:
        """Which output has this name.

        Raises:
            UsageError: None has, or the model has no classes.
        """
        if name in self.classes:
            return self.classes.index(name)
        near = get_close_matches(name, self.classes, n=3, cutoff=0.0)
        raise UsageError(
            f"the model has no class {name!r}",
            fix=f"the nearest: {', '.join(near)}" if near else "leave --class out: it has none",
        )


def subject_of_run(run: str | None, *, device: str = "auto") -> Subject:
    """The model of a run folder or checkpoint; by default of the latest run.

    Raises:
        RunError: There is none, or it is damaged.
        UsageError: Its model is one of timm's.
    """
    path = find_model(run)
    state, card = load_checkpoint(path)
    model = explainable(build_model({n: t.float() for n, t in state.items()}, card.architecture))
    folder = path.resolve().parent
    return Subject(
        name=folder.name if path.name == "model.safetensors" else path.stem,
        model=model.to(pick_device(device)),
        transform=card.transform,
        classes=named(model, card.classes),
        run=folder,
    )


def subject_of_weights(name: str, *, allow_pickle: bool = False, device: str = "auto") -> Subject:
    """Pretrained weights as their maker left them, with their own head if they have one.

    Raises:
        WeightsError: Not found, refused or damaged.
        UsageError: They are for one of timm's models.
    """
    found = locate(name)
    if found.is_timm if isinstance(found, CatalogEntry) else holds_timm(found):
        raise UsageError(
            f"{name} is a model of timm, which hides its attention: explaining needs vitft's own",
            fix="name weights of `vitft weights list`, without timm: in front",
        )
    source = open_pretrained(name, allow_pickle=allow_pickle)
    tensors, config = source.tensors, source.architecture
    if source.unusable_head:  # it reads something else than this model's feature
        tensors = {n: t for n, t in tensors.items() if not n.startswith("head")}
        config = replace(config, num_classes=0)
    model = explainable(build_model({n: t.float() for n, t in tensors.items()}, config))
    return Subject(
        name=Path(source.origin).parent.name if source.name == "model" else source.name,
        model=model.to(pick_device(device)),
        transform=source.transform,
        classes=named(model, source.classes),
    )


def named(model: VisionTransformer, classes: tuple[str, ...]) -> tuple[str, ...]:
    """The classes' names, or their numbers."""
    return classes or tuple(str(i) for i in range(model.config.num_classes))


def validation_images(run: Path | None) -> list[str]:
    """The validation images of a run in the order of its split; none if they cannot be found."""
    if run is None:
        return []
    try:
        data = Path(read_toml(run / "config.toml")["data"]["path"]).expanduser()
        manifest = Manifest.read(RunDir(run).split, data)
    except (VitftError, KeyError):
        return []
    return [name for name in map(manifest.locate, manifest.val) if Path(name).is_file()]
