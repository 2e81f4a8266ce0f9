"""The argument parser: argparse whose errors are `VitftError`s with a fix."""

import argparse
import re
from difflib import get_close_matches
from typing import Any, NoReturn

from vitft.system.errors import UsageError


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are VitftErrors with a next step."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        fix = f"see {self.prog} --help"
        words = re.findall(r"(?:unrecognized arguments: |invalid choice: ')([^\s']+)", message)
        near = get_close_matches(words[0], words_of(self), n=1) if words else []
        if near:
            fix = f"did you mean {near[0]}?"
        raise UsageError(message.partition(" (choose from")[0], fix=fix)


def words_of(parser: argparse.ArgumentParser) -> list[str]:
    """Every option and verb below a parser, for did-you-mean."""
    words: list[str] = []
    for action in parser._actions:
        words += [*action.option_strings, *map(str, action.choices or ())]
        if isinstance(action, argparse._SubParsersAction):
            words += [word for sub in action.choices.values() for word in words_of(sub)]
    return words


Verbs = argparse._SubParsersAction  # the type argparse gives no public name
