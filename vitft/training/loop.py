"""Training loop: optimiser steps on inputs and labels, independent of images and files.

Gradients are accumulated over micro-batches and summed over processes. Random numbers in a step
depend on (seed, step, rank) alone, so a resumed run draws the same numbers as an uninterrupted one.

Models too large for a full copy in every process are sharded with
`torch.distributed.fsdp.fully_shard` ("FSDP2"; Zhao et al. 2023, https://arxiv.org/abs/2304.11277).
Every process stores a slice of each weight, gradient, moving average and optimiser state. The
weights of a block are gathered only while the block is computed. The DTensor modules that this
requires take 0.4 s to import, so only sharded runs import them.
"""

import contextlib
import copy
import functools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from vitft.config.defaults import default_batch_size, default_lr
from vitft.config.sections import OptimSpec
from vitft.metrics.classification import DEFAULT_LOSS, TrainingLoss, are_right
from vitft.models.timm_model import Model
from vitft.models.vit import blocks_of
from vitft.system.device import BatchLimit, exact_float32, is_out_of_memory, start_reading
from vitft.system.errors import DivergedError, ResourceError, RunError, UsageError
from vitft.system.structure import Natural
from vitft.system.text import count
from vitft.training.runtime import ProcessGroup, report_lost_process

# optimisers, learning-rate schedule, layer-wise decay and moving average of the weights -----------


def with_step_defaults(spec: OptimSpec, layers: str, model: Model, images: int) -> OptimSpec:
    """Return the settings with default values for a missing learning rate or batch size."""
    lr = default_lr(layers, model.last_block_size) if spec.lr is None else spec.lr
    batch_norm = bool(_running_statistics(model))
    size = spec.batch_size or default_batch_size(layers, images, batch_norm=batch_norm)
    return replace(spec, lr=lr, batch_size=size)


def lr_at(step: int, total: int, *, peak: float, warmup: float, final: float = 0.0) -> float:
    """Return the learning rate at a step: linear warm-up, then cosine decay to `final * peak`.

    Source: Loshchilov & Hutter 2017 (SGDR, without restarts), https://arxiv.org/abs/1608.03983.
    """
    ramp = round(total * warmup)
    if step < ramp:
        return peak * (step + 1) / ramp
    progress = min(1.0, (step - ramp) / max(1, total - ramp))
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))


def parameter_groups(model: nn.Module, spec: OptimSpec) -> list[dict[str, Any]]:
    """Return the trainable parameters grouped by learning-rate factor `lr_scale` and weight decay.

    Norms, biases, position embeddings and tokens have no weight decay. The learning-rate factor of
    a layer is `layer_decay ** (number of layers above it)`. For timm models, timm defines the
    layers.

    Sources: Clark et al. 2020 (arXiv:2003.10555) and Bao et al. 2022 (arXiv:2106.08254).
    """
    layers = dict[str, int]()  # from the input; the head is last
    if spec.layer_decay < 1:
        numbers: dict[int, int] = {}
        for inner in model.modules():
            numbers |= getattr(inner, "layer_numbers", dict)()
        layers = {name: numbers.get(id(p), 0) for name, p in model.named_parameters()}
    top = max(layers.values(), default=0)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        flat = parameter.ndim <= 1 or name.endswith(("_token", "pos_embed"))
        decay = 0.0 if flat else spec.weight_decay
        scale = spec.layer_decay ** (top - layers.get(name, top))
        group = groups.setdefault((scale, decay), {"lr_scale": scale, "weight_decay": decay})
        group.setdefault("params", []).append(parameter)
    return list(groups.values())


