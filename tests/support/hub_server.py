"""A loopback hub: enough of the protocol for huggingface_hub, timm and transformers.

It also accepts uploads: a repository is created, large files go to the CDN through LFS, and a
commit names them and the small files. Only clients with the token `HubServer.writer` may write.

Weight files are served as large (LFS) files: HEAD and GET on `resolve` answer with the commit and
the sha256, and redirect to a second port that plays the CDN. Other files are served as git files,
by the hub itself. Faults are chosen per repository; see `FAULTS`.

Source: the protocol as read in huggingface_hub 2.4 and measured against it.
"""

import base64
import hashlib
import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
LARGE = (".safetensors", ".bin", ".pth")

FAULTS = {
    "gated": "403 until the terms are accepted",
    "token": "401 without the repository's token",
    "html": "a login page instead of the hub",
    "loop": "a redirect to itself",
    "no_commit": "an answer without the commit",
    "no_etag": "an answer without a digest",
    "wrong_etag": "the sha256 of another content",
    "retry_after": "429 with Retry-After: 1 on the question",
    "busy": "503 on the question",
    "mute": "no answer to the question",
    "xet": "Xet storage announced, behind a port where nobody listens",
    "status": "503 on the download",
    "drop": "the connection closed after half of the body",
    "reset": "the connection reset after half of the body",
    "stall": "silence after half of the body",
    "shorter": "ten bytes too few",
    "longer": "ten bytes too many",
    "corrupt": "one bit flipped",
}


@dataclass
class Repo:
    """One repository."""

    files: dict[str, bytes]
    fault: str = ""
    """One of `FAULTS`; none by default."""
    times: int = 1_000_000
    """Number of requests that fail before the repository works."""
    token: str = ""
    """The token that the fault "token" requires."""
    commit: str = COMMIT
    private: bool = False
    branches: set[str] = field(default_factory=lambda: {"main"})

    def strikes(self, *faults: str) -> bool:
        """Return whether this repository has one of these faults and must still fail."""
        if self.fault not in faults or self.times <= 0:
            return False
        self.times -= 1
        return True


@dataclass
class HubServer:
    """A hub on loopback, as a context manager; `endpoint` is the value for HF_ENDPOINT."""

    repos: dict[str, Repo]
    requests: list[str] = field(default_factory=list)
    """Method and path of every request, to the hub and to the CDN."""
    tokens: dict[str, set[str]] = field(default_factory=lambda: {"hub": set(), "cdn": set()})
    """Every Authorization header that hub and CDN have received."""
    writer: str = ""
    """The token with write access; by default nobody has it."""
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files that were uploaded, by their sha256."""

    def __enter__(self) -> Self:
        self.closing = threading.Event()
        self.cdn = serve(type("Cdn", (CdnHandler,), {"hub": self}))
        self.hub = serve(type("Hub", (HubHandler,), {"hub": self}))
        self.endpoint = address(self.hub)
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for server in (self.hub, self.cdn):
            server.shutdown()
            server.server_close()

    def file(self, path: str) -> tuple[Repo, bytes]:
        """Return the repository and content of a CDN path /owner/name/file."""
        owner, name, file = path.lstrip("/").split("/", 2)
        repo = self.repos[f"{owner}/{name}"]
        return repo, repo.files[file]


class QuietServer(ThreadingHTTPServer):
    """An HTTP server that does not report clients that disconnect."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing."""


