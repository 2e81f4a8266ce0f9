"""A hub on loopback: enough of the protocol for huggingface_hub to believe it.

It serves models' files as large (LFS) ones: HEAD and GET on `resolve` answer with the commit and
the sha256, and redirect to a second port that plays the CDN. Faults are chosen per repository.
"""

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Repo:
    """One repository; `fault` is "", "gated", "flip" (a bit), "short", "503" or "login page"."""

    files: Mapping[str, bytes]
    fault: str = ""


@dataclass
class HubServer:
    """Use as a context manager; `endpoint` is the value for HF_ENDPOINT."""

    repos: Mapping[str, Repo]
    requests: list[str] = field(default_factory=list)
    """Method and path of every request, to the hub and to the CDN."""

    def __enter__(self) -> Self:
        self.cdn = serve(type("Cdn", (CdnHandler,), {"hub": self}))
        self.hub = serve(type("Hub", (HubHandler,), {"hub": self}))
        self.endpoint = address(self.hub)
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.hub, self.cdn):
            server.shutdown()
            server.server_close()

    def blob(self, digest: str) -> tuple[Repo, bytes]:
        """The content with this sha256, and the repository that has it."""
        for repo in self.repos.values():
            for content in repo.files.values():
                if hashlib.sha256(content).hexdigest() == digest:
                    return repo, content
        raise KeyError(digest)


def serve(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """A server on a free port of loopback, in a thread of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def address(server: ThreadingHTTPServer) -> str:
    """Its URL."""
    return f"http://127.0.0.1:{server.server_port}"


class Handler(BaseHTTPRequestHandler):
    """What hub and CDN share: HTTP/1.1, silence, and one way to answer."""

    protocol_version = "HTTP/1.1"
    hub: HubServer

    def do_HEAD(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        self.respond()

    def do_GET(self) -> None:
        self.do_HEAD()

    def respond(self) -> None:
        raise NotImplementedError

    def answer(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class HubHandler(Handler):
    """`/owner/name/resolve/revision/file`."""

    def respond(self) -> None:
        name, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        repo = self.hub.repos.get(name)
        if repo is None:
            self.refuse(404, "RepoNotFound")
        elif repo.fault == "gated":
            self.refuse(403, "GatedRepo")
        elif repo.fault == "login page":
            self.answer(200, {"Content-Type": "text/html"}, b"<html>Welcome to our Wi-Fi</html>")
        elif revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound")
        elif file not in repo.files:
            self.refuse(404, "EntryNotFound")
        else:
            digest = hashlib.sha256(repo.files[file]).hexdigest()
            headers = {
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(repo.files[file])),
                "Location": f"{address(self.hub.cdn)}/{digest}",
            }
            self.answer(302, headers)

    def refuse(self, status: int, code: str) -> None:
        """The header decides which exception the client raises."""
        self.answer(status, {"X-Error-Code": code, "X-Error-Message": code})


class CdnHandler(Handler):
    """`/sha256`."""

    def respond(self) -> None:
        repo, content = self.hub.blob(self.path.lstrip("/"))
        if repo.fault == "503":
            self.answer(503, {})
        elif repo.fault == "short":
            self.answer(200, {}, content[:-10])
        elif repo.fault == "flip":
            self.answer(200, {}, content[:-1] + bytes([content[-1] ^ 1]))
        else:
            self.answer(200, {}, content)
