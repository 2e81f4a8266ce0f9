"""`vitft weights`, `data`, `recipes` and `cache`: what a run needs besides your images."""

import argparse
import re
import time
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.config.run import read_recipe, read_toml
from vitft.data.archive import KNOWN_ARCHIVES
from vitft.data.copies import find_copies
from vitft.data.web import DownloadLimits, is_url
from vitft.models.pretrained.catalog import has_gpu
from vitft.system.cores import cache_folder
from vitft.system.errors import UsageError
from vitft.system.files import resource
from vitft.system.text import count, duration, labelled, shell_quote


@Command(
    "weights list",
    """
--all  list the whole catalogue
--size tiny|small|base|large|huge  only models of this size
--licence NAME  only weights with this licence: open (no further terms), commercial (allows
    commercial use) or e.g. apache-2.0
--data WORD  only weights trained on this dataset, e.g. 21k
--format
""",
    help="list recommended weights, or the whole catalogue",
)
def _list_weights(args: argparse.Namespace) -> int:
    """Print recommended weights or, with a filter or --all, entries of the catalogue as a table."""
    from vitft.models.pretrained.catalog import catalog_entries, machine_speed, recommendations

    is_short = not (args.all or args.size or args.licence or args.data)
    licence = (args.licence or "").lower()
    terms = {"open": ("open",), "commercial": ("open", "own terms")}.get(licence, ())
    entries = [
        entry
        for entry in (recommendations() if is_short else catalog_entries())
        if (entry.terms in terms or licence in ("", entry.licence.lower()))
        and args.size in (None, "", entry.size)
        and (args.data or "").lower() in entry.data
    ]
    if not entries:
        raise UsageError("no weights match all filters", fix="remove one of the filters")
    speed = machine_speed() if is_short else 0.0
    fields, rows = list[dict[str, Any]](), list[tuple[str, ...]]()
    for entry in entries:
        one: dict[str, Any] = {
            "name": entry.name,
            "data": entry.data,
            "licence": entry.licence,
            "classes": entry.num_classes,
            "image_size": list(entry.image_size),
        }
        about = entry.data
        cells = [str(entry.num_classes or "-"), "x".join(map(str, entry.image_size))]
        if is_short:
            time = max(1.0, entry.seconds(1000, speed))
            one |= {"tier": entry.tier, "megabytes": entry.megabytes, "seconds": round(time)}
            about, cells = entry.tier or "", [f"{entry.megabytes:,}", duration(time)]
        fields.append(one)
        rows.append((entry.name, about, entry.marked_licence, *cells))
    if args.format == "json":
        output.as_json({"weights": fields})
    elif is_short:
        headings = ("recommended weights", "", "licence", "MB", "1,000 images")
        output.table(headings, rows, numbers=2)
        machine = "a GPU" if has_gpu() else "this CPU"
        output.note(f"times are estimates for one pass over 1,000 images on {machine}")
        output.note("no account is required. `vitft weights list --all` lists the whole catalogue")
    else:
        headings = ("name", "trained on", "licence", "classes", "px")
        output.table(headings, rows, numbers=2, drop=(4, 3, 1))
        output.note("none of these files is gated: no account is required")
    return 0


@Command(
    "weights show",
    """
name NAME  catalogue name or weight file
--allow-pickle
""",
    help="describe a catalogue entry or a weight file",
)
def _show_weights(args: argparse.Namespace) -> int:
    """Print the catalogue entry for a name, or a summary of a weight file."""
    from vitft.models.pretrained.catalog import check_weights_name, locate_entry

    check_weights_name(args.name, allow_pickle=args.allow_pickle)
    found = locate_entry(args.name)
    if isinstance(found, Path) or found.local:
        args.file, args.classes, args.image_size = args.name, None, None
        return _inspect_weights(args)
    for line in found.lines():
        output.result(line)
    return 0


@Command(
    "weights fetch",
    """
name NAME  catalogue name, hf:OWNER/NAME[@REVISION] or timm:NAME
--allow-pickle  also allow a pytorch_model.bin, which is a pickle
""",
    help="download weights for offline use",
)
def _fetch_weights(args: argparse.Namespace) -> int:
    """Download weights, verify them, and print their path, commit and digest."""
    from vitft.models.pretrained.catalog import fact_lines, locate_entry
    from vitft.models.pretrained.fetch import fetch

    found = locate_entry(args.name)
    if isinstance(found, Path) or found.local:
        raise UsageError(
            f"{args.name} is a local file: there is nothing to fetch",
            fix="use a name from `vitft weights list`",
        )
    output.note(f"licence: {found.licence}")
    path, origin = fetch(found, allow_pickle=args.allow_pickle)
    facts = {"file": str(path), "commit": origin["revision"]}
    for line in fact_lines([*facts.items(), ("sha256", f"{origin['sha256']} (verified)")]):
        output.result(line)
    return 0


