"""Recovery from a lack of memory: the same images again, fewer at a time."""

import logging
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from vitft.system.errors import ResourceError
from vitft.system.text import count

log = logging.getLogger(__name__)

Computed = TypeVar("Computed")

OUT_OF_MEMORY = (
    "out of memory",  # CUDA, MPS
    "can't allocate memory",  # CPU
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Parts of the messages of errors that report a lack of memory."""
FEWER = "use a smaller --image-size, a smaller model or --device cpu"


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch raised `error` because memory ran out, on any device."""
    is_known = any(part in str(error) for part in OUT_OF_MEMORY)
    return isinstance(error, torch.OutOfMemoryError) or is_known


class BatchLimit:
    """Number of images that are computed at a time, halved whenever memory runs out.

    The number that worked is kept for later batches.

    Args:
        images: Number of images at a time as long as memory does not run out.
        fix: What to do if a single image does not fit.
    """

    def __init__(self, images: int, *, fix: str = FEWER) -> None:
        self.images, self.fix = images, fix

    def halve(self, tried: int, error: RuntimeError) -> None:
        """Halve the limit after `error` was raised while computing `tried` images.

        Raises:
            ResourceError: A single image does not fit in memory.
            RuntimeError: `error` does not report a lack of memory.
        """
        if not is_out_of_memory(error):
            raise error
        tried = min(self.images, tried)
        if tried <= 1:
            raise ResourceError("out of memory with one image at a time", fix=self.fix) from error
        self.images = math.ceil(tried / 2)
        torch.cuda.empty_cache()  # does nothing if CUDA is not used
        log.warning(f"out of memory: continuing with {count(self.images, 'image')} at a time")

    def split(self, compute: Callable[[slice], Computed], images: int) -> list[Computed]:
        """Call `compute` for consecutive slices of `images` images, each within the limit.

        A slice that runs out of memory is computed again in smaller ones. Without images, `compute`
        is called once for an empty slice.

        Raises:
            ResourceError: A single image does not fit in memory.
        """
        done, found = 0, list[Computed]()
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
        """Return the rows that `split` yields as one tensor (`images`, ...)."""
        found = self.split(compute, images)
        return found[0] if len(found) == 1 else torch.cat(found)
