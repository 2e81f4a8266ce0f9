"""Recovery from a lack of memory."""

import logging
import weakref

import pytest
import torch
from torch import Tensor

from vitft.system import BatchLimit, ResourceError

MPS = "MPS backend out of memory (MPS allocated: 8.95 GB, other allocations: 1.2 GB)."
CPU = "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: 12 GB"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA error"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError(MPS), True),
        (RuntimeError(CPU), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate"), True),
        (RuntimeError("GET was unable to find an engine to execute this computation"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_a_lack_of_memory_is_recognised_on_every_device(
    error: RuntimeError, expected: bool
) -> None:
    with pytest.raises(ResourceError if expected else RuntimeError):
        BatchLimit(1).halve(1, error)


def test_parts_that_do_not_fit_are_halved_and_the_size_that_worked_is_kept() -> None:
    limit, rows, tried = BatchLimit(8), torch.arange(11), list[int]()

    def compute(part: slice) -> Tensor:
        tried.append(part.stop - part.start)
        if tried[-1] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows[part]

    assert torch.equal(limit.join(compute, 11), rows)
    assert torch.equal(limit.join(compute, 11), rows)
    assert tried == [8, 4, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 1]


def test_the_tensors_that_did_not_fit_are_freed_before_memory_is_tried_again() -> None:
    held = list[weakref.ref[Tensor]]()
    freed = list[bool]()

    class Watch(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:  # after torch's cache has been emptied
            freed.append(held[0]() is None)

    def compute(part: slice) -> Tensor:
        activations = torch.zeros(part.stop - part.start)
        held.append(weakref.ref(activations))
        if len(activations) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return activations

    log, watch = logging.getLogger("vitft"), Watch()
    log.addHandler(watch)
    try:
        BatchLimit(8).join(compute, 8)
    finally:
        log.removeHandler(watch)

    assert freed == [True]


def test_one_image_that_does_not_fit_ends_with_a_fix() -> None:
    def compute(_: slice) -> Tensor:
        raise RuntimeError(MPS)

    with pytest.raises(ResourceError, match="one image at a time") as caught:
        BatchLimit(8, fix="buy memory").join(compute, 11)

    assert caught.value.fix == "buy memory"


def test_a_batch_smaller_than_the_limit_is_halved_itself() -> None:
    limit, error = BatchLimit(32), RuntimeError("CUDA out of memory")

    limit.halve(5, error)
    assert limit.images == 3
    limit.halve(8, error)  # tried before the limit was reduced, by another thread
    assert limit.images == 2
    limit.halve(2, error)
    assert limit.images == 1
    with pytest.raises(ResourceError, match="one image at a time") as caught:
        limit.halve(4, error)
    assert "--image-size" in caught.value.fix
