"""Options that several commands have in common, each declared once."""

from collections.abc import Mapping
from typing import Any

from vitft.cli.parser import OptionGroup

_SHARED_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--run": {
        "metavar": "DIR",
        "help": "run directory, checkpoint or export (default: runs/latest)",
    },
    "--device": {"help": "device: auto, cpu, cuda, cuda:1 or mps (default: auto)"},
    "--cache": {
        "metavar": "DIR",
        "help": "folder of cached features, or none to disable the cache (default: "
        "~/.cache/vitft/features)",
    },
    "--allow-pickle": {"action": "store_true", "help": "allow .pth files, which are pickles"},
    "--format": {
        "choices": ("table", "json"),
        "default": "table",
        "help": "output format (default: table)",
    },
    "--host": {
        "default": "127.0.0.1",
        "metavar": "ADDRESS",
        "help": "address to listen on (default: 127.0.0.1)",
    },
    "--port": {
        "type": int,
        "help": "port to listen on, or 0 for any free port (default: %(default)s)",
    },
}


def add_shared(group: OptionGroup, *flags: str, **changed: Any) -> None:  # noqa: ANN401
    """Add shared options, with some of their properties changed."""
    for flag in flags:
        group.add_argument(flag, **{**_SHARED_OPTIONS[flag], **changed})
