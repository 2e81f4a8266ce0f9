"""Recovery from out-of-memory errors by processing the same images again in smaller batches."""

import logging
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from vitft.system.errors import ResourceError
from vitft.system.text import count

log = logging.getLogger(__name__)

_Computed = TypeVar("_Computed")

_OUT_OF_MEMORY = (
    "out of memory",  # CUDA, MPS
    "can't allocate memory",  # CPU
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Phrases that identify the message of an out-of-memory error."""
_FEWER = "use a smaller --image-size, a smaller model or --device cpu"


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch raised `error` because memory ran out, on any device."""
    is_known = any(part in str(error) for part in _OUT_OF_MEMORY)
    return isinstance(error, torch.OutOfMemoryError) or is_known


class BatchLimit:
    """Maximum number of images processed at a time, halved whenever memory runs out.

    A reduced limit also applies to later batches.

    Args:
        images: Initial limit.
        fix: Suggested fix if a single image does not fit in memory.
    """

    def __init__(self, images: int, *, fix: str = _FEWER) -> None:
        self.images, self.fix = images, fix

    def halve(self, tried: int, error: RuntimeError) -> None:
        """Halve the limit after processing `tried` images raised `error`.

        Raises:
            ResourceError: A single image does not fit in memory.
            RuntimeError: `error` is not an out-of-memory error.
        """
        if not is_out_of_memory(error):
            raise error
        tried = min(self.images, tried)
        if tried <= 1:
            raise ResourceError("out of memory with one image at a time", fix=self.fix) from error
        self.images = math.ceil(tried / 2)
        torch.cuda.empty_cache()  # does nothing if CUDA is not used
        log.warning(f"out of memory: continuing with {count(self.images, 'image')} at a time")

    def split(self, compute: Callable[[slice], _Computed], images: int) -> list[_Computed]:
        """Call `compute` for consecutive slices of `images` images, each within the limit.

        If memory runs out, the slice is processed again in smaller slices. If there are no
        images, `compute` is called once with an empty slice.

        Raises:
            ResourceError: A single image does not fit in memory.
        """
        done, found = 0, list[_Computed]()
        while done < images or not found:
            part = slice(done, min(images, done + self.images))
            try:
                found.append(compute(part))
            except RuntimeError as error:
                self.halve(part.stop - part.start, error)
            else:
                done = part.stop
        return found

    def join(self, compute: Callable[[slice], Tensor], images: int) -> Tensor:
        """Return the results of `split`, concatenated into one tensor (`images`, ...)."""
        found = self.split(compute, images)
        return found[0] if len(found) == 1 else torch.cat(found)
