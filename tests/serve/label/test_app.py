"""Requests to the labelling server, without a process of its own, and its responses to errors."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image
from starlette.requests import Request
from starlette.types import Message

from tests.serve.label.test_session import NAMES, make_pool, opened, rows, truth
from tests.support.serving import Reply
from vitft.data.grey_levels import GreyRange
from vitft.serve.access import access_for
from vitft.serve.label.app import LABEL_PAGE, LabelHandlers, make_label_app, user_error
from vitft.serve.label.session import Session
from vitft.system.errors import DataError, ResourceError, RunError, UsageError, VitftError

KEY = "the key"


@dataclass(frozen=True, slots=True)
class LocalClient:
    """A client of an application in this process."""

    app: Any
    key: str = KEY

    async def ask(
        self, method: str, path: str, query: str = "", body: Any = b"", **headers: str
    ) -> Reply:
        """Send a request with the key; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"host": "127.0.0.1", "content_type": "application/json", **headers}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": f"key={self.key.replace(' ', '+')}{query}".encode(),
            "headers": [(n.replace("_", "-").encode(), v.encode()) for n, v in sent.items()],
        }
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": data}

        async def send(message: Message) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        head = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        return Reply(messages[0]["status"], head, b"".join(m.get("body", b"") for m in messages))

    async def get(self, path: str, query: str = "") -> Reply:
        return await self.ask("GET", path, query)

    async def post(self, path: str, body: Any, query: str = "", **headers: str) -> Reply:
        return await self.ask("POST", path, query, body, **headers)


@asynccontextmanager
async def started(session: Session) -> AsyncIterator[LocalClient]:
    """Run the application of a session from its start to its end."""
    app = make_label_app(session, access_for("127.0.0.1", []), key=KEY)
    inner = cast("FastAPI", app.app)
    async with inner.router.lifespan_context(inner):
        yield LocalClient(app)


def served(
    folder: Path,
    requests: Callable[[Session, LocalClient], Coroutine[Any, Any, None]],
    *,
    grey_range: GreyRange = (),
) -> None:
    """Make requests to the server of a session whose pictures are in `folder`."""
    pool = replace(make_pool(), root=folder, grey_range=grey_range)

    async def run() -> None:
        with opened(folder, pool, classes=NAMES) as session:
            async with started(session) as client:
                await requests(session, client)

    asyncio.run(run())


def state_of(session: Session, mode: Any = "mixed") -> Any:
    """Return a state as the page receives it."""
    return json.loads(json.dumps(session.state(mode)))


def test_each_change_is_recorded_and_answered_with_the_new_state(tmp_path: Path) -> None:
    async def requests(session: Session, client: LocalClient) -> None:
        assert (await client.get("/state")).json == state_of(session)
        first, second, third = session.questions("mixed")

        picked = {"picture": first.picture, "label": truth(first.picture)}
        reply = await client.post("/answer", picked)
        assert (reply.status, reply.json) == (200, state_of(session))
        assert reply.json["answered"] == 1

        reply = await client.post("/skip", {"picture": second.picture})
        assert (reply.status, reply.json) == (200, state_of(session))
        assert (reply.json["answered"], reply.json["skipped"]) == (1, 1)

        _, one, two, out = (int(i) for i in session.open_pictures()[:4])
        group = {"pictures": [one, two], "label": "rose", "taken_out": [out]}
        reply = await client.post("/confirm", group)
        assert (reply.status, reply.json) == (200, state_of(session))
        assert (reply.json["answered"], reply.json["question"]["picture"]) == (3, out)
        assert len(rows(tmp_path)) == 5  # picture 1 has two files

        reply = await client.post("/undo", {})
        assert (reply.status, reply.json) == (200, state_of(session))
        assert (reply.json["answered"], len(rows(tmp_path))) == (1, 2)
        assert third.picture not in session.kind_of

    served(tmp_path, requests)


@pytest.mark.parametrize("path", ["/state", "/answer", "/confirm", "/skip", "/undo"])
def test_the_new_state_is_that_of_the_mode(tmp_path: Path, path: str) -> None:
    async def requests(session: Session, client: LocalClient) -> None:
        pictures = [i for i, label in enumerate(map(truth, range(200))) if label == "tulip"]
        one, two = [i for i in pictures if i not in session.audit_sample][:2]
        session.answer(two, "tulip")
        bodies: dict[str, Any] = {
            "/answer": {"picture": one, "label": "tulip"},
            "/confirm": {"pictures": [one], "label": "tulip", "taken_out": []},
            "/skip": {"picture": one},
        }
        method = "GET" if path == "/state" else "POST"
        for mode, kind in (("mixed", "picked"), ("audit", "audit")):
            if mode == "audit" and path in bodies:
                session.undo()
            reply = await client.ask(method, path, f"&mode={mode}", bodies.get(path, b""))
            assert (reply.status, reply.json["question"]["kind"]) == (200, kind)
            assert reply.json == state_of(session, mode)

    served(tmp_path, requests)


