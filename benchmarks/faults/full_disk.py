"""Commands on file systems of fifty sizes, from almost nothing to almost enough.

    python -m benchmarks.faults.full_disk            # as root: each size is a tmpfs that is mounted

Training, export, prediction to a file and a download from a loopback hub each write to a file
system that holds an older result already. They have to end with 0, or with 6 and a sentence; the
older result is untouched, nothing with its final name is half, and with room again the same
command, or its --resume, ends in the bits of a disk that was never full.
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
ROOMY = 64 * 2**20
KINDS = ("finetune", "export", "predict", "fetch")


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[None]:
    """A file system of its own at `folder`."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOMY}", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def resize(folder: Path, size: int) -> None:
    """Give it another size, in bytes."""
    options = f"remount,size={size}"
    subprocess.run(["mount", "-o", options, folder], check=True)


def used(folder: Path) -> int:
    """Bytes in use."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def serve_hub(content: bytes, told: Any, done: Any) -> None:
    """A hub in a process of its own."""
    with HubServer({"test/model": Repo({"model.safetensors": content})}) as server:
        told.put(server.endpoint)
        done.wait()


def blobs(cache: Path) -> tuple[int, list[str]]:
    """Whole files of the hub's cache, and those that are called by a digest that is not theirs."""
    found = [p for p in cache.glob("**/blobs/*") if p.is_file() and len(p.name) == 64]
    wrong = [p.name for p in found if hashlib.sha256(p.read_bytes()).hexdigest() != p.name]
    return len(found) - len(wrong), wrong


class Kind:
    """One of the commands on the small disk."""

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.name, self.disk = home, name, home / "disk"
        self.out = self.disk / {"predict": "answers.jsonl"}.get(name, name)

    def words(self) -> list[str]:
        """The command, or what goes on with it."""
        from benchmarks.faults.fail_points import Command

        if self.name == "fetch":
            return ["weights", "fetch", "hf:test/model"]
        command = Command(self.home, self.name)
        command.out = self.out
        words = command.words()
        if self.name == "predict":
            words[1:1] = words[1:2] * 60  # answers that fill more than a page
            if self.out.with_name("answers.jsonl.part").exists():
                words.append("--resume")
        return words

    def left(self) -> object:
        """What must be the same in the end."""
        from benchmarks.faults import forked
        from benchmarks.faults.kills import outcome

        if self.name == "finetune":
            return outcome(self.out)
        if self.name == "export":
            return forked.contents(self.out)
        return self.out.read_bytes() if self.name == "predict" else blobs(self.disk)

    def clean(self) -> None:
        """Remove all but the older result."""
        for path in self.disk.iterdir():
            if path.name != "older":
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def sweep(kind: Kind, sizes: int, rng: random.Random) -> None:
    """A command at every size; prints a line."""
    from benchmarks.faults import forked

    kind.clean()
    before = used(kind.disk)
    assert forked.run(kind.home, kind.words()) == 0, forked.said(kind.home)
    wanted, need = kind.left(), used(kind.disk) - before
    older = forked.digests(kind.disk / "older")
    codes: Counter[int] = Counter()
    bad = 0
    for number in range(sizes):
        kind.clean()
        room = int(need * 1.3 * (number + rng.random()) / sizes) // PAGE * PAGE
        resize(kind.disk, before + room)
        code = forked.run(kind.home, kind.words())
        text = forked.said(kind.home)
        codes[code] += 1
        wrong = [f"exit code {code}"] if code not in (0, 6) else []
        wrong += ["a traceback"] if "Traceback" in text else []
        wrong += blobs(kind.disk)[1]
        if kind.name != "fetch":  # whose files are no models
            wrong += [f"half: {name}" for name in forked.halves(kind.disk)]
        resize(kind.disk, ROOMY)
        if code and forked.run(kind.home, kind.words()):
            wrong.append(f"does not go on: {forked.said(kind.home)[-300:]}")
        elif kind.left() != wanted:
            wrong.append("other bits")
        if forked.digests(kind.disk / "older") != older:
            wrong.append("an older file changed")
        bad += bool(wrong)
        if wrong:
            print(f"  {kind.name}, {room} bytes free: {wrong}\n{text[-600:]}", flush=True)
    told = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    print(f"{kind.name}: {sizes} sizes up to 1.3 of {need:,} bytes, {bad} bad; exit codes {told}",
          flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, default=50)
    parser.add_argument("--only", choices=KINDS)
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="vitft-disk-"))
    context = multiprocessing.get_context("spawn")
    told, done = context.Queue(), context.Event()
    content = hashlib.sha256(b"weights").digest() * 20_000  # 640 kB
    hub = context.Process(target=serve_hub, args=(content, told, done), daemon=True)
    hub.start()
    os.environ |= {"HF_ENDPOINT": told.get(timeout=60), "HF_HUB_DISABLE_TELEMETRY": "1"}
    os.environ |= {"HF_HOME": str(home / "disk" / "hub"), "HOME": str(home / "disk")}
    try:  # the libraries read the environment when they are imported
        with disk(home / "disk"):
            begin(home, args.sizes, [args.only] if args.only else [*KINDS])
    finally:
        done.set()
        hub.join(10)
        shutil.rmtree(home, ignore_errors=True)


def begin(home: Path, sizes: int, kinds: list[str]) -> None:
    """Make the older result, and try every kind of command."""
    from benchmarks.faults import forked
    from benchmarks.faults.kills import prepare

    prepare(home, per_class=6, width=32, depth=2)
    whole = Kind(home, "finetune")
    assert forked.run(home, whole.words()) == 0, forked.said(home)
    shutil.copytree(whole.out, home / "whole")
    whole.out.rename(home / "disk" / "older")
    for name in kinds:
        sweep(Kind(home, name), sizes, random.Random(0))


if __name__ == "__main__":
    main()
