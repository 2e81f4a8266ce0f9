"""Copies between CPU and GPU that do not interrupt the work queued on the GPU.

An ordinary copy makes the program wait until the GPU has done everything that was queued before it.
A copy from or to pinned memory can be queued as well. Only CUDA has these copies; on other devices,
the functions make ordinary ones.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, without waiting for a GPU.

    A tensor in pinned memory must not be changed until the copy has ended. It may be freed: torch
    reuses pinned memory only after the copies that were queued for it.
    """
    if device.type != "cuda" or tensor.device.type != "cpu" or not tensor.numel():
        return tensor.to(device)
    pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):  # the copy does not wait for computations, nor they for it
        moved = pinned.to(device, non_blocking=True)
    current.wait_stream(stream)
    moved.record_stream(current)
    return moved


def start_reading(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Queue copies of tensors to the CPU; return a function that waits for them and returns them.

    The tensors must be on the same device. Work that is queued later does not delay the copies. The
    function may be called in another thread, because on other devices than CUDA, it does nothing:
    the copies have been made then.
    """
    device = tensors[0].device
    if device.type != "cuda":
        read = [tensor.cpu() for tensor in tensors]
        return lambda: read
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for target, tensor in zip(copies, tensors, strict=True):
        target.copy_(tensor, non_blocking=True)
    ended = torch.cuda.Event(blocking=True)  # a waiting thread leaves its core to others
    ended.record(torch.cuda.current_stream(device))

    def wait() -> list[Tensor]:
        ended.synchronize()
        return copies

    return wait


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which tensors are copied to a GPU."""
    return torch.cuda.Stream(device)
