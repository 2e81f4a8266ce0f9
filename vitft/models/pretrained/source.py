"""A name or a path -> weights under our names, understood and checked, not yet adapted.

Whether they can be used at another size or class count is decided in `adapt`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from torch import Tensor

from vitft.data.transforms import CROP, EvalTransform, Interpolation
from vitft.models.checkpoint import Card, Provenance, is_checkpoint, load_checkpoint
from vitft.models.pretrained.catalog import Entry
from vitft.models.pretrained.convert import Flavour, convert
from vitft.models.pretrained.fetch import fetch
from vitft.models.pretrained.infer import Hints, check_fit, infer_config
from vitft.models.pretrained.locate import locate
from vitft.models.pretrained.read import RawWeights, read
from vitft.models.pretrained.sidecar import Beside, read_beside
from vitft.models.vit_config import SIZES, ViTConfig
from vitft.system.errors import RunError, UsageError, WeightsError

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
UNSTATED = "not stated anywhere, 0.5 assumed; wrong ones cost a ViT-Tiny 32 points: --mean --std"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One set of weights as its maker left it, under our names."""

    name: str
    origin: str
    """File or repository, for people."""
    flavour: Flavour
    tensors: Mapping[str, Tensor]
    """Exactly those of a model built from `architecture`."""
    architecture: ViTConfig
    transform: EvalTransform
    statistics_source: str
    provenance: Provenance
    classes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    """Tensors that have no use here, each with its shape."""
    foreign_head: str = ""
    """Why the head cannot be used here, if it cannot."""
    notes: tuple[str, ...] = ()


def open_source(
    name_or_path: str | Path, *, allow_pickle: bool = False, sha256: str | None = None
) -> Source:
    """Find, read, convert and check one set of weights.

    Raises:
        WeightsError: Not found, refused, damaged, or not the weights of a ViT that we can build.
    """
    found = locate(name_or_path)
    if isinstance(found, Entry):
        if found.is_of_timm:
            raise WeightsError(
                f"{found.name} is timm's own model, not a ViT that is loaded into ours",
                fix="use vitft.models.pretrained.load_backbone, or a name of the catalogue",
            )
        fetched = fetch(found, allow_pickle=allow_pickle)
        raw = read(fetched.path, allow_pickle=allow_pickle, sha256=sha256, verified=fetched.sha256)
        provenance: Provenance = {
            "name": found.name,
            "source": f"{found.repo}/{fetched.path.name}" if found.repo else found.path,
            "revision": fetched.revision,
            "sha256": fetched.sha256,
            "licence": found.licence,
        }
        known = read_beside(fetched.path) if found.is_foreign else from_entry(found)
        return understood(raw, known, provenance)
    raw = read(found, allow_pickle=allow_pickle, sha256=sha256)
    provenance = {"name": found.stem, "source": str(found), "sha256": raw.sha256 or ""}
    if is_checkpoint(raw.metadata):
        return understood(raw, Beside(), provenance)
    return understood(raw, read_beside(found), provenance)


def from_entry(entry: Entry) -> Beside:
    """What the catalogue knows, in the form of what a config.json says."""
    size = SIZES.get(entry.size)
    return Beside(
        heads=size.heads if size else None,
        image_size=entry.image_size,
        mean=entry.mean,
        std=entry.std,
        crop=entry.crop,
        interpolation=entry.interpolation,
        source="from the catalogue",
        notes=(entry.note,) if entry.note else (),
    )


