"""Queue of images that are decoded in threads and predicted in batches.

A batch contains the images that are queued when the model becomes free (at most `MAX_BATCH`). A
single image therefore never waits for a batch to fill, and batches grow with the load. The queue
has a maximum length, which bounds the waiting time. Further images are rejected immediately.
"""

import asyncio
import io
import logging
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitft.explain.attribution import relevance_map
from vitft.explain.heatmaps import overlay
from vitft.predict.engine import Engine, LoadedImage, Pipeline, Views, notes_on, with_notes
from vitft.predict.postprocess import Postprocess, ScoreArray
from vitft.predict.rows import Prediction
from vitft.predict.torch_engine import Predictor
from vitft.serve.limits import MAX_BATCH, MAX_IMAGE_PIXELS, MAX_SCANS, TIDY_SECONDS, ServeLimits
from vitft.serve.uploads import RETRY_SOON
from vitft.system.errors import ImageError, UsageError
from vitft.system.malloc import return_memory

log = logging.getLogger(__name__)


_SCAN_MARKER = b"\xff\xda"
"""Marker at the start of each JPEG scan. It cannot occur in the compressed data of a scan."""


Output = TypeVar("Output")


class _PendingImage(NamedTuple):
    name: str
    view: Views  # (H, W, 3)
    prediction: "asyncio.Future[Prediction]"


class BatchQueue:
    """Queue that shares one model among concurrent requests of one event loop.

    Raises:
        RunError: The model's scores are not finite.
    """

    def __init__(self, engine: Engine, postprocess: Postprocess, limits: ServeLimits) -> None:
        self.engine, self.limits = engine, limits
        self.classes, self.transform = engine.classes, engine.transform
        self.thresholds = postprocess.thresholds
        self.pipeline = Pipeline(engine, postprocess)
        self.max_batch = min(MAX_BATCH, engine.batch)
        self.admitted = 0
        self.num_admitted = self.num_batches = self.num_predicted = 0  # since the start
        spare_cores = (os.cpu_count() or 1) - 1  # leave one for the event loop
        self.decoders = ThreadPoolExecutor(max(1, min(4, spare_cores)), "decode")
        self.model_thread = ThreadPoolExecutor(1, "model")
        self.pending: deque[_PendingImage] = deque()
        self.has_pending = asyncio.Event()
        blank = np.zeros((*self.transform.image_size, 3), np.uint8)
        self.pipeline.predict_batch([LoadedImage("", blank)])  # fail now if the weights are damaged
        reason = ""  # why images cannot be explained
        if not isinstance(engine, Predictor):
            reason = "an ONNX graph does not give gradients"
        else:
            try:
                self.relevance(blank, None)
            except UsageError as error:  # some timm models
                reason = error.problem
        self.can_explain = not reason
        if reason:
            log.info(f"predictions cannot be explained: {reason}")

    async def serve(self) -> None:
        """Predict queued images until cancelled."""
        tidying = asyncio.create_task(self.return_memory())
        try:
            while True:
                await self.has_pending.wait()
                await self.predict_batch(self.next_batch())
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
                answer = await run_in(self.model_thread, self.predict_one, data, name)
                return with_notes(answer.top(top_k), notes_on(data, self.transform))
            view = await run_in(self.decoders, self.view, data, name)
            notes = await run_in(self.decoders, notes_on, data, self.transform)
        except ImageError as error:
            return Prediction(path=name, error=error.reason, run=self.pipeline.postprocess.run_name)
        image = _PendingImage(name, view, asyncio.get_running_loop().create_future())
        self.pending.append(image)
        self.has_pending.set()
        return with_notes((await image.prediction).top(top_k), notes)

    def predict_one(self, data: bytes, name: str) -> Prediction:
        """Return the prediction for an image file, without a batch; raise like `view`."""
        loaded = LoadedImage(name, self.view(data, name))
        self.num_batches += 1
        self.num_predicted += 1
        return self.pipeline.predict_batch([loaded])[0]

    async def explain(self, data: bytes, name: str, target: int | None) -> bytes:
        """Return a PNG of an image overlaid with the relevance of its patches for a class.

        `target` is the index of the class, or None for the most probable one.
        """

        def draw() -> bytes:
            buffer = io.BytesIO()
            overlay(Image.fromarray(view), heat).save(buffer, "PNG")
            return buffer.getvalue()

        view = await run_in(self.decoders, self.view, data, name)
        heat = await run_in(self.model_thread, self.relevance, view, target)
        return await run_in(self.decoders, draw)

    async def return_memory(self) -> None:
        """Return freed memory to the system at intervals while there are requests."""
        seen = self.num_admitted
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            if self.num_admitted != seen:
                seen = self.num_admitted if self.admitted == 0 else -1  # -1: repeat once idle
                await asyncio.to_thread(return_memory)

    def next_batch(self) -> list[_PendingImage]:
        """Remove and return the next batch from the queue, without cancelled images."""
        batch: list[_PendingImage] = []
        while self.pending and len(batch) < self.max_batch:
            image = self.pending.popleft()
            if not image.prediction.done():
                batch.append(image)
        if not self.pending:
            self.has_pending.clear()
        return batch

    async def predict_batch(self, batch: list[_PendingImage]) -> None:
        """Predict a batch and set the result, or an exception, for each image in it."""
        if not batch:
            return
        results: list[Prediction] | Exception
        try:
            self.num_batches += 1
            self.num_predicted += len(batch)
            loaded = [LoadedImage(image.name, image.view) for image in batch]
            results = await run_in(self.model_thread, self.pipeline.predict_batch, loaded)
        except Exception as error:  # raised again by each request
            results = error
        for i, image in enumerate(batch):
            if image.prediction.done():
                continue
            if isinstance(results, Exception):
                image.prediction.set_exception(results)
            else:
                image.prediction.set_result(results[i])

    def view(self, data: bytes, name: str) -> Views:
        """Return a decoded and preprocessed image file (H, W, 3)."""
        if data.startswith(b"\xff\xd8") and data.count(_SCAN_MARKER) > MAX_SCANS:
            raise ImageError(name, f"JPEG with more than {MAX_SCANS} scans")
        return self.engine.view(data, name, max_pixels=MAX_IMAGE_PIXELS)

    def relevance(self, view: Views, target: int | None) -> ScoreArray:
        """Return the relevance (gh, gw) of the patches of a view (H, W, 3), from 0 to 1."""
        assert isinstance(self.engine, Predictor)
        targets = None if target is None else torch.tensor([target])
        inputs = self.engine.inputs(view[None])
        heat: ScoreArray = relevance_map(self.engine.model, inputs, targets)[0]
        return heat


