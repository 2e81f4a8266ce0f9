"""Blocks of a timm network: run the network up to or from a given block, or record block outputs.

timm groups the parameters of most networks into layers (`group_matcher`), which this module uses as
blocks: the residual blocks of a ResNet, or the Transformer blocks in the stages of a Swin. timm's
own `forward` runs in every case; hooks on the blocks stop it, replace the input to a block, or
record the blocks' outputs. The hooks act only while a `Visit` is active in the current thread.

Notation: B images; a block's input and output may have any shape (B, ...).
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(slots=True, kw_only=True)
class Visit:
    """Actions to perform at the blocks of a network during one forward pass."""

    at: nn.Module | None = None
    """Block whose input is replaced, or at which the pass stops."""
    tokens: Tensor | None = None
    """New input to the block `at`; None to stop the pass at that block."""
    outputs: list[Tensor] = field(default_factory=list)
    """Outputs of all blocks that return a tensor, in the order of the calls."""
    calls: int = 0
    """Number of calls to the block `at`."""


_COMMON_BLOCKS = (r"^stages\.\d+\.blocks\.\d+", r"^blocks\.\d+")
"""Regular expressions for the names of blocks, used if timm does not group the parameters."""


class _BlockReachedError(Exception):
    """Signal that stops a pass at a block; `tokens` is the input to the block."""

    def __init__(self, tokens: object) -> None:
        super().__init__()
        self.tokens = tokens


_VISIT: ContextVar[Visit | None] = ContextVar("visit", default=None)


@contextlib.contextmanager
def visiting(visit: Visit) -> Iterator[Visit]:
    """Activate `visit` for the forward passes of this thread until the context ends."""
    token = _VISIT.set(visit)
    try:
        yield visit
    finally:
        _VISIT.reset(token)


def block_names(net: Any) -> tuple[str, ...]:  # noqa: ANN401 - timm's type
    """Return the module paths of a network's blocks in order, or () if timm does not list any."""
    try:
        # timm's regular expressions for blocks, without those for layers at a fixed position
        groups = net.group_matcher(coarse=False)["blocks"]
        pairs = [(groups, None)] if isinstance(groups, str) else groups
        patterns = [pattern for pattern, position in pairs if position is None]
    except (AttributeError, TypeError, KeyError):  # the network is not grouped, or not this finely
        patterns = list(_COMMON_BLOCKS)
    modules = dict(net.named_modules())
    names: dict[str, None] = {}
    for name, _ in net.named_parameters():
        found = next(filter(None, (re.match(p, name) for p in patterns)), None)
        if found is not None and found[0] in modules:
            names[found[0]] = None
    return tuple(names)


def watch_blocks(net: nn.Module, names: tuple[str, ...]) -> None:
    """Register the hooks through which a `Visit` acts on the blocks."""
    for name in names:
        block = net.get_submodule(name)
        block.register_forward_pre_hook(_on_call, with_kwargs=True)
        block.register_forward_hook(_on_return)


def input_of(net: nn.Module, block: nn.Module, pixels: Tensor) -> object:
    """Run a network on pixels (B, channels, H, W) up to a block, and return the block's input.

    The input is None if the network does not call the block.
    """
    try:
        with visiting(Visit(at=block)):
            net(pixels)
    except _BlockReachedError as reached:
        return reached.tokens
    return None


def resume_at(net: nn.Module, block: nn.Module, tokens: Tensor, pixels: Tensor) -> tuple[Any, int]:
    """Run a network with `tokens` (B, ...) as the input to a block.

    timm's code before the block runs on `pixels`, a single image of any content.

    Returns:
        The output of the network for `tokens`, and the number of calls to the block.
    """
    with visiting(Visit(at=block, tokens=tokens)) as visit:
        return net(pixels), visit.calls


def parameters_after(net: nn.Module, block: nn.Module, pixels: Tensor) -> frozenset[str] | str:
    """Return the names of the parameters used only from a block on, or why no cut is possible.

    Args:
        net: A network in eval mode. It is not modified.
        block: The block before which to cut the network.
        pixels: Two images (2, channels, H, W) of any content.

    Returns:
        The names or, if the network cannot be cut there, the reason as a clause. Both are found by
        using autograd to see what the output depends on if the block's input is a constant.
    """
    names, parameters = zip(*net.named_parameters(), strict=True)
    with torch.inference_mode(False), torch.enable_grad(), _all_trained(parameters):
        reached = input_of(net, block, pixels)
        if not isinstance(reached, Tensor):
            return "the input to its blocks is not a single tensor"
        before = _depends_on(reached, parameters)
        dummy = torch.zeros_like(pixels).requires_grad_()
        output, calls = resume_at(net, block, reached.detach(), dummy)
        after, (bypasses,) = _depends_on(output, parameters), _depends_on(output, [dummy])
    if calls != 1:
        return "its blocks are called more than once per pass"
    if bypasses:
        return "the layers before that block are also connected to later blocks"
    try:
        with torch.no_grad():
            resume_at(net, block, reached, pixels[:1])
    except RuntimeError:  # shapes that do not match
        return "its layers after that block depend on how many images entered the network"
    used = zip(names, before, after, strict=True)
    return frozenset(name for name, early, late in used if late and not early)


def _depends_on(output: Tensor, inputs: Sequence[Tensor]) -> list[bool]:
    """Return, for each input, whether the output was computed from it."""
    if not output.requires_grad:
        return [False] * len(inputs)
    gradients = torch.autograd.grad(output.sum(), inputs, retain_graph=True, allow_unused=True)
    return [gradient is not None for gradient in gradients]


@contextlib.contextmanager
def _all_trained(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Make all parameters require gradients until the context ends."""
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, required in zip(parameters, before, strict=True):
            parameter.requires_grad_(required)


def _on_call(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Stop the pass or replace the input if the active visit requests this for the block."""
    visit = _VISIT.get()
    if visit is None or visit.at is not block:
        return None
    visit.calls += 1
    if visit.tokens is None:
        raise _BlockReachedError(args[0] if args else None)
    return (visit.tokens, *args[1:]), kwargs


def _on_return(_: nn.Module, __: object, output: object) -> None:
    """Record the output of a block in the active visit."""
    visit = _VISIT.get()
    if visit is not None and isinstance(output, Tensor):
        visit.outputs.append(output)
