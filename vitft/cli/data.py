"""`vitft data fetch`: download a public image dataset."""

import argparse
import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.data.archive import KNOWN_ARCHIVES
from vitft.data.web import DownloadLimits, is_url
from vitft.system.errors import UsageError
from vitft.system.text import count, labelled, shell_quote


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
