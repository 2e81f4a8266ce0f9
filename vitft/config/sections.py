"""Settings: one dataclass per section of a TOML file, with the allowed values as annotations."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from vitft.config.schema import check_values, invalid, require, setting
from vitft.system.errors import UsageError
from vitft.system.text import duration_fix, parse_duration

_MAX_IMAGE_SIDE = 4096  # maximum side of a model's input in pixels
Side = Annotated[int, Meta(ge=1, le=_MAX_IMAGE_SIDE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Images and the validation split."""

    path: str = setting(
        "",
        "folder with one folder per class, table of paths and labels, hf:NAME, wds:URL, "
        "torchvision:NAME, .npz file or demo",
        metavar="PATH",
        shown="-",
        name="data",
        common=True,
        aliases="dataset data_dir data_path image_folder train_dir directory input inputs "
        "input_dir source image images image_dir folder",
    )
    """Tar shards are `wds:URL{00..99}.tar`, Hugging Face datasets `hf:NAME` or `hf:NAME:SPLIT`."""
    root: str = ""
    """Folder to which the paths in a table are relative (default: the folder of the table), or
    folder of the torchvision datasets (default: `data`)."""
    label: str = setting("", aliases="label_column target target_column y_col class_column")
    """Column of the class or the labels, several columns separated by commas, or `*` for all
    columns without another use."""
    labels: Literal["auto", "one", "several"] = "auto"
    """`one` class per image, or any number of labels (`several`). `auto` means `several` if a cell
    contains `data.separator` or a list, or if several columns, `labels` or `tags` hold the labels.
    If each image has exactly one label, it means `one`."""
    separator: str = "|"
    """Text between the labels in a cell of a table, e.g. `,` or a blank."""
    path_column: str = setting("", aliases="x_col image_column file_column filename_column")
    """Column of the image paths."""
    split_column: str = ""
    """Column that assigns images to train, val or test. `none` ignores it."""
    group: str = setting("", aliases="group_column groups patient patient_id")
    """Column of the group of each image, e.g. the patient. `none` ignores it. A group is never
    divided between training and validation."""
    time: str = setting("", aliases="time_column date_column datetime_column timestamp_column")
    """Column of the date of each image, for `split=time`. `none` ignores it. Without a date, the
    EXIF date counts."""
    group_by: str = setting(
        "",
        "column with the group (patient, video), `folder` for the parent folder, or a regular "
        "expression such as 'patient([0-9]+)'",
        metavar="COLUMN|folder|PATTERN",
        shown="-",
    )
    """An expression has one pair of parentheses. A name without them is a column, as with
    `data.group`. It replaces a group column."""
    classes: str = setting(
        "",
        "table with the columns class and new_class that renames, merges or drops classes",
        metavar="TABLE",
        shown="-",
        aliases="class_map class_mapping label_map class_names",
    )
    """An empty `new_class` drops the class. The files are not changed."""
    split: Literal["content", "random", "time", "reference"] = setting(
        "content",
        "how to choose validation images: by content (stable when you add files), "
        "random, by time, or as in the reference",
    )
    """`content` uses a hash of each image's bytes, `random` its position in the sorted list.
    `time` holds out the latest images (`data.time`). `reference` works like `read_split_data` in
    WZMIAOMIAO/deep-learning-for-image-processing."""
    val_from: Literal["auto", "test"] = setting(
        "auto",
        "if the data has a test set only: draw validation images from training images "
        "(auto) or use the test set",
    )
    """With `auto`, the test images are evaluated once, at the end."""
    like: str = setting(
        "",
        "earlier run whose held-out images are held out again",
        metavar="RUN",
        shown="-",
        aliases="previous_run base_run same_split",
    )
    """Their near-duplicates are held out too, and enough new images for `data.val_rate`."""
    val_rate: float = setting(
        0.2, gt=0, lt=1, aliases="val_split validation_split val_size val_ratio test_size"
    )
    """Fraction held out for validation, of each class or, with `split=time`, of all images."""
    seed: int = setting(0, ge=0)
    """Seed for the split."""
    max_pixels: int = setting(100_000_000, ge=1)
    """Maximum number of pixels of an image, checked before decoding."""
    allow_private_addresses: bool = False
    """Also fetch tar shards from this machine and its local network."""
    allow_bad: bool = False
    """Continue when more than a tenth of the files are unreadable."""
    group_duplicates: bool = setting(False, "keep near-duplicates on the same side of the split")
    """Identical files always stay together."""
    fixes: str = setting(
        "",
        "CSV file of images to drop or relabel, as written by `vitft check`",
        metavar="CSV",
        shown="-",
    )
    fixes_digest: str = ""
    """SHA-256 of the file `fixes`, recorded by the run. On resume, a changed file is rejected."""

    def __post_init__(self) -> None:
        check_values(self, "data")
        require(
            bool(self.separator) or self.labels == "one",
            "data.separator is empty",
            fix="set it to the text between the labels in a cell, e.g. |",
        )
        for name in ("group_duplicates", "group_by", "classes"):
            require(
                self.split != "reference" or not getattr(self, name),
                f"data.{name} cannot be used with the reference split, which is fixed",
                fix=f"use data.split=content, or remove data.{name}",
            )
        require(
            not self.like or self.split in ("content", "time"),
            f"data.like cannot be combined with data.split={self.split}",
            fix="remove one of them",
        )
        require(
            not self.time or self.split == "time",
            f"data.time={self.time} has no effect with data.split={self.split}",
            fix="add --split time, or remove data.time",
        )
        require(
            not (self.group_by and self.group),
            "data.group_by and data.group both define the groups",
            fix="use only one of them",
        )
        if self.group_by == "folder":
            return
        if "(" not in self.group_by:
            object.__setattr__(self, "group", self.group or self.group_by)
            object.__setattr__(self, "group_by", "")
        try:
            groups = re.compile(self.group_by or "()").groups
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(
                f"invalid data.group_by={self.group_by}: {error}",
                fix="use a regular expression, e.g. patient([0-9]+)",
            ) from error
        require(
            groups == 1,
            f"data.group_by={self.group_by} has {groups} capturing groups instead of one",
            fix="put only the name of the group in parentheses, e.g. patient([0-9]+), and use "
            "(?:...) elsewhere",
        )

    def group_in(self, path: str) -> str:
        """Return the group that `group_by` captures in a path, or ""."""
        if self.group_by == "folder":
            return path.rpartition("/")[0] or "."
        match = re.search(self.group_by, path) if self.group_by else None
        return (match[1] or "") if match else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSpec:
    """Pretrained weights and their adaptation."""

    name: str = setting(
        "",
        "catalogue name (`vitft weights list`), weight file, hf:OWNER/NAME, timm:NAME, "
        "demo, or none to train from scratch",
        metavar="NAME",
        shown="chosen by the number of images",
        name="weights",
        common=True,
        aliases="model_name pretrained checkpoint backbone arch",
    )
    """A new model is described by `[model]`."""
    image_size: tuple[int, int] | None = setting(
        None,
        "input size in pixels: one side, or height and width",
        ge=1,
        le=_MAX_IMAGE_SIDE,
        metavar="PX",
        shown="as in pretraining, or the size of the images (from scratch)",
        aliases="img_size imgsz input_size resolution",
    )
    fit: Literal["auto", "crop", "squash", "pad"] = setting(
        "auto",
        "how images fit the input: crop, squash (changes the aspect ratio) or pad (adds borders)",
        shown="as in pretraining",
        aliases="crop_mode resize_mode letterbox",
    )
    """`pad` uses the mean colour. """
    crop: float | None = setting(None, gt=0, le=1, aliases="crop_pct crop_fraction center_crop")
    """Fraction of the resized image's side that the centre crop keeps. Default: as in pretraining,
    or 1 if `fit` is `squash` or `pad`."""
    pre_logits: Literal["keep", "drop"] = setting(
        "drop", "keep or drop a Linear + Tanh layer before the pretrained head"
    )
    pos_embed: Literal["bicubic", "jax"] = "bicubic"
    """How to resample position embeddings: `bicubic` as in timm, or `jax` as in Google's code.
    SigLIP 2 NaFlex always uses its own rule."""
    keep_head: bool = setting(
        False, "shrink the fitted head towards the head of the weights, for the same classes"
    )
    """For few images. Cross-validation chooses how much. By default, it is shrunk towards 0."""
    mean: tuple[float, ...] | None = setting(
        None, "channel means for normalisation, from 0 to 1", shown="taken from the weights"
    )
    std: tuple[float, ...] | None = setting(
        None, "channel standard deviations for normalisation", shown="taken from the weights"
    )
    allow_pickle: bool = setting(False, "allow .pth files, which are pickles")
    """Pickles are read with weights_only=True."""

    def __post_init__(self) -> None:
        check_values(self, "weights")
        require(
            (self.mean is None) == (self.std is None),
            "weights.mean and weights.std must be set together",
            fix="use both --mean and --std, or neither",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A new Vision Transformer, for `--weights none`."""

    patch_size: int = setting(4, ge=1, le=16384)
    """Side length of a patch in pixels. The image sides must be multiples of it."""
    width: int = setting(96, ge=1, le=16384, aliases="embed_dim hidden_size hidden_dim dim")
    """Token embedding dimension."""
    depth: int = setting(6, ge=1, le=16384, aliases="num_layers num_hidden_layers num_blocks")
    """Number of blocks."""
    heads: int = setting(3, ge=1, aliases="num_heads num_attention_heads")
    """Number of attention heads in each block. The width must be a multiple of this number."""
    mlp_ratio: float = setting(4.0, gt=0)
    """Width of the MLP's hidden layer as a multiple of the embedding dimension."""
    norm: Literal["pre", "post"] = "pre"
    """Position of LayerNorm: before each branch, or after each addition (original Transformer)."""
    pool: Literal["cls", "mean"] = "cls"
    """Input of the head: the class token, or the mean of the patch tokens."""
    positions: Literal["noise", "waves"] = "noise"
    """Initial position embeddings: small `noise`, or `waves`, i.e. sines and cosines of the row and
    the column. `waves` helps if there are few blocks or epochs."""
    convs: tuple[int, ...] = setting((), ge=2, le=16384)
    """Channels of 3x3 convolutions before the patch embedding, e.g. [32, 48, 64]. If the patch size
    has n factors of 2, the last n convolutions have stride 2."""
    registers: int = setting(0, ge=0, le=64, aliases="reg_tokens num_register_tokens")
    """Number of register tokens."""
    layer_scale: float = setting(0.0, ge=0, le=1, aliases="init_values layerscale_value")
    """Initial LayerScale factor of every branch. 0 means none."""
    channels: Literal[0, 1, 3] = 0
    """Number of input channels: 3 for RGB, 1 for greyscale, 0 to match the images."""

    def __post_init__(self) -> None:
        check_values(self, "model")
        step = math.lcm(self.heads, 1 if self.positions == "noise" else 4)
        near = dict.fromkeys((self.width // step * step, -(-self.width // step) * step))
        widths = " or ".join(f"model.width={width}" for width in near if width)
        require(
            self.width % self.heads == 0,
            f"model.width={self.width} is not a multiple of model.heads={self.heads}",
            fix=f"use {widths}, or another number of heads",
        )
        require(
            1 <= self.width * self.mlp_ratio <= 2**20,
            f"invalid model.mlp_ratio={self.mlp_ratio}: the hidden layer would have a width of "
            f"{self.width * self.mlp_ratio:.3g}",
            fix="use a ratio from 2 to 4",
        )
        require(
            self.positions == "noise" or self.width % 4 == 0,
            f"model.positions=waves needs a model.width that is a multiple of 4, not {self.width}",
            fix=f"use {widths}, or model.positions=noise",
        )
        require(
            len(self.convs) <= 16,
            f"model.convs lists {len(self.convs)} convolutions, but the maximum is 16",
            fix="use at most 16 convolutions",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimSpec:
    """Solver, learning rate and length of training."""

    solver: Literal["lbfgs", "sgd", "adamw"] = setting(
        "lbfgs",
        "lbfgs fits a head without steps, while sgd and adamw train in steps",
        shown="lbfgs for a head alone, else adamw",
        aliases="optimizer optimiser opt",
    )
    l2: float = setting(0.0, ge=0, aliases="c alpha penalty reg regularization")
    """L2 penalty of `lbfgs` on standardised features. With 0, cross-validation chooses it."""
    class_weights: bool = setting(False, aliases="class_weight balanced")
    """Give all classes the same total weight in the loss, regardless of their sizes."""
    lr: float | None = setting(
        None,
        "peak learning rate (a head then trains in steps)",
        gt=0,
        shown="depends on the trained layers, see docs/settings.md",
        common=True,
        aliases="learning_rate lrate base_lr lr0 blr eta",
    )
    """Reached at the end of warm-up."""
    schedule: Literal["cosine", "constant"] = setting(
        "cosine", aliases="scheduler lr_scheduler lr_scheduler_type sched"
    )
    """Learning rate schedule after warm-up."""
    final_lr: float = setting(0.0, ge=0, le=1, aliases="min_lr eta_min")
    """Learning rate at the end of the cosine schedule, as a fraction of the peak."""
    warmup: float = setting(0.05, ge=0, lt=1, aliases="warmup_ratio warmup_steps warmup_epochs")
    """Fraction of all steps spent warming up, e.g. 0.05 for 5%."""
    layer_decay: float = setting(1.0, gt=0, le=1, aliases="layerwise_lr_decay llrd")
    """Ratio of each block's learning rate to the next block's."""
    momentum: float = setting(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = setting(0.0, ge=0, aliases="wd decay")
    """Weight decay of matrices. Norms, biases, position embeddings and tokens are not decayed."""
    epochs: int = setting(
        20,
        "passes over the training images (a head then trains in steps)",
        ge=1,
        shown="20 for a head or pre_logits, 10 for more layers, 100 from scratch",
        common=True,
        aliases="num_epochs max_epochs num_train_epochs n_epochs",
    )
    batch_size: int | None = setting(
        None,
        "images per step (a head then trains in steps)",
        ge=1,
        shown="8 to 32 by the number of images, 256 from scratch",
        common=True,
        aliases="bs batch per_device_train_batch_size",
    )
    """All processes and micro-batches count together."""
    micro_batch: int = setting(
        0, ge=0, aliases="gradient_accumulation_steps grad_accum_steps accum_iter"
    )
    """Number of images per forward pass. 0 means the whole batch, unless memory runs out."""
    clip: float = setting(0.0, ge=0, aliases="grad_clip clip_grad max_grad_norm gradient_clip_val")
    """Maximum norm of the gradients. 0 means no clipping."""
    label_smoothing: float = setting(0.0, ge=0, lt=1, aliases="smoothing label_smoothing_factor")
    """Label smoothing factor."""
    ema: float = setting(0.0, ge=0, lt=1, aliases="model_ema model_ema_decay ema_decay")
    """Decay per step of an exponential moving average of the weights, e.g. 0.999. The average is
    then validated and saved. 0 means none."""
    interpolation: float = setting(1.0, gt=0, le=1)
    """Fraction of the trained weights in the saved ones. The rest are the weights before the stage
    (WiSE-FT). 0.5 may help with few images."""
    patience: int = setting(0, ge=0, aliases="early_stopping early_stopping_patience")
    """Number of epochs without improvement after which to stop. 0 trains all epochs."""

    def __post_init__(self) -> None:
        check_values(self, "optim")

    @property
    def images_per_step(self) -> int:
        """The batch size, which must have been resolved."""
        assert self.batch_size is not None, "the batch size has not been resolved"
        return self.batch_size


TRACKERS = ("tensorboard", "mlflow", "wandb")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """Trained layers, augmentation, device and distribution."""

    layers: str = setting(
        "head",
        "layers to train: head, blocks:N (the last N blocks), lora, all or pre_logits, or "
        "stages in turn: head,all",
        metavar="LAYERS",
        name="train",
        common=True,
        aliases="freeze unfreeze trainable_layers freeze_layers",
    )
    """`pre_logits`, `blocks:N` and `lora` include the head. `lora` trains low-rank adapters in all
    blocks."""
    augment: Literal["none", "crop", "rand", "shift"] = setting(
        "none", aliases="augmentation transforms auto_augment aa"
    )
    """[Augmentation](augmentation.md)."""
    padding: int = setting(0, ge=0, le=512)
    """Maximum shift in pixels for `augment=shift`. 0 means an eighth of the image's side."""
    flip: float = setting(0.5, ge=0, le=1)
    """Probability that augmentation mirrors an image. Use 0 for text, for example."""
    crop_scale: float = setting(0.08, gt=0, le=1)
    """Minimum area of a random crop, as a fraction of the image area."""
    mixup: float = setting(0.0, ge=0)
    """Alpha of mixup, e.g. 0.2. 0 means none."""
    cutmix: float = setting(0.0, ge=0)
    """Alpha of CutMix, e.g. 1.0. 0 means none. With mixup, one of the two is chosen per batch."""
    erasing: float = setting(0.0, ge=0, le=1, aliases="random_erasing reprob")
    """Probability of random erasing."""
    drop_path: float = setting(
        0.0, ge=0, lt=1, aliases="dropout drop_rate drop_path_rate stochastic_depth"
    )
    """Stochastic depth rate of the last block. It is 0 in the first block and grows linearly."""
    sampling: Literal["shuffled", "balanced"] = setting(
        "shuffled", aliases="sampler weighted_sampler"
    )
    """`balanced` uses the same number of images from each class in an epoch."""
    budget: str = setting(
        "",
        "time to spend, e.g. 10m: trains more layers if trials show a gain (--max-time only stops)",
        metavar="TIME",
        shown="no budget",
        common=True,
    )
    """The head is fitted first. Without a budget, `train.layers` decides."""
    teacher: str = setting(
        "",
        "run or model.safetensors whose probabilities are soft targets (distillation)",
        metavar="RUN",
        shown="-",
        aliases="teacher_model distill distillation distillation_teacher",
    )
    """[How](training.md#a-small-student-of-a-large-teacher)."""
    teacher_weight: float = setting(
        0.5, gt=0, le=1, aliases="distillation_weight distillation_alpha"
    )
    """Weight of the teacher's probabilities in the targets. The labels have the rest."""
    teacher_digest: str = ""
    """Its SHA-256, recorded by the run. On resume, another teacher is rejected."""
    views: int = setting(0, "augmented copies of each training image to cache", ge=0, le=1000)
    """The original is cached too."""
    head_blocks: int = setting(0, ge=0, le=1024)
    """Number of last blocks whose features a head fitted by `lbfgs` may use
    ([how](training.md#features-from-several-blocks)). 0 means as many as fit quickly, up to 6."""
    cache: str = setting(
        "",
        "folder of cached features, or none to disable the cache",
        metavar="DIR",
        shown="~/.cache/vitft/features",
    )
    """The default is `features` in VITFT_CACHE, or `vitft/features` in XDG_CACHE_HOME or
    ~/.cache."""
    seed: int = setting(0, ge=0, aliases="random_state random_seed manual_seed")
    """Seed for random initial weights, the batch order and the augmentation."""
    device: str = setting(
        "auto",
        "device: auto, cpu, cuda, cuda:1 or mps",
        metavar="DEVICE",
        aliases="gpu gpus cuda accelerator",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", aliases="amp mixed_precision dtype fp16 bf16"
    )
    """Number format of the computation (unlike `predict --precision`). `auto` is bf16 where it is
    supported natively, else fp16 on GPUs with tensor cores and fp32 elsewhere."""
    exact_pixels: bool = False
    """Decode and resize images exactly in bf16 and fp16 too, which doubles the decoding time.
    Otherwise, JPEG pixels may be off by up to two of 255 grey levels."""
    compile: bool = setting(False, aliases="torch_compile torchcompile")
    """Use torch.compile, which pays off on a GPU after a few minutes."""
    deterministic: bool = setting(False, aliases="deterministic_algorithms use_deterministic")
    """Use only torch's deterministic algorithms. They are slower, by how much is not measured."""
    lora_rank: int = setting(8, ge=1, aliases="r rank")
    """Rank of the LoRA matrices."""
    lora_alpha: float = setting(16.0, gt=0)
    """LoRA scaling: the update is multiplied by alpha / rank."""
    lora_targets: str = setting("qkv,proj,fc1,fc2", aliases="target_modules")
    """Names of the linear layers to which LoRA is applied in each block."""
    keep_adapter: bool = setting(False, "also write the LoRA adapter for peft (with --train lora)")
    """The folder `adapter/` of the run."""
    checkpointing: bool = setting(False, aliases="gradient_checkpointing grad_checkpointing")
    """Activation checkpointing, which saves memory but takes a third more time."""
    shard: bool = setting(False, aliases="fsdp")
    """Shard weights, gradients and optimiser state over the processes of torchrun
    ([FSDP2](gpu.md#sharding-fsdp2))."""
    timeout: float = setting(1800.0, gt=0, le=10**6)
    """Seconds after which an unresponsive torchrun process is considered lost."""
    tracker: str = setting(
        "",
        "experiment tracker: tensorboard, mlflow or wandb (may be repeated)",
        metavar="NAME",
        shown="none",
        aliases="logger loggers report_to log_with",
    )
    """Several names are separated by commas."""

    def __post_init__(self) -> None:
        check_values(self, "train")
        order = {"head": 0, "pre_logits": 1, "lora": 1.5, "all": math.inf}  # by trained parameters
        ranks = []
        for stage in self.stages:
            match = re.fullmatch(r"blocks:0*([1-9]\d*)", stage)
            ranks.append(2 + int(match[1]) if match else order.get(stage, -1))
        if min(ranks) < 0 or ranks != sorted({*ranks}):
            raise invalid(
                "train.layers",
                self.layers,
                "head, pre_logits, blocks:N, lora or all, or several of them in ascending "
                "order of trained parameters, e.g. head,all",
            )
        if not re.fullmatch(r"\w+(,\w+)*", self.lora_targets):
            raise invalid("train.lora_targets", self.lora_targets, "layer names, e.g. qkv,proj")
        require(
            not self.keep_adapter or self.stages[-1] == "lora",
            f"train.keep_adapter=true needs train.layers=lora, not {self.layers}",
            fix="use --train lora, or remove --keep-adapter",
        )
        if self.budget and self.budget_s == 0:
            raise invalid("train.budget", self.budget, duration_fix(self.budget))
        if not {*self.trackers} <= {*TRACKERS} or len({*self.trackers}) != len(self.trackers):
            raise invalid("train.tracker", self.tracker, f"one or more of {', '.join(TRACKERS)}")

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages of training, in the notation of train.layers."""
        return tuple(part.strip() for part in self.layers.split(","))

    @property
    def mirrors(self) -> bool:
        """Whether training images are mirrored at random."""
        return self.flip > 0 and (self.augment != "none" or self.views > 0)

    @property
    def budget_s(self) -> float:
        """Time budget in seconds, or 0."""
        return parse_duration(self.budget) or 0.0

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names of the experiment trackers."""
        return tuple(part.strip() for part in self.tracker.split(",") if part.strip())


def layers_text(stage: str) -> str:
    """Return a phrase for the layers that a stage trains, e.g. `the last 4 blocks`."""
    number = stage.removeprefix("blocks:")
    if number != stage:
        return "the last block" if number == "1" else f"the last {number} blocks"
    return {"all": "all layers", "lora": "LoRA adapters"}.get(stage, f"the {stage}")
