"""The door of `vitft finetune`: options to settings, a new run or one that goes on."""

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Any

from vitft.cli.report import show_report
from vitft.config.defaults import check_effect
from vitft.config.options import FINETUNE_OPTIONS
from vitft.config.run import Config, config_from_table, merge_settings, parse_setting, read_recipe
from vitft.system import console
from vitft.system.errors import UsageError
from vitft.system.imports import heavy_imports

Verbs = argparse._SubParsersAction  # the type argparse gives no public name


def add_finetune(verbs: "Verbs[Any]") -> None:
    """`vitft finetune`."""
    parser = verbs.add_parser("finetune", help="data and weights in, a run directory out")
    for option, setting, how, text in FINETUNE_OPTIONS:
        parser.add_argument(option, dest=setting, help=text, **how)
    parser.add_argument("--seed", type=int, help="of the split, the batch order and augmentation")
    parser.add_argument("--recipe", metavar="NAME", help="settings from a recipe or a TOML file")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, print the settings as TOML and what would train, and stop",
    )
    parser.add_argument("--out", metavar="DIR", help="run directory (default: runs/<when>-<data>)")
    parser.add_argument(
        "--resume", metavar="DIR", help="go on with a run that was stopped or killed"
    )
    parser.add_argument(
        "--max-time", metavar="TIME", help="stop after e.g. 90s, 10m or 2h; --resume goes on"
    )
    parser.add_argument("--allow-pickle", action="store_true", help="read .pth files")
    parser.add_argument(
        "--keep-adapter",
        action="store_true",
        help="with --freeze lora: also write what it trained, for peft",
    )
    parser.add_argument(
        "--group-duplicates",
        action="store_true",
        help="keep near copies of a picture on one side of the split",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting (docs/settings.md; all of a run: --dry-run), e.g. data.val_rate=0.1",
    )
    parser.set_defaults(command=finetune_command)


def finetune_command(args: argparse.Namespace) -> int:
    """Check everything cheap first, then train and say what came of it."""
    from vitft.system.rundir import BASE

    limit = seconds(args.max_time) if args.max_time else 0.0
    if args.dry_run:
        return dry_run(args)
    again = started_again(args.out)
    resume = bool(args.resume) or again
    if again:
        args.resume, args.out = args.out, None
    config, out = to_resume(args) if resume else to_begin(args)
    if config is None:
        console.note(f"{console.visible(str(out))} is finished already; there is nothing to resume")
        return 0
    with heavy_imports():
        from vitft.training.run import finetune

    result = finetune(config, out=out, resume=resume, max_seconds=limit)
    console.summary(
        result.run,
        result.figures,
        status=result.status,
        is_latest=result.run.parent == BASE,
    )
    if os.environ.get("RANK", "0") == "0":  # the first of a team speaks
        show_report(result.run, result.figures)
    if result.everything_s is not None:
        say_everything(config, result.everything_s)
    return result.exit_code


def say_everything(config: Config, seconds: float) -> None:
    """What training everything from the solved head would take, and the command for it."""
    options = shlex.join(["--data", config.data.path, "--weights", config.weights.name])
    console.note(
        f"training everything from this head would take about {console.duration(seconds)} on this "
        f"machine: vitft finetune {console.visible(options)} --freeze head,none"
    )


def started_again(out: str | None) -> bool:
    """Whether torchrun starts this process again after one had failed, with its run to go on."""
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return again and out is not None and (Path(out).expanduser() / "config.toml").is_file()


def to_begin(args: argparse.Namespace) -> tuple[Config | None, Path]:
    """The settings of a new run, and where it will be written."""
    from vitft.data.demo import demo_data
    from vitft.training.preflight import check_request

    config = demo_data(requested(args))
    return config, check_request(config, args.out)


def requested(args: argparse.Namespace) -> Config:
    """The settings of a new run."""
    table, named = named_settings(args)
    config = config_from_table(merge_settings(table, named))
    check_effect(config.optim.solver, len(config.train.stages), [key for key, _ in named])
    return config


def dry_run(args: argparse.Namespace) -> int:
    """Say what a run would do, and print its settings."""
    from vitft.data.demo import temporary_demo_data
    from vitft.training.preflight import check_request

    if args.resume:
        raise UsageError(
            "--dry-run is for a new run; what --resume goes on with is settled",
            fix="leave one of them out",
        )
    config = requested(args)
    with temporary_demo_data(config) as ready:
        out = check_request(ready, args.out)
        from vitft.training.dry_run import rehearse

        text = rehearse(ready, out, named=config.data.path)
    console.exact(text.rstrip("\n"))
    return 0


def to_resume(args: argparse.Namespace) -> tuple[Config | None, Path]:
    """The settings of a run that is taken up again; None if it is finished.

    Raises:
        UsageError: An option that only a new run has.
        RunError: No such run, or settings that would change what comes out of it.
    """
    from vitft.training.preflight import check_resume

    if args.out or args.recipe:
        raise UsageError(
            "--resume goes on in the run's own folder, with its own settings",
            fix="leave --out and --recipe out",
        )
    _, named = named_settings(args)
    return check_resume(Path(args.resume).expanduser(), named)


def named_settings(args: argparse.Namespace) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """The recipe's table, and what options and --set name; naming a setting twice is refused."""
    options = [
        (key, getattr(args, key))
        for _, key, _, _ in FINETUNE_OPTIONS
        if getattr(args, key) is not None
    ]
    if args.seed is not None:
        options += [("data.seed", args.seed), ("train.seed", args.seed)]
    if args.allow_pickle:
        options.append(("weights.allow_pickle", True))
    if args.keep_adapter:
        options.append(("train.keep_adapter", True))
    if args.group_duplicates:
        options.append(("data.group_duplicates", True))
    settings = [parse_setting(text) for text in args.set]
    twice = {key for key, _ in options} & {key for key, _ in settings}
    if twice:
        raise UsageError(
            f"{min(twice)} is named by an option and by --set", fix="leave one of them out"
        )
    table = read_recipe(args.recipe) if args.recipe else {}
    sizes = [
        ("weights.image_size", v[0] if len(v) == 1 else v)
        for k, v in options
        if k == "weights.image_size"
    ]
    return table, [*options, *settings, *sizes]


def seconds(text: str) -> float:
    """`90s`, `10m`, `2h`, or a number of seconds.

    Raises:
        UsageError: Anything else, or no time at all.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"--max-time {text!r} is no time", fix="write 90s, 10m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
