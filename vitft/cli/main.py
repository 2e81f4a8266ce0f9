"""Entry point of the `vitft` command: parse options, run a command, map errors to exit codes.

Only the module of the requested command is imported, and its slow dependencies are imported when it
runs. Therefore, `--help` and errors in the options do not wait for torch.
"""

import argparse
import errno
import importlib
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence

from vitft.cli import output
from vitft.cli.guide import COMMAND_GROUPS
from vitft.cli.output import StdoutLostError
from vitft.cli.parser import Parser, add_command
from vitft.system import console
from vitft.system.errors import ResourceError, UsageError, VitftError
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
        code = _run_command(arguments)
        try:
            code = stdout.exit_code(code)
        except ResourceError as error:
            output.fail(error)
            code = error.exit_code
    return code


def _run_command(arguments: list[str]) -> int:
    """Run one command, print the error if it fails, and return its exit code."""
    try:
        if not arguments or arguments == ["--version"]:
            output.exact(f"vitft {output.version()}" if arguments else _OVERVIEW)
            return 0
        command = next((a for a in arguments if not a.startswith("-")), "")
        parser = build_parser(command)
        own = [a for a in arguments if a not in {"--debug", *_LOG_LEVELS}]
        chosen = parser.commands.get(command, parser)
        chosen.typed = own = chosen.with_images(own)
        args = _parse(parser, chosen, own)
        with Stopper():  # on a signal, every command cleans up
            return args.command(args)
    except StdoutLostError:
        return 0
    except VitftError as error:
        if "--debug" in arguments:
            sys.stderr.write(redacted(traceback.format_exc()))
        output.fail(error)
        if re.search(r"(^| )(--format[ =]json|--json)( |$)", " ".join(arguments)):
            fields = {"problem": error.problem, "fix": error.fix, "exit_code": error.exit_code}
            sys.stdout.write(json.dumps({"error": fields}, indent=2) + "\n")
        return error.exit_code
    except KeyboardInterrupt as stop:  # Ctrl-C, or Stopped with the exit code of its signal
        sys.stderr.write("vitft: interrupted\n")
        return getattr(stop, "exit_code", 130)
    except SystemExit as end:  # --help
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:  # the only catch-all: the error is a bug
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # from a path argument
            output.fail(UsageError("a path is too long", fix="use a shorter path"))
            return UsageError.exit_code
        bug = f"vitft: this is a bug in vitft {output.version()}."
        ask = "Please report it with the traceback above"
        sys.stderr.write(f"{redacted(traceback.format_exc())}{bug} {ask}\n")
        return 1


def _parse(parser: Parser, chosen: Parser, arguments: list[str]) -> argparse.Namespace:
    """Return the parsed arguments; an error hints at a file whose name begins with a hyphen."""
    try:
        args, unknown = parser.parse_known_args(arguments)
        if unknown:
            chosen.error(f"unrecognized arguments: {unknown[0]}")
        return args
    except UsageError:
        for word in arguments:
            if word.startswith("-") and os.path.lexists(word):
                raise UsageError(
                    f"{word} was taken for an option, because it begins with a hyphen",
                    fix=f"to use the file or folder of this name, write ./{word}",
                ) from None
        raise


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
            importlib.import_module(f"vitft.cli.{name}")
            add_command(added, name)
    return parser
