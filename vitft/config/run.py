"""The settings of a fine-tuning run: frozen dataclasses, read from TOML and `--set key=value`.

Nothing here imports torch, so a wrong setting is reported at once. What a setting does is told
where it is used; here stand its name, unit, default and range.
"""

import dataclasses
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import tomli_w

from vitft.config.defaults import with_mode_defaults
from vitft.config.model import ModelSpec
from vitft.config.schema import build, check
from vitft.config.training import OptimSpec as OptimSpec
from vitft.config.training import TrainSpec as TrainSpec
from vitft.system.errors import UsageError
from vitft.system.resources import resource


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Which images, and which of them are held back."""

    path: str = ""
    """Image folder: one folder per class, or train/ and val/ with one folder per class each; or
    arrays: .npz, a folder of IDX or CIFAR files, `torchvision:CIFAR10`."""
    root: str = ""
    """Folder of the data sets that torchvision reads; default: data."""
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
    """A name of the catalogue (`vitft weights list`), the path of a weight file, or `none` for a
    new model in the shape of `[model]`."""
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
class Config:
    """One fine-tuning run, enough to repeat it."""

    data: DataSpec = field(default_factory=DataSpec)
    weights: WeightsSpec = field(default_factory=WeightsSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    train: TrainSpec = field(default_factory=TrainSpec)

    def __post_init__(self) -> None:
        self.check_beginning()
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
        sampled = self.train.sampling == "balanced"
        check(
            not sampled or self.optim.solver != "lbfgs",
            "train.sampling",
            self.train.sampling,
            "for solvers that take steps; lbfgs looks at every image at once and has "
            "optim.class_weights for it",
        )
        check(
            not (sampled and self.optim.class_weights),
            "optim.class_weights",
            self.optim.class_weights,
            "false with train.sampling balanced: either of them makes the classes count the same",
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

    def check_beginning(self) -> None:
        """Refuse to freeze what is random, and a shape beside weights that have one."""
        is_new = self.weights.name == "none"
        check(
            not is_new or self.train.freeze == "none",
            "train.freeze",
            self.train.freeze,
            "none with --weights none: what begins at random has to train",
        )
        check(
            is_new or not self.weights.name or self.model == ModelSpec(),
            "weights.name",
            self.weights.name,
            "none where [model] describes a new model; other weights bring their own shape",
        )
        check(
            self.train.augment != "shift" or self.train.stages[-1] in ("none", "lora"),
            "train.augment",
            self.train.augment,
            "none or crop where a part is frozen; shift is for train.freeze none",
        )

    @property
    def balances(self) -> bool:
        """Whether every class counts the same, by weights or by sampling."""
        return self.optim.class_weights or self.train.sampling == "balanced"

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


def dotted(config: Config) -> dict[str, Any]:
    """All settings by the dotted keys that users type."""
    tables = dataclasses.asdict(config)
    return {f"{s}.{key}": value for s, table in tables.items() for key, value in table.items()}


def to_toml(config: Config) -> str:
    """All settings, resolved, as TOML; `None` is left out and read back as the default."""
    tables = dataclasses.asdict(config)
    kept = {s: {k: v for k, v in t.items() if v is not None} for s, t in tables.items()}
    return tomli_w.dumps(kept)
