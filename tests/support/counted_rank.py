"""A vitft command that writes down what its process has done, as one rank of several or alone.

`python -m tests.support.counted_rank COMMAND ...` writes `counts-RANK.json` to the current folder.
With KILL_AFTER=N, the process kills itself with SIGKILL in the middle of the feature pass, once it
has cached N images. With STOP_IN_STAGE, it sends itself a SIGTERM once it has solved the head.
"""

import functools
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitft.cli.main import main
from vitft.features import extract, head, run_prefix
from vitft.training import run, stages

DATA = os.path.realpath("data")
opened: Counter[str] = Counter()
called: Counter[str] = Counter()
after_pass: dict[str, Any] = {}


def count_opened(event: str, arguments: tuple[Any, ...]) -> None:
    """Count each image below the data folder that is opened."""
    if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith(".png"):
        path = os.path.realpath(arguments[0])
        if path.startswith(DATA):
            opened[os.path.relpath(path, DATA)] += 1


def counted(
    name: str, function: Callable[..., Any], amount: Callable[..., int] = lambda *_: 1
) -> Callable[..., Any]:
    """Return the function, which counts how often it is called."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        called[name] += amount(*arguments)
        return function(*arguments, **options)

    return call


def noting_pass(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `extract_features`, which notes the counts and threads at its end."""

    def call(*arguments: Any) -> Any:
        images, extractor, fingerprints = function(*arguments)
        after_pass.update(
            opened=dict(opened),
            computed=called["computed"],
            workers=extractor and extractor.workers,
            files=len(images.rows),
            odd=[row.odd for row in images.rows],
        )
        return images, extractor, fingerprints

    return call


def dying(save: Callable[..., Any], after: int) -> Callable[..., Any]:
    """Return `Extractor.save`, which kills the process once it has cached some images."""

    def call(self: extract.Extractor, *arguments: Any, **options: Any) -> Any:
        found = save(self, *arguments, **options)
        if self.computed >= after:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return call


def stopping(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which first sends a SIGTERM to its own process."""

    def call(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return function(*arguments)

    return call


def patch(module: Any, name: str, function: object) -> None:
    setattr(module, name, function)


def start() -> int:
    """Run the command with its counters, and write the counts."""
    sys.addaudithook(count_opened)
    patch(extract, "run_prefix", counted("computed", run_prefix, lambda _, x: len(x)))
    patch(run, "extract_features", noting_pass(vars(run)["extract_features"]))
    for name in ("rough_fit", "solve_logistic"):
        patch(head, name, counted("fits", getattr(head, name)))
    if after := int(os.environ.get("KILL_AFTER", "0")):
        patch(time, "monotonic", iter(itertools.count(0, 301)).__next__)  # write at once
        patch(extract.Extractor, "save", dying(extract.Extractor.save, after))
    if "STOP_IN_STAGE" in os.environ:
        patch(stages, "validate", stopping(vars(stages)["validate"]))
    code = main(sys.argv[1:])
    counts = {**after_pass, "fits": called["fits"]}
    counts["opened in all"] = opened
    Path(f"counts-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(counts))
    return code


if __name__ == "__main__":
    code = start()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo's threads may abort a process that exits normally, see vitft/__main__.py
