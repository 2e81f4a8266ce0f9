"""Wrapper that gives any timm model the interface of vitft's own Vision Transformer.

The interface of both is the attributes and methods that `TimmModel` and `VisionTransformer`, which
documents them, have in common. Other packages ask a `Model` with them, never for its class.
`forward` is `classify(features(pixels))`. A `state_dict` contains timm's names.

Notation: B images, C classes.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from vitft.models.card import AnyConfig, TimmConfig
from vitft.models.vit import VisionTransformer
from vitft.system.errors import UsageError

# blocks of a timm network: run the network up to or from a given block, or record block outputs ---


@dataclass(slots=True, kw_only=True)
class _Visit:
    """Actions to perform at the blocks of a network during one forward pass."""

    at: nn.Module | None = None
    tokens: Tensor | None = None  # new input to the block `at`; None to stop the pass at that block
    calls: int = 0  # number of calls to the block `at`
    reached: object = None  # first positional argument of the block `at`, if the pass stopped there
    outputs: list[Tensor] = field(default_factory=list)  # of all blocks, in the order of the calls


class _BlockReachedError(Exception):
    """Signal that stops a pass at a block."""


_VISIT: ContextVar[_Visit | None] = ContextVar("visit", default=None)


@contextlib.contextmanager
def _visiting(visit: _Visit) -> Iterator[_Visit]:
    """Activate `visit` for the forward passes of this thread until the context ends."""
    token = _VISIT.set(visit)
    try:
        yield visit
    finally:
        _VISIT.reset(token)


def _block_names(net: Any) -> tuple[str, ...]:  # noqa: ANN401 - timm's type
    """Return the module paths of a network's blocks in order, or () if timm does not list any."""
    try:
        # timm's regular expressions for blocks, without those for layers at a fixed position
        groups = net.group_matcher(coarse=False)["blocks"]
        pairs = [(groups, None)] if isinstance(groups, str) else groups
        patterns = [pattern for pattern, position in pairs if position is None]
    except (AttributeError, TypeError, KeyError):  # the network is not grouped, or not this finely
        patterns = [r"^stages\.\d+\.blocks\.\d+", r"^blocks\.\d+"]
    modules = dict(net.named_modules())
    names = [name for name, _ in net.named_parameters()]
    found = (next(filter(None, (re.match(p, n) for p in patterns)), None) for n in names)
    return tuple(dict.fromkeys(match[0] for match in found if match and match[0] in modules))


def _input_of(net: nn.Module, block: nn.Module, pixels: Tensor) -> object:
    """Return the input to a block for pixels (B, channels, H, W); None if it is not called."""
    with contextlib.suppress(_BlockReachedError), _visiting(_Visit(at=block)) as visit:
        net(pixels)
    return visit.reached


def _resume_at(net: nn.Module, block: nn.Module, tokens: Tensor, pixels: Tensor) -> tuple[Any, int]:
    """Return the output for `tokens` (B, ...) as the input to a block, and the block's calls."""
    with _visiting(_Visit(at=block, tokens=tokens)) as visit:
        return net(pixels), visit.calls


def _parameters_after(net: nn.Module, block: nn.Module, pixels: Tensor) -> frozenset[str] | None:
    """Return the names of the parameters used only from a block on, or None if no cut is possible.

    Autograd shows what the output depends on if the block's input is a constant. The network is in
    eval mode, and `pixels` are two images (2, channels, H, W) of any content. From the block on,
    the network runs with three images in their place, so a connection past the block is an error.
    """
    names, parameters = zip(*net.named_parameters(), strict=True)
    were_trained = [parameter.requires_grad for parameter in parameters]
    try:
        net.requires_grad_(True)
        with torch.inference_mode(False), torch.enable_grad():
            reached = _input_of(net, block, pixels.clone().requires_grad_())
            if not isinstance(reached, Tensor):
                return None
            before = _depends_on(reached, parameters)
            output, calls = _resume_at(net, block, reached.detach(), pixels[[0, 0, 0]])
            after = _depends_on(output, parameters)
    except RuntimeError:  # two and three images do not match
        return None
    finally:
        for parameter, was_trained in zip(parameters, were_trained, strict=True):
            parameter.requires_grad_(was_trained)
    if calls != 1:
        return None
    used = zip(names, before, after, strict=True)
    return frozenset(name for name, early, late in used if late and not early)


def _depends_on(output: Tensor, inputs: Sequence[Tensor]) -> list[bool]:
    """Return, for each input, whether the output was computed from it."""
    gradients = torch.autograd.grad(output.sum(), inputs, retain_graph=True, allow_unused=True)
    return [gradient is not None for gradient in gradients]


