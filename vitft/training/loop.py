"""The training loop: it knows inputs, labels, a model and its optimiser, and nothing of images.

Whatever is random in a step is drawn from (seed, step), so a training that goes on after a stop
draws what it would have drawn: its state is the numbers of `Training.state` and nothing else.
"""

import contextlib
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.config.training import OptimSpec
from vitft.system.errors import DivergedError, ResourceError
from vitft.training.distributed import Team, has_lost, lost, talking
from vitft.training.fsdp import slice_like, whole
from vitft.training.optim import lr_at, make_optimizer

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Inputs of the trained part (pixels, tokens or pooled features) and their labels."""

    inputs: Tensor
    labels: Tensor
    """Class indices (B,), or shares of the classes (B, C)."""
    images: int = 0
    """Images in the whole batch where this is one process's piece of it; 0: these are all."""


Mix = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Inputs and labels (B,) of a batch to mixed inputs and labels, (B,) or shares (B, C)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one optimiser step leaves behind for progress bars and logs."""

    step: int
    """Counted from 0 over the whole training."""
    epoch: int
    lr: float
    loss: float
    """Mean cross-entropy of the batch, in nats."""
    correct: int
    images: int


def autocast(
    device: torch.device, precision: str, *, cached: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Half precision for matrix products where `precision` says so, else nothing.

    `cached`: weights that were rounded once are kept until it ends.
    """
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if precision in kinds:
        return torch.autocast(device.type, dtype=kinds[precision], cache_enabled=cached)
    return contextlib.nullcontext()


