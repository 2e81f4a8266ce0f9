"""`vitft finetune`: start, resume or dry-run a fine-tuning run."""

import argparse
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitft.cli import output
from vitft.cli.parser import OptionGroup, Parser
from vitft.cli.report import print_report
from vitft.config.options import FINETUNE_OPTIONS, SEED_SETTINGS, Option, option_settings
from vitft.config.request import requested_config
from vitft.config.run import Config, parse_setting, to_toml
from vitft.config.sections import DataSpec, layers_text
from vitft.metrics.chance import chance_level
from vitft.metrics.results import (
    BudgetResults,
    CalibrationMetrics,
    ClassMetrics,
    CrossValidation,
    LabelResults,
    Metrics,
    RunResults,
)
from vitft.metrics.verdict import selected_epoch, verdict
from vitft.system.errors import UsageError
from vitft.system.imports import heavy_imports
from vitft.system.run_names import unfinished_run
from vitft.system.rundir import BASE, LATEST, run_path
from vitft.system.text import (
    count,
    duration,
    interval,
    is_measurable,
    parse_duration,
    percent,
    percent_or_bound,
    shell_quote,
)


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
    settings.add_argument(
        "--recipe", metavar="NAME", help="name of a recipe, or TOML file with settings"
    )
    settings.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting (see docs/settings.md), e.g. data.val_rate=0.1; may be repeated",
    )
    parser.set_defaults(command=finetune_command)


def add_option(group: OptionGroup, option: Option) -> None:
    """Add the option for a setting, with the type of that setting."""
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
    """Add the options that do not correspond to a single setting."""
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed for the split, batch order and augmentation (default: 0)",
    )
    group.add_argument("--out", metavar="DIR", help="run directory (default: runs/<time>-<data>)")
    group.add_argument("--resume", metavar="DIR", help="directory of an unfinished run to resume")
    group.add_argument(
        "--max-time",
        metavar="TIME",
        help="time limit, e.g. 90s, 10m or 2h; the run can be continued with --resume "
        "(default: no limit)",
    )
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="check all inputs, print the settings and what would be trained, and exit",
    )


def finetune_command(args: argparse.Namespace) -> int:
    """Check the request, train, print the metrics, and return the exit code."""
    from vitft.data.demo import demo_data
    from vitft.training.checks import check_request

    max_seconds = seconds_of(args.max_time) if args.max_time else 0.0
    if args.dry_run:
        return print_dry_run(args)
    is_restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if is_restart and args.out and (Path(args.out).expanduser() / "config.toml").is_file():
        args.resume, args.out = args.out, None  # torchrun restarts the processes of this run
    if args.resume:
        config, out = plan_resume(args)
    else:
        config = requested_config(args.recipe, named_settings(args))
        config = replace(config, data=demo_data(config.data))
        config, out = check_request(config, args.out)
    if config is None:
        output.note(f"{out} is already finished: there is nothing to resume")
        return 0
    with heavy_imports():
        from vitft.report.reproduce import command_of
        from vitft.training.run import run_finetuning

    result = run_finetuning(config, out=out, resume=bool(args.resume), max_seconds=max_seconds)
    is_latest = result.run.parent == BASE
    print_summary(result.run, result.figures, config, status=result.status, is_latest=is_latest)
    if os.environ.get("RANK", "0") == "0" and result.figures:  # only in one process of torchrun
        print_report(result.run)
    if result.everything_s is not None:
        command = command_of(tomllib.loads(to_toml(config)))  # with lists in place of tuples
        output.note(
            "training all layers, starting from this head, would take about "
            f"{duration(result.everything_s)} on this machine: {command} --freeze head,none"
        )
    return result.exit_code


def print_dry_run(args: argparse.Namespace) -> int:
    """Check the request, and print the settings and what a run would do."""
    from vitft.data.arrays import sizes_assumed
    from vitft.data.demo import temporary_demo_data
    from vitft.training.checks import check_request

    if args.resume:
        raise UsageError("--dry-run and --resume cannot be combined", fix="use only one of them")
    config = requested_config(args.recipe, named_settings(args))
    with temporary_demo_data(config.data) as data, sizes_assumed():
        ready = replace(config, data=data)
        ready, out = check_request(ready, args.out)
        with heavy_imports():
            from vitft.training.setup import dry_run

        text = dry_run(ready, out, data=config.data.path)
    output.exact(text.rstrip("\n"))
    return 0


