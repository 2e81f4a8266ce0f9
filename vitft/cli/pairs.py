"""Arguments written as KEY=VALUE, as in ultralytics and Hydra, translated to options."""

import argparse
import os
from collections.abc import Collection, Mapping, Sequence

from vitft.cli.parser import FOREIGN_OPTIONS
from vitft.config.names import SECTIONS, find_setting
from vitft.config.options import setting_words
from vitft.config.schema import setting_types
from vitft.system.near_paths import PAIR


def translate_pairs(
    typed: Sequence[str],
    actions: Mapping[str, argparse.Action],
    settable: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Return a command line with options in place of KEY=VALUE, and the words without counterpart.

    The values of options, such as that of `--set`, and names of files are left unchanged.

    Args:
        typed: The arguments, beginning with the command.
        actions: The options of the command.
        settable: The settings that `--set` accepts; all of them if empty.
    """
    words: list[str] = []
    unknown: list[str] = []
    for before, word in zip(["", *typed], typed, strict=False):
        pair = PAIR.fullmatch(word)
        action = actions.get(before)
        is_value = action is not None and action.nargs != 0
        if pair is None or is_value or os.path.lexists(word):
            words.append(word)
        elif found := option_words(pair[1], pair[2], actions, settable):
            words += found
        else:
            unknown.append(word)
    return words, unknown


def option_words(
    key: str, value: str, actions: Mapping[str, argparse.Action], settable: Collection[str]
) -> list[str]:
    """Return the words that pass a value under vitft's name for a key; empty if there is none."""
    flag = f"--{key.lower().replace('_', '-')}"
    for name in (flag, *FOREIGN_OPTIONS.get(flag, ())):
        if name in actions and actions[name].nargs != 0:
            return [name, value]
    setting = find_setting(key, cutoff=0.8)
    if setting is None:
        return []
    section, _, name = setting.partition(".")
    kind = setting_types(SECTIONS[section])[name]
    is_bool = kind.type is bool
    if value.lower() in (("true", "false") if is_bool else kind.choices):
        value = value.lower()  # True, AdamW
    words = setting_words(setting, (is_bool and value == "true") or value)
    if words[0] == "--set" and settable and setting not in settable:
        return []
    return words if words[0] in actions else []
