"""`vitft finetune`: start, resume or dry-run a fine-tuning run."""

import argparse
import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.config.run import (
    FINETUNE_OPTIONS,
    SEED_SETTINGS,
    Config,
    checked_run_config,
    joined_settings,
    parse_setting,
    requested_config,
)
from vitft.config.sections import DataSpec
from vitft.data.groups import with_group_by
from vitft.system.console import LogHandler
from vitft.system.errors import UsageError, VitftError
from vitft.system.imports import heavy_imports
from vitft.system.rundir import BASE, LATEST, read_run_json, run_path, unfinished_run
from vitft.system.text import count, duration_fix, labelled, parse_duration, shell_join, shell_quote

if TYPE_CHECKING:
    from vitft.data.image_table import Images
    from vitft.metrics.results import RunResults

_ONE_LINE = 65  # maximum number of characters of commands on one line


def _arguments() -> str:
    """Return the declaration of the options of settings, by group, before the others."""
    lines: dict[str, list[str]] = {"common": [], "run": [], "data": [], "advanced": []}
    for option in FINETUNE_OPTIONS:
        value = "" if option.type is bool else f" {option.placeholder}"
        several = " ..." * (option.length is not None)
        lines[option.group].append(f"{option.flag}{value}{several}  {option.text}")
    return "\n".join(line for name, own in lines.items() for line in (f"{name} options:", *own))


@Command(
    "finetune",
    _arguments()
    + """
common options:
--freeze LAYERS  -
--recipe NAME  recipe, or TOML file with settings
--set KEY=VALUE  any setting (see docs/settings.md), e.g. data.val_rate=0.1 (may be repeated)
run options:
--out DIR  run directory (default: runs/<time>-<data>)
--resume DIR  directory of an unfinished run to continue
--max-time TIME  stop after a time, e.g. 90s, 10m or 2h, to continue with --resume
--dry-run  check all inputs, print the settings and what would be trained, and exit
--format
--seed N  seed for split and training (--set train.seed=N keeps the split, default: 0)
""",
    changed={
        option.keyword: {"default": None} | {"choices": None, "metavar": option.placeholder}
        if option.choices
        else {"default": None}
        for option in FINETUNE_OPTIONS
    }
    | {"freeze": {"dest": "train"}},  # former name of --train
    exclusive=("--train", "--freeze"),
    usage="vitft finetune --data PATH [options]",
)
def _finetune_command(args: argparse.Namespace) -> int:
    """Train as requested, and return the exit code; errors name options as they were typed."""
    try:
        return _finetune(args)
    except VitftError as error:
        for key, name in _typed_names(args).items():
            if not name.startswith("--set "):
                error.problem = _as_option(error.problem, key, name)
                error.fix = _as_option(error.fix, key, name)
        raise


def _finetune(args: argparse.Namespace) -> int:
    """Check the request, train, print the metrics, and return the exit code."""
    from vitft.data.demo import demo_data
    from vitft.metrics.results import read_results
    from vitft.training.checks import check_request

    max_seconds = parse_duration(args.max_time or "") or 0.0
    if args.max_time and not max_seconds:
        problem = f"invalid --max-time {args.max_time!r}"
        raise UsageError(problem, fix=f"use {duration_fix(args.max_time)}")
    if args.dry_run:
        return _print_dry_run(args)
    is_restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if is_restart and args.out and (Path(args.out).expanduser() / "config.toml").is_file():
        args.resume, args.out = args.out, None  # torchrun restarts the processes of this run
    if args.resume:
        config, folder, out = _plan_resume(args)
    else:
        config = requested_config(args.recipe, named_settings(args))
        config = replace(config, data=demo_data(config.data))
        config, folder, out = check_request(config, args.out)
    if config is None:
        output.note(f"{out} is already finished: there is nothing to resume")
        if args.format == "json":
            found = read_results(out / "eval.json")
            _print_json(out, found, checked_run_config(out), status="finished")
        return 0
    with heavy_imports(level=logging.DEBUG):  # the line on the data has been logged
        from vitft.training.run import run_finetuning

    result = run_finetuning(
        config, out=out, folder=folder, resume=bool(args.resume), max_seconds=max_seconds
    )
    del folder  # of a million images; the page needs the memory
    if args.format == "json":
        _print_json(result.run, result.figures, config, status=result.status)
        return result.exit_code
    is_latest = result.run.parent == BASE
    _print_summary(result.run, result.figures, config, status=result.status, is_latest=is_latest)
    return result.exit_code


def _print_summary(
    run: Path, found: "RunResults | None", config: Config, *, status: str, is_latest: bool
) -> None:
    """Print the results of a run, if it has any, and suggest the next commands."""
    from vitft.messages.results import chance_remedy, copies_rows, detail_lines, result_rows
    from vitft.predict.postprocess import run_results
    from vitft.report.run_page import report_of_new_run

    folder = shell_quote(str(run))
    if status != "finished":
        output.warn(f"{status}. Resume with: vitft finetune --resume {folder}")
    if not found:
        return
    results, train = run_results(run, found), config.train
    remedy = chance_remedy(
        config.weights.name,
        config.optim.solver,
        mirrored=train.mirrors,
        too_few=bool(results.at_chance and results.at_chance.too_few),
    )
    rows = result_rows(results, found.get("budget"), remedy=remedy)
    rows += copies_rows(found)
    review = _findings(run, config)
    if review and any(review.values()):
        labels, groups, across = review.values()
        texts = [count(labels, "probable label error")] * bool(labels)
        # A run logs the number of groups across splits
        of_them = f" ({across:,} across splits)" if 0 < across < groups else ""
        kinds = "group of duplicates", "groups of duplicates"
        texts += [count(groups, *kinds) + of_them] * bool(groups)
        rows.append(("Review", f"{' and '.join(texts)}, in the report"))
    page = report_of_new_run(run)
    output.rows(rows, strong=rows[0][0])
    if hidden := LogHandler.hidden:
        output.note(labelled("Notes", f"{hidden:,} more: use -v"))
    output.rows([("Report", str(page)) if page else ("Run", str(run))])
    for line in detail_lines(results, found, train.layers, config.optim.epochs):
        output.detail(line)
    which = "" if is_latest else f" --run {shell_quote(str(folder))}"
    steps = [f"vitft predict photo.jpg{which}", f"vitft export --safetensors{which}"]
    if config.data.like:
        steps.insert(0, shell_join(["vitft", "compare", config.data.like, str(run)]))
    line = "   ·   ".join(steps)
    shown = [line] if len(line) <= _ONE_LINE else steps
    for number, step in enumerate(shown if status == "finished" else ()):
        output.note(labelled("" if number else "Next", step))