def serve(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Start a server on a free loopback port in a thread."""
    server = QuietServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def address(server: ThreadingHTTPServer, host: str = "127.0.0.1") -> str:
    """Return its URL. The CDN has another host name, as some clients ignore ports in redirects."""
    return f"http://{host}:{server.server_port}"


def git_sha1(content: bytes) -> str:
    """Return the object name that git gives to a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Base of hub and CDN: HTTP/1.1, no logging, and responses."""

    protocol_version = "HTTP/1.1"
    hub: HubServer
    role = ""

    def do_HEAD(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        if authorization := self.headers.get("Authorization"):
            self.hub.tokens[self.role].add(authorization)
        self.respond()

    do_GET = do_POST = do_PUT = do_HEAD

    def body(self) -> bytes:
        """Return the request body, whether sent whole or in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def respond(self) -> None:
        raise NotImplementedError

    def answer(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, content: object) -> None:
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class HubHandler(Handler):
    """The hub: `/owner/name/resolve/revision/file` and the API calls of snapshot_download."""

    role = "hub"

    def respond(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        if self.command == "POST":
            self.receive(path, self.body())
            return
        if path.startswith("api/"):
            self.respond_api(path)
            return
        name, _, rest = path.partition("/resolve/")
        repo = self.hub.repos.get(name)
        if repo is None:
            self.refuse(404, "RepoNotFound")
        elif not self.fails(repo):
            revision, _, file = rest.partition("/")
            if revision not in (*repo.branches, repo.commit):
                self.refuse(404, "RevisionNotFound")
            elif file not in repo.files:
                self.refuse(404, "EntryNotFound", {"X-Repo-Commit": repo.commit})
            else:
                self.resolve(name, repo, file)

    def fails(self, repo: Repo) -> bool:
        """Answer with the repository's fault, if it has one; return whether it did."""
        if repo.fault == "gated":
            self.refuse(403, "GatedRepo")
        elif repo.fault == "token" and self.headers.get("Authorization") != f"Bearer {repo.token}":
            self.refuse(401, "RepoNotFound")
        elif repo.fault == "html":
            self.answer(200, {"Content-Type": "text/html"}, b"<html>Welcome to our Wi-Fi</html>")
        elif repo.fault == "loop":
            self.answer(302, {"Location": self.path})
        elif repo.strikes("retry_after"):
            self.answer(429, {"Retry-After": "1"})
        elif repo.strikes("busy"):
            self.answer(503, {})
        elif repo.strikes("mute"):
            self.hub.closing.wait(30)
        else:
            return False
        return True

    def resolve(self, name: str, repo: Repo, file: str) -> None:
        """Answer with a git file, or with the digest and CDN location of a large file."""
        content = repo.files[file]
        headers = {"X-Repo-Commit": repo.commit}
        if repo.fault == "no_commit":
            headers = {}
        if not file.endswith(LARGE):
            self.answer(200, {**headers, "ETag": f'"{git_sha1(content)}"'}, content)
            return
        announced = content + b"another" if repo.fault == "wrong_etag" else content
        if repo.fault != "no_etag":
            headers["X-Linked-Etag"] = f'"{hashlib.sha256(announced).hexdigest()}"'
        headers["X-Linked-Size"] = str(len(content))
        headers["Location"] = f"{address(self.hub.cdn, 'localhost')}/{name}/{file}"
        if repo.fault == "xet":
            headers["X-Xet-Hash"] = "0" * 64
            headers["X-Xet-Refresh-Route"] = f"{self.hub.endpoint}/api/xet-token"
        self.answer(302, headers)

    def respond_api(self, path: str) -> None:
        """Answer the requests of snapshot_download: the commit and the files, then the tree."""
        if path == "api/xet-token":
            dead = {"X-Xet-Cas-Url": "http://10.255.255.1:9", "X-Xet-Access-Token": "t"}
            self.answer(200, {**dead, "X-Xet-Token-Expiration": str(int(time.time()) + 3600)})
            return
        match = re.fullmatch(r"api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path)
        repo = self.hub.repos.get(match[1]) if match else None
        if match is None or repo is None:
            self.refuse(404, "RepoNotFound")
        elif match[2] == "tree":
            self.answer_json([self.listed(name, repo) for name in repo.files])
        else:
            siblings = [{"rfilename": name} for name in repo.files]
            facts = {"id": match[1], "modelId": match[1], "sha": repo.commit, "private": False}
            self.answer_json({**facts, "siblings": siblings, "tags": [], "downloads": 0})

    def listed(self, name: str, repo: Repo) -> dict[str, object]:
        """Return one entry of a tree listing."""
        content = repo.files[name]
        row: dict[str, object] = {"type": "file", "path": name, "size": len(content)}
        row["oid"] = git_sha1(content)
        if name.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            row["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
        return row

    def receive(self, path: str, body: bytes) -> None:
        """Answer the requests of an upload, in the order of the protocol."""
        if path == "api/validate-yaml":
            self.answer_json({"errors": [], "warnings": []})
            return
        if self.headers.get("Authorization") != f"Bearer {self.hub.writer}":
            self.refuse(403, "", {"X-Error-Message": "this token may not write"})
            return
        match = re.fullmatch(
            r"(?:api/models/)?([^/]+/[^/.]+)(?:\.git)?/(preupload|branch|info|commit)(?:/(.+))?",
            path,
        )
        if path == "api/repos/create":
            self.create(json.loads(body))
        elif match is None or match[1] not in self.hub.repos:
            self.refuse(404, "RepoNotFound")
        elif match[2] == "branch":
            self.hub.repos[match[1]].branches.add(match[3])
            self.answer_json({})
        elif match[2] == "preupload":
            large = [(f["path"], f["path"].endswith(LARGE)) for f in json.loads(body)["files"]]
            modes = [
                {"path": name, "uploadMode": "lfs" if is_large else "regular"}
                for name, is_large in large
            ]
            self.answer_json({"files": [{**mode, "shouldIgnore": False} for mode in modes]})
        elif match[2] == "info":
            self.receive_large(json.loads(body))
        else:
            self.commit(match[1], [json.loads(line) for line in body.splitlines()])

    def create(self, request: dict[str, object]) -> None:
        """Create a repository, or answer that it exists."""
        name = f"{request.get('organization') or 'me'}/{request['name']}"
        made = {"url": f"{self.hub.endpoint}/{name}", "name": name}
        if name in self.hub.repos:
            self.answer(409, {"Content-Type": "application/json"}, json.dumps(made).encode())
            return
        self.hub.repos[name] = Repo({}, private=request.get("visibility") == "private")
        self.answer_json(made)

    def receive_large(self, request: dict[str, list[dict[str, object]]]) -> None:
        """Answer with the upload location of each large file (LFS batch)."""
        upload = f"{address(self.hub.cdn, 'localhost')}/upload"
        objects = [
            {**each, "actions": {"upload": {"href": f"{upload}/{each['oid']}"}}}
            for each in request["objects"]
        ]
        self.answer_json({"transfer": "basic", "objects": objects})

    def commit(self, name: str, lines: list[dict[str, dict[str, str]]]) -> None:
        """Add the files of a commit to the repository."""
        repo = self.hub.repos[name]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":  # type: ignore[comparison-overlap]
                repo.files[value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":  # type: ignore[comparison-overlap]
                repo.files[value["path"]] = self.hub.stored[value["oid"]]
        parts = [name + hashlib.sha256(content).hexdigest() for name, content in repo.files.items()]
        repo.commit = hashlib.sha1("".join(parts).encode(), usedforsecurity=False).hexdigest()
        url = f"{self.hub.endpoint}/{name}/commit/{repo.commit}"
        self.answer_json({"commitUrl": url, "commitOid": repo.commit, "pullRequestUrl": None})

    def refuse(self, status: int, code: str, more: Mapping[str, str] | None = None) -> None:
        """Answer with an error; its header determines the exception that the client raises."""
        self.answer(status, {"X-Error-Code": code, "X-Error-Message": code, **(more or {})})


class CdnHandler(Handler):
    """The CDN: `/owner/name/file`, from any byte."""

    role = "cdn"

    def respond(self) -> None:
        if self.command == "PUT":
            content = self.body()
            self.hub.stored[hashlib.sha256(content).hexdigest()] = content
            self.answer(200, {"ETag": '"whole"'})
            return
        repo, content = self.hub.file(unquote(self.path))
        start = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(start[1]) if start else 0
        body = content[first:]
        if repo.strikes("status"):
            self.answer(503, {})
        elif repo.strikes("shorter"):
            self.answer(200, {}, content[:-10])
        elif repo.strikes("longer"):
            self.answer(200, {}, content + bytes(10))
        elif repo.strikes("corrupt"):
            self.answer(200, {}, content[:-1] + bytes([content[-1] ^ 1]))
        elif repo.strikes("drop", "reset", "stall"):
            self.break_off(repo.fault, body)
        elif start:
            span = f"bytes {first}-{len(content) - 1}/{len(content)}"
            self.answer(206, {"Content-Range": span}, body)
        else:
            self.answer(200, {}, body)

    def break_off(self, fault: str, body: bytes) -> None:
        """Send half of the body, then fail."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        if fault == "stall":
            self.hub.closing.wait(30)
        if fault == "reset":
            time.sleep(0.1)  # what was sent arrives before the reset
            linger = struct.pack("ii", 1, 0)  # close at once and say RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())
        self.close_connection = True