def understood(raw: RawWeights, beside: Beside, provenance: Provenance) -> Source:
    """Raw tensors with what is known of them, as one checked whole."""
    if is_checkpoint(raw.metadata):
        return from_checkpoint(raw, beside, provenance)
    try:
        converted = convert(raw.tensors)
        hints = Hints(
            heads=converted.heads or beside.heads,
            image_size=beside.image_size,
            norm_eps=beside.norm_eps,
        )
        architecture = infer_config(converted.tensors, hints)
        check_fit(converted.tensors, architecture)
    except WeightsError as error:
        raise WeightsError(f"{raw.path}: {error.problem}", fix=error.fix) from error
    notes = [*beside.notes, *doubts(architecture, hints)]
    beside = with_usual_statistics(beside, architecture, converted.flavour)
    classes = beside.classes if len(beside.classes) == architecture.num_classes else ()
    if beside.classes and architecture.num_classes and not classes:
        notes.append(
            f"config.json names {len(beside.classes)} classes, the head has "
            f"{architecture.num_classes}: the names are not used"
        )
    return Source(
        name=provenance["name"],
        origin=provenance["source"],
        flavour=converted.flavour,
        tensors=converted.tensors,
        architecture=architecture,
        transform=transform_of(beside, architecture, raw.path),
        statistics_source=beside.source if beside.mean else UNSTATED,
        provenance=provenance,
        classes=classes,
        dropped=converted.dropped,
        foreign_head="it reads the mean of the tokens after the last LayerNorm"
        if beside.averages and architecture.pool == "cls"
        else "",
        notes=tuple(notes),
    )


def with_usual_statistics(beside: Beside, config: ViTConfig, flavour: Flavour) -> Beside:
    """What is known of a file without a config.json, because only one maker's are like that."""
    if beside.mean is not None or config.in_channels != 3:
        return beside
    if config.layer_scale or config.distilled:
        (mean, std), why = IMAGENET, "as all published models with LayerScale or distillation"
    elif flavour == "npz" or config.stem is not None or config.pre_logits:
        (mean, std), why = HALF, "as all of Google's Vision Transformers"
    else:
        return beside
    return replace(beside, mean=mean, std=std, source=why)


def from_checkpoint(raw: RawWeights, beside: Beside, provenance: Provenance) -> Source:
    """A file of our own, whose card tells everything; its digest is verified."""
    try:
        tensors, card = load_checkpoint(raw.path)
    except RunError as error:
        raise WeightsError(error.problem, fix=error.fix) from error
    if not isinstance(card.architecture, ViTConfig):
        raise WeightsError(
            f"{raw.path} holds timm's {card.architecture.timm}, not a ViT of ours",
            fix="load it with vitft.models.pretrained.load_backbone",
        )
    check_fit(tensors, card.architecture)
    return Source(
        name=provenance["name"],
        origin=provenance["source"],
        flavour="vitft",
        tensors=tensors,
        architecture=replace(card.architecture, drop_path=0.0),
        transform=card.transform,
        statistics_source="from the checkpoint's card",
        provenance=descended(provenance, card),
        classes=card.classes,
        notes=beside.notes,
    )


def descended(provenance: Provenance, card: Card) -> Provenance:
    """Where a checkpoint came from, with the weights that it was itself fine-tuned from."""
    ancestor = card.weights.get("name")
    return {**provenance, "from": ancestor} if ancestor else provenance


def transform_of(beside: Beside, architecture: ViTConfig, path: Path) -> EvalTransform:
    """The evaluation transform that is stated, completed by timm's defaults for ViTs."""
    half = (0.5,) * architecture.in_channels
    try:
        transform = EvalTransform(
            image_size=architecture.image_size,
            crop=CROP if beside.crop is None else beside.crop,
            interpolation=cast("Interpolation", beside.interpolation or "bicubic"),
            mean=beside.mean or half,
            std=beside.std or half,
            fit=beside.fit,
        )
    except UsageError as error:
        raise WeightsError(
            f"{beside.source or path}: {error.problem}", fix="correct or remove that file"
        ) from error
    if len(transform.mean) != architecture.in_channels:
        raise WeightsError(
            f"{beside.source} states {len(transform.mean)} channel means, but the weights read "
            f"{architecture.in_channels} channels",
            fix="give the right ones with --mean and --std",
        )
    return transform


def doubts(config: ViTConfig, hints: Hints) -> list[str]:
    """What was guessed, or what a user may stumble over."""
    told = []
    if hints.heads is None:
        told.append(
            f"{config.heads} heads are assumed for a width of {config.width}: nothing states them"
        )
    if hints.image_size not in (None, config.image_size):
        told.append(
            f"the stated image size {hints.image_size} does not fit the positions, which are of "
            f"{config.image_size[0]}x{config.image_size[1]} pixels"
        )
    return told
