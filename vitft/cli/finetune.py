"""`vitft finetune`: start, resume or dry-run a fine-tuning run."""

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Any

from vitft.cli import output
from vitft.cli.parser import OptionGroup, Parser
from vitft.cli.report import print_report
from vitft.cli.summary import print_summary
from vitft.config.defaults import check_effect
from vitft.config.options import FINETUNE_OPTIONS, Option, option_settings
from vitft.config.run import Config, config_from_table, merge_settings, parse_setting, read_recipe
from vitft.system.errors import UsageError
from vitft.system.imports import heavy_imports
from vitft.system.rundir import BASE
from vitft.system.text import duration


def add_finetune(parser: Parser) -> None:
    """Add the options of `vitft finetune`."""
    groups = {
        title: parser.add_argument_group(title)
        for title in dict.fromkeys(option.group for option in FINETUNE_OPTIONS)
    }
    for option in FINETUNE_OPTIONS:
        add_option(groups[option.group], option)
    add_run_options(groups["run"])
    settings = parser.add_argument_group("settings")
    settings.add_argument("--recipe", metavar="NAME", help="settings of a recipe or a TOML file")
    settings.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting of docs/settings.md, e.g. data.val_rate=0.1; may be repeated",
    )
    parser.set_defaults(command=finetune_command)


def add_option(group: OptionGroup, option: Option) -> None:
    """Add an option that stands for a setting, with the type of the setting."""
    kind, text = option.setting_type, option.text.replace("%", "%%")
    if kind.type is bool:
        group.add_argument(option.flag, action="store_true", default=None, help=text)
    elif option.keyword == "tracker":
        group.add_argument(option.flag, action="append", metavar=option.placeholder, help=text)
    else:
        group.add_argument(
            option.flag,
            type=kind.type,
            nargs=None if kind.length is None else "+",
            metavar=option.placeholder,
            help=text,
        )


def add_run_options(group: OptionGroup) -> None:
    """Add the options that do not stand for a setting."""
    group.add_argument(
        "--seed", type=int, metavar="N", help="of split, batch order and augmentation (default: 0)"
    )
    group.add_argument("--out", metavar="DIR", help="run directory (default: runs/<time>-<data>)")
    group.add_argument("--resume", metavar="DIR", help="continue a run that was stopped or killed")
    group.add_argument(
        "--max-time",
        metavar="TIME",
        help="stop after e.g. 90s, 10m or 2h, to be continued with --resume (default: no limit)",
    )
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, print the settings as TOML and what would train, and stop",
    )


def finetune_command(args: argparse.Namespace) -> int:
    """Check the request, train, and print the metrics."""
    max_seconds = seconds_of(args.max_time) if args.max_time else 0.0
    if args.dry_run:
        return print_dry_run(args)
    is_restart = restarted_by_torchrun(args.out)
    if is_restart:
        args.resume, args.out = args.out, None
    config, out = plan_resume(args) if args.resume else plan_new_run(args)
    if config is None:
        output.note(f"{out} is already finished; there is nothing to resume")
        return 0
    with heavy_imports():
        from vitft.training.run import run_finetuning

    result = run_finetuning(config, out=out, resume=bool(args.resume), max_seconds=max_seconds)
    is_latest = result.run.parent == BASE
    print_summary(result.run, result.figures, status=result.status, is_latest=is_latest)
    if os.environ.get("RANK", "0") == "0" and result.figures:  # one process of torchrun
        print_report(result.run)
    if result.everything_s is not None:
        options = shlex.join(["--data", config.data.path, "--weights", config.weights.name])
        output.note(
            f"training everything from this head would take about {duration(result.everything_s)} "
            f"on this machine: vitft finetune {options} --freeze head,none"
        )
    return result.exit_code


def restarted_by_torchrun(out: str | None) -> bool:
    """Return whether torchrun restarts this process after a failure and `out` has its run."""
    is_restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return is_restart and out is not None and (Path(out).expanduser() / "config.toml").is_file()


def plan_new_run(args: argparse.Namespace) -> tuple[Config | None, Path]:
    """Return the settings and the directory of a new run, after all checks without torch."""
    from vitft.data.demo import demo_data
    from vitft.training.checks import check_request

    config = demo_data(requested_config(args))
    return config, check_request(config, args.out)


def requested_config(args: argparse.Namespace) -> Config:
    """Return the settings of a new run."""
    recipe, named = named_settings(args)
    config = config_from_table(merge_settings(recipe, named))
    check_effect(config.optim.solver, len(config.train.stages), [key for key, _ in named])
    return config


def print_dry_run(args: argparse.Namespace) -> int:
    """Log what a run would do, and print its settings."""
    from vitft.data.demo import temporary_demo_data
    from vitft.training.checks import check_request

    if args.resume:
        raise UsageError(
            "--dry-run applies to a new run, not to --resume", fix="leave out one of them"
        )
    config = requested_config(args)
    with temporary_demo_data(config) as ready:
        out = check_request(ready, args.out)
        with heavy_imports():
            from vitft.training.setup import dry_run

        text = dry_run(ready, out, data=config.data.path)
    output.exact(text.rstrip("\n"))
    return 0


def plan_resume(args: argparse.Namespace) -> tuple[Config | None, Path]:
    """Return the settings, or None if the run is finished, and the directory of a run to resume.

    Raises:
        UsageError: An option applies to new runs only.
        RunError: There is no such run, or a setting would change its result.
    """
    from vitft.training.checks import check_resume

    if args.out or args.recipe:
        raise UsageError(
            "--resume continues a run in its directory and with its settings",
            fix="leave out --out and --recipe",
        )
    _, named = named_settings(args)
    return check_resume(Path(args.resume).expanduser(), named)


def named_settings(args: argparse.Namespace) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Return the recipe's settings, and those given by options and --set.

    Raises:
        UsageError: A setting is given by both.
    """
    options = option_settings(vars(args))
    settings = [parse_setting(text) for text in args.set]
    twice = {key for key, _ in options} & {key for key, _ in settings}
    if twice:
        raise UsageError(
            f"{min(twice)} is set by an option and by --set", fix="leave out one of them"
        )
    return read_recipe(args.recipe) if args.recipe else {}, [*options, *settings]


def seconds_of(text: str) -> float:
    """Return the seconds of `90s`, `10m`, `2h`, or a plain number of seconds.

    Raises:
        UsageError: It is something else, or 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"invalid --max-time {text!r}", fix="use e.g. 90s, 10m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
