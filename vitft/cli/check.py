"""The door of `vitft check`: what may be wrong with a folder, and a table of proposals."""

import argparse
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.system import console
from vitft.system.errors import RunError, UsageError
from vitft.system.imports import heavy_imports

if TYPE_CHECKING:
    from vitft.check.folder import Outcome
    from vitft.cli.parser import Parser

SHOWN = 3
"""Examples of each kind on the terminal; all of them are in the table."""


def add_check(verbs: "argparse._SubParsersAction[Parser]") -> None:
    """`vitft check`."""
    parser = verbs.add_parser(
        "check", help="what is wrong with an image folder: files, copies, leaks, labels"
    )
    parser.add_argument("data", metavar="DIR", help="image folder, one sub-folder per class")
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--weights", metavar="NAME", help="judge the labels with these weights")
    known.add_argument("--run", metavar="RUN", help="... with those of this run, and its split")
    parser.add_argument(
        "--out", default=".", metavar="DIR", help="where fixes.csv is put (default: here)"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--cache", metavar="DIR", help="folder of cached features, or none")
    parser.add_argument("--device", help="auto, cpu, cuda, cuda:1, mps")
    parser.set_defaults(command=check_command)


def check_command(args: argparse.Namespace) -> int:
    """Look, say what was found, and put the proposals beside it."""
    with heavy_imports():
        from vitft.check.folder import check_folder, config_of
    from vitft.config.run import Config
    from vitft.data.arrays import data_path, find_arrays
    from vitft.data.fixes import write_fixes
    from vitft.data.folder import check_is_folder

    root = data_path(args.data)
    if find_arrays(root) is None:
        check_is_folder(root)
    place = place_for_fixes(Path(args.out).expanduser(), root)
    config, split = config_of(args.run) if args.run else (Config(), None)
    if args.weights:
        from vitft.models.pretrained.locate import check_weights_name

        check_weights_name(args.weights, allow_pickle=False)
        config = replace(config, weights=replace(config.weights, name=args.weights))
    named = {k: v for k in ("cache", "device") if (v := getattr(args, k)) is not None}
    config = replace(config, train=replace(config.train, **named))
    outcome = check_folder(root, config, split=split)
    if outcome.fixes:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_fixes(place, outcome.fixes)
    written = str(place) if outcome.fixes else None
    if args.format == "json":
        console.result(json.dumps(outcome.audit | {"fixes": written}, indent=2, allow_nan=False))
    else:
        say(outcome, written, args.data)
    return 0


def place_for_fixes(out: Path, root: Path) -> Path:
    """`fixes.csv` in `out`, or the first of fixes-2.csv, fixes-3.csv, ... that does not exist."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, not a folder", fix="choose another --out")
    inside = out.resolve()
    if root.resolve() in (inside, *inside.parents):
        raise UsageError(
            f"the proposals would lie inside the data {root}, which is never changed",
            fix="choose another place with --out DIR",
        )
    names = ["fixes.csv", *(f"fixes-{i}.csv" for i in range(2, 1000))]
    return next(out / name for name in names if not (out / name).exists())


def say(outcome: "Outcome", written: str | None, data: str) -> None:
    """The findings, the first few of each kind, and what to do."""
    audit = outcome.audit
    console.result(f"{audit['images']:,} readable images")
    for title, examples in sections(audit).items():
        if examples:
            console.result(f"{title}: {len(examples):,}")
            for text in examples[:SHOWN]:
                console.result(f"  {console.visible(text)}")
            if len(examples) > SHOWN:
                console.result(f"  ... and {len(examples) - SHOWN:,} more")
    balance = audit["imbalance"]
    largest, smallest, ratio = balance["largest"], balance["smallest"], balance["ratio"]
    if largest and smallest and ratio is not None:
        names = [f"{console.visible(name)} {n:,}" for name, n in (largest, smallest)]
        console.result(f"classes: {names[0]} to {names[1]} images, {ratio:.1f} to 1")
    if not outcome.judged:
        console.note("labels were not judged: that needs --weights NAME or --run RUN")
    if written is None:
        console.result("nothing to fix")
        return
    drops = sum(fix.action == "drop" for fix in outcome.fixes)
    console.result(
        f"proposals: {console.visible(written)}, {len(outcome.fixes):,} images, {drops:,} of them "
        "to drop; the others are kept until you write drop or move"
    )
    place, sheet = (console.visible(shlex.quote(path)) for path in (data, written))
    command = f"vitft finetune --data {place} --fixes {sheet}"
    near = any(group["kind"] == "near" for group in audit["duplicates"])
    console.note(f"next: look at the table, then {command}{' --group-duplicates' * near} ...")


def sections(audit: Mapping[str, Any]) -> dict[str, list[str]]:
    """Examples in words under the title of their kind."""
    groups: Sequence[Mapping[str, Any]] = audit["duplicates"]
    return {
        "unreadable files": reasons(audit["bad"]),
        "odd images": reasons(audit["odd"]),
        "groups of identical files": pictures(g for g in groups if g["kind"] == "exact"),
        "groups of near copies": pictures(g for g in groups if g["kind"] == "near"),
        "the same picture in training and validation": pictures(
            g for g in groups if g["across_split"]
        ),
        "the same picture under two labels": pictures(g for g in groups if g["labels_differ"]),
        "probably mislabelled": [
            f"{entry['path']}: {entry['suggested']} ({entry['suggested_probability']:.0%}) rather "
            f"than {entry['label']} ({entry['given_probability']:.0%})"
            for entry in audit["mislabels"]
        ],
    }


def reasons(entries: Iterable[Mapping[str, str]]) -> list[str]:
    """Paths with their reasons."""
    return [f"{entry['path']}: {entry['reason']}" for entry in entries]


def pictures(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    """The members of each group on a line."""
    return [" = ".join(member["path"] for member in group["members"][:4]) for group in groups]
