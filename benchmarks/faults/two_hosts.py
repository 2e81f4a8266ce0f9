"""Two hosts, as network namespaces of this machine (root): a killed process, and the run resumed.

    python -m benchmarks.faults.two_hosts

Each host starts torchrun with one process. The first run is left alone. In the second, the process
of the other host receives SIGKILL during training: the time until the main process has ended is
printed, and both hosts resume the run, whose weights, log and metrics must equal the first one's.
The bytes that crossed the link are counted.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.small_run import AUGMENTED, TRAINING, command, prepare, result

HOSTS = ("vitft-a", "vitft-b")
EPOCHS = 30


def ip(*words: str) -> None:
    """Change the network of this machine."""
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Two namespaces with a link between them."""
    try:
        for name in HOSTS:
            ip("netns", "add", name)
        ip("link", "add", HOSTS[0], "netns", HOSTS[0], "type", "veth", "peer",
           "name", HOSTS[1], "netns", HOSTS[1])  # fmt: skip
        for number, name in enumerate(HOSTS, 1):
            ip("-n", name, "addr", "add", f"10.9.0.{number}/24", "dev", name)
            for device in (name, "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield
    finally:
        for name in HOSTS:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def crossed() -> int:
    """Return the bytes that the first host has sent and received."""
    total = 0
    for way in ("tx", "rx"):
        path = f"/sys/class/net/{HOSTS[0]}/statistics/{way}_bytes"
        words = ["ip", "netns", "exec", HOSTS[0], "cat", path]
        total += int(subprocess.run(words, check=True, capture_output=True).stdout)
    return total


def launch(home: Path, out: Path) -> list["subprocess.Popen[bytes]"]:
    """Start torchrun on both hosts."""
    words = command(home, out, *AUGMENTED, *TRAINING, "--epochs", str(EPOCHS))
    started = []
    for rank, name in enumerate(HOSTS):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank",
                    str(rank), "--master-addr", "10.9.0.1", "--master-port", "29511"]  # fmt: skip
        started.append(
            subprocess.Popen(
                ["ip", "netns", "exec", name, *torchrun, "-m", "vitft", *words],
                env={**os.environ, "GLOO_SOCKET_IFNAME": name, "HOME": str(home)},
                stdout=(home / f"{name}.txt").open("wb"),
                stderr=subprocess.STDOUT,
            )
        )
    return started


def process_of(rank: int, out: Path) -> int:
    """Return the process of a rank of a run, a child of its torchrun."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            mine = str(out).encode() in (path.parent / "cmdline").read_bytes()
            if mine and f"\0RANK={rank}\0".encode() in b"\0" + path.read_bytes():
                return int(path.parent.name)
    raise AssertionError("the run has ended")


def finish(home: Path, out: Path) -> None:
    """Run to the end on both hosts."""
    codes = [process.wait() for process in launch(home, out)]
    assert codes == [0, 0], (home / f"{HOSTS[0]}.txt").read_text()[-2000:]


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="vitft-hosts-"))
    prepare(home)
    whole, killed = home / "whole", home / "killed"
    with hosts():
        before = crossed()
        finish(home, whole)
        lines = len((whole / "metrics.jsonl").read_text().splitlines())
        print(f"undisturbed: {lines} lines of log, {crossed() - before:,} bytes crossed the link")
        started = launch(home, killed)
        log = killed / "metrics.jsonl"
        while not (log.is_file() and log.read_text().count("\n") > lines // 4):
            time.sleep(0.1)
        main_process = process_of(0, killed)
        os.kill(process_of(1, killed), signal.SIGKILL)
        begun = time.monotonic()
        while Path(f"/proc/{main_process}").exists():
            time.sleep(0.02)
        print(f"the main process ended {time.monotonic() - begun:.1f} s after the other was killed, "
              f"with {len(log.read_text().splitlines())} lines of log")  # fmt: skip
        print(f"torchrun ended with {[process.wait() for process in started]}")
        finish(home, killed)
    print(f"resumed: {'equal' if result(killed) == result(whole) else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