class Training:
    """A model being trained, one step at a time; it can stop after any step and go on elsewhere.

    Args:
        model: Maps `Batch.inputs` to logits (B, C). Frozen parts belong in front of it, or are
            kept in eval mode by the model itself.
        spec: Solver, learning rate, schedule, epochs.
        steps_per_epoch: How many batches each epoch gives; the schedule needs the total.
        precision: `bf16` or `fp16` for autocast, else float32.
        seed: Of drop path and of what `mix` draws.
        mix: What is done to a whole batch before it is used.
        class_weights: Factor on the loss of each class (C,), of mean one over the images.
        compiled: Let torch.compile fuse the forward and backward pass.
        team: The processes that share each batch.
        split: `model` is a copy that `sharding.split_up` made.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: OptimSpec,
        *,
        steps_per_epoch: int,
        precision: str = "fp32",
        seed: int = 0,
        mix: Mix | None = None,
        class_weights: Tensor | None = None,
        compiled: bool = False,
        team: Team | None = None,
        split: bool = False,
    ) -> None:
        assert spec.lr is not None, "the learning rate is settled when the model is known"
        self.model, self.spec, self.mix, self.seed = model, spec, mix, seed
        self.peak, self.precision = spec.lr, precision
        self.team, self.is_split = team or Team(), split
        self.steps_per_epoch, self.total = steps_per_epoch, steps_per_epoch * spec.epochs
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.device = next(iter(self.trained.values())).device
        self.class_weights = class_weights
        self.optimizer = make_optimizer(model, spec, split=split)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.forward: Callable[[Tensor], Tensor] = torch.compile(model) if compiled else model
        self.average = {n: p.detach().clone() for n, p in self.trained.items() if spec.ema}
        self.aside: dict[str, Tensor] = {}
        """The weights that train, while the average is in the model."""
        self.micro_batch = spec.micro_batch or spec.batch_size
        self.step = 0
        """How many steps are done."""

    @property
    def epoch(self) -> int:
        """Of the next step, counted from 0."""
        return self.step // self.steps_per_epoch

    @property
    def lr(self) -> float:
        """Peak learning rate of the next step, before the factors of single layers."""
        if self.spec.schedule == "constant" and self.step >= round(self.total * self.spec.warmup):
            return self.peak
        return lr_at(
            self.step,
            self.total,
            peak=self.peak,
            warmup=self.spec.warmup,
            final=self.spec.final_lr,
        )

    def take(self, batch: Batch) -> Step:
        """One step of the optimiser.

        Raises:
            DivergedError: The loss is not finite; the weights are those before the step.
            ResourceError: Not even one image at a time fits into memory.
        """
        self.model.train()
        lr = self.lr
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        loss, correct = self.gradients(batch)
        if not math.isfinite(loss):
            raise diverged(self.step, lr, loss)
        if self.spec.clip:
            self.scaler.unscale_(self.optimizer)
            with talking() if self.is_split else contextlib.nullcontext():
                nn.utils.clip_grad_norm_(self.trained.values(), max_norm=self.spec.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.remember()
        self.step += 1
        return Step(
            step=self.step - 1,
            epoch=(self.step - 1) // self.steps_per_epoch,
            lr=lr,
            loss=loss,
            correct=correct,
            images=batch.images or len(batch.labels),
        )

    def gradients(self, batch: Batch) -> tuple[float, int]:
        """Leave the gradients of the batch in the parameters; its loss, and how many were right.

        When memory runs out, the same batch is tried again in smaller pieces.
        """
        while True:
            try:
                loss, correct = self.in_pieces(batch)
                return self.with_all_pieces(loss, correct)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    if self.is_split and has_lost(error):
                        raise lost(str(error)) from error
                    raise
                if self.is_split:  # the others are waiting for this process's part of a block
                    raise ResourceError(
                        f"out of memory with {self.micro_batch} images at a time",
                        fix="go on with --resume RUN --set optim.micro_batch=N or "
                        "--set train.checkpointing=true",
                    ) from error
                self.optimizer.zero_grad(set_to_none=True)
            if self.micro_batch == 1:
                raise ResourceError(
                    "out of memory with one image at a time",
                    fix="use a smaller --image-size or model, or --set train.checkpointing=true",
                )
            self.micro_batch = math.ceil(min(self.micro_batch, len(batch.labels)) / 2)
            log.warning(f"out of memory: going on with {self.micro_batch} images at a time")

    def with_all_pieces(self, loss: float, correct: int) -> tuple[float, int]:
        """Add up what the processes of a team made of their pieces."""
        if self.team.size == 1:
            return loss, correct
        if self.is_split:  # the gradients were added up on the way
            loss, right = self.team.add_up([], [loss, correct])
            return loss, round(right)
        for parameter in self.trained.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.trained.values() if p.grad is not None]
        loss, right = self.team.add_up(gradients, [loss, correct])
        return loss, round(right)

    def in_pieces(self, batch: Batch) -> tuple[float, int]:
        """The gradients of a batch, added up over pieces that fit into memory."""
        seed_everything(self.seed, self.step, self.team.rank)
        inputs, labels = batch.inputs, batch.labels
        targets = labels
        if self.mix is not None and len(labels):
            inputs, targets = self.mix(inputs, labels)
        total, correct, images = 0.0, 0, batch.images or len(labels)
        for piece in self.pieces(len(labels), images):
            known = labels[piece]
            if len(known):
                x, wanted, factor = inputs[piece], targets[piece], self.factor
            else:  # a pass that counts nothing: the others need this process's part of the weights
                x, wanted = (t.new_zeros(1, *t.shape[1:]) for t in (inputs, labels))
                factor = 0
            with autocast(self.device, self.precision, cached=not self.is_split):
                logits = self.forward(x)
            loss = (
                F.cross_entropy(
                    logits.float(),
                    wanted,
                    weight=self.class_weights,
                    label_smoothing=self.spec.label_smoothing,
                    reduction="sum",
                )
                / images
            )
            self.scaler.scale(loss * factor).backward()
            total += loss.item() if factor else 0.0
            classes = known if known.ndim == 1 else known.argmax(dim=-1)
            correct += int((logits.argmax(dim=-1) == classes).sum())
        return total, correct

    @property
    def factor(self) -> int:
        """On the loss: `fully_shard` takes the mean of the gradients where we want their sum."""
        return self.team.size if self.is_split else 1

    def pieces(self, own: int, images: int) -> list[slice]:
        """How `own` of a batch's images are computed.

        Where weights are split, in as many passes as the process with the most images needs.
        """
        most = -(-images // self.team.size) if self.is_split else own
        return [slice(i, min(own, i + self.micro_batch)) for i in range(0, most, self.micro_batch)]

    def remember(self) -> None:
        """Let the average of the weights follow, quickly at first."""
        if not self.average:
            return
        decay = min(self.spec.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, mean in self.average.items():
                mean.lerp_(self.trained[name], 1 - decay)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with its average weights inside, if there is an average."""
        self.aside = {name: p.detach().clone() for name, p in self.trained.items() if self.average}
        try:
            self.put(self.average)
            yield
        finally:
            self.put(self.aside)  # until this is done, `state` tells those
            self.aside = {}

    @torch.no_grad()
    def put(self, weights: dict[str, Tensor]) -> None:
        """Set trained parameters."""
        for name, value in weights.items():
            self.trained[name].copy_(value)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that the next step depends on: tensors, and plain facts.

        Where weights are split all processes have to ask, and only the first is told the tensors.
        """
        weights = self.trained | self.aside
        tensors = {f"weights/{name}": w.detach() for name, w in weights.items()}
        tensors |= {f"buffers/{name}": b for name, b in self.model.named_buffers()}
        tensors |= {f"average/{name}": mean for name, mean in self.average.items()}
        for i, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{i}/{key}": torch.as_tensor(v) for key, v in slots.items()}
        if self.is_split:
            tensors = self.put_together(tensors)
        facts = {"step": self.step, "micro_batch": self.micro_batch}
        return tensors, facts | {"scaler": self.scaler.state_dict()}

    def put_together(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors, one after the other, on the first process's CPU."""
        found = {}
        for name, tensor in tensors.items():
            all_of_it = whole(tensor)
            if self.team.leads:
                found[name] = all_of_it.cpu()
        return found

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        slots: dict[int, dict[str, Tensor]] = {}
        buffers = dict(self.model.named_buffers())
        places: dict[str, Mapping[str, Tensor]] = {
            "weights": self.trained,
            "buffers": buffers,
            "average": self.average,
        }
        moved = [p for group in self.optimizer.param_groups for p in group["params"]]
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "optimizer":
                i, _, key = rest.partition("/")
                place = moved[int(i)]
                slots.setdefault(int(i), {})[key] = (
                    slice_like(value, place) if self.is_split else value
                ).clone()
            else:
                place = places[kind][rest]
                place.copy_(slice_like(value, place) if self.is_split else value)
        whole = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**whole, "state": slots})
        self.scaler.load_state_dict(facts["scaler"])
        self.step, self.micro_batch = facts["step"], facts["micro_batch"]
        if self.is_split and self.spec.micro_batch:  # it may be made smaller in between
            self.micro_batch = self.spec.micro_batch


