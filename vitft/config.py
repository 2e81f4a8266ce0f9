"""The settings of a fine-tuning run: frozen dataclasses, read from TOML and `--set key=value`.

Nothing here imports torch, so a wrong setting is reported at once. What a setting does is told
where it is used; here stand its name, unit, default and range.
"""

import dataclasses
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import tomli_w

from vitft.defaults import with_mode_defaults
from vitft.errors import UsageError
from vitft.resources import resource
from vitft.typed import build, check


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Which images, and which of them are held back."""

    path: str = ""
    """Image folder: one folder per class, or train/ and val/ with one folder per class each."""
    split: Literal["random", "reference"] = "random"
    """`random` draws from every readable image; `reference` is the reference script's split."""
    val_rate: float = 0.2
    """Share of each class held back for validation, over 0 and under 1."""
    seed: int = 0
    """Seed of the split."""
    max_pixels: int = 100_000_000
    """Images with more pixels are refused unread."""
    allow_bad: bool = False
    """Go on although more than a tenth of the files are unreadable."""
    group_duplicates: bool = False
    """Keep near-duplicates, too, on one side of a random split; identical files always are."""
    fixes: str = ""
    """A table of images to leave out or to relabel, as `vitft check` writes it."""
    fixes_digest: str = ""
    """sha256 of that table, filled in by the run: another table is refused."""

    def __post_init__(self) -> None:
        check(
            self.split in ("random", "reference"), "data.split", self.split, "random or reference"
        )
        check(0 < self.val_rate < 1, "data.val_rate", self.val_rate, "a share, over 0 and under 1")
        check(self.seed >= 0, "data.seed", self.seed, "a whole number from 0")
        check(self.max_pixels > 0, "data.max_pixels", self.max_pixels, "a count of pixels over 0")
        check(
            not (self.group_duplicates and self.split == "reference"),
            "data.group_duplicates",
            self.group_duplicates,
            "for the random split only: the reference split is kept as published",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSpec:
    """Which pretrained weights, and what is made of them."""

    name: str = ""
    """A name of the catalogue (`vitft weights list`) or the path of a weight file."""
    image_size: tuple[int, int] | None = None
    """Height and width in pixels; default: what the weights were trained at."""
    pre_logits: Literal["keep", "drop"] = "drop"
    """What becomes of a Linear + Tanh in front of the pretrained head."""
    pos_embed: Literal["bicubic", "jax"] = "bicubic"
    """How positions are resized: timm's rule or Google's."""
    mean: tuple[float, ...] | None = None
    """Channel means in 0..1; default: what is known of the weights."""
    std: tuple[float, ...] | None = None
    allow_pickle: bool = False
    """Read .pth files (with weights_only=True)."""

    def __post_init__(self) -> None:
        check(
            self.pre_logits in ("keep", "drop"),
            "weights.pre_logits",
            self.pre_logits,
            "keep or drop",
        )
        check(
            self.pos_embed in ("bicubic", "jax"),
            "weights.pos_embed",
            self.pos_embed,
            "bicubic or jax",
        )
        check(
            self.image_size is None or all(0 < side <= 4096 for side in self.image_size),
            "weights.image_size",
            self.image_size,
            "a side from 1 to 4096 pixels, or height and width",
        )
        check(
            (self.mean is None) == (self.std is None),
            "weights.mean",
            self.mean,
            "given together with weights.std",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimSpec:
    """How the weights move."""

    solver: Literal["lbfgs", "sgd", "adamw"] = "lbfgs"
    """`lbfgs` solves for the head on cached features at once; the others take steps."""
    l2: float = 0.0
    """Penalty of `lbfgs` on standardised features; 0: chosen by cross-validation."""
    class_weights: bool = False
    """Let every class count the same, however many images it has."""
    lr: float | None = None
    """Peak learning rate, reached at the end of warm-up; default: what suits what trains."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """What the learning rate does after warm-up."""
    final_lr: float = 0.0
    """Learning rate at the end of the cosine, as a share of the peak, from 0 to 1."""
    warmup: float = 0.05
    """Share of all steps spent warming up, from 0 up to but not including 1."""
    layer_decay: float = 1.0
    """Factor on the learning rate of each block over that of the next one, over 0 up to 1."""
    momentum: float = 0.9
    """Of SGD, from 0 up to 1."""
    weight_decay: float = 0.0
    """Of matrices; norms, biases, positions and tokens have none."""
    epochs: int = 20
    """Passes over the training images."""
    batch_size: int = 32
    """Images per step, however many processes and micro-batches they are spread over."""
    micro_batch: int = 0
    """Images computed at once; 0: the whole batch, or less when memory runs out."""
    clip: float = 0.0
    """Largest norm of all gradients together; 0 for no limit."""
    label_smoothing: float = 0.0
    """Share of each label spread over all classes, from 0 up to 1."""
    ema: float = 0.0
    """Decay per step of an average of the weights that is evaluated and kept; 0 for none."""
    patience: int = 0
    """Epochs without a better validation after which training ends; 0 for all epochs."""

    def __post_init__(self) -> None:
        solvers, whole = ("lbfgs", "sgd", "adamw"), "a whole number from"
        check(self.solver in solvers, "optim.solver", self.solver, "lbfgs, sgd or adamw")
        check(0 <= self.l2 < math.inf, "optim.l2", self.l2, "0 or more")
        check(
            self.lr is None or 0 < self.lr < math.inf, "optim.lr", self.lr, "a finite number over 0"
        )
        schedules = ("cosine", "constant")
        check(self.schedule in schedules, "optim.schedule", self.schedule, "cosine or constant")
        check(0 <= self.final_lr <= 1, "optim.final_lr", self.final_lr, "a share from 0 to 1")
        check(
            0 <= self.warmup < 1, "optim.warmup", self.warmup, "a share of training, 0.05 for 5 %"
        )
        check(0 < self.layer_decay <= 1, "optim.layer_decay", self.layer_decay, "over 0 up to 1")
        check(0 <= self.momentum < 1, "optim.momentum", self.momentum, "from 0 up to 1")
        check(
            0 <= self.weight_decay < math.inf, "optim.weight_decay", self.weight_decay, "0 or more"
        )
        check(self.epochs >= 1, "optim.epochs", self.epochs, f"{whole} 1")
        check(self.batch_size >= 1, "optim.batch_size", self.batch_size, f"{whole} 1")
        check(self.micro_batch >= 0, "optim.micro_batch", self.micro_batch, f"{whole} 0")
        check(0 <= self.clip < math.inf, "optim.clip", self.clip, "0 or more")
        smoothing = self.label_smoothing
        check(0 <= smoothing < 1, "optim.label_smoothing", smoothing, "a share from 0 up to 1")
        check(0 <= self.ema < 1, "optim.ema", self.ema, "from 0 up to 1, e.g. 0.999")
        check(self.patience >= 0, "optim.patience", self.patience, f"{whole} 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """What trains, and on what."""

    freeze: str = "head"
    """What trains: `head`, `pre_logits` (with the head), `blocks:N` (the last N), `lora` (small
    matrices added to all blocks, and the head), `none` frozen; or several of them one after the
    other, e.g. `head,none`, each starting where the last ended."""
    augment: Literal["none", "crop", "rand"] = "none"
    """`crop`: a fresh random crop and flip of each image in each epoch; `rand`: RandAugment too."""
    crop_scale: float = 0.08
    """Smallest share of the image's area that a random crop takes."""
    mixup: float = 0.0
    """Alpha of mixup, 0 for none."""
    cutmix: float = 0.0
    """Alpha of CutMix, 0 for none; with mixup, either is drawn for each batch."""
    erasing: float = 0.0
    """Share of the images of which a random box is erased."""
    drop_path: float = 0.0
    """Stochastic depth of the last block, from 0 up to 1; earlier blocks less."""
    views: int = 0
    """How many augmented views of each training image are cached beside the plain one."""
    cache: str = ""
    """Folder of cached features; empty for the usual one, `none` to keep nothing."""
    seed: int = 0
    """Seed of the batch order and the augmentation."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, `mps`."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """`auto`: bf16 where the processor computes in it, else fp16 on a GPU and fp32 on a CPU."""
    compile: bool = False
    """Let torch.compile fuse what trains; pays on a GPU after some minutes."""
    lora_rank: int = 8
    """Rank of the matrices that `lora` adds."""
    lora_alpha: float = 16.0
    """Their weight, over the rank."""
    lora_targets: str = "qkv,proj,fc1,fc2"
    """Names of the linear layers of the blocks that get them."""
    checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, a third more time."""

    def __post_init__(self) -> None:
        parts = self.stages
        known = all(is_stage(part) for part in parts) and len({*parts}) == len(parts)
        in_order = [*parts] == sorted(parts, key=reach)
        check(
            known and in_order,
            "train.freeze",
            self.freeze,
            "head, pre_logits, blocks:N (the last N blocks train), lora or none, or several, "
            "from few that trains to much (head,none)",
        )
        kinds = ("none", "crop", "rand")
        check(self.augment in kinds, "train.augment", self.augment, "none, crop or rand")
        share = "a share from 0 to 1"
        check(0 < self.crop_scale <= 1, "train.crop_scale", self.crop_scale, "over 0 up to 1")
        check(0 <= self.mixup < math.inf, "train.mixup", self.mixup, "0 or more, e.g. 0.2")
        check(0 <= self.cutmix < math.inf, "train.cutmix", self.cutmix, "0 or more, e.g. 1.0")
        check(0 <= self.erasing <= 1, "train.erasing", self.erasing, share)
        check(0 <= self.drop_path < 1, "train.drop_path", self.drop_path, "from 0 up to 1")
        check(self.seed >= 0, "train.seed", self.seed, "a whole number from 0")
        check(0 <= self.views <= 1000, "train.views", self.views, "a whole number from 0 to 1000")
        check(self.lora_rank >= 1, "train.lora_rank", self.lora_rank, "a whole number from 1")
        check(self.lora_alpha > 0, "train.lora_alpha", self.lora_alpha, "over 0")
        check(
            bool(re.fullmatch(r"\w+(,\w+)*", self.lora_targets)),
            "train.lora_targets",
            self.lora_targets,
            "names of layers with commas, e.g. qkv,proj",
        )
        precisions = ("auto", "fp32", "bf16", "fp16")
        check(
            self.precision in precisions,
            "train.precision",
            self.precision,
            "auto, fp32, bf16 or fp16",
        )

    @property
    def stages(self) -> tuple[str, ...]:
        """What trains, one after the other."""
        return tuple(part.strip() for part in self.freeze.split(","))


def is_stage(text: str) -> bool:
    """Whether this says what trains."""
    blocks = text.removeprefix("blocks:")
    counted = text != blocks and blocks.isdecimal() and int(blocks) > 0
    return counted or text in ("head", "pre_logits", "lora", "none")


def reach(stage: str) -> float:
    """How much trains, for putting stages in order."""
    if stage.startswith("blocks:") and is_stage(stage):
        return 2 + int(stage.removeprefix("blocks:"))
    return {"head": 0, "pre_logits": 1, "lora": 1.5}.get(stage, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One fine-tuning run, enough to repeat it."""

    data: DataSpec = field(default_factory=DataSpec)
    weights: WeightsSpec = field(default_factory=WeightsSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    train: TrainSpec = field(default_factory=TrainSpec)

    def __post_init__(self) -> None:
        check(
            "pre_logits" not in self.train.stages or self.weights.pre_logits == "keep",
            "train.freeze",
            self.train.freeze,
            "pre_logits only with weights.pre_logits keep (--pre-logits keep)",
        )
        check(
            self.optim.solver != "lbfgs" or self.solvable,
            "optim.solver",
            self.optim.solver,
            "lbfgs only where nothing but the head trains, on cached features "
            "(train.freeze head, train.augment none); else sgd or adamw",
        )
        check(
            "lora" not in self.train.stages[:-1],
            "train.freeze",
            self.train.freeze,
            "with lora last: its matrices are folded in at the end",
        )
        one = len(self.train.stages) == 1 and self.train.freeze not in ("none", "lora")
        check(
            self.train.views == 0 or (one and self.train.augment == "none"),
            "train.views",
            self.train.views,
            "0 unless a frozen part is cached (not with train.freeze none or train.augment crop)",
        )
        mixes = {"train.mixup": self.train.mixup, "train.cutmix": self.train.cutmix}
        mixes |= {"train.erasing": self.train.erasing, "train.drop_path": self.train.drop_path}
        for key, value in mixes.items():
            check(
                not value or self.train.stages[-1] in ("none", "lora"),
                key,
                value,
                "0 unless the whole depth trains (train.freeze none or lora): what is frozen is "
                "computed once",
            )

    @property
    def solvable(self) -> bool:
        """Whether the only unknown is a linear head on inputs that never change."""
        return self.train.freeze == "head" and self.train.augment == "none"

    def solves(self, stage: str) -> bool:
        """Whether this stage is solved at once; a head before further stages always is."""
        return stage == "head" and (self.optim.solver == "lbfgs" or self.train.freeze != "head")


def from_table(table: Mapping[str, Any]) -> Config:
    """Settings from nested tables; what is not named keeps its default.

    Raises:
        UsageError: Unknown key, wrong type or impossible value, named as the user typed it.
    """
    return build(Config, with_mode_defaults(table), nearest=nearest)


def setting_names() -> list[str]:
    """Every dotted key that a recipe or `--set` can name."""
    sections = typing.get_type_hints(Config)
    return [f"{s}.{f.name}" for s, kind in sections.items() for f in dataclasses.fields(kind)]


def nearest(key: str) -> str:
    """A did-you-mean for a dotted key."""
    near = get_close_matches(key, setting_names(), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known settings: {', '.join(setting_names())}"


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as nested tables.

    Raises:
        UsageError: Missing, not UTF-8 or not TOML; the line is named.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", fix="check the path of the file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", fix="correct that line") from error


def read_recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe: a file, or the name of one that comes with vitft.

    The table `[recipe]` (what it is for, what it promises) is for readers and is left out.
    """
    path = Path(name)
    if path.suffix != ".toml" and not path.exists():
        folder = resource("recipes")
        path = folder / f"{name}.toml"
        if not path.exists():
            names = ", ".join(sorted(p.stem for p in folder.glob("*.toml")))
            raise UsageError(f"no recipe is called {name!r}", fix=f"recipes: {names}; or a file")
    table = read_toml(path)
    table.pop("recipe", None)
    return table


def parse_setting(text: str) -> tuple[str, Any]:
    """`optim.lr=0.01` as key and value; the value is TOML, or a plain word."""
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {text!r} is not key=value", fix="e.g. --set optim.lr=0.01")
    try:
        return key.strip(), tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), raw.strip()


def merged(base: Mapping[str, Any], settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Nested tables with dotted settings laid over them."""
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in base.items()}
    for key, value in settings:
        section, _, name = key.partition(".")
        if not name or not isinstance(result.setdefault(section, {}), dict):
            raise UsageError(f"{key} is no setting", fix=nearest(key))
        result[section][name] = value
    return result


def to_toml(config: Config) -> str:
    """All settings, resolved, as TOML; `None` is left out and read back as the default."""
    tables = dataclasses.asdict(config)
    kept = {s: {k: v for k, v in t.items() if v is not None} for s, t in tables.items()}
    return tomli_w.dumps(kept)
