"""Loading of the model to explain, from a run or from pretrained weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitft.data.arrays import array_member
from vitft.data.inspection import Pixels
from vitft.data.split import run_manifest
from vitft.data.transforms import EvalTransform
from vitft.features.reference import Reference, read_reference
from vitft.metrics.summary import Results
from vitft.models.checkpoint import build_model, holds_timm
from vitft.models.classifier import load_classifier, log_assumptions
from vitft.models.find import find_model
from vitft.models.pretrained.catalog import CatalogEntry
from vitft.models.pretrained.locate import locate
from vitft.models.pretrained.weights import open_pretrained
from vitft.models.timm_model import Model
from vitft.system.device import pick_device
from vitft.system.errors import UsageError
from vitft.system.suggest import suggest


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedModel:
    """A model with its preprocessing and the names of its classes."""

    name: str
    net: Model
    transform: EvalTransform
    classes: tuple[str, ...]
    """Names of the outputs, or their indices if unnamed; empty if there is no head."""
    run: Path | None = None  # the run directory; None for pretrained weights
    thresholds: tuple[float, ...] = ()
    """Minimum probability at which each label of a multi-label model is assigned; empty if each
    image has exactly one class."""
    results: Results | None = None  # numbers of the run that the model file contains
    reference: Reference | None = None  # statistics of the run's training features, if it has them

    def inputs(self, pixels: Pixels) -> torch.Tensor:
        """Normalise images (B, S, S, 3) and move them to the device of the model."""
        device = next(self.net.parameters()).device
        return self.transform.normalise(torch.from_numpy(pixels).to(device))


def class_index(name: str, classes: Sequence[str]) -> int:
    """Return the index of the class with this name.

    Raises:
        UsageError: No class has this name, or there are no classes.
    """
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
        classes=card.classes or tuple(map(str, range(net.config.num_classes))),
        run=folder,
        thresholds=card.thresholds,
        results=card.run,
        reference=read_reference(path.parent, net.feature_size, net.config),
    )


def load_weights_model(
    name: str, *, allow_pickle: bool = False, device: str = "auto"
) -> ExplainedModel:
    """Load pretrained weights, including their classification head if it is usable.

    Raises:
        WeightsError: The weights cannot be found or read, are damaged, or do not belong to a
            supported model.
        UsageError: The weights are for a timm model, or the device cannot be used.
    """
    found = locate(name)
    if found.is_timm if isinstance(found, CatalogEntry) else holds_timm(found):
        raise UsageError(
            f"cannot explain {name}: the pretrained weights of timm models can be explained only "
            "after fine-tuning",
            fix="fine-tune them and use --run, or use weights listed by `vitft weights list`, "
            "without the timm: prefix",
        )
    source = open_pretrained(name, allow_pickle=allow_pickle)
    log_assumptions(source)
    tensors, config = source.tensors, source.architecture
    if source.unusable_head:  # its input is not the feature computed by this model
        tensors = {n: t for n, t in tensors.items() if not n.startswith("head")}
        config = replace(config, num_classes=0)
    net = build_model({n: t.float() for n, t in tensors.items()}, config)
    return ExplainedModel(
        name=source.name,
        net=net.to(pick_device(device)),
        transform=source.transform,
        classes=source.classes or tuple(map(str, range(config.num_classes))),
    )


def validation_files(run: Path | None) -> list[str]:
    """Return the paths of a run's validation images that still exist, in split order.

    An image of an array dataset has a path in it (see `vitft.data.arrays`).
    """
    manifest = None if run is None else run_manifest(run)
    names = map(manifest.locate, manifest.val) if manifest else ()
    return [name for name in names if Path(name).is_file() or array_member(name) is not None]
