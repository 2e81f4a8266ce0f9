"""Entry point of the `vitft` command: parse options, run a command, map errors to exit codes.

Only the module of the requested command is imported, and its slow dependencies are imported when it
runs. Therefore, `--help` and errors in the options do not wait for torch.
"""

import argparse
import errno
import importlib
import itertools
import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from vitft.cli import output
from vitft.cli.guide import COMMAND_GROUPS, MODULES
from vitft.cli.output import StdoutLostError
from vitft.cli.parser import Parser, add_command
from vitft.system import console
from vitft.system.errors import ResourceError, UsageError, VitftError
from vitft.system.imports import version
from vitft.system.signals import Stopper
from vitft.system.text import redacted

_OVERVIEW = """Fine-tune a Vision Transformer on images in one folder per class.

  vitft finetune --data DIR   train and evaluate a classifier
  vitft predict IMAGE ...     classify images with it
  vitft export --onnx         export it in a format that other programs can read
  vitft check DIR             find duplicates, wrong labels and unreadable files

If you have no images yet, `vitft demo` does all this offline on drawn flowers.
`vitft --help` lists all commands, and `vitft COMMAND --help` describes one."""
"""Text printed by `vitft` without arguments."""

_LOG_LEVELS = dict.fromkeys(("-v", "--verbose"), logging.DEBUG)
_LOG_LEVELS |= dict.fromkeys(("-q", "--quiet"), logging.WARNING)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (see `system.errors`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with output.safe_streams() as stdout:
        levels = [_LOG_LEVELS[flag] for flag in arguments if flag in _LOG_LEVELS]
        console.show_log(min(levels, default=logging.INFO))
        try:
            return stdout.exit_code(_run_command(arguments))
        except KeyboardInterrupt as stop:  # Ctrl-C, or Stopped with the exit code of its signal
            sys.stderr.write("vitft: interrupted\n")
            return getattr(stop, "exit_code", 130)
        except Exception as error:
            failure, trace = error, redacted(traceback.format_exc())
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # of an argument
                failure = UsageError("a path is too long", fix="use a shorter path")
            if isinstance(failure, VitftError):
                sys.stderr.write(trace * ("--debug" in arguments))
                output.fail(failure)
            else:  # the only catch-all: the error is a bug
                bug = f"this is a bug in vitft {version('vitft')}"
                sys.stderr.write(
                    f"{trace}vitft: {bug}. Please report it with the traceback above\n"
                )
                failure = VitftError(
                    f"{bug}: {trace.splitlines()[-1]}", fix="report it with the traceback on stderr"
                )
            # A part of a result may have been printed, and every process of torchrun fails
            is_first = os.environ.get("RANK", "0") == "0"
            if _wants_json(arguments) and is_first and not stdout.is_used:
                named = {name: getattr(failure, name) for name in ("problem", "fix", "exit_code")}
                stdout.write(json.dumps({"error": named}, indent=2) + "\n")
                try:
                    stdout.exit_code(0)
                except ResourceError as lost:  # the exit code stays that of the first error
                    output.fail(lost)
            return failure.exit_code


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the command line asks for one JSON object, also if it has an error."""
    shown = list(itertools.takewhile(lambda word: word != "--", arguments))
    pairs = itertools.pairwise([*shown, ""])
    formats = [
        after if word == "--format" else word.removeprefix("--format=")
        for word, after in pairs
        if word.partition("=")[0] == "--format"
    ]
    return formats[-1:] == ["json"] or "--json" in shown


def _run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    before = arguments[: arguments.index(command)] if command else arguments
    try:
        if not arguments or "--version" in before:
            output.exact(f"vitft {version('vitft')}" if arguments else _OVERVIEW)
            return 0
        parser = build_parser(command)
        own = [word for word in arguments if word not in {"--debug", *_LOG_LEVELS}]
        chosen = parser.commands.get(command, parser)
        chosen.typed = own = chosen.with_images(own)
        args, unknown = parser.parse_known_args(own)
        if unknown:
            chosen.error(f"unrecognized arguments: {unknown[0]}")
        with Stopper():  # on a signal, every command cleans up
            return args.command(args)
    except StdoutLostError:
        return 0
    except SystemExit as end:  # --help
        return end.code if isinstance(end.code, int) else 0


def build_parser(command: str | None = None) -> Parser:
    """Return the parser; if `command` is given, add options only to the parser of that command."""
    parser = Parser(
        prog="vitft",
        description="Fine-tune a Vision Transformer on a folder of images.",
        epilog="`vitft COMMAND --help` lists the options of a command. Every command accepts\n"
        "-v (--verbose) for more detail, -q (--quiet) for results and warnings only, and\n"
        "--debug for the traceback of an error.",
    )
    about = "show the version and exit"  # `_run_command` does it
    parser.add_argument("--version", action="store_true", default=argparse.SUPPRESS, help=about)
    parser.add_commands("commands")
    for name, guide in (pair for group in COMMAND_GROUPS.values() for pair in group.items()):
        added = parser.add_command(name, guide.summary)
        if command in {None, name}:
            importlib.import_module(f"vitft.cli.{MODULES.get(name, name)}")
            add_command(added, name)
    return parser
