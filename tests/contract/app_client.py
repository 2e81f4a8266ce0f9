"""Requests to an ASGI application in this process, without sockets and threads of its own."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from starlette.types import ASGIApp, Message

from tests.support.serving import Reply
from vitft.config import TrainSpec
from vitft.predict import Postprocess, open_engine
from vitft.serve import (
    AnswerFile,
    BatchQueue,
    ServeLimits,
    Session,
    access_for,
    find_pictures,
    load_pool,
    make_app,
    make_label_app,
)

KEY = "k"
"""Key of the labelling server."""


class AppClient:
    """A client that runs an application from the start to the end of its lifespan."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.runner = app, asyncio.Runner()

    def __enter__(self) -> Self:
        self.runner.run(self.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.stop())
        self.runner.close()

    async def start(self) -> None:
        """Start the application and wait until it is ready."""
        self.received = asyncio.Queue[Message]()
        self.sent = asyncio.Queue[Message]()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self.lifespan = asyncio.ensure_future(self.app(scope, self.received.get, self.sent.put))
        await self.received.put({"type": "lifespan.startup"})
        assert (await self.sent.get())["type"] == "lifespan.startup.complete"

    async def stop(self) -> None:
        await self.received.put({"type": "lifespan.shutdown"})
        await self.lifespan

    def ask(
        self, method: str, address: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request to a path with a query; the host is 127.0.0.1 unless it is given."""
        return self.runner.run(self.answer(method, address, body, headers or {}))

    async def answer(
        self, method: str, address: str, body: bytes, headers: Mapping[str, str]
    ) -> Reply:
        path, _, query = address.partition("?")
        length = {"content-length": str(len(body))} if body else {}
        sent = {"host": "127.0.0.1", **length, **{k.lower(): v for k, v in headers.items()}}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
        }
        messages: list[Message] = []
        parts = iter([{"type": "http.request", "body": body}])

        async def receive() -> Message:
            return next(parts, None) or await asyncio.get_running_loop().create_future()

        async def send(message: Message) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        head = {name.decode().lower(): value.decode() for name, value in messages[0]["headers"]}
        content = b"".join(message.get("body", b"") for message in messages[1:])
        return Reply(messages[0]["status"], head, content)


def form(*files: tuple[str, bytes], field: str = "images") -> tuple[bytes, dict[str, str]]:
    """Return the body of a form with files and its header."""
    head = f'--cut\r\nContent-Disposition: form-data; name="{field}"; filename='
    parts = [f'{head}"{name}"\r\n\r\n'.encode() + data + b"\r\n" for name, data in files]
    return b"".join(parts) + b"--cut--\r\n", {"content-type": "multipart/form-data; boundary=cut"}


@contextmanager
def served(
    run: str, limits: ServeLimits | None = None, threshold: float = 0
) -> Iterator[AppClient]:
    """Serve a run or an export as `vitft serve` does."""
    engine = open_engine(run, "cpu")
    top_k = len(engine.outputs.classes)
    postprocess = replace(Postprocess.for_run(run, engine, top_k=top_k), threshold=threshold)
    queue = BatchQueue(engine, postprocess, limits or ServeLimits())
    with AppClient(make_app(queue, access_for("127.0.0.1", ["flowers.example"]))) as client:
        yield client


@contextmanager
def labelled(
    folder: str,
    table: Path,
    *,
    weights: Path,
    classes: tuple[str, ...] = (),
    run: str | None = None,
) -> Iterator[AppClient]:
    """Serve the pictures of a folder as `vitft label` does."""
    train = TrainSpec(cache="none", device="cpu", precision="fp32")
    pool = load_pool(find_pictures(Path(folder)), weights=str(weights), run=run, train=train)
    with AnswerFile(table) as file:
        session = Session(pool, file, prefix=f"{folder}/", classes=classes)
        with AppClient(make_label_app(session, access_for("127.0.0.1", []), key=KEY)) as client:
            yield client
