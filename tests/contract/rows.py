"""Rows of the contract suite: the files to draw, a command, and what the user gets.

Rows that say one thing, offer one fix and exit with 2 are lists in `short`, in front of the others:
`[run, says, fix]`, where `says` may be empty and `fix` may be left out.

Every other row of a TOML file has these keys; only `run` is required.

name     what the row shows, unique in its file (default: its `run`)
draw     images, with ranges such as `train/cat/{0-7}.jpg`; their colour follows the first letter of
         the file name, or that of the folder if the name is a number
text     table from paths to contents of text files
build    for anything else, a module of `tests.contract.built` and its function, such as
         `arrays:several_labels`; called with the current folder
before   command lines that are run first and end with 0
run      command line without `vitft`; `finetune` and `check` get small weights unless they name
         some or `build` fills the folder hub, which is the cache of downloads; the run directory of
         `finetune` is ../run unless `--out` names it; `--resume` has all from its run
exit     exit code (default 0)
says     words that are printed, in any case and however wrapped; `fix` of the last fix only
never    words that are not printed
without  modules that the command does not import; it runs in an interpreter of its own
classes  names in class_indices.json of the run
offers   text of the printed fix or note that `then` follows, literally
then     table with `run`, `exit`, `says`, `never` and `classes` of a second command, which contains
         the text of `offers`
long     whether the row takes seconds, so that only `make test-long` runs it
"""

import contextlib
import functools
import importlib
import io
import json
import re
import shlex
import tomllib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from tests.support.children import python
from vitft.cli.main import main

PIXELS = 16
"""Side of the drawn images and of the inputs of the small weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A command and what it prints and writes."""

    run: str
    exit: int = 0
    says: Sequence[str] = ()
    fix: Sequence[str] = ()
    never: Sequence[str] = ()
    without: Sequence[str] = ()
    classes: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Expected):
    """A row of a table."""

    name: str
    draw: Sequence[str] = ()
    text: dict[str, str] = field(default_factory=dict)
    build: str = ""
    before: Sequence[str] = ()
    offers: str = ""
    then: Expected | None = None
    long: bool = False


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a TOML file; an unknown key is an error."""
    rows = [*_rows(**tomllib.loads(path.read_text()))]
    assert len({row.name for row in rows}) == len(rows), f"names are repeated in {path.name}"
    return rows


def _rows(short: Sequence[Sequence[str]] = (), row: Sequence[dict[str, Any]] = ()) -> Iterator[Row]:
    """Yield the rows of a TOML file, the short ones first."""
    for run, says, *fix in short:
        yield Row(name=run, run=run, exit=2, says=[says], fix=fix)
    for entry in row:
        then = entry.pop("then", None)
        named = {"name": entry["run"]} | entry
        assert bool(then) == ("offers" in entry), f"{named['name']}: then and offers go together"
        yield Row(**named, then=Expected(**then) if then else None)


def check_row(row: Row, weights: Path) -> None:
    """Draw the files of a row in the current folder, and check its command and the offered one."""
    draw_files(row)
    for line in row.before:
        check_command(Expected(run=line), weights, "../before")
    printed = check_command(row, weights, "../run")
    if row.then:
        assert flat(row.offers) in flat(printed), printed
        assert row.offers in row.then.run, "the second command does not contain what was offered"
        check_command(row.then, weights, "../then")


def draw_files(row: Row, width: int = PIXELS, height: int = PIXELS) -> None:
    """Draw, write and build the files of a row in the current folder."""
    for pattern in row.draw:
        for path in expand(pattern):
            draw(Path(path), width, height)
    for name, text in row.text.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    if row.build:
        module, _, function = row.build.partition(":")
        getattr(importlib.import_module(f"tests.contract.built.{module}"), function)(Path())


def words_of(line: str, weights: Path, out: str) -> list[str]:
    """Return the words of a command line, with the options that the docstring above names."""
    words = shlex.split(line)
    is_new = words[0] in ("finetune", "check") and "--resume" not in words
    has_weights = Path("hub").exists() or {"--weights", "--run", "--help"} & {*words}
    if is_new and not has_weights:
        words += ["--weights", str(weights)]
    if is_new and words[0] == "finetune":
        words += ["--out", out] if "--out" not in words else []
        words += ["--cache", "none", "--device", "cpu"]
    return words


def check_command(expected: Expected, weights: Path, out: str) -> str:
    """Run a command, check its exit code, words and classes, and return what it printed."""
    words = words_of(expected.run, weights, out)
    out = words[words.index("--out") + 1] if "--out" in words else out
    code, printed = run_alone(words, expected.without) if expected.without else run(words)
    assert code == expected.exit, printed
    told = flat(printed).lower()
    fixes = told.rpartition("fix: ")[2]
    for text, where in [(w, told) for w in expected.says] + [(w, fixes) for w in expected.fix]:
        assert flat(text).lower() in where, f"{text!r} is missing:\n{printed}"
    for text in expected.never:
        assert flat(text).lower() not in told, f"{text!r} is printed:\n{printed}"
    if expected.classes is not None:
        indices = json.loads(Path(out, "class_indices.json").read_text())
        assert list(indices.values()) == list(expected.classes), printed
    return printed


def run(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process without a network; return its exit code and what it printed."""
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", new=True),
        mock.patch("huggingface_hub.constants.HF_HUB_CACHE", new=str(Path("hub").resolve())),
    ):
        code = main(list(words))
    assert "Traceback" not in printed.getvalue(), printed.getvalue()
    return code, printed.getvalue()


def run_alone(words: Sequence[str], without: Sequence[str]) -> tuple[int, str]:
    """Do as `run` in another interpreter, which ends with 1 if it imports one of the modules."""
    done = python(
        "import sys; from vitft.cli.main import main; code = main(sys.argv[2:])\n"
        "sys.exit(code if {*sys.argv[1].split()}.isdisjoint(sys.modules) else 'imported')",
        " ".join(without),
        *words,
        env={"HF_HUB_OFFLINE": "1"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def flat(text: str) -> str:
    """Return a text with every run of blanks and line ends as one blank."""
    return " ".join(text.split())


def expand(pattern: str) -> list[str]:
    """Return the paths of a pattern such as `cat/{0-3}.jpg`."""
    match = re.search(r"\{(\d+)-(\d+)\}", pattern)
    if not match:
        return [pattern]
    numbers = range(int(match[1]), int(match[2]) + 1)
    return [
        path
        for number in numbers
        for path in expand(f"{pattern[: match.start()]}{number}{pattern[match.end() :]}")
    ]


def draw(path: Path, width: int = PIXELS, height: int = PIXELS) -> None:
    """Draw a noisy image whose colour follows the first letter of its name or folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_drawn(path, width, height))


@functools.lru_cache(10_000)
def _drawn(path: Path, width: int, height: int) -> bytes:
    """Return the content of the file that `draw` writes: many rows draw the same ones."""
    letter = path.name[0] if path.name[0].isalpha() else (path.parent.name or "x")[0]
    noise = np.random.default_rng(zlib.crc32(str(path).encode()))  # another image for every path
    colour = np.random.default_rng(ord(letter)).integers(30, 225, 3)
    pixels = np.clip(colour + noise.normal(0, 25, (height, width, 3)), 0, 255)
    content = io.BytesIO()
    kind = Image.registered_extensions()[path.suffix.lower()]
    Image.fromarray(pixels.astype(np.uint8)).save(content, kind, quality=95)
    return content.getvalue()
