"""`load_backbone`: weights of any kind, into our own model or into one of timm's."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vitft.models.pretrained.catalog import Entry
from vitft.models.pretrained.load import load_pretrained
from vitft.models.pretrained.locate import locate
from vitft.models.pretrained.summary import LoadReport
from vitft.models.pretrained.timm_weights import load_timm, reload_timm
from vitft.models.timm_model import Model
from vitft.system.errors import UsageError


def load_backbone(
    name_or_path: str | Path,
    *,
    num_classes: int,
    image_size: int | tuple[int, int] | None = None,
    **options: Any,  # noqa: ANN401 - those of load_pretrained
) -> tuple[Model, LoadReport]:
    """A model with a new zero head, ready to fine-tune.

    Args:
        name_or_path: As for `load_pretrained`, or `timm:NAME`, or a run of either kind.
        num_classes: Outputs of the head.
        image_size: Side or (height, width) in pixels; default: as trained.
        options: The other arguments of `load_pretrained`. A model of timm takes mean and std and
            refuses those that would change it.

    Raises:
        WeightsError: Not found, refused, damaged, or not to be used in this way.
        UsageError: An impossible image size, or an option that does not concern a model of timm.
    """
    found = locate(name_or_path)
    sizes: Any = {"num_classes": num_classes, "image_size": image_size}
    if isinstance(found, Entry) and found.is_of_timm:
        refuse_what_is_ours(options)
        return load_timm(found, **sizes, mean=options.get("mean"), std=options.get("std"))
    if isinstance(found, Path) and holds_timm(found):
        refuse_what_is_ours(options)
        return reload_timm(found, **sizes)
    return load_pretrained(name_or_path, **sizes, **options)


def refuse_what_is_ours(options: dict[str, Any]) -> None:
    """Refuse settings that only our own model has."""
    if options.get("pre_logits") == "keep" or options.get("pos_embed", "bicubic") != "bicubic":
        raise UsageError(
            "weights.pre_logits and weights.pos_embed do not concern a model of timm",
            fix="leave them out; timm resizes positions by its own rule",
        )


def holds_timm(path: Path) -> bool:
    """Whether a file is a checkpoint of ours with a model of timm in it; reads only its header."""
    if path.suffix.lower() != ".safetensors":
        return False
    try:
        with safe_open(path, framework="pt") as file:
            card = json.loads((file.metadata() or {}).get("vitft.card", "{}"))
        return "timm" in card.get("architecture", {})
    except (SafetensorError, OSError, ValueError, AttributeError, TypeError):
        return False  # whoever reads it says what is wrong