def _running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that training updates: running means and variances, e.g. of BatchNorm."""
    buffers = model.named_buffers()
    return {name: b for name, b in buffers if name.rpartition(".")[2].startswith("running_")}


def batch_slices(images: int, size: int, module: nn.Module) -> list[slice]:
    """Return slices that divide images into batches of `size`; the last may be smaller.

    If the module has BatchNorm, which needs two images, a single last image joins the previous
    batch.
    """
    alone = images > size and images % size == 1 and bool(_running_statistics(module))
    ends = [*range(size, images - alone, size), *([images] if images else [])]
    return [slice(*ends) for ends in zip([0, *ends], ends, strict=False)]


class WeightAverage:
    """Weights to validate and save: an average or an interpolation of the trained ones.

    The exponential moving average (EMA) is over training steps. The interpolation is between the
    weights before training and the trained or averaged ones.

    Source of the interpolation: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models"
    (WiSE-FT), https://arxiv.org/abs/2109.01903, section 3.

    Args:
        weights: Trained parameters and running statistics. Both are averaged, because averaged
            parameters do not match the statistics of the latest ones.
        decay: Maximum decay per step, from 0 to 1; with 0, no average is computed.
        fraction: Fraction of the trained weights in the interpolation, above 0; with 1, the weights
            before training are not kept.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float, fraction: float = 1.0) -> None:
        self.weights, self.decay, self.fraction = weights, decay, fraction
        self.average = {name: w.detach().clone() for name, w in weights.items() if decay}
        kept = [name for name in weights if fraction < 1 and ".lora_A." not in name]
        self.before = {name: weights[name].detach().clone() for name in kept}
        """Weights before training, without the A of LoRA's B @ A, because B is 0 before training:
        the fraction of B is that of the product."""
        self.swapped_out: dict[str, Tensor] = {}  # trained ones while others are loaded

    @property
    def trained(self) -> dict[str, Tensor]:
        """Trained weights, even while the model holds other ones."""
        return {**self.weights, **self.swapped_out}

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Update the average after a training step; `steps` is the number of earlier steps."""
        decay = min(self.decay, (1 + steps) / (10 + steps))  # lower in early steps
        if self.average:
            weights = [self.weights[name] for name in self.average]
            torch._foreach_lerp_([*self.average.values()], weights, 1 - decay)

    @contextlib.contextmanager
    def swapped_in(self, fraction: float | None = None) -> Iterator[None]:
        """Load the weights to validate and save; restore the trained ones on exit.

        `fraction` overrides the fraction of the trained weights in the settings.
        """
        fraction = self.fraction if fraction is None else fraction
        if self.average or fraction < 1:
            self.swapped_out = {name: w.detach().clone() for name, w in self.weights.items()}
        try:
            self.load(self.average)
            if fraction < 1:
                with torch.no_grad():
                    for name, before in self.before.items():
                        self.weights[name].lerp_(before, 1 - fraction)
            yield
        finally:
            self.load(self.swapped_out)  # before `trained` reads from the parameters again
            self.swapped_out = {}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy `weights` to the weights of the same names in the model."""
        for name, value in weights.items():
            self.weights[name].copy_(value)


# training loop: optimiser steps on inputs and labels, independent of images and files -------------

_MixFunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function that maps the inputs and labels (B,) of a batch to mixed inputs and their targets, which
are class indices (B,) or class probabilities (B, C)."""


class Batch(NamedTuple):
    """Inputs to the trained layers (pixels, tokens or pooled features) and their labels."""

    inputs: Tensor
    labels: Tensor
    """Class indices (B,), class probabilities (B, C), or multi-label targets of 0 and 1 (B, C)."""
    images: int = 0  # size of the whole batch if this is one rank's slice of it; otherwise 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Metrics of one optimiser step."""

    step: int  # step number, counting from 0 at the start of the stage
    lr: float
    loss: float  # mean loss of the batch in nats, with class weights and label smoothing
    correct: int
    images: int


@dataclass(slots=True)
class RunningMetrics:
    """Running mean loss and accuracy over the steps of an epoch."""

    first_loss: float | None = None  # of the stage; ln(classes) for a head of zeros
    steps: Natural = 0  # number of steps in the stage so far
    images: Natural = 0
    correct: Natural = 0
    total: float = 0.0  # sum of the losses over all images
    lr: float = 0.0

    def add(self, step: StepResult) -> None:
        """Include the metrics of one step."""
        if self.first_loss is None:
            self.first_loss = step.loss
        self.steps += 1
        self.images += step.images
        self.correct += step.correct
        self.total += step.loss * step.images
        self.lr = step.lr

    @property
    def loss(self) -> float:
        return self.total / max(1, self.images)

    @property
    def top1(self) -> float:
        return self.correct / max(1, self.images)


