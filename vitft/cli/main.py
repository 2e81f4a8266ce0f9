"""The door: parse, check what can be checked without torch, call one function, print.

Each verb's function imports what it needs, so `vitft --help` and a wrong option answer at once.
"""

import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from vitft.cli.cache import add_cache
from vitft.cli.check import add_check
from vitft.cli.data import add_data
from vitft.cli.demo import add_demo
from vitft.cli.evaluate import add_evaluate
from vitft.cli.explain import add_explain
from vitft.cli.export import add_export
from vitft.cli.finetune import add_finetune
from vitft.cli.parser import Parser
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
    """Run one command; returns the exit code of `errors`."""
    console.prepare_streams()
    console.show_log()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        args = build_parser().parse_args([a for a in arguments if a != "--debug"])
        with Stopper(), console.quiet_pipe():  # every verb may be stopped, and cleans up
            return args.command(args)
    except VitftError as error:
        if debug:
            traceback.print_exc()
        console.fail(error)
        return error.exit_code
    except KeyboardInterrupt as stop:  # Ctrl-C, or a signal that says its own code
        console.interrupted()
        return getattr(stop, "exit_code", 130)
    except Exception:  # the only place that may: a bug ends here, with everything to report it
        traceback.print_exc()
        console.bug()
        return 1


def build_parser() -> Parser:
    """All verbs and their options."""
    parser = Parser(
        prog="vitft",
        description="Fine-tune a Vision Transformer on a folder of images.",
        epilog="Every verb explains itself: vitft finetune --help. --debug adds the traceback "
        "to an error.",
    )
    parser.add_argument("--version", action="version", version=f"vitft {version('vitft')}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    add_finetune(verbs)
    add_check(verbs)
    add_data(verbs)
    add_predict(verbs)
    add_explain(verbs)
    add_evaluate(verbs)
    add_export(verbs)
    add_serve(verbs)
    add_weights(verbs)
    add_recipes(verbs)
    add_cache(verbs)
    add_report(verbs)
    add_compare(verbs)
    add_study(verbs)
    add_demo(verbs)
    return parser
