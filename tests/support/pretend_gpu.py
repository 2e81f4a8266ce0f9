"""A pretend accelerator: tensors that say `cuda:0` and are computed on the CPU.

Inside `pretend_gpu`, `tensor.to("cuda")` and `torch.empty(..., device="cuda")` return `OnGpu`
tensors. As on a real GPU, a computation of tensors on two devices raises, and so does `.numpy()`.
Everything at which a program waits for a real GPU is counted: values that the CPU needs, and copies
that are not both pinned and `non_blocking`. Copies that do not wait end only when the program waits
for something later: until then, their result on the CPU is NaN, and a pinned source must not
change. A tensor that was copied on another stream must not be used before that stream is awaited.
Memory may run out above a number of images, and images may take time (`Timeline`).

What a GPU computes differently (rounding, kernels, order of sums) is not shown, and inference
tensors are ordinary ones.
"""

import contextlib
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

from tests.support.timeline import Timeline

GPU = torch.device("cuda", 0)
aten = torch.ops.aten
TRANSFERS = (aten.copy_.default, aten._to_copy.default)
SYNCS = (aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default)
"""Operators whose result the CPU needs before it can go on."""


@dataclass(slots=True)
class Counts:
    """What happened on the pretend accelerator, and how much memory and speed it has."""

    syncs: int = 0
    """Times that the CPU waited for the GPU, including the copies that wait."""
    to_gpu: int = 0
    """Number of copies to the GPU."""
    most_to_gpu: int = 0
    """Number of values in the largest copy to the GPU."""
    most_to_cpu: int = 0
    most_images: int = 0
    """Number of images above which a convolution runs out of memory; 0 for no limit."""
    out_of_memory: int = 0
    """Times that memory ran out."""
    batches: list[int] = field(default_factory=list)
    """Number of images in each convolution."""
    timeline: Timeline = field(default_factory=Timeline)

    def wait(self) -> None:
        """Count a wait for everything that has been queued."""
        self.syncs += 1
        self.timeline.wait()


COUNTS = Counts()


class OnGpu(torch.Tensor):
    """A tensor on the pretend GPU, around a tensor on the CPU that holds the values."""

    values: Tensor
    awaits: "Stream | None"

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
        made.values, made.awaits = values, None
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

    def record_stream(self, _: "Stream") -> None:  # type: ignore[override]
        """Do nothing: memory is freed when nothing refers to it."""

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
        if func is aten.copy_.default and isinstance(args[0], OnGpu) is not isinstance(
            args[1], OnGpu
        ):
            return copy_across(func, *args)
        count(func, args)
        inner = tree_map_only(OnGpu, lambda t: t.values, (args, kwargs))
        found = func(*inner[0], **inner[1])
        found = tree_map_only(torch.Tensor, OnGpu, found)
        return return_and_correct_aliasing(func, args, kwargs, found)


def check_devices(func: Any, args: Any, kwargs: Any) -> None:
    """Raise what torch raises if tensors are on several devices, or if a copy was not awaited."""
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
    if any(isinstance(t, OnGpu) and t.awaits is not None for t in flat):
        raise RuntimeError(f"a tensor is used before the stream that copies it ends (in {func})")


def count(func: Any, args: Any) -> None:
    """Count a wait for the GPU, and run out of memory if there are too many images."""
    masks = func is aten.index.Tensor and any(
        t is not None and t.dtype == torch.bool for t in args[1]
    )
    if func in SYNCS or masks:
        COUNTS.wait()
    if func is aten.index.Tensor and any(
        t is not None and not isinstance(t, OnGpu) for t in args[1]
    ):
        count_copy_in(args[1][0], waits=True)  # indices on the CPU
    if func is aten.convolution.default:
        COUNTS.batches.append(len(args[0]))
        if 0 < COUNTS.most_images < len(args[0]):
            COUNTS.out_of_memory += 1
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB (pretended)"
            )


