"""Commands in forked children of one process that has torch loaded, with faulty standard streams.

Forking saves the two seconds of importing torch for each of many commands. The children open their
standard streams as Python does at its start.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

STREAM_FAULTS: Mapping[str, tuple[str, str]] = {
    "stdout full": ("full", "good"),
    "stderr full": ("good", "full"),
    "both full": ("full", "full"),
    "stdout closed": ("closed", "good"),
    "stderr closed": ("good", "closed"),
    "both closed": ("closed", "closed"),
    "broken pipe": ("pipe", "good"),
}
"""State of stdout and of stderr, by the name of a fault."""
LOADED = (
    "torch._dynamo",
    "vitft.cli.main",
    "vitft.export.job",
    "vitft.serve.server",
    "vitft.study.run",
    "vitft.explain.explainer",
    "vitft.check.folder",
    "vitft.training.run",
    "vitft.report.comparison",
    "rich.table",
    "rich.progress",
)


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Launcher:
    """The process that forks, seen from a test."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def run(
        self,
        words: Sequence[str],
        fault: str = "",
        *,
        stdout: str = "",
        stderr: str = "",
        port: int = 0,
    ) -> Ended:
        """Run a command with a fault of `STREAM_FAULTS` or none in the launcher's folder.

        With `stdout` or `stderr`, the stream is appended to that file instead of returned. A server
        at `port` is stopped with SIGTERM once it answers.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        files = [stdout, stderr]
        request = {"words": [*words], "fault": fault, "files": files, "port": port}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return Ended(**json.loads(self.process.stdout.readline()))


@contextlib.contextmanager
def launcher(home: Path) -> Iterator[Launcher]:
    """Start the process that forks, with `home` as its current and home folder."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(root)}
    environment["VITFT_CACHE"] = str(home / "cache")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked_commands"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=home,
        env=environment | {"OMP_NUM_THREADS": "1"},
    ) as process:
        yield Launcher(process)
        assert process.stdin is not None
        process.stdin.close()


# in the process that forks ------------------------------------------------------------------------


def serve_requests() -> None:
    """Fork a child for each line on stdin, and answer with its exit code and output."""
    for name in LOADED:
        importlib.import_module(name)
    home = Path.cwd()
    for line in sys.stdin:
        request = json.loads(line)
        states = STREAM_FAULTS.get(request["fault"], ("good", "good"))
        for name in ("out.txt", "err.txt"):
            (home / name).write_bytes(b"")
        with warnings.catch_warnings():  # from Python 3.12 on: forks of processes with threads
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            own = (str(home / "out.txt"), str(home / "err.txt"))
            files = [given or path for given, path in zip(request["files"], own, strict=True)]
            execute(request["words"], states, files)
        if request["port"]:
            stop_server(pid, request["port"])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = [(home / name).read_text(errors="replace") for name in ("out.txt", "err.txt")]
        print(json.dumps({"code": code, "out": texts[0], "err": texts[1]}), flush=True)
    os._exit(0)  # an orderly end takes seconds


def execute(words: list[str], states: tuple[str, str], files: list[str]) -> NoReturn:
    """Run a command with its streams in these states, and end as Python would."""
    code = 99
    try:
        arrange(1, states[0], files[0])
        arrange(2, states[1], files[1])
        sys.stdout, sys.stderr = stream(1, states[0]), stream(2, states[1])
        main: Any = importlib.import_module("vitft.cli.main").main
        code = main(words)
        for opened in (sys.stdout, sys.stderr):
            try:
                opened.flush()
            except (OSError, AttributeError):
                code = 120 if opened is not None else code  # as Python does at exit
    finally:
        os._exit(code)


def arrange(descriptor: int, state: str, path: str) -> None:
    """Connect a standard descriptor to a file, a full disk or a pipe without a reader."""
    if state == "pipe":
        reader, opened = os.pipe()
        os.close(reader)
    elif state == "full":
        opened = os.open("/dev/full", os.O_WRONLY)
    else:
        path = os.devnull if state == "closed" else path
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(opened, descriptor)
    os.close(opened)


def stream(descriptor: int, state: str) -> TextIO:
    """Return the stream that Python would open, which is None for a closed descriptor."""
    if state == "closed":
        return None  # type: ignore[return-value]  # as in sys
    raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", line_buffering=descriptor == 2)


def stop_server(pid: int, port: int) -> None:
    """Send SIGTERM to a server once it answers."""
    for _ in range(200):
        time.sleep(0.05)
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).close()
            break
    os.kill(pid, 15)


if __name__ == "__main__":
    serve_requests()
