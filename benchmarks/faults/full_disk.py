"""Commands on file systems of fifty sizes, from almost nothing to slightly more than they need.

    python -m benchmarks.faults.full_disk      # as root: each size is a tmpfs that is mounted

Training, export, prediction to a file and a download from a loopback hub each write to a file system
that already holds an older result. They must end with 0, or with 6 and an error message; the older
result is unchanged, no file with its final name is incomplete, and with enough space the same command,
or its --resume, ends in the bits of a disk that was never full.
"""

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.hub_server import HubServer, Repo

PAGE = 4096
AMPLE = 64 * 2**20
COMMANDS = ("finetune", "export", "predict", "fetch")


@contextlib.contextmanager
def disk(folder: Path, size: int) -> Iterator[bool]:
    """Mount a file system of `size` bytes; yield whether this process is permitted to."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def resize(folder: Path, size: int) -> None:
    """Change the size of the file system, in bytes."""
    subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)


def used(folder: Path) -> int:
    """Return the bytes in use."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def serve_hub(content: bytes, address: Any, done: Any) -> None:
    """Serve a loopback hub, in a process of its own, and put its address into a queue."""
    with HubServer({"test/model": Repo({"model.safetensors": content})}) as server:
        address.put(server.endpoint)
        done.wait()


def blobs(cache: Path) -> tuple[int, list[str]]:
    """Return the number of correct files in the hub's cache, and the names of the wrong ones."""
    found = [p for p in cache.glob("**/blobs/*") if p.is_file() and len(p.name) == 64]
    wrong = [p.name for p in found if hashlib.sha256(p.read_bytes()).hexdigest() != p.name]
    return len(found) - len(wrong), wrong


def sweep(home: Path, name: str, sizes: int) -> None:
    """Run one command at every size; print a line."""
    from benchmarks.faults import forked
    from benchmarks.faults.fail_points import Command
    from benchmarks.timing import counts

    folder, rng = home / "disk", random.Random(0)
    command = Command(home, name, folder)

    def words() -> list[str]:
        if name == "fetch":
            return ["weights", "fetch", "hf:test/model"]
        found = command.words()
        if name == "predict":
            found[1:1] = found[1:2] * 60  # so many rows that they fill more than a page
        return found

    def left() -> object:
        return blobs(folder) if name == "fetch" else command.left()

    clear(folder)
    before = used(folder)
    assert forked.run(home, words()) == 0, forked.output(home)
    wanted, need = left(), used(folder) - before
    older = forked.digests(folder / "older")
    codes: Counter[int] = Counter()
    bad = 0
    for number in range(sizes):
        clear(folder)
        free = int(need * 1.3 * (number + rng.random()) / sizes) // PAGE * PAGE
        resize(folder, before + free)
        code = forked.run(home, words())
        text = forked.output(home)
        codes[code] += 1
        wrong = [f"exit code {code}"] if code not in (0, 6) else []
        wrong += ["a traceback"] if "Traceback" in text else []
        wrong += blobs(folder)[1]
        if name != "fetch":  # its file is not a real checkpoint
            wrong += [f"incomplete: {name}" for name in forked.incomplete(folder)]
        resize(folder, AMPLE)
        if code and forked.run(home, words()):
            wrong.append(f"cannot be resumed: {forked.output(home)[-300:]}")
        elif left() != wanted:
            wrong.append("other bits")
        if forked.digests(folder / "older") != older:
            wrong.append("an older file changed")
        bad += bool(wrong)
        if wrong:
            print(f"  {name}, {free} bytes free: {wrong}\n{text[-600:]}", flush=True)
    print(
        f"{name}: {sizes} sizes up to 1.3 of {need:,} bytes, {bad} bad; exit codes {counts(codes)}",
        flush=True,
    )


def clear(folder: Path) -> None:
    """Remove everything but the older result."""
    for path in folder.iterdir():
        if path.name != "older":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def campaign(home: Path, sizes: int, names: list[str]) -> None:
    """Make the older result and try every command."""
    from benchmarks.faults import forked
    from benchmarks.faults.fail_points import Command
    from benchmarks.faults.small_run import prepare

    prepare(home, per_class=6, width=32, depth=2)
    whole = Command(home, "finetune", home / "disk")
    assert forked.run(home, whole.words()) == 0, forked.output(home)
    shutil.copytree(whole.out, home / "whole")
    whole.out.rename(home / "disk" / "older")
    for name in names:
        sweep(home, name, sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, default=50)
    parser.add_argument("--only", choices=COMMANDS)
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="vitft-disk-"))
    context = multiprocessing.get_context("spawn")
    address, done = context.Queue(), context.Event()
    content = hashlib.sha256(b"weights").digest() * 20_000  # 640 kB
    hub = context.Process(target=serve_hub, args=(content, address, done), daemon=True)
    hub.start()
    os.environ |= {"HF_ENDPOINT": address.get(timeout=60), "HF_HUB_DISABLE_TELEMETRY": "1"}
    os.environ |= {"HF_HOME": str(home / "disk" / "hub"), "HOME": str(home / "disk")}
    try:  # huggingface_hub reads the environment when it is imported, hence the late imports above
        with disk(home / "disk", AMPLE) as mounted:
            if not mounted:
                parser.error("mounting a tmpfs is not permitted: run as root")
            campaign(home, args.sizes, [args.only] if args.only else [*COMMANDS])
    finally:
        done.set()
        hub.join(10)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