def _print_json(run: Path, found: "RunResults | None", config: Config, *, status: str) -> None:
    """Write the report of a run, and print its results as one JSON object (docs/schemas)."""
    if os.environ.get("RANK", "0") != "0":
        return
    from vitft.messages.results import left_out
    from vitft.predict.postprocess import run_results
    from vitft.report.run_page import report_of_new_run

    page = report_of_new_run(run) if found else None
    output.as_json(
        {
            "run": str(run),
            "status": status,
            "results": replace(run_results(run, found), name=run.name).to_json() if found else None,
            "left_out": left_out(found) if found else None,
            "review": _findings(run, config) if found else None,
            "report": page and str(page),
        }
    )


def _findings(run: Path, config: Config) -> dict[str, int] | None:
    """Return the numbers of findings to decide on, if they are known."""
    from vitft.data.fixes import settled_paths
    from vitft.metrics.results import AuditResults
    from vitft.report.decisions import undecided_numbers

    audit = read_run_json(run / "audit.json", AuditResults)
    if not audit:
        return None
    settled = settled_paths(config.data)
    labels, copies = undecided_numbers(audit, settled)
    apart = [group for group in audit["duplicates"] if group["across_split"]]
    _, across = undecided_numbers({**audit, "duplicates": apart}, settled)
    return {"mislabels": labels, "duplicates": copies, "across_split": across}


def _print_dry_run(args: argparse.Namespace) -> int:
    """Check the request, and print the settings and what a run would do."""
    from vitft.data.arrays import sizes_assumed
    from vitft.data.demo import temporary_demo_data
    from vitft.training.checks import check_request

    if args.resume:
        raise UsageError("--dry-run and --resume cannot be combined", fix="use only one of them")
    if args.format == "json":
        raise UsageError("--dry-run prints settings as TOML, not as JSON", fix="remove --format")
    config = requested_config(args.recipe, named_settings(args))
    with temporary_demo_data(config.data) as data, sizes_assumed():
        ready = replace(config, data=data)
        ready, folder, out = check_request(ready, args.out)
        with heavy_imports():
            from vitft.training.setup import dry_run

        dry_run(
            ready,
            folder,
            out,
            data=config.data.path,
            show=lambda text: output.exact(text.rstrip("\n")),
        )
    return 0


def _plan_resume(args: argparse.Namespace) -> tuple[Config | None, "Images | None", Path]:
    """Return the settings and images of a run to resume (None if it is finished), and its path."""
    from vitft.data.demo import demo_data
    from vitft.training.checks import check_resume

    for option, value in (("--out", args.out), ("--recipe", args.recipe)):
        if value:
            raise UsageError(
                f"--resume cannot be combined with {option}",
                fix=f"remove {option}: a resumed run keeps its directory and settings",
            )
    named = named_settings(args)
    if args.data == "demo":  # as for a new run
        named += [("data.path", demo_data(DataSpec(path=args.data)).path)]
    path = run_path(args.resume)
    if Path(args.resume).name == LATEST:  # the link is set only when a run finishes
        stopped = unfinished_run(Path(args.resume).expanduser().parent)
        if stopped is not None:
            output.note(f"resuming the most recent run that has not finished: {stopped}")
            path = stopped
    return check_resume(path, named, _typed_names(args))


def _as_option(text: str, key: str, name: str) -> str:
    """Return a text in which a setting, such as `optim.lr=1`, is called by its option: `--lr 1`."""

    def words(match: re.Match[str]) -> str:
        values = [value.strip() for value in (match["value"] or "").strip("[]").split(",")]
        shown = [] if values in ([""], ["true"]) else list(dict.fromkeys(values))
        return " ".join([name, *shown])

    value = r"(?:=(?P<value>\[[^]]*\]|[^\s,;)]*))?"
    return re.sub(rf"(?<![\w.])(?<!--set ){re.escape(key)}{value}(?![\w])", words, text)


def _typed_names(args: argparse.Namespace) -> dict[str, str]:
    """Return what was typed for each given setting: `--lr`, or `--set optim.momentum`."""
    names = {key: f"--set {key}" for key, _ in map(parse_setting, args.set)}
    given = {name for name, value in vars(args).items() if value is not None}
    names |= {one.key: one.flag for one in FINETUNE_OPTIONS if one.keyword in given}
    return names | (dict.fromkeys(SEED_SETTINGS, "--seed") if "seed" in given else {})


def named_settings(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """Return the settings given by options and --set."""
    if args.group_by is not None:
        with_group_by(DataSpec(), args.group_by, "--group-by")
    return joined_settings(vars(args), map(parse_setting, args.set), "by an option and by --set")