def fit(
    training: Training,
    batches: Callable[[int, int], Iterable[Batch]],
    *,
    epochs: Sequence[int],
    on_step: Callable[[Step], None] = lambda _: None,
    on_epoch: Callable[[int], bool | None] = lambda _: None,
    undisturbed: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Train through `epochs`.

    Args:
        training: Where it stands; the first epoch may be half done.
        batches: The batches of an epoch from a step within it on, on the model's device.
        epochs: Those that are not finished, counted from 0.
        on_step: Called after each step.
        on_epoch: Called after each epoch; it may evaluate the model. True ends the training.
        undisturbed: Around each step, which must not be broken off in the middle.
    """
    for epoch in epochs:
        done = training.step - epoch * training.steps_per_epoch
        for batch in batches(epoch, done):
            with undisturbed():
                on_step(training.take(batch))
        if on_epoch(epoch):
            return


def seed_everything(*numbers: int) -> None:
    """Let what a step draws depend on these numbers alone, however it is drawn."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> 1))
    random.seed(int(words[1]))
    np.random.seed(int(words[1] & 0xFFFFFFFF))  # noqa: NPY002 - timm draws from this one


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def diverged(step: int, lr: float, loss: float) -> DivergedError:
    """The error of a loss that is no number any more."""
    return DivergedError(
        f"training diverged: the loss of step {step} is {loss} at learning rate {lr:.3g}",
        fix="lower the learning rate, e.g. --lr with a tenth of it",
    )


@torch.no_grad()
def logits_of(
    model: nn.Module, batches: Iterable[Batch], *, device: torch.device, precision: str = "fp32"
) -> tuple[Tensor, Tensor]:
    """Scores (n, C) and labels (n,) of all batches, float32 on the CPU; in eval mode."""
    model.eval()
    scores, labels = [], []
    for batch in batches:
        with autocast(device, precision):
            scores.append(model(batch.inputs).float().cpu())
        labels.append(batch.labels.cpu())
    if not scores:  # a process of many may have nothing to do
        return torch.empty(0, 0), torch.empty(0, dtype=torch.long)
    return torch.cat(scores), torch.cat(labels)
