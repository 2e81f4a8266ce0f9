"""Location of vitft's cache: features, and local copies of remote data."""

import os
from pathlib import Path

from vitft.system.errors import RunError


def cache_folder(name: str) -> Path:
    """Return a folder of the cache, without creating it.

    If the environment variable VITFT_CACHE is set, the result is $VITFT_CACHE/NAME. Otherwise, it
    is `vitft/NAME` in the user's cache folder: XDG_CACHE_HOME, or ~/.cache if that variable is
    unset or contains a relative path.

    Raises:
        RunError: The home directory is needed but cannot be determined.

    Source: XDG Base Directory Specification 0.8, which requires relative paths to be ignored.
    """
    if own := os.environ.get("VITFT_CACHE"):
        return Path(own).expanduser() / name
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "vitft" / name
    try:
        return Path.home() / ".cache" / "vitft" / name
    except RuntimeError as error:
        option = "--cache DIR or " if name == "features" else ""
        raise RunError(
            f"cannot cache {name}: there is no home directory",
            fix=f"choose a cache folder with {option}the environment variable VITFT_CACHE",
        ) from error
