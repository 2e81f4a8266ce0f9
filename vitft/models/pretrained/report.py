"""What became of each part of the weights when a model was loaded."""

from dataclasses import dataclass
from typing import Literal

from vitft.data.transforms import EvalTransform
from vitft.models.checkpoint import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Nothing is kept, dropped or resized in silence: it stands here."""

    source: str
    """File or repository that the tensors came from."""
    flavour: str
    """Whose names and layout the file has: timm, hf, npz or vitft."""
    architecture: str
    """For people, e.g. "ViT-B/16 224 px"."""
    parameters: int
    """Of the model as built."""
    loaded: int
    """Tensors of the model that come from the file."""
    dropped: tuple[str, ...]
    """Tensors of the file that were left out, each with its shape."""
    head: str
    pre_logits: Literal["kept", "dropped", "none"]
    positions: str
    """e.g. "14x14 -> 24x24, bicubic" or "14x14 as loaded"."""
    transform: EvalTransform
    """How an image becomes this model's input."""
    statistics_source: str
    """Where mean and std come from."""
    provenance: Provenance
    """Origin of the weights, as a checkpoint's card keeps it."""
    classes: tuple[str, ...] = ()
    """Names of the head's outputs, if the head was kept and the file names them."""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report for a console, one fact a line."""
        rows = {
            "weights": f"{self.source} ({self.flavour})",
            "model": f"{self.architecture}, {self.parameters:,} parameters",
            "loaded": f"{self.loaded} tensors",
            "dropped": ", ".join(self.dropped) or "nothing",
            "head": self.head,
            "pre_logits": self.pre_logits,
            "positions": self.positions,
            "pixels": f"mean {joined(self.transform.mean)}, std {joined(self.transform.std)}: "
            f"{self.statistics_source}",
        }
        told = [f"{key + ':':<12}{value}" for key, value in rows.items()]
        return told + [f"{'note:':<12}{note}" for note in self.notes]


def joined(values: tuple[float, ...]) -> str:
    """Numbers for reading; three equal ones are one."""
    shown = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:.4g}" for value in shown)
