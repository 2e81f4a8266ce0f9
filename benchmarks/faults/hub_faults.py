"""`vitft weights fetch` while the hub misbehaves: message, exit code and cache of each case.

    python -m benchmarks.faults.hub_faults              # about a minute
    python -m benchmarks.faults.hub_faults C14 C23      # only these cases

Every case is a process of its own with an empty cache, against the loopback hub of
tests/support/hub_server.py. Exits with 1 after a violation: a traceback, a wrong exit code, a token in
any output, a wrong file in the cache, or more than 60 s.
"""

import argparse
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

from benchmarks.faults.full_disk import disk
from tests.support.hub_server import FAULTS, HubServer, Repo

TOKEN = "hf_thisIsASecretThatNobodySees"
CODE = "import sys, vitft.cli.main as c; sys.exit(c.main(sys.argv[1:]))"
SIZE = 3_000_000


@dataclass
class Case:
    """One situation; `prepare` runs between a first, good download and the measured one."""

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


def flip_bit(cache: Path) -> None:
    blob = blobs(cache)[0]
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def truncate(cache: Path) -> None:
    blob = blobs(cache)[0]
    blob.write_bytes(blob.read_bytes()[:1000])


def keep(cache: Path) -> None:
    """Change nothing: the first download is the preparation."""


DEAD = "http://127.0.0.1:9"
SILENT = "silent"
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
    Case("C15", "503 on the metadata, twice", fault="busy", times=2, code=0),
    Case("C16", "stall in mid-file, once", fault="stall", times=1, code=0),
    Case("C16", "stall, always", fault="stall"),
    Case("C16", "no answer to the metadata request", fault="mute"),
    Case("C17", "body too short", fault="shorter"),
    Case("C17", "body too long", fault="longer"),
    Case("C17", "one bit flipped, once", fault="corrupt", times=1, code=0),
    Case("C17", "one bit flipped, always", fault="corrupt"),
    Case("C17", "another sha256 announced", fault="wrong_etag"),
    Case("C18", "login page", fault="html"),
    Case("C18", "redirect loop", fault="loop"),
    Case("C18", "answer without a commit", fault="no_commit"),
    Case("C18", "answer without a digest", fault="no_etag"),
    Case("C19", "offline mode, empty cache", environment={"HF_HUB_OFFLINE": "1"}),
    Case("C19", "offline mode, full cache", environment={"HF_HUB_OFFLINE": "1"}, code=0,
         prepare=keep),
    Case("C19", "connection refused, empty cache", endpoint=DEAD),
    Case("C19", "connection refused, full cache", endpoint=DEAD, code=0, prepare=keep),
    Case("C19", "packets lost, empty cache", endpoint=SILENT),
    Case("C20", "repository changed since", code=0, prepare=keep),
    Case("C22", "kill -9 in mid-file, then again", fault="stall", times=1, code=0),
    Case("C22", "four processes at once", code=0),
    Case("C22", "cache cannot be written", environment={"HF_HOME": "/sys/vitft"}, code=5),
    Case("C22", "disk full (1 MB file system)", code=6),
    Case("C23", "one bit flipped in the cache", code=0, prepare=flip_bit),
    Case("C23", "truncated in the cache", code=0, prepare=truncate),
    Case("C23", "bit flipped, and offline", prepare=flip_bit, environment={"HF_HUB_OFFLINE": "1"}),
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
    """Yield an address that never answers: its queue of one connection is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        clients = [socket.socket() for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for client in clients:
            client.close()


def run_case(case: Case, cache: Path, server: HubServer) -> Outcome | None:
    endpoint = case.endpoint or server.endpoint
    if endpoint == SILENT:
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
        with disk(cache, 2**20) as mounted:
            outcome = finish(start(case, cache, endpoint)) if mounted else None
            case.environment["seen"] = state(cache)
            return outcome
    return finish(start(case, cache, endpoint))


def state(cache: Path) -> str:
    """Return the number of good, wrong and partial files in the cache."""
    good = wrong = partial = 0
    for path in blobs(cache):
        if path.name.endswith(".incomplete"):
            partial += 1
        elif len(path.name) == 64:
            is_good = hashlib.sha256(path.read_bytes()).hexdigest() == path.name
            good, wrong = good + is_good, wrong + (not is_good)
    counts = {"good": good, "WRONG": wrong, "partial": partial}
    return ", ".join(f"{n} {kind}" for kind, n in counts.items() if n) or "nothing"


def violations(case: Case, outcome: Outcome, kept: str, server: HubServer) -> list[str]:
    broken = []
    if case.code >= 0 and outcome.code != case.code:
        broken.append(f"exit code {outcome.code}, expected {case.code}")
    if "Traceback" in outcome.text or outcome.code == 1:
        broken.append("a traceback")
    if TOKEN in outcome.text or "hf_wrong" in outcome.text:
        broken.append("the token in the output")
    if server.tokens["cdn"]:
        broken.append("the token at the CDN")
    if "WRONG" in kept:
        broken.append("a wrong file in the cache")
    if outcome.seconds > 60:
        broken.append("over 60 s")
    if case.number == "C19" and outcome.code and outcome.seconds > 2.5:
        broken.append("offline error later than 2 s (and 0.5 s to start)")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="numbers such as C14; all by default")
    wanted = parser.parse_args().cases
    total = 0
    assert {case.fault for case in CASES} <= {"", *FAULTS}, "a fault that the server does not have"
    print(f"{'case':<5}{'situation':<44}{'exit':>4}{'s':>6}  {'in the cache':<18}last message")
    for case in CASES:
        if wanted and case.number not in wanted:
            continue
        repo = Repo({"model.safetensors": content_of(case)}, case.fault, case.times, TOKEN)
        repos = {"test/model": repo, "test/empty": Repo({})}
        with tempfile.TemporaryDirectory() as folder, HubServer(repos) as server:
            cache = Path(folder)
            outcome = run_case(case, cache, server)
            if outcome is None:
                print(f"{case.number:<5}{case.what:<44} not run: no permission to mount")
                continue
            kept = case.environment.pop("seen", "") or state(cache)
            broken = violations(case, outcome, kept, server)
        total += len(broken)
        lines = [line for line in outcome.text.splitlines() if line.strip()]
        message = next((line for line in lines if "error:" in line), lines[-1] if lines else "")
        if not outcome.code:
            notes = [x for x in lines if "again" in x or "damaged" in x]
            commit = next((x.split()[1][:6] for x in lines if x.startswith("commit:")), "")
            message = f"commit {commit}" + (f"; {notes[0]}" if notes else "")
        message = message.replace(server.endpoint, "HUB").replace(folder, "CACHE")
        print(f"{case.number:<5}{case.what:<44}{outcome.code:>4}{outcome.seconds:>6.1f}  "
              f"{kept:<18}{message}", flush=True)  # fmt: skip
        for each in broken:
            print(f"     VIOLATION: {each}", flush=True)
    print(f"violations: {total}")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
