"""A pretend accelerator: tensors that say `cuda:0` and are computed on the CPU.

Inside `pretend_gpu`, `tensor.to("cuda")` and `torch.empty(..., device="cuda")` return `OnGpu`
tensors. As on a real GPU, a computation of tensors on two devices raises, and so does `.numpy()`.
The transfers to the CPU, at which a program waits for a real GPU, are counted, and memory may run
out above a number of images. What a GPU computes differently (rounding, kernels, streams) is not
shown, and inference tensors are ordinary ones.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

GPU = torch.device("cuda", 0)
aten = torch.ops.aten
TRANSFERS = (aten.copy_.default, aten._to_copy.default)
SYNCS = (aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default)
"""Operators whose result the CPU needs before it can go on."""


@dataclass(slots=True)
class Counts:
    """What happened on the pretend accelerator, and how much memory it has."""

    syncs: int = 0
    """Times that the CPU waited for the GPU."""
    to_gpu: int = 0
    to_cpu: int = 0
    most_images: int = 0
    """Number of images above which a convolution runs out of memory; 0 for no limit."""
    out_of_memory: int = 0
    """Times that memory ran out."""


COUNTS = Counts()


class OnGpu(torch.Tensor):
    """A tensor on the pretend GPU, around a tensor on the CPU that holds the values."""

    values: Tensor

    @staticmethod
    def __new__(cls: Any, values: Tensor, requires_grad: bool = False) -> "OnGpu":
        made: OnGpu = torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=values.device,
            requires_grad=requires_grad,
        )
        made.values = values
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: object) -> "OnGpu":
        return OnGpu(inner["values"])

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"OnGpu({self.values!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = OnGpu(self.values.detach().clone(), self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, self.requires_grad)
        memo[id(self)] = made
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in TRANSFERS:
            check_devices(func, args, kwargs)
        count(func, args)
        inner = tree_map_only(OnGpu, lambda t: t.values, (args, kwargs))
        found = func(*inner[0], **inner[1])
        found = tree_map_only(torch.Tensor, OnGpu, found)
        if func is aten.copy_.default and not isinstance(args[0], OnGpu):
            return args[0]  # a copy to the CPU
        return return_and_correct_aliasing(func, args, kwargs, found)


def check_devices(func: Any, args: Any, kwargs: Any) -> None:
    """Raise what torch raises if tensors are on several devices."""
    flat, _ = tree_flatten((args, kwargs))
    elsewhere = [
        t for t in flat if isinstance(t, Tensor) and not isinstance(t, OnGpu) and t.ndim > 0
    ]
    is_index = func in (aten.index.Tensor, aten.index_put_.default)  # indices may be on the CPU
    if elsewhere and not is_index:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"cuda:0 and cpu! (in {func})"
        )


def count(func: Any, args: Any) -> None:
    """Count a wait for the GPU, and run out of memory if there are too many images."""
    masks = func is aten.index.Tensor and any(
        t is not None and t.dtype == torch.bool for t in args[1]
    )
    COUNTS.syncs += func in SYNCS or masks
    if func is aten.convolution.default and 0 < COUNTS.most_images < len(args[0]):
        COUNTS.out_of_memory += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB (pretended)")


class Placement(TorchFunctionMode):
    """Mode in which tensors can be created on the pretend GPU, and moved there and back."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return move(func, args, kwargs)
        if func in (Tensor.numpy, Tensor.__array__) and isinstance(args[0], OnGpu):
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        if func is Tensor.tolist and isinstance(args[0], OnGpu):
            COUNTS.syncs += 1
            return args[0].values.tolist()
        wanted = kwargs.get("device")
        if wanted is not None:
            is_gpu = torch.device(wanted).type == "cuda"
            kwargs["device"] = "cpu"
            found = func(*args, **kwargs)
            if is_gpu and not isinstance(found, OnGpu):
                return on_gpu(found)
            return found.values if not is_gpu and isinstance(found, OnGpu) else found
        return func(*args, **kwargs)


def on_gpu(tensor: Tensor) -> OnGpu:
    """Return a copy of a tensor on the pretend GPU."""
    return OnGpu(tensor.detach(), tensor.requires_grad)


def move(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Carry out `to`, `cpu` or `cuda`."""
    tensor, *rest = args
    if func is Tensor.to:
        if rest and isinstance(rest[0], Tensor):
            device, dtype = rest[0].device, rest[0].dtype
            copy = bool(kwargs.get("copy"))
        else:
            copy = bool(kwargs.pop("copy", False))
            device, dtype, _, _ = torch._C._nn._parse_to(*rest, **kwargs)
    else:
        device, dtype, copy = torch.device("cpu" if func is Tensor.cpu else "cuda"), None, False
    was_gpu = isinstance(tensor, OnGpu)
    is_gpu = was_gpu if device is None else device.type == "cuda"
    if is_gpu == was_gpu:
        wanted = tensor.dtype if dtype is None else dtype
        return (
            tensor if wanted == tensor.dtype and not copy else Tensor.to(tensor, wanted, copy=copy)
        )
    if is_gpu:
        COUNTS.to_gpu += 1
        return on_gpu(tensor.clone() if dtype is None else tensor.to(dtype, copy=True))
    COUNTS.to_cpu += 1
    COUNTS.syncs += 1
    values = tensor.values.detach()
    return values.clone() if dtype is None else values.to(dtype, copy=True)


class Autocast(torch.autocast):
    """Autocast of the pretend GPU, which is that of the CPU."""

    def __init__(self, _: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu", *args, **kwargs)


def enter_no_grad(mode: Any) -> None:
    """Enter `torch.inference_mode` as `torch.no_grad`, since it does not support such tensors."""
    mode.pretended = torch.no_grad() if mode.mode else contextlib.nullcontext()
    mode.pretended.__enter__()


def exit_no_grad(mode: Any, *error: Any) -> None:
    mode.pretended.__exit__(*error)


@contextlib.contextmanager
def pretend_gpu(*, has_bf16: bool = True, most_images: int = 0) -> Iterator[Counts]:
    """Pretend inside the `with` block that the machine has a GPU; yield the counts.

    Args:
        has_bf16: Whether the GPU computes in bf16, as from the A100 on, or only in fp16.
        most_images: Number of images above which a convolution runs out of memory (default: any).
    """
    COUNTS.__init__(most_images=most_images)  # type: ignore[misc]
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "is_bf16_supported": lambda **_: has_bf16,
        "get_device_capability": lambda *_: (8, 0) if has_bf16 else (7, 5),
        "get_device_name": lambda *_: "pretend accelerator",
        "max_memory_reserved": lambda *_: 0,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda *_: None,
        "manual_seed_all": lambda *_: None,
    }
    with contextlib.ExitStack() as stack:
        for name, function in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, function))
        stack.enter_context(mock.patch.object(torch, "autocast", Autocast))
        check = "_accelerator_graph_capture_health_check"  # of streams, which there are not
        stack.enter_context(mock.patch.object(torch.optim.Optimizer, check))
        stack.enter_context(mock.patch.object(torch.inference_mode, "__enter__", enter_no_grad))
        stack.enter_context(mock.patch.object(torch.inference_mode, "__exit__", exit_no_grad))
        # A module that is moved gets other tensors, as their type differs.
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, False)
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.enter_context(Placement())
        yield COUNTS
