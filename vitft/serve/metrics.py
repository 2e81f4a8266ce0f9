"""Metrics of the server in the text format of Prometheus, for `GET /metrics`, and the access log.

All counters change in the event loop, so they need no lock. Requests that are refused before their
headers are complete are not counted.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, text format 0.0.4.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.metadata import version

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitft.serve.batching import BatchQueue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of the latency histogram, in seconds."""
_OTHER = "other"
"""Label of all paths without a route, so that requests cannot create new labels."""


request_log = logging.getLogger("vitft.serve.requests")
"""Logger of the access log, with one record of level DEBUG per request."""


class ServerMetrics:
    """Counts and durations of requests, and the state of the queue."""

    def __init__(self, queue: BatchQueue) -> None:
        self.queue, self.started = queue, time.time()
        self.paths: Sequence[str] = ()
        """Paths of the routes."""
        self.requests = Counter[tuple[str, int]]()
        """Number of requests by path and status."""
        self.buckets = Counter[tuple[str, float]]()
        """Number of requests by path and upper bound of the duration in seconds."""
        self.seconds = dict[str, float]()
        """Total duration of the requests by path."""

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request that took `seconds` from its headers to the end of the response."""
        name = path if path in self.paths else _OTHER
        self.requests[name, status] += 1
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        for bound in _LATENCY_BOUNDS:
            self.buckets[name, bound] += seconds <= bound

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return "".join(f"{line}\n" for line in self.lines())

    def lines(self) -> Iterator[str]:
        queue = self.queue
        run = queue.pipeline.postprocess.run_name.encode("utf-8", "replace").decode()
        run = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield from family("info", "gauge", "Version and run of the model; always 1.")
        yield f'vitft_info{{version="{version("vitft")}",run="{run}"}} 1'
        for name, kind, value, text in (
            ("start_time_seconds", "gauge", self.started, "Time when the model was ready."),
            ("queue_images", "gauge", queue.admitted, "Images that wait or are computed."),
            ("queue_limit", "gauge", queue.limits.queue, "Maximum of vitft_queue_images."),
            ("batches_total", "counter", queue.num_batches, "Batches that were predicted."),
            ("images_total", "counter", queue.num_predicted, "Images in these batches."),
        ):
            yield from family(name, kind, text)
            yield f"vitft_{name} {value}"
        yield from family("requests_total", "counter", "Requests by path and status.")
        for (path, status), number in sorted(self.requests.items()):
            yield f'vitft_requests_total{{path="{path}",status="{status}"}} {number}'
        yield from family("request_seconds", "histogram", "Time from headers to end of response.")
        for path, seconds in sorted(self.seconds.items()):
            total = sum(n for (name, _), n in self.requests.items() if name == path)
            counts = [(str(bound), self.buckets[path, bound]) for bound in _LATENCY_BOUNDS]
            for edge, number in (*counts, ("+Inf", total)):
                yield f'vitft_request_seconds_bucket{{path="{path}",le="{edge}"}} {number}'
            yield f'vitft_request_seconds_sum{{path="{path}"}} {seconds:.6f}'
            yield f'vitft_request_seconds_count{{path="{path}"}} {total}'


def family(name: str, kind: str, text: str) -> tuple[str, str]:
    """Return the lines that precede the values of a metric."""
    return f"# HELP vitft_{name} {text}", f"# TYPE vitft_{name} {kind}"


class MetricsMiddleware:
    """ASGI middleware that counts and logs every request, including those that are refused."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self.app, self.metrics = app, metrics

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
            self.metrics.add(scope["path"], status, seconds)
            if request_log.isEnabledFor(logging.DEBUG):
                # Uvicorn's own access log has neither the time nor the duration.
                now = datetime.now().astimezone().isoformat(timespec="seconds")
                what = f"{(scope.get('client') or '-')[0]} {scope['method']} {scope['path']}"
                request_log.debug(f"{now} {what} {status} {1000 * seconds:.1f} ms")
