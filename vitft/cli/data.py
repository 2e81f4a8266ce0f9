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
--to DIR  -
--sha256 HEX  expected SHA-256 of the archive
--allow-private-addresses  also download from this machine and its local network
""",
    help="download an archive and unpack its image folder",
    changed={"to": {"dest": "out"}},  # former name of --out
)
def _fetch_data(args: argparse.Namespace) -> int:
    """Download and unpack an archive, and print a summary of its contents."""
    from vitft.data.download.fetch import DownloadLimits, fetch_folder, select_archive

    archive = select_archive(args.name, url=args.url, folder=args.out, sha256=args.sha256)
    target = Path(args.out).expanduser() if args.out else Path(archive.name)
    if not target.name or target.name == "..":
        raise UsageError(f"invalid --out {args.out}", fix="use the name of a new folder")
    if archive.what:
        licence = f" (licence: {archive.licence})" if archive.licence else ""
        output.note(f"{archive.name}: {archive.what}{licence}")
    fetched = fetch_folder(
        archive, target, patience=DownloadLimits(allow_private=args.allow_private_addresses)
    )
    folder = fetched.folder
    for text in folder.notes:
        output.note(text)
    classes = count(len(folder.classes), "class", "classes")
    output.result(f"{fetched.root}: {count(len(folder.rows), 'image')} in {classes}")
    expected = "as published" if archive.sha256 else "as recorded earlier"
    output.note(
        f"SHA-256 of the archive: {fetched.sha256}" + ("" if fetched.record else f" ({expected})")
    )
    if fetched.record:
        output.note(f"digest recorded in {fetched.record} to verify later downloads")
    command = f"vitft finetune --data {shell_quote(str(fetched.root))} --weights NAME"
    output.note(labelled("Next", command))
    return 0
