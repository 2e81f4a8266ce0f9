"""Commands whose stdout or stderr is full, closed, a pipe without a reader, or on a disk that fills.

    python -m benchmarks.faults.streams      # as root: the disk is a tmpfs that is mounted

The first table has the exit code of each command with each fault of `STREAM_FAULTS`. For the second,
stdout and then stderr is a file on a file system with room for a number of bytes, from none to
slightly more than the command prints. The third is for commands whose files are on a disk with room
for a fraction of them (`full_disk` also resumes, for four of the commands). A command must end with 0, with 6 and one sentence if results
are lost, with 141 if their reader has ended; never with a traceback, and never because of its log.
"""

import argparse
import random
import socket
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.faults.full_disk import AMPLE, PAGE, clear, disk, resize, used
from benchmarks.timing import counts
from tests.conftest import tiny_home
from tests.support.forked_commands import STREAM_FAULTS, Ended, Launcher, launcher

COMMANDS = {
    "finetune": "finetune --data data --weights w.safetensors --out OUT",
    "predict": "predict " + "data " * 10 + "--run run --format jsonl --top-k 3",
    "predict (numpy)": "predict data/red --run run --engine numpy",
    "evaluate": "evaluate --data data --run run",
    "export": "export --safetensors --run run --out OUT",
    "explain": "explain data/red --run run --out OUT",
    "check": "check data --out OUT",
    "compare": "compare run run-2 --out OUT.html",
    "study": "study --data data --weights w.safetensors --shots 2 --seeds 2 --out OUT",
    "weights": "weights list",
    "serve": "serve --run run --port PORT",
}
FILLING = ("finetune", "predict", "evaluate", "export", "check", "weights")
"""Commands that are run on the disk that fills."""

OUTPUTS = {
    "finetune": "finetune --data data --weights w.safetensors --out disk/out",
    "evaluate": "evaluate --data data --run run --out disk/out",
    "explain": "explain data/red --run run --out disk/out --arrays",
    "check": "check data --out disk --weights w.safetensors --cache disk/cache",
    "compare": "compare run run-2 --out disk/out.html",
    "study": "study --data data --weights w.safetensors --shots 2 --seeds 2 --out disk/out",
    "report": "report --run run --out disk/out.html",
    "predict": "predict " + "data " * 10 + "--run run --top-k 3 --out disk/out.csv",
    "predict (overlays)": "predict data/red --run run --explain disk/out",
    "export (onnx)": "export --onnx --run run --out disk/out",
    "export (transformers)": "export --transformers --run run --out disk/out",
}
FRACTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


class Campaign:
    """Commands in one folder, and what was wrong with them."""

    def __init__(self, home: Path, found: Launcher) -> None:
        self.home, self.launcher = home, found
        self.number = self.bad = 0

    def run(self, name: str, fault: str = "", *, stdout: str = "", stderr: str = "") -> Ended:
        """Run a command, with an output of its own."""
        self.number += 1
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1] if name == "serve" else 0
        text = COMMANDS[name].replace("OUT", f"out-{self.number}").replace("PORT", str(port))
        return self.launcher.run(text.split(), fault, stdout=stdout, stderr=stderr, port=port)

    def check(self, place: str, ended: Ended, expected: int) -> None:
        """Count and print a wrong end."""
        wrong = [f"exit code {ended.code}"] if ended.code != expected else []
        wrong += ["a traceback"] if "Traceback" in ended.err or "bug" in ended.err else []
        self.bad += bool(wrong)
        if wrong:
            print(f"  {place}: {wrong}\n{ended.err[-500:]}", flush=True)

    def matrix(self) -> None:
        """Run every command with every fault, and print the exit codes as a table."""
        print(f"{'':16}" + "".join(f"{fault:>15}" for fault in STREAM_FAULTS))
        for name in COMMANDS:
            cells = []
            for fault, (stdout, _) in STREAM_FAULTS.items():
                ended = self.run(name, fault)
                expected = {"good": 0, "pipe": 141}.get(stdout, 6) if name != "serve" else 143
                self.check(f"{name}, {fault}", ended, expected)
                cells.append(f"{ended.code:>15}")
            print(f"{name:16}" + "".join(cells), flush=True)

    def filling(self, name: str, folder: Path, sizes: int, *, stream: str) -> None:
        """Run a command with a stream on a disk with room for 0 to 1.3 of its output; print a line."""
        place, rng, codes = folder / "output.txt", random.Random(0), Counter[int]()
        stdout = str(place) if stream == "stdout" else ""
        stderr = "" if stdout else str(place)
        whole = self.run(name)
        need, before = len((whole.out if stdout else whole.err).encode()), self.bad
        if not need:
            print(f"{name}, {stream}: prints nothing", flush=True)
            return
        for number in range(sizes):
            room = int(need * 1.3 * (number + rng.random()) / sizes)
            place.unlink(missing_ok=True)
            empty = used(folder)
            taken = PAGE - room % PAGE
            resize(folder, empty + taken + room)
            place.write_bytes(bytes(taken))  # the first page has room for the rest
            ended = self.run(name, stdout=stdout, stderr=stderr)
            codes[ended.code] += 1
            printed = place.read_bytes()[taken:]
            lost = stdout and len(printed) >= room  # times in the text change its length a little
            allowed = {6, 0} if lost and abs(need - room) < 100 else {6} if lost else {0}
            self.check(
                f"{name}, {room} bytes for {stream}",
                ended,
                min(allowed, key=lambda c: abs(c - ended.code)),
            )
            resize(folder, empty + 2**20)
        print(
            f"{name}, {stream}: {sizes} sizes up to 1.3 of {need:,} bytes, {self.bad - before} bad; "
            f"exit codes {counts(codes)}",
            flush=True,
        )

    def outputs(self, name: str, folder: Path) -> None:
        """Run a command with its files on a disk with room for some of them; print a line."""
        words, codes = OUTPUTS[name].split(), []
        resize(folder, AMPLE)
        clear(folder)
        assert self.launcher.run(words).code == 0
        need = used(folder)
        for fraction in FRACTIONS:
            clear(folder)
            resize(folder, max(PAGE, int(need * fraction) // PAGE * PAGE))  # 0 would be no limit
            ended = self.launcher.run(words)
            codes.append(ended.code)
            self.number += 1
            self.check(f"{name}, {fraction} of {need:,} bytes", ended, 6 if need > PAGE else 0)
            resize(folder, AMPLE)
        print(f"{name:24}{need:>9,}  {' '.join(map(str, codes))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, default=50)
    parser.add_argument("--only", choices=("streams", "filling", "outputs"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vitft-streams-") as name:
        home = tiny_home(Path(name))
        with launcher(home) as found, disk(home / "disk", 2**20) as mounted:
            campaign = Campaign(home, found)
            for run in ("run", "run-2"):
                words = COMMANDS["finetune"].replace("OUT", run).split()
                assert found.run(words).code == 0
            if args.only in (None, "streams"):
                campaign.matrix()
            if not mounted:
                parser.error("mounting a tmpfs is not permitted: run as root")
            for command in FILLING if args.only in (None, "filling") else ():
                campaign.filling(command, home / "disk", args.sizes, stream="stdout")
                campaign.filling(command, home / "disk", max(1, args.sizes // 5), stream="stderr")
            for command in OUTPUTS if args.only in (None, "outputs") else ():
                campaign.outputs(command, home / "disk")
        print(f"{campaign.number} commands, {campaign.bad} bad")


if __name__ == "__main__":
    main()