@Command(
    "weights inspect",
    """
file FILE  a .safetensors, .npz or .pth file, or timm:NAME=FILE
--classes N  number of classes of a new head, or 0 for no head (default: keep the head)
--image-size PX ...  input size in pixels: one side, or height and width
--allow-pickle
""",
    help="describe a weight file, and show which tensors are kept or resized on loading",
)
def _inspect_weights(args: argparse.Namespace) -> int:
    """Print a summary of a weight file and of how its tensors would be adapted on loading."""
    from vitft.models.pretrained.catalog import check_weights_name, fact_lines

    sides = args.image_size
    if sides and (len(sides) > 2 or min(sides) < 1):
        raise UsageError(
            f"invalid --image-size {' '.join(map(str, sides))}",
            fix="use one side, or height and width, in pixels",
        )
    if args.classes is not None and args.classes < 0:
        raise UsageError(
            f"invalid --classes {args.classes}", fix="use an integer of 1 or more, or 0 for no head"
        )
    check_weights_name(args.file, allow_pickle=args.allow_pickle)
    from vitft.models.pretrained.load import inspect, load_backbone

    size = None if not sides else sides[0] if len(sides) == 1 else (sides[0], sides[1])
    options: Any = {"image_size": size, "allow_pickle": args.allow_pickle}
    if args.file.startswith("timm:"):
        _, report = load_backbone(args.file, num_classes=args.classes or 0, **options)
        facts = [("sha256", report.provenance["sha256"])], [("note", n) for n in report.notes]
        lines = [*fact_lines(facts[0]), *report.lines(), *fact_lines(facts[1])]
    else:
        lines = inspect(args.file, classes=args.classes, **options)
    for line in lines:
        output.result(line)
    return 0


@Command(
    "data fetch",
    """
name [NAME]  name of a known dataset (available: flower_photos)
--url URL  URL of a .tar, .tar.gz or .zip file
--out DIR  folder to create (default: ./NAME)
--sha256 HEX  expected SHA-256 of the archive
--allow-private-addresses
""",
    help="download an archive and unpack its image folder",
)
def _fetch_data(args: argparse.Namespace) -> int:
    """Download and unpack an archive, and print a summary of its contents."""
    from vitft.data.fetch import fetch_folder

    name, url, sha256 = args.name, args.url, args.sha256
    if name not in ((None, *KNOWN_ARCHIVES) if url else KNOWN_ARCHIVES):
        fix = f"use a known dataset ({', '.join(KNOWN_ARCHIVES)}), or pass an address with --url"
        raise UsageError(f"unknown dataset {name!r}" if name else "no dataset given", fix=fix)
    if url is not None and not is_url(url):
        fix = "use an address that starts with https:// or http://"
        raise UsageError(f"{url!r} is not a web address", fix=fix)
    if sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", sha256.lower()):
        raise UsageError(f"invalid --sha256 {sha256!r}", fix="use 64 hexadecimal digits")
    known_url, digest, about = KNOWN_ARCHIVES[name] if name else ("", "", "")
    url = url or known_url
    last = PurePosixPath(unquote(urlsplit(url).path)).name
    last = re.sub(r"\.(tar|tgz|tar\.gz|zip)$", "", last, flags=re.IGNORECASE)
    out = args.out or name or re.sub(r"[^\w.-]+", "_", last).strip("._")
    if not out:
        raise UsageError(f"cannot derive a folder name from {url}", fix="choose it with --out DIR")
    target = Path(out).expanduser()
    if not target.name or target.name == "..":
        raise UsageError(f"invalid --out {args.out}", fix="use the name of a new folder")
    if about:
        output.note(f"{name}: {about}")
    limits = DownloadLimits(allow_private=args.allow_private_addresses)
    folder = fetch_folder(url, target, sha256=(sha256 or digest).lower(), limits=limits)
    for text in folder.notes:
        output.note(text)
    images = count(len(folder.rows), "image")
    output.result(f"{folder.root}: {images} {folder.outputs.scope}")
    command = f"vitft finetune --data {shell_quote(str(folder.root))} --weights NAME"
    output.note(labelled("Next", command))
    return 0


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
