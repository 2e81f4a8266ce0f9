"""Suggestions for the name of a run that does not exist."""

import contextlib
import os
from pathlib import Path

from vitft.system.errors import RunError
from vitft.system.near_paths import without_suffix
from vitft.system.rundir import BASE, LATEST, MODEL, read_environment
from vitft.system.spelling import Spelling, option
from vitft.system.suggest import suggest
from vitft.system.text import count, listing, shell_quote

_RUN_FILES = ("config.toml", MODEL)
"""A folder with one of these files is a run."""


def suggest_runs(
    run: str | os.PathLike[str], *, name: str = "run", otherwise: str, spell: Spelling = option
) -> str:
    """Return the fix for a run that does not exist: similar names, and how to list all runs.

    Runs are searched for in `runs` and in the folder of the given path; exports, which
    have a README.md, count with the option --run only. If there are none, `otherwise` is returned.
    `name` is the option that names the run, or empty for an argument without one.
    """

    def spelled(path: Path) -> str:
        return spell(name, str(path)) if name else shell_quote(str(path))

    given = Path(run)
    known = {
        child.name: child
        for folder in dict.fromkeys((BASE, given.parent))
        for child in _runs_in(folder)
        if child != given and (name == "run" or not (child / "README.md").is_file())
    }
    if not known:
        return otherwise
    list_all = f"`{'dir' if os.name == 'nt' else 'ls'} {BASE}` lists the runs"
    if near := suggest(without_suffix(given.name), known, cutoff=0.6, inside=True, most=2):
        names = (spelled(known[one]) for one in near)
        return f"did you mean {listing(names).replace(' and ', ' or ')}? {list_all}"
    example = spelled(known.get(LATEST) or next(iter(known.values())))
    listed = {child.name for child in known.values() if child.parent == BASE} or {*known}
    number = count(len(listed - {LATEST}) or 1, "run")
    return f"choose from {number}, e.g. {example}; {list_all}"


def _runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder, newest names first, and the link to the latest one."""
    try:
        children = sorted(folder.iterdir(), reverse=True)
    except OSError:
        return []
    return [child for child in children if any((child / name).is_file() for name in _RUN_FILES)]


def unfinished_run(folder: Path = BASE) -> Path | None:
    """Return the most recently started run in a folder that has not finished, or None.

    A run that is still being written counts as unfinished.
    """
    started: list[tuple[float, Path]] = []
    for run in _runs_in(folder):
        with contextlib.suppress(OSError):  # deleted meanwhile
            if not run.is_symlink() and is_unfinished(run):
                started.append(((run / "config.toml").stat().st_mtime, run))
    return max(started)[1] if started else None


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder contains a run that has not finished; a damaged one is ignored."""
    if not has_settings(folder):
        return False
    try:
        environment = read_environment(folder / "environment.json")
    except RunError:
        return False
    return environment is None or environment["status"] != "finished"


def has_settings(run: Path) -> bool:
    """Return whether a folder has the files that `vitft finetune` writes before it trains."""
    return all((run / name).is_file() for name in ("config.toml", "split.csv"))


def resume_command(run: Path) -> str:
    """Return the command that continues a run."""
    return f"vitft finetune --resume {shell_quote(str(run))}"
