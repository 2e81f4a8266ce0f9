"""The settings of how training goes: the tables `[optim]` and `[train]` of a configuration.

What a setting does is told where it is used; here stand its name, unit, default and range.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

from vitft.config.schema import check


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


TRACKERS = ("tensorboard", "mlflow", "wandb")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """What trains, and on what."""

    freeze: str = "head"
    """What trains: `head`, `pre_logits` (with the head), `blocks:N` (the last N), `lora` (small
    matrices added to all blocks, and the head), `none` frozen; or several of them one after the
    other, e.g. `head,none`, each starting where the last ended."""
    augment: Literal["none", "crop", "rand", "shift"] = "none"
    """`crop`: a fresh random crop and flip of each image in each epoch; `rand`: RandAugment too;
    `shift`: for small images, moved by a few pixels and flipped."""
    padding: int = 0
    """Pixels by which `shift` moves at most; 0: an eighth of the image's side."""
    flip: float = 0.5
    """Share of the images that `shift` mirrors; 0 where left and right differ, as in writing."""
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
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    """What an epoch is: every image once, or as many images with each class equally often."""
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
    exact_pixels: bool = False
    """Decode and resize exactly as documented for bf16 features too, for twice the decoding time;
    else a value of a JPEG's view may be off by two grey levels of 255."""
    compile: bool = False
    """Let torch.compile fuse what trains; pays on a GPU after some minutes."""
    lora_rank: int = 8
    """Rank of the matrices that `lora` adds."""
    lora_alpha: float = 16.0
    """Their weight, over the rank."""
    lora_targets: str = "qkv,proj,fc1,fc2"
    """Names of the linear layers of the blocks that get them."""
    keep_adapter: bool = False
    """Also write what `lora` trained as a folder that peft loads beside the pretrained weights."""
    checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, a third more time."""
    shard: bool = False
    """Split weights, gradients and the optimiser's numbers among the processes of torchrun (FSDP2):
    for models that do not fit otherwise, as every step then costs more talking."""
    timeout: float = 1800.0
    """Seconds after which a process of torchrun that does not answer counts as lost; one that ends
    is noticed at once."""
    tracker: str = ""
    """Who else is told how training goes: tensorboard, mlflow, wandb, or several with commas."""

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
        kinds = ("none", "crop", "rand", "shift")
        check(self.augment in kinds, "train.augment", self.augment, "none, crop, rand or shift")
        check(0 <= self.padding <= 512, "train.padding", self.padding, "pixels, from 0")
        share = "a share from 0 to 1"
        check(0 < self.crop_scale <= 1, "train.crop_scale", self.crop_scale, "over 0 up to 1")
        check(0 <= self.mixup < math.inf, "train.mixup", self.mixup, "0 or more, e.g. 0.2")
        check(0 <= self.cutmix < math.inf, "train.cutmix", self.cutmix, "0 or more, e.g. 1.0")
        check(0 <= self.erasing <= 1, "train.erasing", self.erasing, share)
        check(0 <= self.flip <= 1, "train.flip", self.flip, share)
        check(0 <= self.drop_path < 1, "train.drop_path", self.drop_path, "from 0 up to 1")
        orders = ("shuffled", "balanced")
        check(self.sampling in orders, "train.sampling", self.sampling, "shuffled or balanced")
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
        check(
            not self.keep_adapter or self.stages[-1] == "lora",
            "train.keep_adapter",
            self.keep_adapter,
            "for train.freeze lora only",
        )
        check(
            {*self.trackers} <= {*TRACKERS} and len({*self.trackers}) == len(self.trackers),
            "train.tracker",
            self.tracker,
            f"one or several, with commas, of {', '.join(TRACKERS)}",
        )
        check(0 < self.timeout <= 10**6, "train.timeout", self.timeout, "seconds, over 0")
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

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names of the trackers."""
        return tuple(part.strip() for part in self.tracker.split(",") if part.strip())


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
