"""The card of a checkpoint: a description of the model, stored in the same file as its weights.

Even a card with a valid digest may come from an untrusted source. Before anything is built or
computed, `read_card` therefore checks every type, range and name in the card. Except for timm
models, it also checks that the tensors in the file match the architecture. Does not import
torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, TypedDict

from vitft.data.transforms import EvalTransform
from vitft.metrics.summary import Results
from vitft.models.shapes import vit_shapes
from vitft.models.timm_config import TimmConfig
from vitft.models.vit_config import ViTConfig
from vitft.system.safetensors_file import TensorFacts
from vitft.system.structure import Range, StructureError, parse_json, structured

AnyConfig = ViTConfig | TimmConfig
_MAX_CARD_CHARACTERS = 16 * 2**20

Provenance = TypedDict(
    "Provenance",
    {
        "name": str,  # catalogue name, or file name without suffix
        "source": str,  # path, or repository and file
        "revision": str,  # commit of the repository
        "sha256": str,  # digest of the file
        "licence": str,
        "from": str,  # name of the weights that a checkpoint was fine-tuned from
        "training": str,  # training recipe of bundled weights
        "data": str,  # training data of bundled weights
    },
    total=False,
)
"""Origin of pretrained weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Description of a model, stored in the same file as its weights."""

    architecture: AnyConfig
    transform: EvalTransform
    """Evaluation transform: a complete description of how to prepare an image for the model."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the head's outputs; empty for a backbone without a head."""
    weights: Provenance = field(default_factory=Provenance)
    """Origin of the pretrained weights."""
    pos_embed: str = "as loaded"
    """Description of how the position embeddings were resampled from the pretrained grid."""
    split: str = ""
    """Digest of the split manifest used for training and validation."""
    thresholds: Annotated[tuple[float, ...], Range(gt=0, lt=1)] = ()
    """Minimum probability at which each label of a multi-label model is assigned; empty if each
    image has exactly one class. Labels have independent probabilities (sigmoid)."""
    run: Results | None = None
    """Numbers of the run, in the card of an export. None in a run directory, whose other files
    contain them."""

    def to_json(self) -> str:
        """Convert the card to JSON that `parse_card` can read."""
        table = {**asdict(self), "transform": self.transform.to_json()}
        if not self.thresholds:  # single-label checkpoints omit this field
            del table["thresholds"]
        if not self.run:
            del table["run"]
        return json.dumps(table, sort_keys=True)


def read_card(text: str, tensors: Mapping[str, TensorFacts]) -> Card:
    """Parse a card, check it, and compare it with the tensors in the same file.

    The tensors of timm models are not compared: only timm knows their names and shapes.

    Raises:
        ValueError: The card is not valid, or the tensors do not match it.
    """
    card = parse_card(text)
    # The parts must not contradict each other
    shape, transform, classes = card.architecture, card.transform, card.classes
    if transform.image_size != shape.image_size:
        raise StructureError(
            f"transform.image_size is {transform.image_size}, but architecture.image_size is "
            f"{shape.image_size}"
        )
    if transform.channels != shape.in_channels or shape.in_channels > 3:
        raise StructureError(
            f"transform.channels is {transform.channels} and architecture.in_channels is "
            f"{shape.in_channels}, but they must be equal and at most 3"
        )
    if classes and len(classes) != shape.num_classes:
        raise StructureError(
            f"it lists {len(classes):,} classes, but the head has {shape.num_classes:,} outputs"
        )
    if len({*classes}) != len(classes) or "" in classes:
        raise StructureError("a class name is empty or occurs twice")
    if card.thresholds and len(card.thresholds) != len(classes):
        raise StructureError(
            f"it has {len(card.thresholds):,} thresholds for {len(classes):,} labels"
        )
    if isinstance(card.architecture, ViTConfig):  # the shapes of timm models require importing timm
        is_backbone = not card.classes  # its weights will be converted to float32
        found = {n: as_float32(facts) for n, facts in tensors.items()} if is_backbone else tensors
        if mismatch := tensor_mismatch(found, vit_shapes(card.architecture)):
            raise StructureError(f"the tensors do not match the architecture: {mismatch}")
    return card


def as_float32(facts: TensorFacts) -> TensorFacts:
    """Return a tensor's type and shape, with a half-precision type replaced by float32."""
    return TensorFacts("F32", facts.shape) if facts.dtype in ("F16", "BF16") else facts


def parse_card(text: str) -> Card:
    """Parse the JSON text of a card and check that every value has the type and range of its field.

    Raises:
        ValueError: The text is too long or not JSON, a field is missing or unknown, or a value is
            out of range or of the wrong type.
    """
    if len(text) > _MAX_CARD_CHARACTERS:
        raise StructureError(f"it is too long ({len(text):,} characters)")
    fields = parse_json(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("architecture"), dict):
        raise StructureError("architecture is missing")
    kind: type[AnyConfig] = TimmConfig if "timm" in fields["architecture"] else ViTConfig
    architecture = structured(fields["architecture"], kind, "architecture")
    return structured({**fields, "architecture": architecture}, Card)


def tensor_mismatch(found: Mapping[str, TensorFacts], wanted: Mapping[str, TensorFacts]) -> str:
    """Return the missing, unexpected and differing tensors as text, or "" if all match.

    The text contains the first five names of each kind.
    """
    lists = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
        "wrong shape": [
            f"{name} {found[name].shape} instead of {facts.shape}"
            for name, facts in wanted.items()
            if name in found and found[name].shape != facts.shape
        ],
        "wrong type": [
            f"{name} {found[name].dtype} instead of {facts.dtype}"
            for name, facts in wanted.items()
            if name in found and found[name].dtype != facts.dtype
        ],
    }
    return "; ".join(f"{kind}: {first_five(names)}" for kind, names in lists.items() if names)


def first_five(names: Sequence[str]) -> str:
    """Return the first five names, separated by commas, and the number of remaining names."""
    shown = ", ".join(name[:100] for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
