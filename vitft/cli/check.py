"""`vitft check`: find problems in labelled images and propose fixes."""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.cli import output
from vitft.cli.parser import Command, given
from vitft.config.run import Config, read_run_config
from vitft.data.copies import prepare_data
from vitft.data.fixes import (
    UNDECIDED,
    is_leak,
    paths_settled_by,
    read_fixes,
    subset_names,
    write_fixes,
)
from vitft.data.label_table import SETTING_OF, TABLE_SETTINGS, with_table_settings
from vitft.data.table import is_table
from vitft.data.transforms import describe_view
from vitft.models.pretrained.catalog import check_weights_name
from vitft.system.errors import DataError, RunError
from vitft.system.files import free_name, writing
from vitft.system.rundir import check_folder_name, check_outside, run_path
from vitft.system.text import count, labelled, listing, redacted, shell_quote, whole_percent

if TYPE_CHECKING:
    from vitft.check.folder import CheckResult

_EXAMPLES = 5
"""Maximum number of examples printed for each problem; `--format json` prints all of them."""

_LITTLE = 0.5
"""Fraction of an image's area below which `check` says how little of it the model sees."""


@Command(
    "check",
    """
data DIR|TABLE  folder with one folder per class, table with the columns path and label, hf:NAME or
    wds:URL
common options:
--out DIR := .  folder in which to write check.html and fixes.csv
--format
label errors:
--weights NAME  pretrained weights for checking the labels
--run DIR  run directory that provides the pretrained weights and the split
--cache
--device
data options:
--fixes CSV  decisions of an earlier check to apply first (default: as in --run)
--set
""",
    exclusive=("--weights", "--run"),
    settable=TABLE_SETTINGS,
)
def _check_command(args: argparse.Namespace) -> int:
    """Check the folder, print the problems and write the proposed fixes and the page."""
    from vitft.check.folder import check_folder, read_run_settings, write_check_page
    from vitft.report.decisions import command_for_fixes

    config, split = read_run_settings(args.run) if args.run else (Config(), None)
    spec = with_table_settings(config.data, args.set)
    data = prepare_data(args.data, spec)
    plain = {"weights": {"name": args.weights or ""}}
    settings = read_run_config(run_path(args.run)) if args.run else plain
    settings["data"] = asdict(spec) | {"path": redacted(args.data)}
    if not is_table(data):
        columns = [key.partition(".")[2] for key in SETTING_OF.values()]
        settings["data"] |= dict.fromkeys(columns, "")
    out = Path(args.out).expanduser()
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, not a folder", fix="choose a folder with --out DIR")
    check_folder_name(out)
    check_outside(out, data)
    fixes = free_name(out / "fixes.csv", suffix=".csv")
    spec = replace(spec, split="content", allow_bad=True)  # unreadable files are reported
    if args.fixes:
        spec = replace(spec, fixes=args.fixes, fixes_digest="")
    name, pickles = args.weights or config.weights.name, config.weights.allow_pickle
    if name:  # only a run can allow pickles here
        check_weights_name(name, allow_pickle=pickles or None, allow_random=True)
    config = replace(config, weights=replace(config.weights, name=name))
    used = replace(config, data=spec, train=replace(config.train, **given(args, "cache", "device")))
    outcome = check_folder(data, used, split=split, needs_fixes=bool(args.fixes))
    command = command_for_fixes(settings, args.run or "", together=outcome.groups_help)
    if outcome.fixes:
        with writing(fixes):
            fixes.parent.mkdir(parents=True, exist_ok=True)
        write_fixes(fixes, outcome.fixes)
    page = None
    if outcome.proposed or not outcome.former:  # otherwise, the earlier page and table say it all
        page = write_check_page(
            outcome,
            free_name(fixes.with_name("check.html"), suffix=".html"),
            name=data.resolve().name if outcome.folder.table is None else outcome.folder.name,
            command=command,
            max_pixels=spec.max_pixels,
        )
    written = str(fixes) if outcome.fixes else None
    for text in filter(None, (*outcome.notes, _earlier_table(fixes, outcome))):
        output.note(text)
    if args.format == "json":
        output.as_json(outcome.audit | {"fixes": written, "page": page and str(page)})
    else:
        _print_findings(outcome)
        _print_next_steps(outcome, written, page, command)
    return 0


