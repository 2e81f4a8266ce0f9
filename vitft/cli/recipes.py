"""`vitft recipes`: settings that come with vitft, and what each of them promises."""

import argparse
import json
from pathlib import Path
from typing import Any

from vitft.config.run import read_recipe, read_toml
from vitft.system import console
from vitft.system.resources import resource

Verbs = argparse._SubParsersAction  # the type argparse gives no public name


def add_recipes(verbs: "Verbs[Any]") -> None:
    """`vitft recipes`."""
    parser = verbs.add_parser("recipes", help="settings to start from, and what they promise")
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this one as it is written")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.set_defaults(command=recipes_command)


def recipes_command(args: argparse.Namespace) -> int:
    """All recipes, or the text of one."""
    folder = resource("recipes")
    if args.name is not None:
        read_recipe(args.name)  # a name that is none is told with those there are
        path = folder / f"{args.name}.toml"
        text = (path if path.is_file() else Path(args.name)).read_text(encoding="utf-8")
        console.exact(text.rstrip("\n"))
        return 0
    known = {path.stem: read_toml(path)["recipe"] for path in sorted(folder.glob("*.toml"))}
    if args.format == "json":
        console.exact(json.dumps(known, indent=2))
        return 0
    for name, says in known.items():
        console.result(f"{name}: {says['what']}")
        for word, key in (("for", "for_whom"), ("result", "expected"), ("time", "time")):
            console.result(f"    {word:<7} {says[key]}")
        console.result(f"    {says['command']}")
    console.note("any of them with other settings: vitft finetune --recipe NAME --set KEY=VALUE")
    return 0
