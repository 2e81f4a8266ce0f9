"""Reports on weights: what a file contains, and what loading it did or would do."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitft.data.transforms import EvalTransform
from vitft.models.checkpoint import Provenance
from vitft.models.pretrained.adapt import Adapted, PosEmbed, adapt, target_config
from vitft.models.pretrained.weights import PretrainedWeights, open_pretrained
from vitft.models.registry import describe_vit
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Everything that was kept, dropped, resized or assumed when a model was loaded."""

    source: str
    flavour: str
    """Naming scheme of the file: timm, hf, npz or vitft."""
    architecture: str
    """Description for people, e.g. "ViT-B/16 224 px"."""
    parameters: int
    loaded: int
    """Number of the model's tensors that come from the file."""
    dropped: tuple[str, ...]
    """Tensors of the file that were left out, each with its shape."""
    head: str
    pre_logits: Literal["kept", "dropped", "none"]
    positions: str
    """For example "14x14 -> 24x24, bicubic" or "14x14 as loaded"."""
    transform: EvalTransform
    statistics_source: str
    """Origin of mean and std."""
    provenance: Provenance
    classes: tuple[str, ...] = ()
    """Class names of the head, if it was kept and the file states them."""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the report for a terminal, one fact per line."""
        rows = {
            "weights": f"{self.source} ({self.flavour})",
            "model": f"{self.architecture}, {self.parameters:,} parameters",
            "loaded": f"{self.loaded} tensors",
            "dropped": ", ".join(self.dropped) or "nothing",
            "head": self.head,
            "pre_logits": self.pre_logits,
            "positions": self.positions,
            "pixels": f"mean {format_numbers(self.transform.mean)}, std "
            f"{format_numbers(self.transform.std)}: {self.statistics_source}",
        }
        facts = [f"{key + ':':<12}{value}" for key, value in rows.items()]
        return facts + [f"{'note:':<12}{note}" for note in self.notes]


def format_numbers(values: tuple[float, ...]) -> str:
    """Format channel statistics; equal values are shown once."""
    shown = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:.4g}" for value in shown)


def describe_positions(source: ViTConfig, target: ViTConfig, pos_embed: PosEmbed) -> str:
    """Describe how the position table was resampled."""
    before, after = (f"{rows}x{columns}" for rows, columns in (source.grid, target.grid))
    return f"{before} as loaded" if before == after else f"{before} -> {after}, {pos_embed}"


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
        flavours = {
            "timm": "timm's names",
            "hf": "Hugging Face's names",
            "npz": "Google's layout",
            "vitft": "a vitft checkpoint",
        }
        return {
            "file": weights.origin,
            "sha256": weights.provenance.get("sha256", ""),
            "flavour": flavours[weights.flavour],
            "model": f"{describe_vit(config)}, {count:,} parameters",
            "head": describe_head(weights),
            "pre_logits": "yes" if config.pre_logits else "no",
            "positions": f"{rows}x{columns} patches and {prefix} of other tokens",
            "pixels": f"mean {format_numbers(transform.mean)}, std "
            f"{format_numbers(transform.std)}, {transform.interpolation}, "
            f"{transform.fit} {transform.crop:g}: {weights.statistics_source}",
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