def _earlier_table(fixes: Path, outcome: "CheckResult") -> str:
    """Return a note on a table of an earlier check of these images that was not applied, or ""."""
    if fixes.name == "fixes.csv" or outcome.former:
        return ""
    try:
        earlier = read_fixes(fixes.with_name("fixes.csv"), "")
    except DataError:
        return ""
    paths = {file.path for file in outcome.folder.rows}
    if not any(fix.path in paths and fix.action != UNDECIDED for fix in earlier):
        return ""  # nothing in it has been decided
    return (
        f"{fixes.with_name('fixes.csv')} of an earlier check was not applied. To see what remains, "
        "add --fixes with the table that you have edited"
    )


def _print_findings(outcome: "CheckResult") -> None:
    """Print the sizes of the classes and a few examples of each problem."""
    audit = outcome.audit
    balance = audit["imbalance"]
    largest, smallest, ratio = balance["largest"], balance["smallest"], balance["ratio"]
    rows = [("Images", outcome.counts)]
    if largest and smallest and ratio is not None:
        names = [f"{name} ({count(n, 'image')})" for name, n in (largest, smallest)]
        every = f"every class has {count(largest[1], 'image')}"
        sizes = f"largest class: {names[0]}, smallest: {names[1]}, ratio {ratio:.1f}"
        rows.append(("Classes", every if largest[1] == smallest[1] else sizes))
    if not outcome.labels_checked:
        rows.append(("Labels", "not checked: add --weights NAME or --run RUN"))
    whose = "the model's" if outcome.labels_checked else "the default"
    if (view := audit.get("view")) and view["shown"] < _LITTLE:
        rows.append(("View", describe_view(view, whose=whose)))
    elif view:
        output.detail(describe_view(view, whose=whose))
    output.rows(rows)
    # Suspects that earlier fixes keep or move are counted, but not repeated
    kept = paths_settled_by(outcome.former)
    suspects = [entry for entry in audit["mislabels"] if entry["path"] not in kept]
    decided = len(audit["mislabels"]) - len(suspects)
    beside = f" (besides {decided:,} already decided)" * (decided > 0)

    def members(is_meant: Callable[[Any], bool]) -> list[str]:
        """Return the paths of up to four members of each group of duplicates."""
        chosen = filter(is_meant, audit["duplicates"])
        return [" = ".join(member["path"] for member in one["members"][:4]) for one in chosen]

    problems = {
        "unreadable files": [f"{entry['path']}: {entry['reason']}" for entry in audit["bad"]],
        "unusual images": [f"{entry['path']}: {entry['reason']}" for entry in audit["odd"]],
        "groups of identical files": members(lambda group: group["kind"] == "exact"),
        "groups of near-duplicates": members(lambda group: group["kind"] == "near"),
        "duplicates in both training and validation": members(is_leak),
        "duplicates in test and other images": members(
            lambda group: group["across_split"] and "test" in subset_names(group)
        ),
        "duplicates with different labels": members(lambda group: group["labels_differ"]),
        f"probable label errors{beside}": [
            f"{entry['path']}: {entry['suggested']} "
            f"({whole_percent(entry['suggested_probability'])}) rather than {entry['label']} "
            f"({whole_percent(entry['given_probability'])})"
            for entry in suspects
        ],
    }
    for title, examples in problems.items():
        if examples:
            output.result(f"{title}: {len(examples):,}")
            for text in examples[:_EXAMPLES]:
                output.result(f"  {text}")
            if len(examples) > _EXAMPLES:
                output.result(f"  ... and {len(examples) - _EXAMPLES:,} more")


def _print_next_steps(
    outcome: "CheckResult", written: str | None, page: Path | None, command: str
) -> None:
    """Print the names of the files written and the next command, which begins with `command`."""
    if page is None:
        found = "nothing more" if outcome.former else "nothing"
        rows = [("Found", f"{found} to fix")]
        if outcome.labels_checked:
            rows.append(("", "wrong labels may remain: not all of them can be found"))
        if outcome.former:
            rows.append(("", "keep using the table that contains your decisions"))
        output.rows(rows)
        return
    use = "" if outcome.folder.labels else ": choose and save the fixes there"
    rows = [("Page", f"{page}{use}")]
    if written is None:
        output.rows([*rows, ("Fixes", "none were written")])
        return
    actions = Counter(fix.action for fix in outcome.fixes)
    listed = listing(f"{number:,} {action}" for action, number in actions.items())
    former = f", {len(outcome.former):,} from the earlier table" if outcome.former else ""
    rows.append(("Fixes", f"{written} ({listed}{former})"))
    if actions["undecided"]:
        rows.append(
            ("", "replace undecided with keep, drop or move there. Until then, such files are used")
        )
    output.rows(rows)
    if outcome.folder.empty:
        output.note(labelled("Next", "remove the empty class folders or add --classes (see above)"))
    output.note(labelled("Next", f"{command} --fixes {shell_quote(written)}"))