async def run_in(
    pool: ThreadPoolExecutor, function: Callable[..., Output], *arguments: object
) -> Output:
    """Call a function in a thread of a pool, and return the result or raise the exception.

    Even if the call is cancelled, the thread is occupied until the function returns.
    """
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


# metrics of the server in the text format of Prometheus, for `GET /metrics`, and the access log ---

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of the latency histogram, in seconds."""
_OTHER = "other"
"""Label of all paths without a route, so that requests cannot create new labels."""


request_log = logging.getLogger("vitft.serve.requests")
"""Logger of the access log, with one record of level DEBUG per request."""


class ServerMetrics:
    """ASGI middleware that counts and logs every request, including rejected ones."""

    def __init__(self, queue: BatchQueue) -> None:
        self.queue, self.started = queue, time.time()
        self.app: ASGIApp
        self.paths: Collection[str] = ()
        """Paths of the routes."""
        self.requests = Counter[tuple[str, int]]()
        """Number of requests by path and status."""
        self.buckets = Counter[tuple[str, float]]()
        """Number of requests by path and upper bound of the duration in seconds."""
        self.seconds = defaultdict[str, float](float)
        """Total duration of the requests by path, from the headers to the end of the response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - started
            name = scope["path"] if scope["path"] in self.paths else _OTHER
            self.requests[name, status] += 1
            self.seconds[name] += seconds
            self.buckets.update((name, bound) for bound in _LATENCY_BOUNDS if seconds <= bound)
            if request_log.isEnabledFor(logging.DEBUG):
                # Uvicorn's own access log has neither the time nor the duration.
                now = datetime.now().astimezone().isoformat(timespec="seconds")
                what = f"{(scope.get('client') or '-')[0]} {scope['method']} {scope['path']}"
                request_log.debug(f"{now} {what} {status} {1000 * seconds:.1f} ms")

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        queue = self.queue
        run = queue.pipeline.postprocess.run_name.encode("utf-8", "replace").decode()
        run = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        requests = [
            (f'{{path="{path}",status="{status}"}}', number)
            for (path, status), number in sorted(self.requests.items())
        ]
        times: list[tuple[str, float | str]] = []
        for path, seconds in sorted(self.seconds.items()):
            total = sum(n for (name, _), n in self.requests.items() if name == path)
            counts = [(str(bound), self.buckets[path, bound]) for bound in _LATENCY_BOUNDS]
            for edge, number in (*counts, ("+Inf", total)):
                times.append((f'_bucket{{path="{path}",le="{edge}"}}', number))
            times.append((f'_sum{{path="{path}"}}', f"{seconds:.6f}"))
            times.append((f'_count{{path="{path}"}}', total))
        of_model = f'{{version="{version("vitft")}",run="{run}"}}'
        started, limit = [("", self.started)], [("", queue.limits.queue)]
        families: tuple[tuple[str, str, Sequence[tuple[str, object]], str], ...] = (
            ("info", "gauge", [(of_model, 1)], "Version and run of the model (always 1)."),
            ("start_time_seconds", "gauge", started, "Time when the model was ready."),
            ("queue_images", "gauge", [("", queue.admitted)], "Images that wait or are computed."),
            ("queue_limit", "gauge", limit, "Maximum of vitft_queue_images."),
            ("batches_total", "counter", [("", queue.num_batches)], "Batches that were predicted."),
            ("images_total", "counter", [("", queue.num_predicted)], "Images in these batches."),
            ("requests_total", "counter", requests, "Requests by path and status."),
            ("request_seconds", "histogram", times, "Time from headers to end of response."),
        )
        lines = []
        for name, kind, values, text in families:
            lines += [f"# HELP vitft_{name} {text}", f"# TYPE vitft_{name} {kind}"]
            lines += [f"vitft_{name}{label} {value}" for label, value in values]
        return "".join(f"{line}\n" for line in lines)
