"""`vitft data fetch`: download a public image dataset."""

import argparse
from pathlib import Path

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.system.errors import UsageError
from vitft.system.text import count, labelled, shell_quote


@Command(
    "data fetch",
    """
name [NAME]  name of a known dataset (available: flower_photos)
--url URL  URL of a .tar, .tar.gz or .zip file
--out DIR  folder to create (default: ./NAME)
--sha256 HEX  expected SHA-256 of the archive
--allow-private-addresses  also download from this machine and its local network
""",
    help="download an archive and unpack its image folder",
)
def _fetch_data(args: argparse.Namespace) -> int:
    """Download and unpack an archive, and print a summary of its contents."""
    from vitft.data.fetch import fetch_folder, select_archive

    name, url, sha256, about = select_archive(
        args.name, url=args.url, folder=args.out, sha256=args.sha256
    )
    target = Path(name).expanduser()
    if not target.name or target.name == "..":
        raise UsageError(f"invalid --out {args.out}", fix="use the name of a new folder")
    if about:
        output.note(f"{args.name}: {about}")
    allow_private = args.allow_private_addresses
    folder = fetch_folder(url, target, sha256=sha256, allow_private=allow_private)
    for text in folder.notes:
        output.note(text)
    classes = count(len(folder.classes), "class", "classes")
    output.result(f"{folder.root}: {count(len(folder.rows), 'image')} in {classes}")
    command = f"vitft finetune --data {shell_quote(str(folder.root))} --weights NAME"
    output.note(labelled("Next", command))
    return 0
