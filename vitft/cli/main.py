"""The command `vitft`: build the parser, run one command, turn errors into exit codes.

Each command imports what it needs when it runs, so that `vitft --help` and a wrong option answer
without waiting for torch.
"""

import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from vitft.cli import output
from vitft.cli.cache import add_cache
from vitft.cli.check import add_check
from vitft.cli.data import add_data
from vitft.cli.demo import add_demo
from vitft.cli.evaluate import add_evaluate
from vitft.cli.explain import add_explain
from vitft.cli.export import add_export
from vitft.cli.finetune import add_finetune
from vitft.cli.parser import Commands, Parser
from vitft.cli.predict import add_predict
from vitft.cli.recipes import add_recipes
from vitft.cli.report import add_compare, add_report
from vitft.cli.serve import add_serve
from vitft.cli.study import add_study
from vitft.cli.weights import add_weights
from vitft.system import console
from vitft.system.errors import VitftError
from vitft.system.signals import Stopper


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, see `system.errors`."""
    output.prepare_streams()
    console.show_log()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        args = build_parser().parse_args([a for a in arguments if a != "--debug"])
        with Stopper(), output.quiet_pipe():  # a signal unwinds every command
            return args.command(args)
    except VitftError as error:
        if debug:
            traceback.print_exc()
        output.fail(error)
        return error.exit_code
    except KeyboardInterrupt as stop:  # Ctrl-C, or Stopped with the exit code of its signal
        output.interrupted()
        return getattr(stop, "exit_code", 130)
    except Exception:  # the only place that catches everything: a bug, to be reported
        traceback.print_exc()
        output.bug()
        return 1


def build_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="vitft",
        description="Fine-tune a Vision Transformer on a folder of images.",
        epilog="`vitft COMMAND --help` explains a command. Every command accepts --debug, which "
        "adds the traceback to an error.",
    )
    parser.add_argument("--version", action="version", version=f"vitft {version('vitft')}")
    commands = Commands(parser, "commands")
    for add_command in (
        *(add_finetune, add_check, add_data, add_predict, add_explain, add_evaluate, add_export),
        *(add_serve, add_weights, add_recipes, add_cache, add_report, add_compare, add_study),
        add_demo,
    ):
        add_command(commands)
    return parser
