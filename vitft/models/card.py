"""The card of a checkpoint: a description of the model, stored in the same file as its weights.

Even a card with a valid digest may come from an untrusted source. Before anything is built or
computed, `read_card` therefore checks every type, range and name in the card. Except for timm
models, it also checks that the tensors in the file match the architecture. Does not import
torch.
"""

import functools
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypedDict

from vitft.config.sections import MAX_IMAGE_SIDE
from vitft.data.transforms import EvalTransform
from vitft.metrics.summary import Results
from vitft.models.vit_config import ViTConfig, vit_shapes
from vitft.system.errors import UsageError
from vitft.system.files import read_regular
from vitft.system.safetensors_file import TensorFacts
from vitft.system.structure import Range, StructureError, check_ranges, parse_json, structured

# what vitft stores in the config.json of an export in the format of another library ---------------

RUN_KEY = "vitft_run"  # key of the numbers of the run in a config.json
SEVERAL = "multi_label_classification"  # `problem_type` of multi-label models in transformers
THRESHOLDS = "vitft_thresholds"  # key of the thresholds in the order of the labels


def config_beside(path: Path) -> dict[str, Any]:
    """Return the content of the config.json next to a weight file; empty if it is unreadable."""
    try:
        config = parse_json(read_regular(path.parent / "config.json", limit=2**24))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def foreign_thresholds(path: Path) -> tuple[float, ...]:
    """Return the threshold of each label of a multi-label model, or () for any other model.

    They are read from the config.json next to the weight file `path`; each one is 0.5 if the file
    states no valid thresholds.
    """
    config = config_beside(path)
    labels: Any = config.get("id2label")
    stated: Any = config.get(THRESHOLDS)
    if config.get("problem_type") != SEVERAL or not isinstance(labels, dict):
        return ()
    is_list = isinstance(stated, list) and len(stated) == len(labels)
    is_right = is_list and all(isinstance(value, float) and 0 < value < 1 for value in stated)
    return tuple(stated) if is_right else (0.5,) * len(labels)


# configuration of a timm model, and the names of timm's architectures -----------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TimmConfig:
    """Architecture of a `timm_model.TimmModel`."""

    timm: str  # name of the architecture, without a tag, e.g. `resnet18`
    image_size: Annotated[tuple[int, int], Range(ge=1, le=MAX_IMAGE_SIDE)]
    """Height and width in pixels."""
    sized: bool = False  # whether `image_size` is passed to timm when the network is built
    num_classes: Annotated[int, Range(ge=0)] = 0  # 0 for a model without a head
    in_channels: Annotated[int, Range(ge=1, le=1024)] = 3
    # Fields of `ViTConfig` that do not apply: only timm knows these parts of its networks
    pre_logits: ClassVar[bool] = False
    read_blocks: ClassVar[int] = 1
    depth: ClassVar[int] = 0
    patch_size: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if not re.fullmatch(r"[a-z0-9_]{1,100}", self.timm):
            raise UsageError(
                f"invalid timm model name: {self.timm!r}",
                fix="choose a name from timm.list_models()",
            )

    def without_head(self) -> Self:
        """Return the configuration without a head."""
        return replace(self, num_classes=0)


TIMM_VITS = ("vision_transformer", "deit", "eva")  # timm's modules with Vision Transformers


@functools.cache
def timm_modules() -> Mapping[str, str]:
    """Return a mapping from each architecture in the installed timm to the module that defines it.

    The mapping is read from timm's source, because importing timm takes seconds.
    """
    spec = importlib.util.find_spec("timm")
    folders = spec.submodule_search_locations if spec else None
    files = Path(folders[0], "models").glob("*.py") if folders else ()
    pattern = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)
    return {
        name: file.stem
        for file in sorted(files)
        for name in pattern.findall(file.read_text(encoding="utf-8"))
    }


# the card of a checkpoint: a description of the model, stored in the same file as its weights -----

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
    transform: EvalTransform  # all steps that prepare an image for the model
    classes: tuple[str, ...] = ()  # in the order of the head's outputs; none without a head
    weights: Provenance = field(default_factory=Provenance)  # origin of the pretrained weights
    pos_embed: str = "as loaded"  # how the position embeddings were resampled
    split: str = ""  # digest of the split manifest used for training and validation
    thresholds: Annotated[tuple[float, ...], Range(gt=0, lt=1)] = ()
    """Minimum probability at which each label of a multi-label model is assigned; empty if each
    image has exactly one class. Labels have independent probabilities (sigmoid)."""
    run: Results | None = None  # numbers of the run, in the card of an export only

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
        ValueError: The text is too long or not JSON, or a field is missing, unknown or invalid.
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
    """Return the missing, unexpected and differing tensors as text, or "" if all match."""
    pairs = [(name, found[name], facts) for name, facts in wanted.items() if name in found]
    lists = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
    }
    for kind, fact in (("wrong shape", "shape"), ("wrong type", "dtype")):
        values = [(name, getattr(one, fact), getattr(other, fact)) for name, one, other in pairs]
        lists[kind] = [f"{name} {a} instead of {b}" for name, a, b in values if a != b]
    return "; ".join(f"{kind}: {first_five(names)}" for kind, names in lists.items() if names)


def first_five(names: Sequence[str]) -> str:
    """Return the first five names, separated by commas, and the number of remaining names."""
    shown = ", ".join(name[:100] for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
