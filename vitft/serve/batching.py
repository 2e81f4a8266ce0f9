"""Queue of images that are decoded in threads and predicted in batches.

A batch contains the images that are queued when the model becomes free (at most `MAX_BATCH`). A
single image therefore never waits for a batch to fill, and batches grow with the load. The queue
has a maximum length, which bounds the waiting time. Further images are rejected immediately.
"""

import asyncio
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from starlette.exceptions import HTTPException

from vitft.explain.attribution import relevance_map
from vitft.explain.heatmaps import overlay
from vitft.predict.engine import Engine, LoadedImage, Pipeline, Views, notes_on
from vitft.predict.postprocess import Postprocess, ScoreArray
from vitft.predict.rows import OUT_OF_DISTRIBUTION, Prediction
from vitft.predict.torch_engine import Predictor
from vitft.serve.limits import MAX_BATCH, MAX_IMAGE_PIXELS, MAX_SCANS, TIDY_SECONDS, ServeLimits
from vitft.system.cores import return_memory, usable_cores
from vitft.system.errors import ImageError, UsageError

log = logging.getLogger(__name__)
request_log = logging.getLogger("vitft.serve.requests")  # the access log, of level DEBUG

RETRY_SOON = {"Retry-After": "1"}
_SCAN_MARKER = b"\xff\xda"  # at the start of each JPEG scan, but never in its compressed data
_Output = TypeVar("_Output")


class BatchQueue:
    """Queue that shares one model among concurrent requests of one event loop."""

    def __init__(self, engine: Engine, postprocess: Postprocess, limits: ServeLimits) -> None:
        self.engine, self.limits = engine, limits
        self.outputs, self.transform = postprocess.outputs, engine.transform
        self.pipeline = Pipeline(engine, postprocess)
        self.max_batch = min(MAX_BATCH, engine.batch)
        self.admitted = 0
        self.num_admitted = self.num_batches = self.num_predicted = 0  # since the start
        self.expected_right, self.num_unlike = 0.0, 0
        spare_cores = usable_cores() - 1  # leave one for the event loop
        self.decoders = ThreadPoolExecutor(max(1, min(4, spare_cores)), "decode")
        self.model_thread = ThreadPoolExecutor(1, "model")
        self.pending = asyncio.Queue[tuple[LoadedImage, asyncio.Future[Prediction]]]()
        blank = np.zeros((*self.transform.image_size, 3), np.uint8)
        self.pipeline.predict_batch([LoadedImage("", blank)])  # fail now if the weights are damaged
        self.can_explain = False  # for some timm models, and for an ONNX graph, without gradients
        if isinstance(engine, Predictor):
            with suppress(UsageError):
                self.relevance(blank, None)
                self.can_explain = True
        if not self.can_explain:
            log.info("predictions of this model cannot be explained")

    async def serve(self) -> None:
        """Predict queued images until cancelled."""
        tidying = asyncio.create_task(self.return_memory())
        try:
            while True:
                batch = [await self.pending.get()]
                while len(batch) < self.max_batch and not self.pending.empty():
                    batch.append(self.pending.get_nowait())
                await self.predict_batch([one for one in batch if not one[1].done()])
        finally:
            tidying.cancel()
            self.decoders.shutdown(wait=False, cancel_futures=True)
            self.model_thread.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Reserve places in the queue for `count` images until the context ends."""
        self.check_places(count)
        self.admitted += count
        self.num_admitted += count
        try:
            yield
        finally:
            self.admitted -= count

    def check_places(self, count: int) -> None:
        """Raise an HTTPException (503) if the queue has fewer than `count` free places."""
        if self.admitted + count > self.limits.queue:
            raise HTTPException(503, "the queue is full: try again", headers=RETRY_SOON)

    async def predict(self, data: bytes, name: str, top_k: int) -> Prediction:
        """Return the prediction for an image file; its `error` is set if the image is unusable."""
        try:
            if self.max_batch == 1:  # views may be large images, so only one is decoded at a time
                (one,) = await run_in(
                    self.model_thread, lambda: self.score([self.load(data, name)])
                )
                return one.top(top_k)
            image = await run_in(self.decoders, self.load, data, name)
        except ImageError as error:
            return Prediction(path=name, error=error.reason, run=self.pipeline.postprocess.run_name)
        answer = asyncio.get_running_loop().create_future()
        self.pending.put_nowait((image, answer))
        found: Prediction = await answer
        return found.top(top_k)

    async def explain(self, data: bytes, name: str, target: int | None) -> bytes:
        """Return a PNG of an image overlaid with the relevance of its patches for a class index."""

        def draw(view: Views, heat: ScoreArray) -> bytes:
            buffer = io.BytesIO()
            overlay(Image.fromarray(view), heat).save(buffer, "PNG")
            return buffer.getvalue()

        view = (await run_in(self.decoders, self.load, data, name)).view
        assert view is not None
        heat = await run_in(self.model_thread, self.relevance, view, target)
        return await run_in(self.decoders, draw, view, heat)

    async def return_memory(self) -> None:
        """Return freed memory to the system at intervals while there are requests."""
        seen = self.num_admitted
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            if self.num_admitted != seen:
                seen = self.num_admitted if self.admitted == 0 else -1  # -1: repeat once idle
                await asyncio.to_thread(return_memory)

    async def predict_batch(
        self, batch: Sequence[tuple[LoadedImage, "asyncio.Future[Prediction]"]]
    ) -> None:
        """Predict a batch and set the result, or an exception, for each image still awaited."""
        found: Sequence[Prediction] | Exception = ()
        try:
            if batch:
                found = await run_in(self.model_thread, self.score, [image for image, _ in batch])
        except Exception as error:  # raised again by each request
            found = error
        for i, (_, answer) in enumerate(batch):
            if answer.done():  # the request was cancelled
                continue
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found[i])

    def score(self, images: Sequence[LoadedImage]) -> list[Prediction]:
        """Return the predictions for a batch; called in the thread of the model."""
        self.num_batches += 1
        self.num_predicted += len(images)
        found = self.pipeline.predict_batch(images)
        if not self.outputs.several:
            self.expected_right += sum(one.probability for one in found)
            self.num_unlike += sum(OUT_OF_DISTRIBUTION in one.notes for one in found)
        return found

    def load(self, data: bytes, name: str) -> LoadedImage:
        """Return a decoded and preprocessed image file, with notes on it, or raise ImageError."""
        if data.startswith(b"\xff\xd8") and data.count(_SCAN_MARKER) > MAX_SCANS:
            raise ImageError(name, f"JPEG with more than {MAX_SCANS} scans")
        view = self.engine.view(data, name, max_pixels=MAX_IMAGE_PIXELS)
        return LoadedImage(name, view, notes=notes_on(data, self.transform))

    def relevance(self, view: Views, target: int | None) -> ScoreArray:
        """Return the relevance (gh, gw) of the patches of a view (H, W, 3), from 0 to 1."""
        assert isinstance(self.engine, Predictor)
        targets = None if target is None else torch.tensor([target])
        inputs = self.engine.inputs(view[None])
        heat: ScoreArray = relevance_map(self.engine.model, inputs, targets)[0]
        return heat


async def run_in(
    pool: ThreadPoolExecutor, function: Callable[..., _Output], *arguments: object
) -> _Output:
    """Call a function in a thread of a pool, which stays occupied even if the call is cancelled."""
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)
