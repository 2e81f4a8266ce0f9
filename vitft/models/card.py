"""Checkpoint files: the tensors of a model and its card, the description stored with them.

Even a card with a valid digest may come from an untrusted source. Before anything is built or
computed, `open_checkpoint` therefore checks every type, range and name in the card. Except for timm
models, it also checks that the tensors in the file match the architecture. Both engines (torch and
NumPy) open a checkpoint with it, so they accept the same files. Does not import torch.
"""

import functools
import hashlib
import importlib.util
import json
import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypedDict

from msgspec import Meta

from vitft.config.sections import Side
from vitft.data.transforms import EvalTransform
from vitft.metrics.outputs import Outputs
from vitft.metrics.results import Results
from vitft.models.vit_config import ViTConfig, vit_shapes
from vitft.system.errors import RunError, UsageError
from vitft.system.files import open_regular, read_regular, write_atomically
from vitft.system.structure import Natural, StructureError, check_ranges, parse_json, structured
from vitft.system.tensors import TensorFacts, map_tensors, read_header

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
    """Return the thresholds in the config.json next to a multi-label model, or () for any other.

    Each one is 0.5 if the file states no valid thresholds.
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
    image_size: tuple[Side, Side]  # height and width in pixels
    sized: bool = False  # whether `image_size` is passed to timm when the network is built
    num_classes: Natural = 0  # 0 for a model without a head
    in_channels: Annotated[int, Meta(ge=1, le=1024)] = 3
    # Fields of `ViTConfig` that do not apply: only timm knows these parts of its networks
    pre_logits: ClassVar[bool] = False
    read_blocks: ClassVar[int] = 1
    depth: ClassVar[int] = 0
    width: ClassVar[int] = 0
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
        "prompts": str,  # texts behind a head from class names, which no image has trained
    },
    total=False,
)
"""Origin of pretrained weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DescribedModel(Outputs):
    """What a card contains besides the architecture, of which there are two types."""

    transform: EvalTransform  # all steps that prepare an image for the model
    weights: Provenance = field(default_factory=Provenance)  # origin of the pretrained weights
    pos_embed: str = "as loaded"  # how the position embeddings were resampled
    split: str = ""  # digest of the split manifest used for training and validation
    run: Results | None = None  # numbers of the run, in the card of an export only


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(_DescribedModel):
    """Description of a model, stored in the same file as its weights."""

    architecture: AnyConfig

    @property
    def vit(self) -> ViTConfig:
        """Architecture of a model that is not from timm."""
        assert isinstance(self.architecture, ViTConfig)
        return self.architecture

    def to_json(self) -> str:
        """Convert the card to JSON that `parse_card` can read."""
        table = {**asdict(self), "transform": self.transform.to_json()}
        optional = {"run", *(one.name for one in fields(Outputs))} - {"classes"}
        table = {key: one for key, one in table.items() if one or key not in optional}
        return json.dumps(table, sort_keys=True)


def _read_card(text: str, tensors: Mapping[str, TensorFacts]) -> Card:
    """Parse a card and compare its parts with each other and with the tensors, or ValueError."""
    card = parse_card(text)
    shape, transform, classes = card.architecture, card.transform, card.classes
    count, outputs, thresholds = len(classes), shape.num_classes, len(card.thresholds)
    contradiction = ""
    if transform.image_size != shape.image_size:
        sizes = transform.image_size, shape.image_size
        contradiction = "transform.image_size is {}, but architecture.image_size is {}".format(
            *sizes
        )
    elif transform.channels != shape.in_channels or shape.in_channels > 3:
        contradiction = (
            f"transform.channels is {transform.channels} and architecture.in_channels is "
            f"{shape.in_channels}, but they must be equal and at most 3"
        )
    elif count and count != outputs:
        contradiction = f"it lists {count:,} classes, but the head has {outputs:,} outputs"
    elif len({*classes} - {""}) != count:
        contradiction = "a class name is empty or occurs twice"
    elif card.several and thresholds != count:
        contradiction = f"it has {thresholds:,} thresholds for {count:,} labels"
    elif isinstance(shape, ViTConfig):  # the shapes of timm models require importing timm
        if not classes:  # the weights of a backbone will be converted to float32
            tensors = {
                name: facts._replace(dtype="F32") if facts.dtype in ("F16", "BF16") else facts
                for name, facts in tensors.items()
            }
        if mismatch := tensor_mismatch(tensors, vit_shapes(shape)):
            contradiction = f"the tensors do not match the architecture: {mismatch}"
    if contradiction:
        raise StructureError(contradiction)
    return card


