"""The door of `vitft cache`: look at the kept features, and delete them."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.system import console
from vitft.system.errors import UsageError

if TYPE_CHECKING:
    from vitft.cli.parser import Parser


def add_cache(verbs: "argparse._SubParsersAction[Parser]") -> None:
    """`vitft cache`."""
    parser = verbs.add_parser("cache", help="the kept features: look, delete")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, text, command in (
        ("list", "every space: weights, cut, size, last use", list_command),
        ("clean", "delete what was used longest ago, or everything", clean_command),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("--cache", metavar="DIR", help="folder (default: the usual one)")
        action.set_defaults(command=command)
        if name == "clean":
            action.add_argument(
                "--to-gb", type=float, default=0.0, help="keep this much (default: nothing)"
            )


def folder_of(args: argparse.Namespace) -> Path:
    """The cache that is meant."""
    from vitft.features.cache import default_folder

    return Path(args.cache).expanduser() if args.cache else default_folder()


def list_command(args: argparse.Namespace) -> int:
    """A table of spaces and the size of all."""
    from vitft.features.cache import LIMIT_GB, spaces

    folder = folder_of(args)
    found = spaces(folder)
    console.table(
        ("what", "prefix", "precision", "rows from", "MB"),
        [
            (
                space.settings.get("cut", space.settings.get("what", "?")),
                space.settings.get("prefix", "")[:12],
                space.settings.get("precision", ""),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(space.used)),
                f"{space.size / 1e6:,.1f}",
            )
            for space in found
        ],
        numbers=1,
    )
    total = sum(space.size for space in found) / 1e9
    console.result(
        f"{total:.2f} GB in {console.visible(str(folder))}, kept under {LIMIT_GB:.0f} GB"
    )
    return 0


def clean_command(args: argparse.Namespace) -> int:
    """Delete spaces; the images are computed again when they are needed."""
    from vitft.features.cache import prune

    if not args.to_gb >= 0:
        raise UsageError(f"--to-gb is {args.to_gb}", fix="give 0 or more gigabytes")
    freed = prune(folder_of(args), args.to_gb)
    console.result(f"{freed / 1e6:,.1f} MB deleted")
    return 0
