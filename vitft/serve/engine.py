"""Bytes in, answers out: images are decoded in threads and meet the model in batches.

A batch is whatever waits when the model becomes free, so a lone image never waits for company, and
the busier the server, the larger the batches. Images that have been admitted are counted; beyond
the limit new ones are refused at once, so nothing waits longer than the queue is long.
"""

import asyncio
import io
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitft.data.images import decode
from vitft.explain import overlay, relevance_map
from vitft.models.vit import VisionTransformer
from vitft.predict.torch_engine import Predictor
from vitft.serve.limits import MAX_BATCH, MAX_PIXELS, MAX_SCANS, TIDY_SECONDS, Limits
from vitft.serve.workers import Crew
from vitft.system.errors import ImageError, RunError
from vitft.system.malloc import return_memory

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Shares = np.ndarray[Any, np.dtype[np.float32]]
SCAN = b"\xff\xda"
"""Starts each pass over the picture in a JPEG; in coded data a 0xff is always followed by 0."""


class BusyError(Exception):
    """No place is left for further images."""


@dataclass(eq=False, slots=True)
class Waiting:
    """An image on its way to the model."""

    view: Pixels
    """What the model sees: (S, S, 3)."""
    answer: "asyncio.Future[Shares]"
    """Becomes (C,), one share per class."""


class Engine:
    """A model that answers many clients at once; used inside one event loop.

    Raises:
        RunError: The model's answers are not numbers.
    """

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self.predictor, self.limits = predictor, limits
        self.classes = predictor.card.classes
        self.transform = predictor.card.transform
        self.admitted = 0
        self.num_taken = 0
        """Images admitted so far."""
        self.line: deque[Waiting] = deque()
        self.arrived = asyncio.Event()
        blank = np.zeros((1, *self.transform.image_size, 3), np.uint8)
        if not np.isfinite(self.classify(blank)).all():
            raise RunError(
                "the model's answers are not numbers",
                fix="its weights are damaged or have diverged; train again with a lower lr",
            )

    @property
    def can_explain(self) -> bool:
        """Whether the model's attention can be seen: models of timm hide theirs."""
        return isinstance(self.predictor.model, VisionTransformer)

    async def serve(self) -> None:
        """Answer until cancelled."""
        spare = (os.cpu_count() or 1) - 1  # one core is left to those who ask
        self.decoders = Crew(max(1, min(4, spare)), "decode")
        self.thinker = Crew(1, "model")
        tidying = asyncio.create_task(self.tidy())
        try:
            while True:
                await self.arrived.wait()
                await self.answer_batch(self.next_batch())
        finally:
            tidying.cancel()
            self.decoders.close()
            self.thinker.close()

    @property
    def is_full(self) -> bool:
        """Whether not even one image can be taken."""
        return self.admitted >= self.limits.queue

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Places for `count` images until they are answered.

        Raises:
            BusyError: There are not enough.
        """
        if self.admitted + count > self.limits.queue:
            raise BusyError
        self.admitted += count
        self.num_taken += count
        try:
            yield
        finally:
            self.admitted -= count

    async def shares(self, data: bytes, name: str) -> Shares:
        """One share per class (C,) for the bytes of an image file.

        Raises:
            ImageError: The bytes are no usable image.
        """
        view = await self.decoders.run(self.view, data, name)
        waiting = Waiting(view, asyncio.get_running_loop().create_future())
        self.line.append(waiting)
        self.arrived.set()
        return await waiting.answer

    async def explained(self, data: bytes, name: str, target: int | None) -> bytes:
        """A PNG of what the model saw, with the places that spoke for a class (default: the best).

        Raises:
            ImageError: The bytes are no usable image.
        """
        view = await self.decoders.run(self.view, data, name)
        heat = await self.thinker.run(self.heat, view, target)
        return await self.decoders.run(drawn, view, heat)

    async def tidy(self) -> None:
        """Now and then give the memory of answered images back."""
        seen = self.num_taken
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            if self.num_taken != seen:
                seen = self.num_taken if self.admitted == 0 else -1  # or once more when all is done
                await asyncio.to_thread(return_memory)

    def next_batch(self) -> list[Waiting]:
        """Take images from the front of the line, leaving out those nobody waits for."""
        batch: list[Waiting] = []
        while self.line and len(batch) < MAX_BATCH:
            waiting = self.line.popleft()
            if not waiting.answer.done():
                batch.append(waiting)
        if not self.line:
            self.arrived.clear()
        return batch

    async def answer_batch(self, batch: list[Waiting]) -> None:
        """Ask the model once; if that fails, everyone in the batch is told."""
        if not batch:
            return
        answers: list[Shares] | Exception
        try:
            views = np.stack([waiting.view for waiting in batch])
            answers = list(await self.thinker.run(self.classify, views))
        except Exception as error:  # each request raises it again
            answers = error
        for i, waiting in enumerate(batch):
            if waiting.answer.done():
                continue
            if isinstance(answers, Exception):
                waiting.answer.set_exception(answers)
            else:
                waiting.answer.set_result(answers[i])

    def view(self, data: bytes, name: str) -> Pixels:
        """What the model sees of an image file: (S, S, 3)."""
        if data.startswith(b"\xff\xd8") and data.count(SCAN) > MAX_SCANS:
            raise ImageError(name, f"a JPEG of more than {MAX_SCANS} scans")
        return self.transform.pixels(decode(data, name, max_pixels=MAX_PIXELS).image)

    def classify(self, views: Pixels) -> Shares:
        """Shares (B, C) of views (B, S, S, 3)."""
        return self.predictor.logits(views).softmax(dim=-1).cpu().numpy()

    def heat(self, view: Pixels, target: int | None) -> Shares:
        """What each patch (gh, gw) of a view said for a class, from 0 to 1."""
        pixels = torch.from_numpy(view[None]).to(self.predictor.device)
        wanted = None if target is None else torch.tensor([target])
        model = self.predictor.model
        heat: Shares = relevance_map(model, self.transform.normalise(pixels), wanted)[0]
        return heat


def drawn(view: Pixels, heat: Shares) -> bytes:
    """Heat (gh, gw) over a view (S, S, 3) as a PNG; nothing of the file's metadata is in it."""
    buffer = io.BytesIO()
    overlay(Image.fromarray(view), heat).save(buffer, "PNG")
    return buffer.getvalue()
