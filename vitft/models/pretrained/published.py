"""Facts about weight files that are named as published: preprocessing and ImageNet's class names.

The class names come from the lists that timm contains. They are used only if the name of the
weights says which of ImageNet's label sets they were trained on, and the head has as many outputs.
"""

import functools
import re
from collections import Counter

from vitft.models.pretrained.catalog import CatalogEntry, entries_by_name, find_entry
from vitft.models.registry import architecture_config
from vitft.models.timm_config import timm_modules
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import UsageError, WeightsError
from vitft.system.text import distinct_names


def published_entry(name: str, config: ViTConfig) -> CatalogEntry | None:
    """Return the published weights with this name, or None if there are none of this shape.

    `name` may begin with `timm/`, as on the hub. If it is only in timm's registry, timm is
    imported.
    """
    known = name.removeprefix("timm/")
    if known not in entries_by_name() and known.partition(".")[0] not in timm_modules():
        return None
    try:
        entry = find_entry(known)
        published = architecture_config(entry.name.partition(".")[0])
    except (WeightsError, UsageError):  # not published, or not supported by vitft's own model
        return None
    return entry if shape(published) == shape(config) else None


def shape(config: ViTConfig) -> tuple[object, ...]:
    """Return the numbers that architectures with the same name have in common."""
    return config.width, config.depth, config.patch_size, config.in_channels


@functools.cache
def label_set(name: str, config: ViTConfig) -> str:
    """Return timm's name of the ImageNet label set of published weights, e.g. `imagenet-1k`.

    The result is empty unless all of this holds: weights with this name and shape are published,
    the last dataset in their name is one of ImageNet's, and its label set has as many classes as
    the head has outputs.
    """
    entry = published_entry(name, config) if config.num_classes else None
    if entry is None or entry.num_classes != config.num_classes:
        return ""
    from timm.data import infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": config.num_classes}) or ""
    stated = re.findall(r"(?<![a-z])in(\d+k)", entry.name)  # e.g. 21k, 1k: augreg_in21k_ft_in1k
    return subset if stated and subset.split("-")[1:2] == stated[-1:] else ""


@functools.cache
def imagenet_classes(subset: str) -> tuple[str, ...]:
    """Return a different name for each class of one of ImageNet's label sets, in timm's order.

    The name is the first word of the class in WordNet, e.g. `tench`. If several classes have the
    same first word, it is all their words, followed by the WordNet identifier if even these are
    equal, e.g. `crane (n02012849)`.
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
