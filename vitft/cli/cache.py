"""`vitft cache`: list and delete cached features."""

import argparse
import time
from pathlib import Path

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.data.remote.copies import find_copies
from vitft.system.cores import cache_folder
from vitft.system.errors import UsageError
from vitft.system.text import count

_FOLDER = "--cache DIR  folder of cached features (default: ~/.cache/vitft/features)"


@Command("cache list", _FOLDER, help="list cached features and local copies of data")
def _list_cache(args: argparse.Namespace) -> int:
    """Print a table of the cached features and their total size."""
    from vitft.features.cache import LIMIT_GB, default_folder, spaces

    folder = Path(args.cache).expanduser() if args.cache else default_folder()
    found, rows = spaces(folder), list[tuple[str, ...]]()
    for space in found:
        of, used = space.settings, time.strftime("%Y-%m-%d %H:%M", time.localtime(space.used))
        what = (of.get("cut", of.get("what", "?")), of.get("prefix", "")[:12])
        rows.append((*what, of.get("precision", ""), used, f"{space.size / 1e6:,.1f}"))
    output.table(("contents", "prefix digest", "precision", "last used", "MB"), rows, numbers=1)
    total = sum(space.size for space in found) / 1e9
    output.result(f"{total:.2f} GB in {folder}, limit {LIMIT_GB:.0f} GB")
    for place, copy in [] if args.cache else find_copies(cache_folder("data")):
        fetched = sum(shard.size for shard in copy.shards if shard.file.startswith("shards/"))
        images = count(copy.images, "image")
        output.result(f"{fetched / 1e9:.2f} GB in {place}: {images} of {copy.data}")
    return 0


@Command(
    "cache clean",
    f"{_FOLDER}\n--to-gb GB := 0.0  target size of the cache in gigabytes (default: 0)",
    help="delete all cached features, or only the least recently used ones",
)
def _clean_cache(args: argparse.Namespace) -> int:
    """Delete the least recently used features until the cache is within the target size."""
    from vitft.features.cache import default_folder, prune

    if not args.to_gb >= 0:
        raise UsageError(f"invalid --to-gb {args.to_gb}", fix="use a number of 0 or more")
    folder = Path(args.cache).expanduser() if args.cache else default_folder()
    freed = prune(folder, args.to_gb)
    output.result(f"{freed / 1e6:,.1f} MB deleted")
    return 0
