"""The settings of a fine-tuning run: frozen dataclasses, read from TOML and `--set key=value`.

Nothing here imports torch, so a wrong setting is reported at once. What a setting does is told
where it is used; here stand its name, unit, default and range.
"""

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w

from vitft.errors import UsageError
from vitft.resources import resource

T = TypeVar("T")


def check(ok: bool, key: str, value: object, allowed: str) -> None:
    """Refuse an impossible value by the dotted name that the user typed."""
    if not ok:
        raise UsageError(f"{key} is {value!r}, which is impossible", fix=f"{key} is {allowed}")


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

    def __post_init__(self) -> None:
        check(
            self.split in ("random", "reference"), "data.split", self.split, "random or reference"
        )
        check(0 < self.val_rate < 1, "data.val_rate", self.val_rate, "a share, over 0 and under 1")
        check(self.seed >= 0, "data.seed", self.seed, "a whole number from 0")
        check(self.max_pixels > 0, "data.max_pixels", self.max_pixels, "a count of pixels over 0")


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
    """Let every class count the same in `lbfgs`, however many images it has."""
    lr: float = 1e-2
    """Peak learning rate, reached at the end of warm-up."""
    final_lr: float = 0.0
    """Learning rate at the end, as a share of the peak, from 0 to 1."""
    warmup: float = 0.05
    """Share of all steps spent warming up, from 0 up to but not including 1."""
    momentum: float = 0.9
    """Of SGD, from 0 up to 1."""
    weight_decay: float = 0.0
    epochs: int = 20
    """Passes over the training images."""
    batch_size: int = 32
    """Images per step."""
    clip: float = 0.0
    """Largest norm of all gradients together; 0 for no limit."""

    def __post_init__(self) -> None:
        check(
            self.solver in ("lbfgs", "sgd", "adamw"),
            "optim.solver",
            self.solver,
            "lbfgs, sgd or adamw",
        )
        check(0 <= self.l2 < math.inf, "optim.l2", self.l2, "0 or more")
        check(0 < self.lr < math.inf, "optim.lr", self.lr, "a finite number over 0")
        check(0 <= self.final_lr <= 1, "optim.final_lr", self.final_lr, "a share from 0 to 1")
        check(
            0 <= self.warmup < 1, "optim.warmup", self.warmup, "a share of training, 0.05 for 5 %"
        )
        check(0 <= self.momentum < 1, "optim.momentum", self.momentum, "from 0 up to 1")
        check(
            0 <= self.weight_decay < math.inf, "optim.weight_decay", self.weight_decay, "0 or more"
        )
        check(self.epochs >= 1, "optim.epochs", self.epochs, "a whole number from 1")
        check(self.batch_size >= 1, "optim.batch_size", self.batch_size, "a whole number from 1")
        check(0 <= self.clip < math.inf, "optim.clip", self.clip, "0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """What trains, and on what."""

    freeze: str = "head"
    """What trains: `head`, `pre_logits` (with the head), `blocks:N` (the last N), `none` frozen."""
    augment: Literal["none", "crop"] = "none"
    """`crop`: a fresh random crop and flip of each image in each epoch."""
    views: int = 0
    """How many augmented views of each training image are cached beside the plain one."""
    cache: str = ""
    """Folder of cached features; empty for the usual one, `none` to keep nothing."""
    seed: int = 0
    """Seed of the batch order and the augmentation."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, `mps`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 where the processor computes in it, else fp32."""

    def __post_init__(self) -> None:
        known = self.freeze in ("head", "pre_logits", "none")
        blocks = self.freeze.removeprefix("blocks:")
        counted = self.freeze != blocks and blocks.isdecimal() and int(blocks) > 0
        check(
            known or counted,
            "train.freeze",
            self.freeze,
            "head, pre_logits, blocks:N (the last N blocks train) or none",
        )
        check(self.augment in ("none", "crop"), "train.augment", self.augment, "none or crop")
        check(self.seed >= 0, "train.seed", self.seed, "a whole number from 0")
        check(0 <= self.views <= 1000, "train.views", self.views, "a whole number from 0 to 1000")
        check(
            self.precision in ("auto", "fp32", "bf16"),
            "train.precision",
            self.precision,
            "auto, fp32 or bf16",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One fine-tuning run, enough to repeat it."""

    data: DataSpec = field(default_factory=DataSpec)
    weights: WeightsSpec = field(default_factory=WeightsSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    train: TrainSpec = field(default_factory=TrainSpec)

    def __post_init__(self) -> None:
        check(
            self.train.freeze != "pre_logits" or self.weights.pre_logits == "keep",
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
            self.train.views == 0 or (self.train.freeze != "none" and self.train.augment == "none"),
            "train.views",
            self.train.views,
            "0 unless a frozen part is cached (not with train.freeze none or train.augment crop)",
        )

    @property
    def solvable(self) -> bool:
        """Whether the only unknown is a linear head on inputs that never change."""
        return self.train.freeze == "head" and self.train.augment == "none"


# What is set unless the user says otherwise, by what trains; `Config` itself holds the first row.
# blocks and none: AdamW as in published fine-tuning of ViTs (Touvron et al. 2021, appendix B).
STEPS: Mapping[str, Mapping[str, Any]] = {
    "head": {"solver": "adamw", "lr": 1e-2},
    "pre_logits": {"solver": "adamw", "lr": 1e-3},
    "blocks": {"solver": "adamw", "lr": 1e-4, "weight_decay": 0.05, "epochs": 10},
    "none": {"solver": "adamw", "lr": 1e-4, "weight_decay": 0.05, "epochs": 10, "clip": 1.0},
}


STEP_KEYS = frozenset(
    {"lr", "final_lr", "warmup", "momentum", "weight_decay", "epochs", "batch_size", "clip"}
)
"""Settings that only mean something to a solver that takes steps: naming one asks for steps."""
SOLVE_KEYS = frozenset({"l2", "class_weights"})
"""Settings that only mean something to `lbfgs`."""


def check_effect(config: "Config", named: Iterable[str]) -> None:
    """Refuse a setting that the user named and that the chosen solver would not look at.

    Raises:
        UsageError: With the setting and the solver that it needs.
    """
    solves = config.optim.solver == "lbfgs"
    for key in named:
        section, _, name = key.partition(".")
        if section == "optim" and name in (STEP_KEYS if solves else SOLVE_KEYS):
            raise UsageError(
                f"{key} has no effect on the solver {config.optim.solver}",
                fix=f"leave it out, or choose --set optim.solver={'adamw' if solves else 'lbfgs'}",
            )


def with_mode_defaults(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the optimiser that suit what trains, below those that are named."""
    train, optim = table.get("train", {}), table.get("optim", {})
    if not isinstance(train, Mapping) or not isinstance(optim, Mapping):
        return table  # `build` says what is wrong with it
    freeze = str(train.get("freeze", "head")).partition(":")[0]
    plain_head = (
        freeze == "head" and train.get("augment", "none") == "none" and not STEP_KEYS & {*optim}
    )
    if optim.get("solver", "lbfgs" if plain_head else "") == "lbfgs":
        return table
    return {**table, "optim": {**STEPS.get(freeze, {}), **optim}}


def from_table(table: Mapping[str, Any]) -> Config:
    """Settings from nested tables; what is not named keeps its default.

    Raises:
        UsageError: Unknown key, wrong type or impossible value, named as the user typed it.
    """
    return build(Config, with_mode_defaults(table), prefix="")


def build(kind: type[T], table: Mapping[str, Any], *, prefix: str) -> T:
    """Fill one dataclass from one table; its fields' own checks run afterwards."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints:
            raise UsageError(f"{prefix}{key} is no setting", fix=nearest(f"{prefix}{key}"))
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise UsageError(f"{prefix}{key} is a table", fix=f"write [{prefix}{key}]")
            values[key] = build(hints[key], value, prefix=f"{key}.")
        else:
            values[key] = coerced(value, hints[key], f"{prefix}{key}")
    return kind(**values)


def coerced(value: Any, hint: Any, key: str) -> Any:  # noqa: ANN401
    """`value` as the field's type, where that loses nothing."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option)
        if origin is Literal and isinstance(value, str):
            return value  # the field's own check names the allowed words
        if origin is tuple and isinstance(value, (int, float, list, tuple)):
            items = list(value) if isinstance(value, (list, tuple)) else [value] * 2
            whole = key == "weights.image_size"
            numbers = all(type(item) in ((int,) if whole else (int, float)) for item in items)
            if numbers and (len(items) == 2 or not whole):
                return tuple(items)
        if option is float and type(value) in (int, float):
            return float(value)
        if option in (int, bool, str) and type(value) is option:
            return value
        if option is types.NoneType and value is None:
            return None
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    raise UsageError(
        f"{key} is {value!r}, of the wrong kind",
        fix=f"{key} is {wanted.get(options[0], 'a list of numbers, or one for both sides')}",
    )


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
