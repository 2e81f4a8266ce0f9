"""Inspect pretrained weights: what a file contains and what loading it would do.

Nothing is trained or written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitft.models.pretrained.adapt import Adapted, PosEmbed, adapt
from vitft.models.pretrained.load import describe_positions, target_config
from vitft.models.pretrained.report import format_numbers
from vitft.models.pretrained.weights import PretrainedWeights, open_pretrained
from vitft.models.registry import describe_vit
from vitft.system.errors import UsageError

FLAVOUR_NAMES = {
    "timm": "timm's names",
    "hf": "Hugging Face's names",
    "npz": "Google's layout",
    "vitft": "a vitft checkpoint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Content of a weight file, and what loading it for a given task would do."""

    weights: PretrainedWeights
    adapted: Adapted | None
    """None if neither a class count nor an image size was given."""
    resized: str
    """How the positions would be resampled."""
    new: tuple[str, ...]
    """Tensors that would be initialised, each with its shape."""

    def lines(self) -> list[str]:
        """Return the result for a terminal, one fact per line."""
        lines = [f"{key + ':':<12}{value}" for key, value in self.facts().items()]
        lines += [f"{'note:':<12}{note}" for note in self.weights.notes]
        if self.adapted is None:
            return lines
        rows = {
            "kept": f"{self.adapted.loaded} tensors",
            "dropped": ", ".join(self.adapted.dropped) or "nothing",
            "new": ", ".join(self.new) or "nothing",
            "resized": self.resized,
        }
        lines += [f"would be {key + ':':<9}{value}" for key, value in rows.items()]
        return lines + [f"would note:        {note}" for note in self.adapted.notes]

    def facts(self) -> Mapping[str, str]:
        """Return what is in the file."""
        weights, config = self.weights, self.weights.architecture
        transform = weights.transform
        rows, columns = config.grid
        prefix = config.num_prefix if config.prefix_positions else 0
        count = sum(tensor.numel() for tensor in weights.tensors.values())
        return {
            "file": weights.origin,
            "sha256": weights.provenance.get("sha256", ""),
            "flavour": FLAVOUR_NAMES[weights.flavour],
            "model": f"{describe_vit(config)}, {count:,} parameters",
            "head": describe_head(weights),
            "pre_logits": "yes" if config.pre_logits else "no",
            "positions": f"{rows}x{columns} patches and {prefix} of other tokens",
            "pixels": f"mean {format_numbers(transform.mean)}, std "
            f"{format_numbers(transform.std)}, {transform.interpolation}, "
            f"{transform.fit} {transform.crop:g}: "
            f"{weights.statistics_source}",
            "unused": ", ".join(weights.dropped) or "nothing",
        }


def inspect(
    name_or_path: str | Path,
    *,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    pos_embed: PosEmbed = "bicubic",
    allow_pickle: bool = False,
) -> Inspection:
    """Read weights and describe them; with `classes` or `image_size`, also what loading would do.

    Raises:
        WeightsError: Not found, refused, damaged, or not the weights of a supported ViT.
        UsageError: The image size is not a multiple of the patch size.
    """
    weights = open_pretrained(name_or_path, allow_pickle=allow_pickle)
    if classes is None and image_size is None:
        return Inspection(weights=weights, adapted=None, resized="", new=())
    source = weights.architecture
    try:
        target = target_config(
            source, classes, image_size, pre_logits=source.pre_logits and classes is None
        )
    except UsageError as error:
        raise UsageError(f"{weights.name}: {error.problem}", fix=error.fix) from error
    adapted = adapt(
        weights.tensors, source, target, new_head=classes is not None, pos_embed=pos_embed
    )
    new = tuple(
        f"{name} {tuple(tensor.shape)}"
        for name, tensor in adapted.tensors.items()
        if name.startswith(("head.", "head_dist.")) and tensor is not weights.tensors.get(name)
    )
    positions = describe_positions(source, target, pos_embed)
    return Inspection(
        weights=weights,
        adapted=adapted,
        resized="nothing" if source.grid == target.grid else f"pos_embed {positions}",
        new=new,
    )


def describe_head(weights: PretrainedWeights) -> str:
    """Describe the classification head in the file."""
    head = weights.tensors.get("head.weight")
    if head is None:
        return "none"
    names = f" ({', '.join(weights.classes[:3])}, ...)" if weights.classes else ""
    described = f"{head.shape[0]} classes{names}"
    if not bool(head.any()):
        return f"{described}, all zeros (untrained)"
    reason = weights.unusable_head
    return f"{described}; unusable here: {reason}" if reason else described