def count_copy_in(source: Tensor, *, waits: bool) -> None:
    """Count a copy to the GPU."""
    COUNTS.to_gpu += 1
    COUNTS.most_to_gpu = max(COUNTS.most_to_gpu, source.numel())
    if waits:
        COUNTS.wait()
    else:
        COUNTS.timeline.copy_in(source)


def copy_across(func: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Carry out `target.copy_(source)` from one device to the other."""
    if isinstance(target, OnGpu):
        count_copy_in(source, waits=not (non_blocking and is_pinned(source)))
        func(target.values, source)
        return target
    assert isinstance(source, OnGpu)
    COUNTS.most_to_cpu = max(COUNTS.most_to_cpu, source.numel())
    if non_blocking and is_pinned(target):
        COUNTS.timeline.copy_out(target, source.values)
    else:
        COUNTS.wait()
        func(target, source.values)
    return target


PINNED: "weakref.WeakSet[torch.UntypedStorage]" = weakref.WeakSet()
"""Memory that `pin_memory` would lock."""


def is_pinned(tensor: Tensor) -> bool:
    return tensor.untyped_storage() in PINNED


def pinned(tensor: Tensor) -> Tensor:
    """Mark the memory of a tensor on the CPU as pinned."""
    PINNED.add(tensor.untyped_storage())
    return tensor


class Placement(TorchFunctionMode):
    """Mode in which tensors can be created on the pretend GPU, and moved there and back."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return move(func, args, kwargs)
        if func in METHODS:
            return METHODS[func](*args)
        if func in (Tensor.numpy, Tensor.__array__) and isinstance(args[0], OnGpu):
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        if func is Tensor.tolist and isinstance(args[0], OnGpu):
            COUNTS.wait()
            return args[0].values.tolist()
        if func is Tensor.new_tensor and isinstance(args[0], OnGpu):
            made = args[0].values.new_tensor(*args[1:], **kwargs)
            count_copy_in(made, waits=True)
            return on_gpu(made)
        if kwargs.pop("pin_memory", False):
            return pinned(func(*args, **kwargs))
        if kwargs.get("device") is not None:
            return created(func, args, kwargs)
        return func(*args, **kwargs)


def created(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Carry out a function that creates a tensor on a given device."""
    is_gpu = torch.device(kwargs["device"]).type == "cuda"
    found = func(*args, **{**kwargs, "device": "cpu"})
    if is_gpu and not isinstance(found, OnGpu):
        if func in (torch.tensor, torch.as_tensor):
            count_copy_in(found, waits=True)
        return on_gpu(found)
    return found.values if not is_gpu and isinstance(found, OnGpu) else found


METHODS: dict[Any, Callable[..., Any]] = {
    Tensor.pin_memory: lambda tensor, *_: pinned(tensor.clone()),
    Tensor.is_pinned: lambda tensor, *_: is_pinned(tensor),
}


def on_gpu(tensor: Tensor) -> OnGpu:
    """Return a copy of a tensor on the pretend GPU."""
    return OnGpu(tensor.detach(), tensor.requires_grad)


def move(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Carry out `to`, `cpu` or `cuda`."""
    tensor, *rest = args
    non_blocking = bool(kwargs.get("non_blocking"))
    device: Any  # or None, which the types of torch leave out
    if func is Tensor.to:
        if rest and isinstance(rest[0], Tensor):
            device, dtype = rest[0].device, rest[0].dtype
            copy = bool(kwargs.get("copy"))
        else:
            copy = bool(kwargs.pop("copy", False))
            device, dtype, non_blocking, _ = torch._C._nn._parse_to(*rest, **kwargs)
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
        count_copy_in(tensor, waits=not (non_blocking and is_pinned(tensor)))
        made = on_gpu(tensor.clone() if dtype is None else tensor.to(dtype, copy=True))
        if (stream := CURRENT_STREAM.get()) is not MAIN_STREAM:
            made.awaits = stream
            stream.copied.append(made)
        return made
    COUNTS.most_to_cpu = max(COUNTS.most_to_cpu, tensor.numel())
    COUNTS.wait()
    values = tensor.values.detach()
    return values.clone() if dtype is None else values.to(dtype, copy=True)


class Stream:
    """A stream of the pretend GPU."""

    def __init__(self, *_: object) -> None:
        self.copied: list[OnGpu] = []

    def wait_stream(self, other: "Stream") -> None:
        """Let tensors that were copied on another stream be used."""
        for tensor in other.copied:
            tensor.awaits = None
        other.copied.clear()

    def synchronize(self) -> None:
        COUNTS.wait()


class Event:
    """A moment in the queue of the pretend GPU; waiting for it is not counted as a wait."""

    def __init__(self, **_: object) -> None:
        self.mark = COUNTS.timeline.copies

    def record(self, *_: object) -> None:
        self.mark = COUNTS.timeline.copies

    def synchronize(self) -> None:
        COUNTS.timeline.wait(self.mark)


MAIN_STREAM = Stream()
CURRENT_STREAM: ContextVar[Stream] = ContextVar("CURRENT_STREAM", default=MAIN_STREAM)


@contextlib.contextmanager
def use_stream(stream: Stream) -> Iterator[None]:
    token = CURRENT_STREAM.set(stream)
    try:
        yield
    finally:
        CURRENT_STREAM.reset(token)


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


def on_their_device(group: Callable[..., Any]) -> Callable[..., Any]:
    """Let torch's function that groups tensors by device see the pretend GPU."""

    def grouped(tensors: Any, *arguments: Any, **options: Any) -> Any:
        found = group(tensors, *arguments, **options)
        return {
            (GPU if isinstance(lists[0][0], OnGpu) else device, dtype): (lists, indices)
            for (device, dtype), (lists, indices) in found.items()
        }

    return grouped


def in_placement(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Let the function of every new thread run in the mode, which is thread-local."""

    def wrapped(thread: threading.Thread) -> None:
        with Placement():
            run(thread)

    return wrapped


@contextlib.contextmanager
def pretend_gpu(*, has_bf16: bool = True, most_images: int = 0, gpus: int = 1) -> Iterator[Counts]:
    """Pretend in a `with` block that there are GPUs, whose memory has room for `most_images`."""
    COUNTS.__init__(most_images=most_images)  # type: ignore[misc]
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: gpus,
        "is_bf16_supported": lambda **_: has_bf16,
        "get_device_capability": lambda *_: (8, 0) if has_bf16 else (7, 5),
        "get_device_name": lambda *_: "pretend accelerator",
        "max_memory_reserved": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None,
        "mem_get_info": lambda *_: (2**40, 2**40),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda *_: None,
        "manual_seed_all": lambda *_: None,
        "synchronize": lambda *_: COUNTS.wait(),
        "Stream": Stream,
        "Event": Event,
        "stream": use_stream,
        "current_stream": lambda *_: CURRENT_STREAM.get(),
    }
    with contextlib.ExitStack() as stack:
        for name, function in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, function))
        stack.enter_context(mock.patch.object(torch, "autocast", Autocast))
        check = "_accelerator_graph_capture_health_check"  # of streams, which there are not
        if hasattr(torch.optim.Optimizer, check):  # the oldest supported torch has none
            stack.enter_context(mock.patch.object(torch.optim.Optimizer, check))
        stack.enter_context(mock.patch.object(torch.inference_mode, "__enter__", enter_no_grad))
        stack.enter_context(mock.patch.object(torch.inference_mode, "__exit__", exit_no_grad))
        for path in ("torch.optim.optimizer", "torch.nn.utils.clip_grad"):
            module = importlib.import_module(path)
            name = "_group_tensors_by_device_and_dtype"
            grouped = on_their_device(getattr(module, name))
            stack.enter_context(mock.patch.object(module, name, grouped))
        run = in_placement(threading.Thread.run)
        stack.enter_context(mock.patch.object(threading.Thread, "run", run))
        # A module that is moved gets other tensors, as their type differs.
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, False)
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.enter_context(Placement())
        yield COUNTS
