"""`timm:NAME`: any timm model as a backbone, with weights fetched and verified by vitft.

timm builds the network and adapts the weights to the image size.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitft.data.transforms import CROP_MODES, RESAMPLING, EvalTransform
from vitft.models.card import Provenance, TimmConfig
from vitft.models.checkpoint import build_model, load_checkpoint, on_meta
from vitft.models.pretrained.adapt import Sides, Statistics, check_statistics
from vitft.models.pretrained.catalog import CatalogEntry, file_name, licence_terms, similar_models
from vitft.models.pretrained.fetch import fetch
from vitft.models.pretrained.read import read_weights
from vitft.models.pretrained.report import LoadReport
from vitft.models.pretrained.weights import descended, provenance_of
from vitft.models.timm_model import TimmModel
from vitft.models.timm_vit import translate, unsupported
from vitft.models.vit_config import as_pair
from vitft.system.errors import RunError, UsageError, WeightsError
from vitft.system.text import format_size


def load_timm(
    entry: CatalogEntry,
    *,
    num_classes: int,
    image_size: Sides,
    mean: Statistics,
    std: Statistics,
    drop_path: float = 0.0,
    allow_pickle: bool = False,
    is_random: bool = False,
) -> tuple[TimmModel, LoadReport]:
    """Return a timm model with pretrained weights and a zero-initialised head, and a report.

    With `is_random`, the weights are random and nothing is downloaded or read.

    Raises:
        WeightsError: The model does not exist, or its file cannot be used.
        UsageError: The model cannot be built with these settings.
        ResourceError: The disk is full.
    """
    entry = complete_entry(entry, is_published=not (is_random or entry.local))
    sides = entry.image_size if image_size is None else as_pair(image_size)
    config = TimmConfig(
        timm=entry.architecture,
        image_size=sides,
        sized=sides != entry.image_size and bool(entry.options["fixed_input_size"]),
        num_classes=num_classes,
    )
    given = check_statistics(mean, std, len(entry.mean))
    transform = EvalTransform(image_size=sides, **entry.pixels)
    if given:
        transform = replace(transform, mean=given[0], std=given[1])
    if is_random:
        model = TimmModel(config, drop_path=drop_path)
        return model, _timm_report(model, 0, transform, {"name": entry.name, "source": "random"})
    if entry.local:
        path = Path(entry.local)
        names: list[str] = []
        with contextlib.suppress(RunError):  # reported below
            names = [*on_meta(config.without_head()).state_dict()]
        raw = read_weights(path, allow_pickle=allow_pickle, names=names)
        source: dict[str, Any] = {"tensors": raw.tensors}
        dropped, notes = raw.dropped, raw.notes
        provenance: Provenance = {"name": entry.name, "source": str(path), "sha256": raw.sha256}
    else:
        fetched = fetch(entry)
        path, source, dropped, notes = fetched.path, {"file": fetched.path}, (), ()
        provenance = provenance_of(entry, fetched)
    try:
        model = TimmModel(config, **source, drop_path=drop_path)
    except (RuntimeError, ValueError, KeyError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(
            f"{path} does not match timm's {config.timm} at {sides[0]}x{sides[1]} pixels: {reason}",
            fix=f"omit --image-size (default: {format_size(entry.image_size)} pixels), or choose "
            "other weights",
        ) from error
    old_classes = entry.num_classes
    if entry.local:
        old_classes = len(source["tensors"].get(f"{model.head_name}.weight", ()))
    report = _timm_report(model, old_classes, transform, provenance)
    return model, replace(
        report,
        dropped=(*report.dropped, *dropped),
        notes=notes,
        positions="resized by timm" if config.sized else "as loaded",
        statistics_source="given by --mean and --std" if mean else "from timm",
    )


def reload_timm(
    path: Path,
    *,
    num_classes: int,
    image_size: Sides,
    drop_path: float = 0.0,
    classes: Sequence[str] = (),
) -> tuple[TimmModel, LoadReport]:
    """Return the timm model of a checkpoint with a new zero-initialised head, and a report.

    If `classes` match the checkpoint, its head is kept.

    Raises:
        WeightsError: The checkpoint is missing or damaged, or timm cannot build its model.
        UsageError: The model was trained at another image size, or has no stochastic depth.
    """
    try:
        tensors, card = load_checkpoint(path)
        assert isinstance(card.architecture, TimmConfig)
        if image_size is not None and as_pair(image_size) != card.architecture.image_size:
            raise UsageError(
                f"{path} was fine-tuned at {format_size(card.architecture.image_size)} pixels, "
                "and this size cannot be changed",
                fix="omit --image-size, or start from timm:NAME again",
            )
        old = build_model(tensors, card.architecture)
    except RunError as error:
        raise WeightsError(error.problem, fix=error.fix) from error
    assert isinstance(old, TimmModel)
    model = TimmModel(replace(old.config, num_classes=num_classes), drop_path=drop_path)
    model.net.load_state_dict(old.net.state_dict())
    if is_kept := tuple(classes) == card.classes:
        model.head.load_state_dict(old.head.state_dict())
    note = f"the head of {file_name(path)} is {'kept' if is_kept else 'not used'}"
    provenance = descended({"name": file_name(path), "source": str(path)}, card.weights)
    report = _timm_report(model, 0 if is_kept else len(card.classes), card.transform, provenance)
    return model, replace(
        report,
        flavour="vitft",
        statistics_source="from the checkpoint",
        head="kept" if is_kept else report.head,
        notes=(note,) if classes else (),
    )


def _timm_report(
    model: TimmModel, old_classes: int, transform: EvalTransform, provenance: Provenance
) -> LoadReport:
    """Return the report on a timm model; a head for `old_classes` classes, if any, was dropped."""
    config = model.config
    return LoadReport(
        source=provenance["source"],
        flavour="timm",
        architecture=f"timm's {config.timm}, {format_size(config.image_size)} px",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        loaded=len(model.net.state_dict()),
        dropped=(f"{model.head_name} ({old_classes} classes)",) if old_classes else (),
        head=f"new, {config.num_classes} classes, initialised to zero"
        if config.num_classes
        else "none",
        transform=transform,
        statistics_source="from timm",
        provenance=provenance,
    )


def complete_entry(entry: CatalogEntry, *, is_published: bool = True) -> CatalogEntry:
    """Return the entry of `timm:NAME`, completed with timm's metadata.

    Raises:
        WeightsError: timm has no weights with this name or, with `is_published`, none on the hub.
    """
    import timm
    from timm.models import get_pretrained_cfg

    name = entry.name.removeprefix("timm:")
    architecture = name.partition(".")[0]
    try:
        known: Any = get_pretrained_cfg(name) if timm.is_model(architecture) else None
    except RuntimeError:  # the architecture does not have this tag
        known = None
    if known is None:
        near = similar_models(name, timm.list_models() + timm.list_pretrained())
        raise WeightsError(
            f"timm {timm.__version__} has no weights named {name}",
            fix=f"choose another name, e.g. {', '.join(near)}",
        )
    if is_published and not known.hf_hub_id:
        raise WeightsError(
            f"timm has no hub repository for {name}",
            fix="choose another name from timm.list_pretrained()",
        )
    return replace(
        entry,
        name=f"timm:{architecture}{'.' + known.tag if known.tag else ''}",
        licence=known.license or "not stated" if is_published else "",
        architecture=architecture,
        options={"fixed_input_size": known.fixed_input_size, "crop_mode": known.crop_mode or ""},
        data=known.tag or "",
        repo=known.hf_hub_id or "",
        file=known.hf_hub_filename or "model.safetensors",
        image_size=tuple(known.input_size[1:]),
        mean=tuple(known.mean),
        std=tuple(known.std),
        crop=float(known.crop_pct),
        interpolation=known.interpolation if known.interpolation in RESAMPLING else "bicubic",
        fit=CROP_MODES.get(known.crop_mode or "", "crop"),
        num_classes=known.num_classes,
    )


def registry_entry(name: str) -> CatalogEntry:
    """Return an entry for weights that timm publishes and vitft's own model can use.

    Raises:
        WeightsError: timm does not publish them, or vitft's own model does not support them.
    """
    reason = translate(name.partition(".")[0])
    if isinstance(reason, str):
        problem, fix = unsupported(name, reason)
        raise WeightsError(problem, fix=fix)
    known = complete_entry(CatalogEntry(name=f"timm:{name}", licence=""))
    return replace(
        known,
        name=known.name.removeprefix("timm:"),
        options={},
        note="the licence forbids commercial use"
        if licence_terms(known.licence) == "non-commercial"
        else "",
    )