def test_likely_pictures_of_a_class_have_their_probabilities(tmp_path: Path) -> None:
    async def requests(session: Session, client: LocalClient) -> None:
        for _ in range(6):
            picture = session.questions("mixed")[0].picture
            session.answer(picture, truth(picture))

        reply = await client.get("/likely", "&class=rose")

        expected = [{"picture": i, "probability": p} for i, p in session.likely("rose")]
        assert len(expected) == 40
        assert (reply.status, reply.json) == (200, {"class": "rose", "pictures": expected})
        assert (await client.get("/likely")).status == 422
        unknown = await client.get("/likely", "&class=oak")
        assert (unknown.status, unknown.json) == (
            422,
            {"error": "there is no class oak", "fix": "reload the page"},
        )

    served(tmp_path, requests)


def test_pictures_are_jpegs_of_the_size_asked_for(tmp_path: Path) -> None:
    Image.new("RGB", (2000, 500), (200, 30, 40)).save(tmp_path / "000.jpg")
    Image.new("RGB", (90, 60), (40, 30, 200)).save(tmp_path / "199.jpg")

    async def requests(_: Session, client: LocalClient) -> None:
        sizes = {}
        for number, side in ((0, 1600), (0, 100), (0, 1), (199, 100), (199, 60)):
            reply = await client.get("/picture", f"&number={number}&side={side}")
            assert reply.status == 200
            assert reply.headers["content-type"] == "image/jpeg"
            assert reply.headers["cache-control"] == "private, max-age=86400"
            with Image.open(BytesIO(reply.body), formats=["JPEG"]) as image:
                sizes[number, side] = image.size
        assert sizes == {
            (0, 1600): (1600, 400),
            (0, 100): (100, 25),
            (0, 1): (1, 1),
            (199, 100): (90, 60),
            (199, 60): (60, 40),
        }

    served(tmp_path, requests)


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ("number=200&side=100", 404, "there is no picture 200"),
        ("number=-1&side=100", 422, "invalid number '-1': use an integer of 0 or more"),
        ("number=0&side=0", 422, "invalid side '0': use an integer of 1 or more"),
        ("number=0&side=1601", 422, "invalid side '1601': use an integer of at most 1,600"),
        ("number=0", 422, "the query parameter side is missing"),
        ("number=0&side=100", 410, "the picture can no longer be read: "),
    ],
)
def test_a_picture_that_cannot_be_shown_is_an_error(
    tmp_path: Path, query: str, status: int, error: str
) -> None:
    async def requests(_: Session, client: LocalClient) -> None:
        reply = await client.get("/picture", f"&{query}")
        assert reply.status == status
        assert reply.json["error"].startswith(error)
        assert status == 410 or reply.json["error"] == error

    served(tmp_path, requests)


@pytest.mark.parametrize(("grey_range", "grey"), [((), 0), ((0, 200), 128)])
def test_grey_levels_of_pictures_are_scaled_with_the_range_of_the_pool(
    tmp_path: Path, grey_range: GreyRange, grey: int
) -> None:
    Image.fromarray(np.full((8, 8), 100, np.uint16)).save(tmp_path / "000.jpg", format="PNG")

    async def requests(_: Session, client: LocalClient) -> None:
        reply = await client.get("/picture", "&number=0&side=8")
        with Image.open(BytesIO(reply.body), formats=["JPEG"]) as image:
            assert abs(int(np.asarray(image).mean()) - grey) <= 1

    served(tmp_path, requests, grey_range=grey_range)


