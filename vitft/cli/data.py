"""The door of `vitft data`: public images, fetched."""

import argparse
import re
import shlex
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.system import console
from vitft.system.errors import UsageError

if TYPE_CHECKING:
    from vitft.data.download.registry import Archive

Verbs = argparse._SubParsersAction  # the type argparse gives no public name


def add_data(verbs: "Verbs[Any]") -> None:
    """`vitft data`."""
    parser = verbs.add_parser("data", help="fetch public images")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    fetch = actions.add_parser("fetch", help="download an archive and unpack its image folder")
    fetch.add_argument("name", metavar="NAME", nargs="?", help="a known one: flower_photos")
    fetch.add_argument("--url", metavar="URL", help="another address: a .tar, .tar.gz or .zip file")
    fetch.add_argument("--to", metavar="DIR", help="the folder to make (default: ./NAME)")
    fetch.add_argument("--sha256", metavar="HEX", help="digest that the archive must have")
    fetch.set_defaults(command=fetch_command)


def fetch_command(args: argparse.Namespace) -> int:
    """Fetch, say what there is and how to go on."""
    archive = wanted(args)
    target = Path(args.to).expanduser() if args.to else Path(archive.name)
    if not target.name or target.name == "..":
        raise UsageError(f"--to {args.to} is no folder to make", fix="give it a name, --to DIR")
    if archive.what:
        licence = f" (licence: {archive.licence})" if archive.licence else ""
        console.note(f"{archive.name}: {archive.what}{licence}")
    from vitft.data.download.fetch import fetch_folder

    fetched = fetch_folder(archive, target)
    folder = fetched.folder
    for text in folder.notes:
        console.note(console.visible(text))
    known = "as known" if archive.sha256 else "as before"
    console.result(
        f"{console.visible(str(fetched.root))}: {len(folder.files):,} images of "
        f"{len(folder.classes)} classes"
    )
    console.note(f"sha256 of the archive: {fetched.sha256}" + f" ({known})" * (not fetched.record))
    if fetched.record:
        console.note(f"written down in {console.visible(str(fetched.record))} for the next time")
    place = console.visible(shlex.quote(str(fetched.root)))
    console.note(f"next: vitft finetune --data {place} --weights NAME")
    return 0


def wanted(args: argparse.Namespace) -> "Archive":
    """The archive that is meant: a known one, any other address, or a known one from elsewhere.

    Raises:
        UsageError: Neither a known name nor an address, or a digest that is none.
    """
    from vitft.data.download.fetch import check_address, folder_name
    from vitft.data.download.registry import KNOWN_ARCHIVES, Archive

    names = ", ".join(KNOWN_ARCHIVES)
    if args.name is None and args.url is None:
        raise UsageError(
            "nothing to fetch is named", fix=f"give a name ({names}), or any address with --url"
        )
    if args.name is not None and args.name not in KNOWN_ARCHIVES:
        near = get_close_matches(args.name, KNOWN_ARCHIVES, n=1)
        also = "an address goes behind --url" if ":" in args.name else f"known names: {names}"
        raise UsageError(
            f"no archive is known as {args.name!r}",
            fix=f"did you mean {near[0]}?" if near else f"{also}; --url takes any address",
        )
    if args.url is not None:
        check_address(args.url)
    if args.name is not None:
        archive = replace(KNOWN_ARCHIVES[args.name], url=args.url or KNOWN_ARCHIVES[args.name].url)
    else:
        archive = Archive(name=args.to or folder_name(args.url), url=args.url)
    if args.sha256 is not None:
        digest = args.sha256.lower()
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise UsageError(
                f"--sha256 {args.sha256!r} is no sha256", fix="give its 64 hexadecimal digits"
            )
        archive = replace(archive, sha256=digest)
    return archive
