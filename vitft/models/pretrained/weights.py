"""`open_pretrained`: find, fetch, read, convert and check pretrained weights.

The result has vitft's tensor names and a known architecture; `adapt` adapts it to a different
image size or class count.
"""

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitft.data.transforms import EvalTransform
from vitft.models.card import Provenance, timm_modules
from vitft.models.checkpoint import load_checkpoint
from vitft.models.pretrained.adapt import PosEmbed
from vitft.models.pretrained.catalog import CatalogEntry, entries_by_name, file_name, find_entry
from vitft.models.pretrained.convert import Flavour, convert
from vitft.models.pretrained.fetch import Fetched, fetch
from vitft.models.pretrained.infer import SidecarFacts, check_fit, infer_config
from vitft.models.pretrained.locate import file_and_part, locate
from vitft.models.pretrained.read import RawWeights, read_weights
from vitft.models.pretrained.sidecar import read_sidecar, timm_pool
from vitft.models.registry import architecture_config
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import RunError, UsageError, WeightsError
from vitft.system.text import count, distinct_names

# facts about weight files that are named as published: preprocessing and ImageNet's class names ---


def _published_entry(name: str, config: ViTConfig) -> CatalogEntry | None:
    """Return the published weights with this name, or None if there are none of this shape."""
    known = name.removeprefix("timm/")  # as on the hub
    if known not in entries_by_name() and known.partition(".")[0] not in timm_modules():
        return None
    try:
        entry = find_entry(known)
        published = architecture_config(entry.name.partition(".")[0])
    except (WeightsError, UsageError):  # not published, or not supported by vitft's own model
        return None
    names = ("width", "depth", "patch_size", "in_channels")
    is_same = all(getattr(published, name) == getattr(config, name) for name in names)
    return entry if is_same else None


@functools.cache
def _label_set(name: str, config: ViTConfig) -> str:
    """Return timm's name of the label set of published weights, e.g. `imagenet-1k`, or "".

    The last dataset in their name must be one of ImageNet's, with as many classes as the head.
    """
    entry = _published_entry(name, config) if config.num_classes else None
    if entry is None or entry.num_classes != config.num_classes:
        return ""
    from timm.data import infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": config.num_classes}) or ""
    stated = re.findall(r"(?<![a-z])in(\d+k)", entry.name)  # e.g. 21k, 1k: augreg_in21k_ft_in1k
    return subset if stated and subset.split("-")[1:2] == stated[-1:] else ""


@functools.cache
def imagenet_classes(subset: str) -> tuple[str, ...]:
    """Return a different name for each class of one of ImageNet's label sets, in timm's order.

    The name is the first word of the class in WordNet, e.g. `tench`, or all of them if several
    classes share it, followed by the identifier if these are equal: `crane (n02012849)`.
    """
    from timm.data import ImageNetInfo

    known = ImageNetInfo(subset)
    identifiers, words = known.label_names(), known.label_descriptions()
    first = [text.partition(",")[0] for text in words]
    uses = Counter(map(str.lower, first))
    names = [
        short if uses[short.lower()] == 1 else text
        for short, text in zip(first, words, strict=True)
    ]
    return distinct_names(names, identifiers)


# `open_pretrained`: find, fetch, read, convert and check pretrained weights -----------------------

