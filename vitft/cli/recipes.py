"""`vitft recipes`: list the bundled recipes."""

import argparse
from pathlib import Path

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.config.run import read_recipe, read_toml
from vitft.system.files import resource


@Command(
    "recipes",
    """
name [NAME]  name of a recipe to print (default: list all recipes)
--format
""",
)
def _recipes_command(args: argparse.Namespace) -> int:
    """Print the list of recipes, or the text of one recipe."""
    folder = resource("recipes")
    if args.name is not None:
        read_recipe(args.name)  # raises for an unknown name
        path = folder / f"{args.name}.toml"
        text = (path if path.is_file() else Path(args.name)).read_text(encoding="utf-8")
        output.exact(text.rstrip("\n"))
        return 0
    known = {path.stem: read_toml(path)["recipe"] for path in sorted(folder.glob("*.toml"))}
    if args.format == "json":
        output.as_json(known)
        return 0
    for name, recipe in known.items():
        output.result(f"{name}: {recipe['what']}")
        for word, key in (("for", "for_whom"), ("result", "expected"), ("time", "time")):
            output.result(f"  {word:<7} {recipe[key]}")
        output.result(f"  {recipe['command']}")
    output.note("to change a setting of a recipe: vitft finetune --recipe NAME --set KEY=VALUE")
    return 0
