"""Reports on weights: the content of a file and the effects of loading it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitft.data.transforms import EvalTransform
from vitft.models.card import Provenance
from vitft.models.pretrained.adapt import PosEmbed
from vitft.models.pretrained.weights import PretrainedWeights
from vitft.models.registry import describe_vit
from vitft.models.vit_config import ViTConfig
from vitft.system.text import count, labelled, listing


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Record of everything kept, dropped, resized or assumed when a model was loaded."""

    source: str
    flavour: str  # naming scheme of the file: timm, hf, npz or vitft
    architecture: str  # human-readable description, e.g. "ViT-B/16 224 px"
    parameters: int
    loaded: int = 0  # number of the model's tensors that come from the file
    dropped: tuple[str, ...] = ()  # tensors in the file that were not used, each with its shape
    head: str
    pre_logits: Literal["kept", "dropped", "none"] = "none"
    positions: str = "as loaded"  # e.g. "14x14 -> 24x24, bicubic"
    transform: EvalTransform
    statistics_source: str  # origin of mean and std
    provenance: Provenance
    classes: tuple[str, ...] = field(default=(), repr=False)  # if the head was kept
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """Return a one-line summary of the report."""
        path = Path(self.source)
        source = path.stem if path.is_absolute() else self.source
        if source in ("model", "pytorch_model"):
            source = path.parent.name
        size = count(self.parameters, "parameter")
        if self.parameters >= 100_000:
            size = f"{self.parameters / 1e6:,.1f} million parameters"
        resized = f", positions {self.positions}" if "->" in self.positions else ""
        return labelled("Model", f"{self.architecture}, {size}, {source}{resized}")

    def lines(self) -> list[str]:
        """Return the lines of the report, one fact per line, without its notes."""
        rows = {
            "weights": f"{self.source} ({self.flavour})",
            "model": f"{self.architecture}, {self.parameters:,} parameters",
            "loaded": f"{self.loaded} tensors",
            "dropped": ", ".join(self.dropped) or "nothing",
            "head": self.head,
            "pre_logits": self.pre_logits,
            "positions": self.positions,
            "pixels": f"mean {_format_numbers(self.transform.mean)}, std "
            f"{_format_numbers(self.transform.std)}: {self.statistics_source}",
        }
        return [f"{key + ':':<12}{value}" for key, value in rows.items()]


def _format_numbers(values: tuple[float, ...]) -> str:
    """Return channel statistics as text: one number if all are equal, otherwise all numbers."""
    shown = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:.4g}" for value in shown)


def describe_positions(source: ViTConfig, target: ViTConfig, pos_embed: PosEmbed) -> str:
    """Return a description of how the position embeddings were resampled."""
    before, after = (f"{rows}x{columns}" for rows, columns in (source.grid, target.grid))
    if not target.positions:
        return f"{after} rotary, not learned"
    return f"{before} as loaded" if before == after else f"{before} -> {after}, {pos_embed}"


def describe_file(weights: PretrainedWeights) -> list[str]:
    """Return a description of a weight file's content, one fact per line."""
    config, transform = weights.architecture, weights.transform
    rows, columns = config.grid
    prefix = config.num_prefix if config.prefix_positions else 0
    parameters = sum(tensor.numel() for tensor in weights.tensors.values())
    flavours = {
        "timm": "timm",
        "hf": "Hugging Face",
        "npz": "Google (JAX)",
        "torchvision": "torchvision",
        "clip": "OpenAI's CLIP",
        "vitft": "vitft checkpoint",
    }
    head = weights.tensors.get("head.weight")
    described = "none"
    if head is not None:
        names = f" ({listing(weights.classes, 3)})" if weights.classes else ""
        described = f"{head.shape[0]} classes{names}"
        if not bool(head.any()):
            described += ", all zeros (untrained)"
        elif weights.unusable_head:
            described += f" (cannot be used: {weights.unusable_head})"
    facts = {
        "file": weights.provenance["source"],
        "sha256": weights.provenance.get("sha256", ""),
        "format": flavours[weights.flavour],
        "model": f"{describe_vit(config)}, {parameters:,} parameters",
        "head": described,
        "pre_logits": "yes" if config.pre_logits else "no",
        "positions": f"{rows}x{columns} patches and {count(prefix, 'prefix token')}",
        "pixels": f"mean {_format_numbers(transform.mean)}, std "
        f"{_format_numbers(transform.std)}, {transform.interpolation}, "
        f"{transform.fit} {transform.crop:g}: {weights.statistics_source}",
        "unused": ", ".join(weights.dropped) or "nothing",
    }
    lines = [f"{key + ':':<12}{value}" for key, value in facts.items()]
    return lines + [f"{'note:':<12}{note}" for note in weights.notes]