def parse_card(text: str) -> Card:
    """Parse the JSON text of a card and check that every value has the type and range of its field.

    Raises:
        ValueError: The text is not JSON, or a field is missing, unknown or invalid.
    """
    table = parse_json(text)
    if not isinstance(table, dict) or not isinstance(
        shape := table.pop("architecture", None), dict
    ):
        raise StructureError("architecture is missing")
    kind: type[AnyConfig] = TimmConfig if "timm" in shape else ViTConfig
    found = structured(table, _DescribedModel)
    known = {one.name: getattr(found, one.name) for one in fields(found)}
    return Card(architecture=structured(shape, kind, "architecture"), **known)


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


CHANGED = "the sha256 of the contents differs from the recorded one"
_FORMAT_VERSION = "1"
TORCH_TYPES: Mapping[str, str] = {
    "F64": "torch.float64",
    "F32": "torch.float32",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "I64": "torch.int64",
    "I32": "torch.int32",
    "I16": "torch.int16",
    "I8": "torch.int8",
    "U8": "torch.uint8",
    "BOOL": "torch.bool",
}
"""Mapping from the names of tensor types in a checkpoint to the names used in its digest."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint whose card is valid and matches the tensors; the digest is not verified."""

    path: Path
    card: Card
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorFacts]  # type and shape of each tensor, sorted by name
    data: Mapping[str, memoryview]  # bytes of each tensor in the memory-mapped file

    def digest(self) -> str:
        """Return the digest of the card and the tensors, after reading the whole file."""
        return _content_digest(self.metadata["vitft.card"], self.tensors, self.data)

    def check_digest(self, digest: str) -> None:
        """Raise RunError if the metadata differ from those for `digest`, that of the contents."""
        if self.metadata != checkpoint_metadata(self.metadata["vitft.card"], digest):
            raise _damaged_checkpoint(self.path)


def open_checkpoint(path: Path) -> CheckpointFile:
    """Map a checkpoint into memory and check its card, but do not verify its digest."""
    try:
        header = read_header(path)
        data = map_tensors(path, header)
        if unknown := {facts.dtype for facts in header.tensors.values()} - {*TORCH_TYPES}:
            raise ValueError(f"unsupported tensor type {min(unknown)}")
    except (OSError, ValueError) as error:
        raise _damaged_checkpoint(path, str(error)) from error
    metadata, tensors = header.metadata, {name: header.tensors[name] for name in data}
    if "vitft.card" not in metadata:
        raise RunError(
            f"{path} was not written by vitft",
            fix="use a run directory, or pass the file to a new run with --weights",
        )
    if metadata.get("vitft.format") != _FORMAT_VERSION:
        raise RunError(
            f"{path} has checkpoint format {str(metadata.get('vitft.format'))[:20]}, but this "
            f"version of vitft supports only format {_FORMAT_VERSION}",
            fix="install the version of vitft that wrote the file",
        )
    try:
        card = _read_card(metadata["vitft.card"], tensors)
    except ValueError as error:
        digest = _content_digest(metadata["vitft.card"], tensors, data)
        if metadata != checkpoint_metadata(metadata["vitft.card"], digest):
            raise _damaged_checkpoint(path) from error
        raise _damaged_checkpoint(path, f"its card is invalid: {error}") from error
    return CheckpointFile(path, card, metadata, tensors, data)


def lacks_card(path: Path) -> bool:
    """Return whether a file is a safetensors file without a vitft card. Reads only the header."""
    try:
        return "vitft.card" not in read_header(path).metadata
    except (OSError, ValueError):
        return False  # the error is reported when the file is read