def _on_call(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    visit = _VISIT.get()
    if visit is None or visit.at is not block:
        return None
    visit.calls += 1
    if visit.tokens is None:
        visit.reached = args[0] if args else None
        raise _BlockReachedError
    return (visit.tokens, *args[1:]), kwargs


def _on_return(_: nn.Module, __: object, output: object) -> None:
    visit = _VISIT.get()
    if visit is not None and isinstance(output, Tensor):
        visit.outputs.append(output)


# wrapper that gives any timm model the interface of vitft's own Vision Transformer ----------------


class TimmModel(nn.Module):
    """A timm network without its classifier, followed by a linear head.

    Args:
        config: Architecture.
        file: Weight file in timm's format (default: random weights), adapted to the image size.
        tensors: Weights in timm's format, instead of a file: all except the classifier's.
        drop_path: Stochastic depth rate of the last block, as timm defines it, in [0, 1).

    Raises:
        UsageError: The model has no stochastic depth or other sizes, or no head of a single layer.
        RuntimeError: timm has no such model, or the weights do not match the architecture.
    """

    attends: Literal[False] = False  # the attention weights, if any, cannot be read
    casts_to_bf16 = False  # some layers (BatchNorm) may need float32
    libraries = ("timm",)  # whose versions affect the last bits of features
    last_head = None  # read by no export; the head reads the last block only

    def __init__(
        self,
        config: TimmConfig,
        *,
        file: Path | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.config = config
        source: dict[str, Any] = {"file": str(file)} if file is not None else {}
        if tensors is not None:
            # If the network and the weights differ in their number of classes, timm silently leaves
            # missing tensors random. It is therefore built with the number of classes in `tensors`
            net, state = _create_timm(config, {}), dict(tensors)
            name, classifier = _classifier_of(net, config.timm)
            for leaf, value in classifier.state_dict().items():
                state.setdefault(f"{name}.{leaf}", value)
            source = {"state_dict": state, "num_classes": len(state[f"{name}.weight"])}
        self.net = _create_timm(config, source, drop_path=drop_path)
        self.head_name, outer = _classifier_of(self.net, config.timm)  # path in timm's network
        self.is_conv = isinstance(outer, nn.Conv2d)
        self.feature_size = outer.in_channels if isinstance(outer, nn.Conv2d) else outer.in_features
        self.net.reset_classifier(0)
        self.net.pretrained_cfg.pop("state_dict", None)  # drop a second copy of the weights
        self.block_names = _block_names(self.net)  # in order; () if timm does not list them
        for block in self.blocks:
            block.register_forward_pre_hook(_on_call, with_kwargs=True)
            block.register_forward_hook(_on_return)
        self.cuts: dict[int, frozenset[str]] = {}  # results of `trained_after`
        self.pre_logits = nn.Identity()
        self.head: nn.Module = nn.Identity()
        if config.num_classes:
            self.head = nn.Linear(self.feature_size, config.num_classes)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        self.last_block_size = self.feature_size
        self.register_state_dict_post_hook(_rename_to_timm)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_rename_from_timm)  # type: ignore[no-untyped-call]

    def features(self, pixels: Tensor, intermediate: int = 0) -> Tensor:
        assert intermediate == 0, "timm models have no intermediate features"
        return self.net(pixels)

    def trace(self, pixels: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return intermediate and final outputs for use with autograd.

        These are the outputs (B, ...) of all blocks that return a tensor and of timm's
        `forward_features`, in order; and the logits (B, C).
        """
        with _visiting(_Visit()) as visit:
            last = self.net.forward_features(pixels)
            outputs = [*visit.outputs, *([last] if isinstance(last, Tensor) else [])]
            return outputs, self.classify(self.net.forward_head(last))

    @property
    def blocks(self) -> list[nn.Module]:
        """The network's blocks, in order; empty if timm does not list them."""
        return [self.net.get_submodule(name) for name in self.block_names]

    def tokens_before(self, pixels: Tensor, block: int) -> Tensor:
        tokens = _input_of(self.net, self.blocks[block], pixels)
        assert isinstance(tokens, Tensor), "checked by `trained_after`"
        return tokens

    def finish(self, tokens: Tensor, start: int, *, intermediate: int = 0) -> Tensor:
        assert intermediate == 0, "timm models have no intermediate features"
        pooled, _ = _resume_at(self.net, self.blocks[start], tokens, self.blank(1))
        return pooled

    def token_shape(self, block: int) -> tuple[int, ...]:
        with torch.no_grad():
            return tuple(self.tokens_before(self.blank(1), block).shape[1:])

    def blank(self, images: int) -> Tensor:
        """Return black images, on the device and in the dtype of the weights."""
        shape = images, self.config.in_channels, *self.config.image_size
        return next(self.net.parameters()).new_zeros(shape)

    def trained_after(self, start: int) -> frozenset[str]:
        """As in `VisionTransformer`, or raise UsageError if the network cannot be cut there."""
        head = {name for name, _ in self.named_parameters() if name.startswith("head.")}
        if start == len(self.block_names):
            return frozenset(head)
        if start not in self.cuts:
            was_training = self.net.training
            self.net.eval()
            found = _parameters_after(self.net, self.blocks[start], self.blank(2))
            self.net.train(was_training)
            if found is None:
                raise UsageError(
                    f"train.layers=blocks:{len(self.block_names) - start} cannot be used with "
                    f"timm's {self.config.timm}: its blocks do not simply follow each other",
                    fix="use --train head (linear probe), --train lora or --train all (whole "
                    "model)",
                )
            self.cuts[start] = frozenset(f"net.{name}" for name in found)
        return self.cuts[start] | head

    def layer_numbers(self) -> dict[int, int]:
        from timm.models import group_parameters

        groups = self.net.group_matcher(coarse=False)
        found = group_parameters(self.net, groups, reverse=True)
        top = max(found.values(), default=0)
        numbers = dict.fromkeys(map(id, self.parameters()), top + 1)
        return numbers | {id(p): found.get(name, top) for name, p in self.net.named_parameters()}

    def set_checkpointing(self, enabled: bool) -> None:
        try:
            self.net.set_grad_checkpointing(enabled)
        except (AssertionError, AttributeError) as error:
            if enabled:
                raise UsageError(
                    "train.checkpointing=true cannot be used: timm does not support it for "
                    f"{self.config.timm}",
                    fix="omit train.checkpointing; to save memory, use e.g. --set "
                    "optim.micro_batch=8",
                ) from error

    def read_last_blocks(self, count: int) -> None:
        assert count == 1, "refused by `require_vit`"

    def require_vit(self, feature: str) -> NoReturn:
        """Refuse something that only `VisionTransformer` supports."""
        raise UsageError(
            f"{feature} needs vitft's own Vision Transformer, but the model is timm's "
            f"{self.config.timm}",
            fix="omit it, or use a model from weights listed by `vitft weights list`",
        )

    def classify(self, pooled: Tensor) -> Tensor:
        return self.head(pooled)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classify(self.features(pixels))


def _create_timm(config: TimmConfig, source: Mapping[str, Any], *, drop_path: float = 0.0) -> Any:  # noqa: ANN401 - timm's type
    """Return timm's network in eval mode; `source` is where the weights are (random if empty)."""
    import timm  # takes seconds to import

    options: dict[str, Any] = {"img_size": config.image_size} if config.sized else {}
    if source:
        overlay = {**source, "custom_load": False}
        options |= {"pretrained": True, "pretrained_cfg_overlay": overlay}
    num_classes = source.get("num_classes", max(1, config.num_classes))
    options |= {"num_classes": num_classes, "in_chans": config.in_channels}
    options |= {"drop_path_rate": drop_path} if drop_path else {}
    try:
        return timm.create_model(config.timm, **options).eval()
    except TypeError as error:
        if not re.search("drop_path_rate|img_size", str(error)):
            raise
        raise UsageError(
            f"timm's {config.timm} does not support stochastic depth or other image sizes",
            fix="omit train.drop_path and --image-size, or choose another model",
        ) from error


def _classifier_of(net: Any, name: str) -> tuple[str, nn.Linear | nn.Conv2d]:  # noqa: ANN401
    """Return the path and module of the classifier of timm's model `name`."""
    outer = net.get_classifier()
    paths = [path for path, module in net.named_modules() if module is outer]
    if isinstance(outer, nn.Linear | nn.Conv2d) and paths:
        return paths[0], outer
    raise UsageError(
        f"vitft cannot fine-tune {name}: its head is not a single linear layer",
        fix="choose another timm model",
    )


def _rename_to_timm(model: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Rename the entries of a new `state_dict` to timm's names."""
    assert isinstance(model, TimmModel)
    for name in [n for n in state if n.startswith(prefix)]:
        tensor, inner = state.pop(name), name.removeprefix(prefix)
        part, rest = inner.split(".", 1)
        if part == "head":
            tensor = tensor[:, :, None, None] if model.is_conv and rest == "weight" else tensor
            state[f"{prefix}{model.head_name}.{rest}"] = tensor
        else:
            state[prefix + rest] = tensor


def _rename_from_timm(model: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Rename the entries for `load_state_dict` from timm's names."""
    assert isinstance(model, TimmModel)
    for name in [n for n in state if n.startswith(prefix)]:
        tensor, known = state.pop(name), name.removeprefix(prefix)
        if known.removeprefix(f"{model.head_name}.") in ("weight", "bias"):
            tensor = tensor.flatten(1) if tensor.ndim == 4 else tensor
            state[f"{prefix}head.{known.rpartition('.')[2]}"] = tensor
        else:
            state[f"{prefix}net.{known}"] = tensor


Model = VisionTransformer | TimmModel


def untrained(config: AnyConfig, *, drop_path: float = 0.0) -> Model:
    """Return a model with random weights and a zero head; `drop_path` is for timm models."""
    if isinstance(config, TimmConfig):
        return TimmModel(config, drop_path=drop_path)
    return VisionTransformer(config)
