"""What a user sees when the hub misbehaves: case, message, exit code, what stayed in the cache.

    python -m benchmarks.faults.hub_faults              # from the top of the repository; about a minute
    python -m benchmarks.faults.hub_faults C14 C23      # only these

Every case is `vitft weights fetch` or `vitft weights show` in a process of its own with an empty
cache, against the loopback hub of tests/support/hub_server.py. Exit code 1 if a promise was broken: a
traceback, a wrong exit code, a token in any output, a wrong blob in the cache, over 60 s.
"""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.hub_server import HubServer, Repo

TOKEN = "hf_thisIsASecretThatNobodySees"
CODE = (
    "import sys, vitft.cli.main as c, vitft.cli.weights as w; c.add_weights = w.add_weights; "
    "sys.exit(c.main(sys.argv[1:]))"
)
SIZE = 3_000_000


@dataclass
class Case:
    """One situation; `prepare` runs between a first, good download and the one that counts."""

    number: str
    what: str
    repo: str = "test/model"
    fault: str = ""
    times: int = 1_000_000
    code: int = 4
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], None] | None = None
    endpoint: str = ""
    revision: str = ""


@dataclass
class Outcome:
    code: int
    seconds: float
    text: str


def content_of(case: Case) -> bytes:
    return hashlib.sha256(case.what.encode()).digest() * (SIZE // 32)


def blobs(cache: Path) -> list[Path]:
    return [p for p in cache.glob("hub/models--*/blobs/*") if p.is_file()]


def rot(cache: Path) -> None:
    blob = blobs(cache)[0]
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def truncate(cache: Path) -> None:
    blob = blobs(cache)[0]
    blob.write_bytes(blob.read_bytes()[:1000])


def nothing(cache: Path) -> None:
    """The first download alone is the preparation."""


DEAD = "http://127.0.0.1:9"
HOLE = "hole"
CASES = [
    Case("C11", "repository unknown", repo="test/missing"),
    Case("C11", "revision unknown", revision="v9"),
    Case("C11", "file unknown", repo="test/empty"),
    Case("C12", "private, no token", fault="token"),
    Case("C12", "private, wrong token", fault="token", environment={"HF_TOKEN": "hf_wrongwrong"}),
    Case("C12", "private, right token", fault="token", code=0, environment={"HF_TOKEN": TOKEN}),
    Case("C12", "token with a line break", environment={"HF_TOKEN": f"{TOKEN}\nX: y"}, code=-1),
    Case("C12", "gated", fault="gated"),
    Case("C13", "closed in mid-file, twice", fault="drop", times=2, code=0),
    Case("C14", "reset in mid-file, once", fault="reset", times=1, code=0),
    Case("C14", "reset, always", fault="reset"),
    Case("C14", "503 on the download, once", fault="status", times=1, code=0),
    Case("C14", "503 on the download, always", fault="status"),
    Case("C14", "name unknown to DNS", endpoint="http://hub.invalid"),
    Case("C14", "TLS spoken to a plain port", endpoint="https"),
    Case("C15", "429 with Retry-After, twice", fault="retry_after", times=2, code=0),
    Case("C15", "503 on the question, twice", fault="busy", times=2, code=0),
    Case("C16", "stall in mid-file, once", fault="stall", times=1, code=0),
    Case("C16", "stall, always", fault="stall"),
    Case("C16", "no answer to the question", fault="mute"),
    Case("C17", "body too short", fault="shorter"),
    Case("C17", "body too long", fault="longer"),
    Case("C17", "one bit flipped, once", fault="corrupt", times=1, code=0),
    Case("C17", "one bit flipped, always", fault="corrupt"),
    Case("C17", "another sha256 announced", fault="wrong_etag"),
    Case("C18", "login page", fault="html"),
    Case("C18", "redirect loop", fault="loop"),
    Case("C18", "answer without a commit", fault="no_commit"),
    Case("C18", "answer without a digest", fault="no_etag"),
    Case("C18", "API answer not JSON (not asked)", fault="bad_json", code=0),
    Case("C19", "told offline, empty cache", environment={"HF_HUB_OFFLINE": "1"}),
    Case("C19", "told offline, full cache", environment={"HF_HUB_OFFLINE": "1"}, code=0,
         prepare=nothing),
    Case("C19", "nobody listens, empty cache", endpoint=DEAD),
    Case("C19", "nobody listens, full cache", endpoint=DEAD, code=0, prepare=nothing),
    Case("C19", "packets lost, empty cache", endpoint=HOLE),
    Case("C20", "repository changed since", code=0, prepare=nothing),
    Case("C21", "../../evil.txt in the listing (not asked)", fault="traversal", code=0),
    Case("C22", "kill -9 in mid-file, then again", fault="slow", times=1, code=0),
    Case("C22", "four processes at once", code=0),
    Case("C22", "cache cannot be written", environment={"HF_HOME": "/sys/vitft"}),
    Case("C22", "disk full (1 MB file system)", code=6),
    Case("C23", "one bit rotted in the cache", code=0, prepare=rot),
    Case("C23", "cut in the cache", code=0, prepare=truncate),
    Case("C23", "rotted, and offline", prepare=rot, environment={"HF_HUB_OFFLINE": "1"}),
    Case("C24", "Xet announced, its storage out of reach", fault="xet", code=0),
]  # fmt: skip


def start(case: Case, cache: Path, endpoint: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
        "HF_TOKEN": "",
        **case.environment,
    }
    name = f"hf:{case.repo}" + (f"@{case.revision}" if case.revision else "")
    words = ["weights", "fetch", name, *case.options]
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> Outcome:
    begun = time.monotonic()
    text, _ = process.communicate(timeout=120)
    return Outcome(process.returncode, time.monotonic() - begun, text)


@contextlib.contextmanager
def silence() -> Iterator[str]:
    """An address where connecting has no answer: a queue of one that is full and never read."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        clients = [socket.socket() for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for client in clients:
            client.close()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 1 MB at `folder`, where this process may mount one."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)],
                          capture_output=True, check=False)  # fmt: skip
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", str(folder)], check=False)


def play(case: Case, cache: Path, server: HubServer) -> Outcome | None:
    endpoint = case.endpoint or server.endpoint
    if endpoint == HOLE:
        with silence() as endpoint:
            return finish(start(case, cache, endpoint))
    if endpoint == "https":
        endpoint = server.endpoint.replace("http:", "https:")
    if case.prepare is not None:
        plain = Case(case.number, case.what)
        assert finish(start(plain, cache, server.endpoint)).code == 0
        case.prepare(cache)
        if case.number == "C20":
            server.repos["test/model"].commit = "feed" * 10
    if "kill -9" in case.what:
        process = start(case, cache, endpoint)
        while not any(p.name.endswith(".incomplete") for p in blobs(cache)):
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    if "four" in case.what:
        outcomes = [finish(p) for p in [start(case, cache, endpoint) for _ in range(4)]]
        worst = max(outcomes, key=lambda o: o.code)
        return Outcome(worst.code, max(o.seconds for o in outcomes), worst.text)
    if "1 MB" in case.what:
        with small_disk(cache) as mounted:
            outcome = finish(start(case, cache, endpoint)) if mounted else None
            case.environment["seen"] = state(cache)
            return outcome
    return finish(start(case, cache, endpoint))


def state(cache: Path) -> str:
    """What is in the cache: good blobs, wrong ones, partial ones."""
    good = wrong = partial = 0
    for path in blobs(cache):
        if path.name.endswith(".incomplete"):
            partial += 1
        elif len(path.name) == 64:
            is_good = hashlib.sha256(path.read_bytes()).hexdigest() == path.name
            good, wrong = good + is_good, wrong + (not is_good)
    counts = {"good": good, "WRONG": wrong, "partial": partial}
    return ", ".join(f"{n} {kind}" for kind, n in counts.items() if n) or "nothing"


def broken_promises(case: Case, outcome: Outcome, kept: str, server: HubServer) -> list[str]:
    broken = []
    if case.code >= 0 and outcome.code != case.code:
        broken.append(f"exit code {outcome.code}, promised {case.code}")
    if "Traceback" in outcome.text or outcome.code == 1:
        broken.append("a traceback")
    if TOKEN in outcome.text or "hf_wrong" in outcome.text:
        broken.append("the token in the output")
    if server.tokens["cdn"]:
        broken.append("the token at the CDN")
    if "WRONG" in kept:
        broken.append("a wrong blob kept")
    if outcome.seconds > 60:
        broken.append("over 60 s")
    if case.number == "C19" and outcome.code and outcome.seconds > 2.5:
        broken.append("offline not said within 2 s (and 0.5 s to start)")
    return broken


def main(wanted: list[str]) -> int:
    broken_count = 0
    print(f"{'case':<5}{'situation':<44}{'exit':>4}{'s':>6}  {'in the cache':<18}last message")
    for case in CASES:
        if wanted and case.number not in wanted:
            continue
        repo = Repo({"model.safetensors": content_of(case)}, case.fault, case.times, TOKEN)
        repos = {"test/model": repo, "test/empty": Repo({})}
        with tempfile.TemporaryDirectory() as folder, HubServer(repos) as server:
            cache = Path(folder)
            outcome = play(case, cache, server)
            if outcome is None:
                print(f"{case.number:<5}{case.what:<44} not run: no permission to mount")
                continue
            kept = case.environment.pop("seen", "") or state(cache)
            broken = broken_promises(case, outcome, kept, server)
        broken_count += len(broken)
        lines = [line for line in outcome.text.splitlines() if line.strip()]
        said = next((line for line in lines if "error:" in line), lines[-1] if lines else "")
        if not outcome.code:
            notes = [x for x in lines if "again" in x or "damaged" in x]
            commit = next((x.split()[1][:6] for x in lines if x.startswith("commit:")), "")
            said = f"commit {commit}" + (f"; {notes[0]}" if notes else "")
        said = said.replace(server.endpoint, "HUB").replace(folder, "CACHE")
        print(f"{case.number:<5}{case.what:<44}{outcome.code:>4}{outcome.seconds:>6.1f}  "
              f"{kept:<18}{said}", flush=True)  # fmt: skip
        for promise in broken:
            print(f"     BROKEN: {promise}", flush=True)
    print(f"broken promises: {broken_count}")
    return int(broken_count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
