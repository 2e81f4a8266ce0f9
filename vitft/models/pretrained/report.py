"""`LoadReport`: what was loaded, dropped and resized when weights became a model."""

from dataclasses import dataclass
from typing import Literal

from vitft.data.transforms import EvalTransform
from vitft.models.checkpoint import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Everything that was kept, dropped, resized or assumed when a model was loaded."""

    source: str
    """File or repository of the weights."""
    flavour: str
    """Naming scheme of the file: timm, hf, npz or vitft."""
    architecture: str
    """Description for people, e.g. "ViT-B/16 224 px"."""
    parameters: int
    """Number of parameters of the model as built."""
    loaded: int
    """Number of the model's tensors that come from the file."""
    dropped: tuple[str, ...]
    """Tensors of the file that were left out, each with its shape."""
    head: str
    """Description of the classification head."""
    pre_logits: Literal["kept", "dropped", "none"]
    positions: str
    """For example "14x14 -> 24x24, bicubic" or "14x14 as loaded"."""
    transform: EvalTransform
    """Evaluation transform of the model."""
    statistics_source: str
    """Origin of mean and std."""
    provenance: Provenance
    """Origin of the weights, as stored in a checkpoint's card."""
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