@pytest.mark.parametrize(
    ("media", "status"),
    [
        ("application/json", 200),
        ("Application/JSON ; charset=utf-8", 200),
        ("text/plain; application/json", 415),
        ("application/json2", 415),
        ("", 415),
    ],
)
def test_bodies_are_sent_as_json(tmp_path: Path, media: str, status: int) -> None:
    async def requests(_: Session, client: LocalClient) -> None:
        reply = await client.post("/skip", {"picture": 0}, content_type=media)
        assert reply.status == status
        assert status == 200 or reply.json == {"error": "send application/json"}

    served(tmp_path, requests)


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/skip", b"{", 400, "the body is not valid JSON: "),
        ("/skip", {"picture": "0"}, 422, ""),
        ("/skip", {"picture": -1}, 422, ""),
        ("/skip", {"picture": 200}, 422, "there is no picture 200"),
        ("/answer", {"picture": 0, "label": "a|b"}, 422, "invalid class name 'a|b'"),
        ("/answer", {"picture": 0}, 422, ""),
        ("/confirm", {"pictures": [], "label": "rose", "taken_out": []}, 422, "these pictures"),
        ("/confirm", {"pictures": [1], "label": "rose"}, 422, ""),
        ("/confirm", {"pictures": [1], "label": "rose", "taken_out": [-1]}, 422, ""),
        ("/skip", b'{"picture": 0' + b" " * 19_986 + b"}", 200, ""),
        ("/skip", b'{"picture": 0' + b" " * 19_987 + b"}", 413, "the request is larger than 0.02"),
    ],
)
def test_a_body_that_cannot_be_used_changes_nothing(
    tmp_path: Path, path: str, body: Any, status: int, error: str
) -> None:
    async def requests(_: Session, client: LocalClient) -> None:
        reply = await client.post(path, body)
        assert reply.status == status
        if status != 200:
            assert reply.json["error"].startswith(error)
        assert len(rows(tmp_path)) == (status == 200)

    served(tmp_path, requests)


def test_bodies_in_memory_have_at_most_160_kilobytes(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        assert LabelHandlers(session).memory.limit == 160_000


def test_a_table_that_another_program_changed_is_a_conflict(tmp_path: Path) -> None:
    async def requests(_: Session, client: LocalClient) -> None:
        (tmp_path / "labels.csv").write_text("path,label,chosen\n")
        reply = await client.post("/skip", {"picture": 0})
        assert reply.status == 409
        assert set(reply.json) == {"error", "fix"}

    served(tmp_path, requests)


def test_the_page_may_use_its_own_style_script_and_pictures_only(tmp_path: Path) -> None:
    async def requests(_: Session, client: LocalClient) -> None:
        reply = await client.get("/")
        page, policy = reply.body.decode(), reply.headers["content-security-policy"]
        assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "img-src 'self' data:; connect-src 'self';" in policy
        style, script = (
            page.partition(f"<{n}>")[2].partition("</")[0] for n in ("style", "script")
        )
        for text, file in ((style, "page.css"), (script, "page.js")):
            own = (LABEL_PAGE / file).read_text(encoding="utf-8")
            assert text.endswith(own)
            assert len(text) > len(own)  # what all pages share comes first

    served(tmp_path, requests)


def test_every_path_names_its_methods_and_no_other_path_exists(tmp_path: Path) -> None:
    async def requests(_: Session, client: LocalClient) -> None:
        for path in ("/", "/state", "/likely", "/picture"):
            options = await client.ask("OPTIONS", path)
            assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
            wrong = await client.post(path, {})
            assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        for path in ("/answer", "/confirm", "/skip", "/undo"):
            wrong = await client.get(path)
            assert (wrong.status, wrong.headers["allow"]) == (405, "POST, OPTIONS")
            assert wrong.json == {"error": "method not allowed; use POST, OPTIONS"}
        for path in ("/state/", "/openapi.json", "/docs", "/predict"):
            reply = await client.get(path)
            assert (reply.status, reply.json) == (404, {"error": "not found"})

    served(tmp_path, requests)


@pytest.mark.parametrize(
    ("key", "query", "status"),
    [
        (KEY, "", 200),
        ("", "", 403),
        ("the", "", 403),
        ("x", f"&key={KEY}", 200),
        (KEY, "&key=x", 403),
    ],
)
def test_a_request_needs_the_key(tmp_path: Path, key: str, query: str, status: int) -> None:
    async def requests(session: Session, client: LocalClient) -> None:
        reply = await replace(client, key=key).post("/skip", {"picture": 0}, query)
        assert reply.status == status
        if status == 403:
            problem = "wrong or missing key; open the address that was printed at startup"
            assert reply.json == {"error": problem}
        assert len(session.kind_of) == (status == 200)

    served(tmp_path, requests)


def test_one_thread_records_answers_and_two_render_until_the_end(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    started_here: list[threading.Thread] = []

    async def requests(_: Session, __: LocalClient) -> None:
        started_here.extend(t for t in threading.enumerate() if t not in before)
        names = sorted(t.name for t in started_here)
        assert names == ["render-0", "render-1", "session-0"]

    served(tmp_path, requests)

    assert len(started_here) == 3
    for thread in started_here:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("kind", "status"), [(UsageError, 422), (DataError, 409), (RunError, 500), (ResourceError, 500)]
)
def test_the_kind_of_an_error_is_its_status(kind: type[VitftError], status: int) -> None:
    response = asyncio.run(user_error(Request({"type": "http"}), kind("bad", fix="better")))

    assert response.status_code == status
    assert json.loads(bytes(response.body)) == {"error": "bad", "fix": "better"}