def _content_digest(
    card: str, tensors: Mapping[str, TensorFacts], data: Mapping[str, memoryview]
) -> str:
    """Return the sha256 of the card and of each tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(card.encode())
    for name, facts in tensors.items():
        digest.update(f"\n{name} {TORCH_TYPES[facts.dtype]} {facts.shape}\n".encode())
        digest.update(data[name])
    return digest.hexdigest()


def checkpoint_metadata(card: str, digest: str) -> dict[str, str]:
    """Return the complete metadata of a checkpoint; any others show that a file has changed."""
    return {
        "format": "pt",
        "vitft.format": _FORMAT_VERSION,
        "vitft.card": card,
        "vitft.sha256": digest,
    }


def _damaged_checkpoint(path: Path, reason: str = CHANGED) -> RunError:
    return RunError(
        f"damaged checkpoint: {path} ({reason})",
        fix="copy the file again from its original location, or train the model again",
    )


# digest of an exported ONNX graph, in the last bytes of the file itself ---------------------------

# An ONNX file is a protobuf message. Entries that are appended to its bytes belong to it, so every
# tool reads the digest as one more entry of the metadata, and it covers every byte before it
_DIGEST_KEY = "vitft.sha256"
_DATA_DIGEST_KEY = "vitft.data_sha256"  # key of the digest of model.onnx.data, if any
_METADATA_FIELD = 0x72  # tag of `metadata_props` in a `ModelProto`: field 14, with a length


def sha256_of(path: Path) -> str:
    """Return the hexadecimal sha256 of a regular file's content (about 1 s per GB)."""
    with open(path, "rb", opener=open_regular) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _metadata_entry(key: str, value: str) -> bytes:
    """Return a metadata entry as protobuf; key and value have less than 124 bytes together."""
    pair = b"".join(
        bytes([tag, len(text)]) + text
        for tag, text in ((0x0A, key.encode()), (0x12, value.encode()))
    )
    assert len(pair) < 128  # longer messages need a length of several bytes
    return bytes([_METADATA_FIELD, len(pair)]) + pair


_DIGEST_SIZE = len(_metadata_entry(_DIGEST_KEY, "0" * 64))


def _data_file(graph: Path) -> Path:
    return graph.with_name(f"{graph.name}.data")  # with the weights, if the graph is large


def add_graph_digest(graph: Path) -> None:
    """Append the digest of a graph, and of its data file if any, to a file that has none."""
    content = graph.read_bytes()
    if _data_file(graph).is_file():
        content += _metadata_entry(_DATA_DIGEST_KEY, sha256_of(_data_file(graph)))
    digest = hashlib.sha256(content).hexdigest()
    write_atomically(graph, [content, _metadata_entry(_DIGEST_KEY, digest)])


def has_changed(graph: Path) -> bool:
    """Return whether a file ends with a digest, and its contents do not match it."""
    if (found := _recorded_digest(graph)) is None:
        return False
    with (
        graph.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content)[:-_DIGEST_SIZE] as before,
    ):
        return found != hashlib.sha256(before).hexdigest().encode()


def _recorded_digest(graph: Path) -> bytes | None:
    """Return the digest at the end of a file, or None if the file does not end with one."""
    with graph.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _DIGEST_SIZE))
        entry = file.read()
    return entry[-64:] if entry.startswith(_metadata_entry(_DIGEST_KEY, "0" * 64)[:-64]) else None


def contradicts_metadata(graph: Path, metadata: Mapping[str, str]) -> bool:
    """Return whether the metadata of a graph contain a digest that its files do not match.

    This finds what `has_changed` cannot: a digest that is no longer at the end of the file, because
    another tool has written the graph again, and a damaged data file.
    """
    if _DIGEST_KEY in metadata and _recorded_digest(graph) != metadata[_DIGEST_KEY].encode():
        return True
    recorded = metadata.get(_DATA_DIGEST_KEY)
    return recorded is not None and recorded != sha256_of(_data_file(graph))
