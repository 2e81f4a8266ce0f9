"""Options of `vitft finetune`, which are also keywords of `vitft.finetune`, and their settings."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitft.config.names import SECTIONS
from vitft.config.schema import SettingType, setting_types, shown_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option that stands for a setting."""

    flag: str
    setting: str
    metavar: str = ""
    """Placeholder of the value in the help, where the type does not say enough."""
    help: str
    default: str = ""
    """The default for the help, where it is not simply that of the setting."""

    @property
    def name(self) -> str:
        """Keyword of `vitft.finetune`: `batch_size` for `--batch-size`."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def setting_type(self) -> SettingType:
        """Type and allowed values of the setting."""
        section, _, name = self.setting.partition(".")
        return setting_types(SECTIONS[section])[name]

    @property
    def group(self) -> str:
        """Title of its group in the help."""
        section, _, name = self.setting.partition(".")
        if name in ("device", "cache", "tracker"):
            return "run"
        return {"data": "images", "weights": "weights"}.get(section, "training")

    @property
    def placeholder(self) -> str:
        """Placeholder of the value in the help."""
        kind = self.setting_type
        choices = "|".join(map(str, kind.choices))
        return self.metavar or choices or ("N" if kind.type is int else "X")

    @property
    def text(self) -> str:
        """Help text with the default, except for switches."""
        if self.setting_type.type is bool:
            return self.help
        section, _, name = self.setting.partition(".")
        default = self.default or shown_value(getattr(SECTIONS[section](), name))
        return f"{self.help} (default: {default})" if self.default != "-" else self.help


FINETUNE_OPTIONS = (
    Option(
        flag="--data",
        setting="data.path",
        metavar="DIR",
        help="image folder with one folder per class, .npz file, torchvision:CIFAR10, or demo",
        default="-",
    ),
    Option(
        flag="--split",
        setting="data.split",
        help="how validation images are chosen: at random, or as the reference script does",
    ),
    Option(
        flag="--fixes",
        setting="data.fixes",
        metavar="CSV",
        help="images to leave out or relabel, as written by `vitft check`",
        default="-",
    ),
    Option(
        flag="--group-duplicates",
        setting="data.group_duplicates",
        help="keep near-duplicates of an image on one side of the split",
    ),
    Option(
        flag="--weights",
        setting="weights.name",
        metavar="NAME",
        help="catalogue name (see `vitft weights list`), weight file, hf:OWNER/NAME, timm:NAME, "
        "demo, or none to train from scratch",
        default="-",
    ),
    Option(
        flag="--image-size",
        setting="weights.image_size",
        metavar="PX",
        help="input size in pixels: one side, or height and width",
        default="the pretraining size",
    ),
    Option(
        flag="--pre-logits",
        setting="weights.pre_logits",
        help="what to do with a Linear + Tanh in front of the pretrained head",
    ),
    Option(
        flag="--mean",
        setting="weights.mean",
        help="channel means for normalisation, in 0..1",
        default="those of the weights",
    ),
    Option(
        flag="--std",
        setting="weights.std",
        help="channel standard deviations for normalisation",
        default="those of the weights",
    ),
    Option(
        flag="--allow-pickle",
        setting="weights.allow_pickle",
        help="read .pth files (with weights_only=True)",
    ),
    Option(
        flag="--freeze",
        setting="train.freeze",
        metavar="WHAT",
        help="what trains: head, pre_logits, blocks:N (the last N), lora, none (nothing is frozen);"
        " or several stages, e.g. head,none",
    ),
    Option(
        flag="--solver",
        setting="optim.solver",
        help="optimiser: lbfgs fits a head on cached features, sgd and adamw train in steps",
        default="lbfgs for a head alone, else adamw",
    ),
    Option(
        flag="--epochs",
        setting="optim.epochs",
        help="passes over the training images",
        default="20 for a head, 10 for more, 100 from scratch",
    ),
    Option(
        flag="--batch-size",
        setting="optim.batch_size",
        help="images per step",
        default="32, or 256 from scratch",
    ),
    Option(
        flag="--lr",
        setting="optim.lr",
        help="peak learning rate",
        default="depends on what trains, see docs/settings.md",
    ),
    Option(
        flag="--views",
        setting="train.views",
        help="augmented views of each training image to cache",
    ),
    Option(
        flag="--keep-adapter",
        setting="train.keep_adapter",
        help="with --freeze lora: also write the adapter, for peft",
    ),
    Option(
        flag="--device",
        setting="train.device",
        metavar="DEVICE",
        help="auto, cpu, cuda, cuda:1 or mps",
    ),
    Option(
        flag="--cache",
        setting="train.cache",
        metavar="DIR",
        help="folder of cached features, or none",
        default="~/.cache/vitft/features",
    ),
    Option(
        flag="--tracker",
        setting="train.tracker",
        metavar="NAME",
        help="also log to tensorboard, mlflow or wandb; may be repeated",
        default="none",
    ),
)


def option_settings(values: Mapping[str, object]) -> list[tuple[str, object]]:
    """Convert option values to settings with dotted names.

    Args:
        values: Values by `Option.name`, and `seed`, which sets two settings. None and False mean
            that an option is not given.
    """
    settings: list[tuple[str, object]] = []
    for option in FINETUNE_OPTIONS:
        value = values.get(option.name)
        if value is None or value is False:
            continue
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, Sequence) and not isinstance(value, str):
            if option.setting_type.type is str:
                value = ",".join(value)
            elif option.setting_type.length and len(value) == 1:
                value = value[0]  # one side
        settings.append((option.setting, value))
    if values.get("seed") is not None:
        settings += [("data.seed", values["seed"]), ("train.seed", values["seed"])]
    return settings