class Trainer:
    """Model and optimiser, trained one step at a time.

    Args:
        model: Model that maps `Batch.inputs` to logits (B, C). It contains no frozen parts, or
            keeps them in eval mode itself.
        spec: Solver, learning rate, schedule, epochs, micro-batch size and label smoothing.
        steps_per_epoch: Number of batches per epoch, which determines the length of the schedule.
        precision: `bf16` or `fp16` to use autocast, otherwise `fp32`.
        seed: Seed for random numbers (drop path, `mix`), combined with the step and the rank.
        mix: Function applied to each whole batch before the forward pass.
        loss: Loss function, which also determines the kind of targets.
        compiled: Whether to compile the forward and backward passes with torch.compile.
        group: Process group across which each batch is divided.
        sharded: Whether to divide a copy of the model over the group, block by block.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: OptimSpec,
        *,
        steps_per_epoch: int,
        precision: str = "fp32",
        seed: int = 0,
        mix: _MixFunction | None = None,
        loss: TrainingLoss = DEFAULT_LOSS,
        compiled: bool = False,
        group: ProcessGroup | None = None,
        sharded: bool = False,
    ) -> None:
        assert spec.lr is not None, "the learning rate has not been resolved"
        self.spec, self.peak_lr, self.sharded = spec, spec.lr, sharded
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = steps_per_epoch * spec.epochs
        self.group = group or ProcessGroup()
        self.whole = model  # with the trained weights in `evaluated`, if `model` is a sharded copy
        self.model = model = _sharded_copy(model, self.group) if sharded else model
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.device = next(iter(self.parameters.values())).device
        groups = parameter_groups(model, spec)
        fused = self.device.type in ("cpu", "cuda")
        if spec.solver == "sgd":  # torch 2.15 does not support fused SGD of sharded parameters
            fused = fused and not sharded
            self.optimizer: Optimizer = SGD(groups, lr=spec.lr, momentum=spec.momentum, fused=fused)
        else:
            self.optimizer = AdamW(groups, lr=spec.lr, fused=fused)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.statistics = _running_statistics(model)
        self.average = WeightAverage(
            {**self.parameters, **self.statistics}, spec.ema, spec.interpolation
        )
        self.forward = torch.compile(model) if compiled else model
        self.limit = BatchLimit(
            spec.micro_batch or spec.images_per_step,
            fix="use a smaller --image-size, a smaller model or --set train.checkpointing=true",
        )
        self.seed, self.precision = seed, precision
        self.mix, self.loss = mix, loss
        self.is_training = False  # whether the model is in train mode; switching walks all modules
        self.steps = 0  # number of completed steps

    @property
    def micro_batch(self) -> int:
        """Number of images per micro-batch; halved whenever memory runs out."""
        return self.limit.images

    @property
    def lr(self) -> float:
        """Learning rate of the next step, before layer-wise decay is applied."""
        spec = self.spec
        final = 1.0 if spec.schedule == "constant" else spec.final_lr
        shape = {"peak": self.peak_lr, "warmup": spec.warmup, "final": final}
        return lr_at(self.steps, self.total_steps, **shape)

    def step(self, batch: Batch) -> StepResult:
        """Update the weights with the gradient of one batch, and wait for the metrics (`start`)."""
        return self.start(batch)()

    def start(self, batch: Batch) -> Callable[[], StepResult]:
        """Update the weights without waiting for a GPU; return a function that waits for metrics.

        Raises:
            DivergedError: The loss or the gradient was not finite, and the weights are useless.
                Only the returned function raises it.
            ResourceError: Memory ran out with a single image, or a process was lost.
            UsageError: The model has BatchNorm, and a batch has a single image.
        """
        if not self.is_training:
            self.model.train()
            self.is_training = True
        step, lr = self.steps, self.lr
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        metrics = self.backward(batch)
        self.scaler.unscale_(self.optimizer)
        weights = [p for p in self.parameters.values() if p.grad is not None]
        with report_lost_process():
            norm = nn.utils.get_total_norm([p.grad for p in weights if p.grad is not None])
            if self.spec.clip:
                nn.utils.clip_grads_with_norm_(weights, self.spec.clip, norm)
            size = _full_tensor(norm) if self.sharded else norm
        scale = self.scaler.scale(torch.ones_like(size))  # 1 without loss scaling
        read = start_reading([metrics, torch.stack([size, scale])])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update(step)
        self.steps += 1
        images = batch.images or len(batch.labels)

        def finish() -> StepResult:
            (loss, correct), (size, scale) = (found.tolist() for found in read())
            if not math.isfinite(loss):
                raise diverged(step, lr, f"the loss is {loss}")
            if not math.isfinite(size) and scale <= 1:  # otherwise, the scaler skips the step
                raise diverged(step, lr, "the gradient is not finite")
            return StepResult(step=step, lr=lr, loss=loss, correct=round(correct), images=images)

        return finish

    @contextlib.contextmanager
    def evaluated(self, fraction: float | None = None) -> Iterator[None]:
        """Load the weights to validate and save into the model (see `WeightAverage.swapped_in`)."""
        with self.average.swapped_in(fraction):
            if self.sharded:
                whole = dict(self.whole.named_parameters())
                with torch.no_grad():
                    for name, parameter in self.parameters.items():
                        whole[name].copy_(_full_tensor(parameter))
            self.is_training = False
            yield

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state before the next step, as tensors and JSON values.

        Every rank of a sharded model must call it, but only the main process receives the tensors.
        """
        tensors = self.tensors()
        for i, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{i}/{key}": torch.as_tensor(v) for key, v in slots.items()}
        if self.sharded:
            full = ((name, _full_tensor(tensor)) for name, tensor in tensors.items())
            tensors = {name: tensor.cpu() for name, tensor in full if self.group.is_main}
        scaler = self.scaler.state_dict()
        return tensors, {"step": self.steps, "micro_batch": self.micro_batch, "scaler": scaler}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state other than the optimiser's, without copying them."""
        weights, buffers = self.average.trained, self.model.named_buffers()
        return {
            **{f"weights/{name}": weights[name].detach() for name in self.parameters},
            **{f"buffers/{name}": weights.get(name, buffer) for name, buffer in buffers},
            **{f"average/{name}": mean for name, mean in self.average.average.items()},
            **{f"before/{name}": value for name, value in self.average.before.items()},
        }

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore a state returned by `state`; a RunError if it does not fit."""
        targets = self.tensors()
        optimized = [p for group in self.optimizer.param_groups for p in group["params"]]
        wanted = {name: target.shape for name, target in targets.items()}
        for name, value in tensors.items():
            slot = re.fullmatch(r"optimizer/(\d{1,6})/\w+", name)
            if slot and int(slot[1]) < len(optimized):
                wanted[name] = optimized[int(slot[1])].shape if value.ndim else value.shape
        check_shapes({name: value.shape for name, value in tensors.items()}, wanted)
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name in targets:
                target = targets[name]
                target.copy_(_slice_like(value, target) if self.sharded else value)
            else:
                _, i, key = name.split("/")
                own = _slice_like(value, optimized[int(i)]) if self.sharded else value
                slots.setdefault(int(i), {})[key] = own.clone()
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
        self.scaler.load_state_dict(facts["scaler"])
        self.steps, self.limit.images = facts["step"], facts["micro_batch"]
        if self.sharded and self.spec.micro_batch:  # may have been lowered on resuming
            self.limit.images = self.spec.micro_batch

    def backward(self, batch: Batch) -> Tensor:
        """Compute the gradients of the whole batch, given this rank's slice of it.

        Returns:
            The mean loss of the whole batch in nats, and the number of its images that are
            classified correctly: (2,).
        """
        while True:
            try:
                with exact_float32(self.device), report_lost_process():
                    metrics = self.accumulate(batch)
                self.sync_gradients(metrics)
                return metrics
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise UsageError(
                    "BatchNorm cannot normalise a single image of this size",
                    fix="use --set optim.micro_batch=2"
                    if self.spec.micro_batch == 1
                    else f"use --batch-size {8 * self.group.size}",
                ) from error
            except RuntimeError as error:
                if self.sharded and is_out_of_memory(error):  # other ranks wait for this one
                    raise ResourceError(
                        f"out of memory with {count(self.micro_batch, 'image')} at a time",
                        fix="resume the run with a smaller micro-batch (--resume RUN --set "
                        "optim.micro_batch=N) or with --set train.checkpointing=true",
                    ) from error
                for parameter in self.parameters.values():
                    parameter.grad = None
                self.limit.halve(len(batch.labels), error)

    def accumulate(self, batch: Batch) -> Tensor:
        """Accumulate the gradients of this rank's slice; return its part of loss and correct."""
        seed_everything(self.seed, self.steps, self.group.rank)
        inputs, labels, targets = batch.inputs, batch.labels, batch.labels
        if self.mix is not None and len(labels):
            inputs, targets = self.mix(inputs, labels)
        images = batch.images or len(labels)
        metrics = torch.zeros(2, device=self.device)
        for part in self.micro_batches(len(labels), images):
            known = labels[part]
            if len(known):
                # `fully_shard` averages the gradients over the ranks, but the sum is needed.
                factor = self.group.size if self.sharded else 1
                x, target = inputs[part], targets[part]
            else:  # zero-weight pass: other ranks need this rank's slice of the weights
                x, target = (t.new_zeros(1, *t.shape[1:]) for t in (inputs, labels))
                factor = 0
            with _autocast(self.device, self.precision, cache_weights=not self.sharded):
                logits = self.forward(x)
            smoothing = self.spec.label_smoothing
            loss = self.loss.total(logits.float(), target, label_smoothing=smoothing) / images
            self.scaler.scale(loss * factor).backward()
            known = known if known.ndim == 1 or self.loss.several else known.argmax(dim=1)
            right = are_right(logits[: len(known)], known).sum()
            if factor:
                metrics += torch.stack([loss.detach(), right.to(loss)])
        return metrics

    def micro_batches(self, own: int, images: int) -> list[slice]:
        """Return slices that split this rank's `own` of the `images` of a batch."""
        if not self.sharded:
            return batch_slices(own, self.micro_batch, self.model)
        most = -(-images // self.group.size)  # as many on every rank: some slices may be empty
        return [slice(i, min(own, i + self.micro_batch)) for i in range(0, most, self.micro_batch)]

    def sync_gradients(self, metrics: Tensor) -> None:
        """Sum the gradients and `metrics` over the process group."""
        if self.group.size == 1:
            return
        gradients: list[Tensor] = []
        if not self.sharded:  # FSDP has summed the gradients in the backward pass
            for parameter in self.parameters.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        statistics = [*self.statistics.values()]
        self.group.all_reduce([*gradients, *statistics, metrics])
        for mean in statistics:
            mean.div_(self.group.size)


def _sharded_copy(module: nn.Module, group: ProcessGroup) -> nn.Module:
    """Return a copy of a module, sharded block by block over the group."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    copied = copy.deepcopy(module)
    mesh = init_device_mesh(next(copied.parameters()).device.type, (group.size,))
    for block in blocks_of(copied):
        fully_shard(block, mesh=mesh)
        register_fsdp_forward_method(block, "for_class_token")
    fully_shard(copied, mesh=mesh)
    return copied


def _full_tensor(tensor: Tensor) -> Tensor:
    """Return the full, unsharded tensor. Every rank must call this function."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor
    with report_lost_process():
        return tensor.full_tensor()


def _slice_like(value: Tensor, like: Tensor) -> Tensor:
    """Return this rank's slice of the full tensor `value`, if `like` is sharded in this shape."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    moved = value.to(like.device, like.dtype)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def check_shapes(found: Mapping[str, torch.Size], wanted: Mapping[str, torch.Size]) -> None:
    """Raise a RunError if saved tensors have other names or shapes than those of the model."""
    if found != wanted:
        odd = min(dict(found.items() ^ wanted.items()))
        raise RunError(
            f"the training state does not fit this model: {odd[:100]} is missing or unknown, or "
            "has the wrong shape",
            fix="start a new run in another directory with --out",
        )


def diverged(step: int, lr: float, what: str) -> DivergedError:
    """Return the error for a value that is not finite; `what` is e.g. `the loss is nan`."""
    return DivergedError(
        f"training diverged: {what} at step {step}, with a learning rate of {lr:.3g}",
        fix="use --lr to lower the learning rate, e.g. to a tenth of its value",
    )


@torch.no_grad()
def predict_logits(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    device: torch.device,
    precision: str = "fp32",
    limit: BatchLimit,
) -> Tensor:
    """Return float32 logits (n, C) of batches of inputs, on the CPU.

    The model is switched to eval mode. `limit` is the number of images at a time; it is lowered if
    memory runs out.
    """
    model.eval()

    def compute(inputs: Tensor, part: slice) -> Tensor:
        with _autocast(device, precision), exact_float32(device):
            return model(inputs[part]).float().cpu()

    logits = [limit.join(functools.partial(compute, some), len(some)) for some in batches]
    return torch.cat(logits) if logits else torch.empty(0, 0)  # a rank's shard may be empty


def _autocast(
    device: torch.device, precision: str, *, cache_weights: bool = True
) -> torch.autocast:
    """Return an autocast context for `bf16` and `fp16`, and one that does nothing for `fp32`."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype, dtype is not None, cache_weights)


def seed_everything(*numbers: int) -> None:
    """Seed the global random number generators of torch, Python and NumPy from `numbers`."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> 1))
    random.seed(int(words[1]))
    np.random.seed(int(words[1] & 0xFFFFFFFF))  # noqa: NPY002 - used by timm
