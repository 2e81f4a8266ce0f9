"""`timm:NAME`: any model of timm as a backbone, its weights fetched and verified like our own.

timm builds the network and fits its file to the image size; what is fetched, from where, and that
its content is what the hub announced is ours.
"""

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from vitft.data.transforms import RESAMPLING, EvalTransform, Interpolation
from vitft.models.checkpoint import Card, build_model, load_checkpoint
from vitft.models.pretrained.catalog import Entry
from vitft.models.pretrained.fetch import Fetched, fetch
from vitft.models.pretrained.report import LoadReport
from vitft.models.registry import describe_timm
from vitft.models.timm_model import TimmConfig, TimmModel
from vitft.system.errors import RunError, UsageError, WeightsError

Sides = int | tuple[int, int] | None
Statistics = tuple[float, ...] | None


def load_timm(
    entry: Entry, *, num_classes: int, image_size: Sides, mean: Statistics, std: Statistics
) -> tuple[TimmModel, LoadReport]:
    """A model of timm with its pretrained weights and a zero head, and a report.

    Raises:
        WeightsError: timm or the hub does not know it, or the file does not fit.
        UsageError: It cannot be built at this size, or has no linear head.
    """
    entry = resolved(entry)
    fetched = fetch(entry)
    sides = entry.image_size if image_size is None else pair(image_size)
    config = TimmConfig(
        timm=entry.architecture,
        image_size=sides,
        sized=sides != entry.image_size and bool(entry.options["fixed_input_size"]),
        num_classes=num_classes,
    )
    model = built(config, entry, fetched)
    return model, LoadReport(
        source=f"{entry.repo}/{entry.file}",
        flavour="timm",
        architecture=describe_timm(config),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        loaded=len(model.net.state_dict()),
        dropped=(f"{model.place} ({entry.num_classes} classes)",) if entry.num_classes else (),
        head=f"new, {num_classes} classes, zero",
        pre_logits="none",
        positions="resized by timm" if config.sized else "as loaded",
        transform=transform_of(entry, sides, mean, std),
        statistics_source="as given by --mean and --std" if mean else "from timm",
        provenance={
            "name": entry.name,
            "source": f"{entry.repo}/{entry.file}",
            "revision": fetched.revision,
            "sha256": fetched.sha256,
            "licence": entry.licence,
        },
    )


def built(config: TimmConfig, entry: Entry, fetched: Fetched) -> TimmModel:
    """The model with the fetched weights; what timm says of a file that does not fit, in words."""
    try:
        return TimmModel(config, file=fetched.path)
    except (RuntimeError, ValueError, KeyError, AssertionError) as error:
        reason = str(error).strip().splitlines()[:2]
        raise WeightsError(
            f"{fetched.path} does not fit timm's {config.timm} at {config.image_size[0]} x "
            f"{config.image_size[1]} pixels: {' '.join(reason)[:200]}",
            fix=f"leave --image-size out ({entry.image_size[0]} pixels), or choose other weights",
        ) from error


def resolved(entry: Entry) -> Entry:
    """A row for `timm:NAME`, completed by what timm knows of it.

    Raises:
        WeightsError: timm does not know the name, or publishes no weights for it on the hub.
    """
    import timm
    from timm.models import get_pretrained_cfg

    name = entry.name.removeprefix("timm:")
    architecture = name.partition(".")[0]
    try:
        known: Any = get_pretrained_cfg(name) if timm.is_model(architecture) else None
    except RuntimeError:  # a tag that the architecture does not have
        known = None
    if known is None:
        near = get_close_matches(name, timm.list_models() + timm.list_pretrained(), n=5, cutoff=0.4)
        raise WeightsError(
            f"timm {timm.__version__} has no weights called {name}",
            fix=f"the nearest names: {', '.join(near) or 'none; see timm.list_pretrained()'}",
        )
    if not known.hf_hub_id:
        raise WeightsError(
            f"timm has no repository on the hub for {name}",
            fix="take another name of timm.list_pretrained()",
        )
    return replace(
        entry,
        name=f"timm:{architecture}{'.' + known.tag if known.tag else ''}",
        licence=known.license or "not stated",
        architecture=architecture,
        options={"fixed_input_size": known.fixed_input_size, "crop_mode": known.crop_mode or ""},
        data=known.tag or "",
        repo=known.hf_hub_id,
        file=known.hf_hub_filename or "model.safetensors",
        image_size=tuple(known.input_size[1:]),
        mean=tuple(known.mean),
        std=tuple(known.std),
        crop=float(known.crop_pct),
        interpolation=known.interpolation,
        num_classes=known.num_classes,
    )


def transform_of(
    entry: Entry, sides: tuple[int, int], mean: Statistics, std: Statistics
) -> EvalTransform:
    """How timm evaluates this model; the sides are the wanted ones."""
    if (mean is None) != (std is None) or (mean and len(mean) != len(entry.mean)):
        raise UsageError(
            f"mean is {mean} and std is {std}, for {len(entry.mean)} channels",
            fix="give both, with one number per channel, e.g. 0.5 0.5 0.5",
        )
    known = entry.interpolation in RESAMPLING
    return EvalTransform(
        image_size=sides,
        crop=entry.crop,
        interpolation=cast("Interpolation", entry.interpolation if known else "bicubic"),
        mean=mean or entry.mean,
        std=std or entry.std,
        fit="squash" if entry.options["crop_mode"] == "squash" else "crop",
    )


def pair(sides: int | tuple[int, int]) -> tuple[int, int]:
    """One side for squares, or (height, width)."""
    return sides if isinstance(sides, tuple) else (sides, sides)


def reload_timm(path: Path, *, num_classes: int, image_size: Sides) -> tuple[TimmModel, LoadReport]:
    """A checkpoint of ours that holds a model of timm, with a new zero head.

    Raises:
        WeightsError: Damaged, or asked for another size than it was trained at.
    """
    try:
        tensors, card = load_checkpoint(path)
        assert isinstance(card.architecture, TimmConfig)
        if image_size is not None and pair(image_size) != card.architecture.image_size:
            raise UsageError(
                f"{path} was fine-tuned at {card.architecture.image_size} pixels",
                fix="leave --image-size out, or start from timm:NAME again",
            )
        old = build_model(tensors, card.architecture)
    except RunError as error:
        raise WeightsError(error.problem, fix=error.fix) from error
    assert isinstance(old, TimmModel)
    model = TimmModel(replace(old.config, num_classes=num_classes))
    model.net.load_state_dict(old.net.state_dict())
    return model, report_on_checkpoint(model, path, card)


def report_on_checkpoint(model: TimmModel, path: Path, card: Card) -> LoadReport:
    """What a user should know about weights that an earlier run left."""
    return LoadReport(
        source=str(path),
        flavour="vitft",
        architecture=describe_timm(model.config),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        loaded=len(model.net.state_dict()),
        dropped=(f"{model.place} ({len(card.classes)} classes)",),
        head=f"new, {model.config.num_classes} classes, zero",
        pre_logits="none",
        positions="as loaded",
        transform=card.transform,
        statistics_source="from the checkpoint",
        provenance={"name": path.stem, "source": str(path), "from": card.weights.get("name", "")},
    )