UNSTATED = "not stated, so 0.5 is assumed. If you know the correct values, set --mean and --std"


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedWeights:
    """Weights as published, with vitft's tensor names."""

    flavour: Flavour
    tensors: Mapping[str, Tensor]  # exactly the tensors of a model built from `architecture`
    architecture: ViTConfig
    transform: EvalTransform
    statistics_source: str  # origin of the transform's mean and std
    provenance: Provenance
    stated_classes: tuple[str, ...] = ()  # class names in the file or in the config.json next to it
    published: str = ""  # published name, or that of the file or its folder
    dropped: tuple[str, ...] = ()  # tensors that vitft does not use, each with its shape
    resampling: PosEmbed | None = None  # None if the user may choose one
    unusable_head: str = ""  # reason why the head cannot be used; empty if it can be used
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Catalogue name, or file name without suffix."""
        return self.provenance["name"]

    @property
    def label_set(self) -> str:
        """ImageNet's label set that names the classes, e.g. `imagenet-1k`; empty if none does."""
        return "" if self.stated_classes else _label_set(self.published, self.architecture)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names: as stated, or those of ImageNet if that is certain; otherwise empty."""
        return imagenet_classes(self.label_set) if self.label_set else self.stated_classes


def open_pretrained(
    name_or_path: str | Path, *, allow_pickle: bool = False, sha256: str | None = None
) -> PretrainedWeights:
    """Find, fetch, read, convert and check pretrained weights; `sha256` is the expected digest.

    Raises:
        WeightsError: The weights cannot be found, are rejected or damaged, or are not a supported
        ViT.
        ResourceError: The disk is full.
    """
    found = locate(name_or_path)
    if isinstance(found, CatalogEntry):
        if found.is_timm:
            raise WeightsError(
                f"{found.name} is a timm model, not one of vitft's own Vision Transformers",
                fix="use vitft.models.pretrained.load.load_backbone, or a name from "
                "`vitft weights list`",
            )
        fetched = fetch(found, allow_pickle=allow_pickle)
        path = fetched.path
        raw = read_weights(path, allow_pickle=allow_pickle, sha256=sha256, digest=fetched.sha256)
        known = read_sidecar(path) if found.is_hub_repository else _catalog_facts(found)
        return _from_raw(raw, known, provenance_of(found, fetched))
    raw = read_weights(found, allow_pickle=allow_pickle, sha256=sha256)
    is_checkpoint = "vitft.card" in raw.metadata
    return _from_raw(
        raw,
        SidecarFacts() if is_checkpoint else read_sidecar(found),
        {"name": file_name(file_and_part(found)[0]), "source": str(found), "sha256": raw.sha256},
    )


def provenance_of(entry: CatalogEntry, fetched: Fetched) -> Provenance:
    """Return the origin of a fetched catalogue entry."""
    return {
        "name": entry.name,
        "source": f"{entry.repo}/{fetched.path.name}" if entry.repo else entry.path,
        "revision": fetched.revision,
        "sha256": fetched.sha256,
        "licence": entry.licence,
    }


def _catalog_facts(entry: CatalogEntry) -> SidecarFacts:
    """Return the facts about weights that are recorded in the catalogue."""
    known: dict[str, Any] = {}
    if entry.architecture:
        config = replace(architecture_config(entry.architecture), **entry.options)
        names = ("heads", "norm_eps", "activation", "rope", "pool_heads", "final_norm")
        known = {name: getattr(config, name) for name in names}
        known |= {"pool": timm_pool(config), "is_named": True}
    return SidecarFacts(
        **known,
        image_size=entry.image_size,
        pixels=entry.pixels,
        published=entry.name,
        source="from the catalogue",
        notes=(entry.note,) if entry.note else (),
    )


def _from_raw(raw: RawWeights, facts: SidecarFacts, provenance: Provenance) -> PretrainedWeights:
    """Convert and check the content of a weight file, using known facts about the weights."""
    if "vitft.card" in raw.metadata:
        # A checkpoint of vitft: its digest is verified, and its card describes the weights
        try:
            tensors, card = load_checkpoint(raw.path)
        except RunError as error:
            raise WeightsError(error.problem, fix=error.fix) from error
        if not isinstance(card.architecture, ViTConfig):
            raise WeightsError(
                f"{raw.path} contains the timm model {card.architecture.timm}, not one of vitft's "
                "own Vision Transformers",
                fix="load it with vitft.models.pretrained.load.load_backbone",
            )
        provenance = descended(provenance, card.weights)
        return PretrainedWeights(
            flavour="vitft",
            tensors=tensors,
            architecture=replace(card.architecture, drop_path=0.0),
            transform=card.transform,
            statistics_source="from the checkpoint's card",
            provenance=provenance,
            stated_classes=card.classes,
            notes=facts.notes,
        )
    try:
        converted = convert(raw.tensors)
        if converted.may_rotate and not facts.is_named:
            raise WeightsError(
                "the model seems to have rotary position embeddings, but their settings are not in "
                "the file",
                fix="put timm's config.json next to the file, or use a name from "
                "`vitft weights list`",
            )
        eps = facts.norm_eps or (1e-5 if converted.flavour == "clip" else None)
        facts = replace(facts, heads=converted.heads or facts.heads, norm_eps=eps)
        architecture = infer_config(converted.tensors, facts)
        check_fit(converted.tensors, architecture)
    except WeightsError as error:
        raise WeightsError(f"{raw.path}: {error.problem}", fix=error.fix) from error
    notes = [*raw.notes, *facts.notes]
    if facts.heads is None:
        keys = '{"num_attention_heads": N, "hidden_act": "quick_gelu"}'
        notes.append(
            f"{count(architecture.heads, 'head')} and {architecture.activation} are assumed, "
            f"because the weights do not state them. To set them, put {keys} in a config.json next "
            "to them"
        )
    stated, actual = facts.image_size, architecture.image_size
    if stated is not None and stated != actual:
        notes.append(
            f"the stated image size, {stated[0]}x{stated[1]}, does not match the position "
            f"embeddings, which are for {actual[0]}x{actual[1]} pixels"
        )
    is_file = provenance["source"] == str(raw.path)
    own_name = provenance["name"] if is_file else provenance["name"].removeprefix("hf:")
    published = facts.published or own_name
    facts = _with_usual_statistics(facts, architecture, converted.flavour, published)
    classes = facts.classes if len(facts.classes) == architecture.num_classes else ()
    if facts.classes and architecture.num_classes and not classes:
        notes.append(
            f"config.json lists {count(len(facts.classes), 'class', 'classes')}, but the head has "
            f"{count(architecture.num_classes, 'output')}, so the class names are not used"
        )
    is_other = facts.pool not in ("", timm_pool(architecture))
    unusable = f"the head expects timm's {facts.pool} pooling" if is_other else ""
    return PretrainedWeights(
        flavour=converted.flavour,
        tensors=converted.tensors,
        architecture=architecture,
        transform=_stated_transform(facts, architecture, raw.path),
        statistics_source=facts.source or UNSTATED,
        provenance=provenance,
        stated_classes=distinct_names(classes, range(len(classes))),
        published=published,
        dropped=(*raw.dropped, *converted.dropped),
        resampling="bilinear" if converted.is_naflex else None,
        unusable_head=unusable,
        notes=tuple(notes),
    )


def _with_usual_statistics(
    facts: SidecarFacts, config: ViTConfig, flavour: Flavour, published: str
) -> SidecarFacts:
    """Return the facts, with mean and std as in all published weights of this name or kind."""
    if "mean" in facts.pixels or config.in_channels != 3:
        return facts
    if entry := _published_entry(published, config):
        source = f"as published for {entry.name}"
        return replace(facts, pixels=entry.pixels | {**facts.pixels}, source=source)
    if config.layer_scale or config.distilled or flavour == "torchvision":
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
        kind = "of torchvision" if flavour == "torchvision" else "with LayerScale or distillation"
        source = f"as in all published models {kind}"
    elif flavour == "npz" or config.stem is not None or config.pre_logits:
        mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
        source = "as in all of Google's Vision Transformers"
    else:
        return facts
    return replace(facts, pixels={**facts.pixels, "mean": mean, "std": std}, source=source)


def descended(provenance: Provenance, parent: Provenance) -> Provenance:
    """Return `provenance` with the name and licence of the original weights, known to `parent`."""
    if ancestor := parent.get("from") or parent.get("name"):
        provenance = {**provenance, "from": ancestor}
    if licence := parent.get("licence"):
        provenance = {**provenance, "licence": licence}
    return provenance


def _stated_transform(facts: SidecarFacts, config: ViTConfig, path: Path) -> EvalTransform:
    """Return the evaluation transform given by `facts`, with timm's defaults for missing values."""
    usual: dict[str, Any] = dict.fromkeys(("mean", "std"), (0.5,) * config.in_channels)
    try:
        transform = EvalTransform(image_size=config.image_size, **(usual | {**facts.pixels}))
    except UsageError as error:
        raise WeightsError(
            f"invalid preprocessing settings for {path}: {error.problem}",
            fix="correct or remove the config.json or preprocessor_config.json next to it",
        ) from error
    if len(transform.mean) != config.in_channels:
        raise WeightsError(
            f"mean and std have {count(len(transform.mean), 'value')} each ({facts.source}), but "
            f"the weights expect {count(config.in_channels, 'channel')}",
            fix="correct the values in that file, or remove the file",
        )
    return transform
