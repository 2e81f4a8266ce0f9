"""How errors name an option: as on the command line, or as a parameter of a Python function."""

from typing import Protocol

from vitft.system.text import shell_quote


class Spelling(Protocol):
    """Function that spells an option, and its value if there is one, as the user writes it."""

    def __call__(self, name: str, value: str | float = "") -> str: ...


def option(name: str, value: str | float = "") -> str:
    """Spell an option of the command line, e.g. `--method rollout`."""
    if value == "":
        return f"--{name}"
    return f"--{name} {shell_quote(value) if isinstance(value, str) else f'{value:g}'}"


def parameter(name: str, value: str | float = "") -> str:
    """Spell a parameter of a Python function or method, e.g. `method="rollout"`."""
    name = "about" if name == "class" else name
    if value == "":
        return name
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value:g}"
