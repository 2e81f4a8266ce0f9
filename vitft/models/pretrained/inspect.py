"""What a weight file is, and what would become of it: told without training or saving anything."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vitft.models.pretrained.adapt import Adapted, PosEmbed, adapt, undistilled
from vitft.models.pretrained.load import positions_of
from vitft.models.pretrained.report import joined
from vitft.models.pretrained.source import Source, open_source
from vitft.models.registry import describe
from vitft.models.vit_config import as_pair
from vitft.system.errors import UsageError

NAMES = {
    "timm": "timm's names",
    "hf": "Hugging Face's names",
    "npz": "Google's layout",
    "vitft": "vitft's own, with a card",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A file understood, and what loading it for a given task would do."""

    source: Source
    adapted: Adapted | None
    """None unless a class count or an image size was asked about."""
    resized: str
    """What would become of the positions."""
    new: tuple[str, ...]
    """Tensors that would start afresh, with shapes."""

    def lines(self) -> list[str]:
        """For a console, one fact a line."""
        told = [f"{key + ':':<12}{value}" for key, value in self.facts().items()]
        told += [f"{'note:':<12}{note}" for note in self.source.notes]
        if self.adapted is None:
            return told
        rows = {
            "kept": f"{self.adapted.loaded} tensors",
            "dropped": ", ".join(self.adapted.dropped) or "nothing",
            "new": ", ".join(self.new) or "nothing",
            "resized": self.resized,
        }
        told += [f"would be {key + ':':<9}{value}" for key, value in rows.items()]
        return told + [f"would note:        {note}" for note in self.adapted.notes]

    def facts(self) -> Mapping[str, str]:
        """What is in the file."""
        source, config = self.source, self.source.architecture
        transform = source.transform
        rows, columns = config.grid
        prefix = config.num_prefix if config.prefix_positions else 0
        count = sum(tensor.numel() for tensor in source.tensors.values())
        return {
            "file": source.origin,
            "sha256": source.provenance.get("sha256", ""),
            "flavour": NAMES[source.flavour],
            "model": f"{describe(config)}, {count:,} parameters",
            "head": head_of(source),
            "pre_logits": "yes" if config.pre_logits else "no",
            "positions": f"{rows}x{columns} patches and {prefix} of other tokens",
            "pixels": f"mean {joined(transform.mean)}, std {joined(transform.std)}, "
            f"{transform.interpolation}, {transform.fit} {transform.crop:g}: "
            f"{source.statistics_source}",
            "unused": ", ".join(source.dropped) or "nothing",
        }


def inspect(
    name_or_path: str | Path,
    *,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    pos_embed: PosEmbed = "bicubic",
    allow_pickle: bool = False,
) -> Inspection:
    """Read a file and say what it is; with `classes` or `image_size`, what loading would do.

    Raises:
        WeightsError: Not found, refused, damaged, or not the weights of a ViT that we can build.
        UsageError: The image size is no multiple of the patches.
    """
    source = open_source(name_or_path, allow_pickle=allow_pickle)
    if classes is None and image_size is None:
        return Inspection(source=source, adapted=None, resized="", new=())
    built = source.architecture
    try:
        wanted = replace(
            built if classes is None else undistilled(built),
            num_classes=built.num_classes if classes is None else classes,
            image_size=built.image_size if image_size is None else as_pair(image_size),
            pre_logits=built.pre_logits and classes is None,
        )
    except UsageError as error:
        raise UsageError(f"{source.name}: {error.problem}", fix=error.fix) from error
    adapted = adapt(
        source.tensors, built, wanted, new_head=classes is not None, pos_embed=pos_embed
    )
    fresh = tuple(
        f"{name} {tuple(tensor.shape)}"
        for name, tensor in adapted.tensors.items()
        if name.startswith(("head.", "head_dist.")) and tensor is not source.tensors.get(name)
    )
    resized = positions_of(built, wanted, pos_embed)
    return Inspection(
        source=source,
        adapted=adapted,
        resized="nothing" if resized.endswith("as loaded") else f"pos_embed {resized}",
        new=fresh,
    )


def head_of(source: Source) -> str:
    """The head in the file, in words."""
    head = source.tensors.get("head.weight")
    if head is None:
        return "none"
    names = f" ({', '.join(source.classes[:3])}, ...)" if source.classes else ""
    said = f"{head.shape[0]} classes{names}"
    if not bool(head.any()):
        return f"{said}, all zeros: it tells nothing"
    return f"{said}; unusable here: {source.foreign_head}" if source.foreign_head else said