def plan_resume(args: argparse.Namespace) -> tuple[Config | None, Path]:
    """Return the settings and the directory of a run to resume.

    The settings are None if the run is finished.

    Raises:
        UsageError: An option applies to new runs only, or a setting is unknown or given twice.
        RunError: The run does not exist or is damaged, or a given setting would change its result.
    """
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
    return check_resume(path, named, typed_names(args))


def typed_names(args: argparse.Namespace) -> dict[str, str]:
    """Return what was typed for each given setting: `--lr`, or `--set optim.momentum`."""
    names = {key: f"--set {key}" for key, _ in map(parse_setting, args.set)}
    flags = {option.setting: option.flag for option in FINETUNE_OPTIONS}
    flags |= dict.fromkeys(SEED_SETTINGS, "--seed")
    return names | {key: flags[key] for key, _ in option_settings(vars(args))}


def named_settings(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """Return the settings given by options and --set.

    Raises:
        UsageError: A setting is given twice, or a `--set` is invalid.
    """
    options = option_settings(vars(args))
    settings = [parse_setting(text) for text in args.set]
    twice = {key for key, _ in options} & {key for key, _ in settings}
    if twice:
        raise UsageError(
            f"{min(twice)} is set both by an option and by --set", fix="remove one of them"
        )
    return [*options, *settings]


def seconds_of(text: str) -> float:
    """Return the number of seconds in a time such as `90s`, `10m`, `2h` or `90`.

    Raises:
        UsageError: The text is not a time, or the time is 0.
    """
    seconds = parse_duration(text)
    if not seconds:
        raise UsageError(f"invalid --max-time {text!r}", fix="use e.g. 90s, 10m or 2h")
    return seconds


def print_summary(
    run: Path, metrics: RunResults | None, config: Config, *, status: str, is_latest: bool
) -> None:
    """Print the metrics of a run, if it has any, and suggest the next command.

    The suggested command includes the run directory unless the run is the latest one in `runs`.
    """
    folder = shell_quote(str(run))
    if status != "finished":
        output.warn(f"{status}; resume with: vitft finetune --resume {folder}")
    if not metrics:
        return
    output.rule()
    if "labels" in metrics:
        print_label_metrics(metrics["labels"], metrics, "validation image")
    else:
        output.result(
            f"accuracy {percent(metrics['top1'])} (95% interval "
            f"{interval(metrics['top1_interval'])}) on {metrics['images']} validation images",
            style="bold",
        )
        output.result(verdict(metrics))
        output.result(f"baseline (largest class): {percent(metrics['majority'])}")
    print_test(metrics)
    print_selection(metrics, config)
    if (calibration := metrics["calibration"]) and calibration["temperature"] != 1:
        output.result(calibration_text(calibration))
    cross_validation = metrics.get("cross_validation")
    if "labels" in metrics:
        print_weakest_label(metrics["labels"], metrics["images"])
    elif cross_validation:
        print_cross_validation(
            cross_validation,
            knn_top1=metrics["knn_top1"],
            with_weakest=not chance_level(metrics),
        )
    elif not chance_level(metrics):
        print_weakest(metrics["per_class"])
    output.result(f"run: {run}")
    output.rule()
    if status == "finished":
        which = "" if is_latest else f" --run {folder}"
        output.note(f"next:  vitft predict{which} IMAGE ...")
        output.note(f"       vitft export --safetensors{which}")


def print_label_metrics(found: LabelResults, metrics: Metrics, kind: str) -> None:
    """Print the metrics of a multi-label model; `kind` is e.g. `validation image`."""
    output.result(
        f"mean average precision {percent(found['map'])} (95% interval "
        f"{interval(found['map_interval'])}) on {count(metrics['images'], kind)}; random scores: "
        f"{percent(found['chance_map'])}"
    )
    output.result(
        f"mean F1 of the labels {percent(found['macro_f1'])} (95% interval "
        f"{interval(found['macro_f1_interval'])}); all labels are right for "
        f"{percent(metrics['top1'])} of the images"
    )


def print_weakest_label(found: LabelResults, images: int) -> None:
    """Print the label with the lowest average precision on this number of validation images."""
    known = {n: row["ap"] for n, row in found["per_label"].items() if row["ap"] is not None}
    if known:
        name = min(known, key=lambda label: known[label] or 0.0)
        output.result(
            f"weakest label: {name}, average precision {percent(known[name])} on "
            f"{count(images, 'validation image')}"
        )


def print_test(metrics: RunResults) -> None:
    """Print the metrics on the test images, if there are any."""
    test = metrics.get("test")
    if test is None:
        return
    if "labels" in test:
        print_label_metrics(test["labels"], test, "test image")
    else:
        output.result(
            f"test accuracy {percent(test['top1'])} (95% interval "
            f"{interval(test['top1_interval'])}) on {count(test['images'], 'test image')}, "
            "evaluated once"
        )
    if test["left_out"]:
        output.note(
            f"excluded from the test set: {count(test['left_out'], 'image')} identical to a "
            "training or validation image"
        )


def print_selection(metrics: RunResults, config: Config) -> None:
    """Print how the epoch was selected and, for a run with a time budget, its trials."""
    if metrics["selected_on_validation"]:
        selected = selected_epoch(metrics, config.train.freeze, config.optim.epochs)
        output.note(
            f"this accuracy is slightly optimistic: {selected} was selected on the same images"
        )
    if budget := metrics.get("budget"):
        print_budget(budget)


def print_budget(budget: BudgetResults) -> None:
    """Print which layers a run with a time budget tried, which it trained, and which it skipped."""
    for trial in budget["trials"]:
        output.result(
            f"trial: after training {layers_text(trial['layers'])} for "
            f"{count(trial['epochs'], 'epoch')}, {percent(trial['top1'])} of "
            f"{trial['held_out']:,} held-out training images are classified correctly (with the "
            f"head alone: {percent(trial['head_top1'])})"
        )
    if budget["chosen"] == "head":
        why = ": no trial was clearly better than the head" if budget["trials"] else ""
        output.result(f"only the head was trained{why}")
    elif budget["chosen"]:
        output.result(
            f"after fitting the head, the run trained {layers_text(budget['chosen'])} for "
            f"{count(budget['epochs'], 'epoch')}"
        )
    for skipped in budget["skipped"]:
        output.note(
            f"training {layers_text(skipped['layers'])} was skipped for lack of time; to try it, "
            f"use --budget {math.ceil(skipped['seconds_needed'] / 60)}m or more"
        )


def calibration_text(calibration: CalibrationMetrics) -> str:
    """Return the calibration error; one that is too small to be measured has no interval."""
    bounds = calibration["ece_interval"]
    error = f"calibration error {percent_or_bound(calibration['ece'], bounds)}"
    if not is_measurable(calibration["ece"]):
        return f"{error} (too small to be measured on these images)"
    before = percent(calibration["ece_before"])
    return f"{error} (95% interval {interval(bounds)}), {before} before calibration"


def print_cross_validation(
    results: CrossValidation, *, knn_top1: float, with_weakest: bool
) -> None:
    """Print the cross-validated accuracy, the expected gain from more images, and weak classes."""
    scored, total = results["images"], results["of"]
    images = f"all {total:,}" if scored == total else f"{scored:,} of {total:,}"
    output.result(
        f"cross-validated accuracy on {images} images: {percent(results['top1'])} "
        f"({interval(results['top1_interval'])}); nearest neighbours on the "
        f"validation images: {percent(knn_top1)}"
    )
    if (gain := results["gain_from_twice"]) is not None:
        output.result(f"with twice as many images: about {100 * gain:+.1f} points (extrapolated)")
    ranks = ("weakest class", "second-weakest class") if with_weakest else ()
    for rank, weak in zip(ranks, results["weak_spots"], strict=False):
        if weak["recall"] < 1:
            confused = weak["taken_for"]
            also = f", most often predicted as {confused}" if confused else ""
            output.result(
                f"{rank}: {weak['class']}, recall {percent(weak['recall'])} on "
                f"{count(weak['images'], 'image')} in cross-validation{also}"
            )


def print_weakest(per_class: Mapping[str, ClassMetrics]) -> None:
    """Print the class with the lowest recall on the validation images, unless the recall is 1."""
    recalls = {name: row["recall"] for name, row in per_class.items() if row["images"]}
    name = min(recalls, key=lambda name: recalls[name] or 0.0, default=None)
    if name is not None and (recall := recalls[name]) is not None and recall < 1:
        on = count(per_class[name]["images"], "validation image")
        output.result(f"weakest class: {name}, recall {percent(recall)} on {on}")
