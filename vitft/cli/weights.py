"""`vitft weights`: which pretrained weights there are, what is in a file, and fetching."""

import argparse
from typing import Any

from vitft.system import console
from vitft.system.errors import UsageError

Verbs = argparse._SubParsersAction  # the type argparse gives no public name


def add_weights(verbs: "Verbs[Any]") -> None:
    """`vitft weights`."""
    parser = verbs.add_parser("weights", help="what pretrained weights there are")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_list(actions)
    show = actions.add_parser("show", help="one catalogue entry or weight file")
    show.add_argument("name", metavar="NAME", help="catalogue name or weight file")
    show.add_argument("--allow-pickle", action="store_true", help="read .pth files")
    show.set_defaults(command=show_command)
    fetch = actions.add_parser("fetch", help="download weights now, to use them offline later")
    fetch.add_argument(
        "name", metavar="NAME", help="of the catalogue, hf:owner/name[@revision], timm:NAME"
    )
    fetch.add_argument("--allow-pickle", action="store_true", help="take a pytorch_model.bin too")
    fetch.set_defaults(command=fetch_command)
    add_inspect(actions)


def add_list(actions: "Verbs[Any]") -> None:
    """`vitft weights list`."""
    listed = actions.add_parser("list", help="every name of the catalogue")
    sizes = ("tiny", "small", "base", "large", "huge")
    listed.add_argument("--size", choices=sizes, help="only models of this size")
    listed.add_argument(
        "--licence", metavar="WHAT", help="only this licence, e.g. apache-2.0; or: commercial"
    )
    listed.add_argument("--data", metavar="WORD", help="only weights trained on it, e.g. 21k")
    listed.set_defaults(command=list_command)


def add_inspect(actions: "Verbs[Any]") -> None:
    """`vitft weights inspect`."""
    inspected = actions.add_parser(
        "inspect", help="whose file it is, and what would be kept, dropped and resized"
    )
    inspected.add_argument("file", metavar="FILE", help="a .safetensors, .npz or .pth file")
    inspected.add_argument("--classes", type=int, metavar="N", help="for a new head of N classes")
    inspected.add_argument(
        "--image-size", type=int, nargs="+", metavar="PX", help="for this side, or height and width"
    )
    inspected.add_argument("--allow-pickle", action="store_true", help="read .pth files")
    inspected.set_defaults(command=inspect_command)


def list_command(args: argparse.Namespace) -> int:
    """A table of names."""
    from vitft.models.pretrained.catalog import catalog_entries

    chosen = [entry for entry in catalog_entries() if not args.size or entry.size == args.size]
    if args.licence:
        wanted = args.licence.lower()
        chosen = [
            entry
            for entry in chosen
            if ("-nc" not in entry.licence if wanted == "commercial" else entry.licence == wanted)
        ]
    if args.data:
        chosen = [entry for entry in chosen if args.data.lower() in entry.data]
    if not chosen:
        raise UsageError(
            "no weights of the catalogue are like that", fix="leave one of the filters out"
        )
    console.table(
        ("name", "trained on", "licence", "classes", "px"),
        [
            (
                entry.name,
                entry.data,
                entry.licence,
                str(entry.num_classes or "-"),
                "x".join(str(side) for side in entry.image_size),
            )
            for entry in chosen
        ],
        numbers=2,
    )
    return 0


def show_command(args: argparse.Namespace) -> int:
    """What is known of a name without fetching it, or what is in a file."""
    from vitft.models.pretrained.catalog import CatalogEntry, find_entry, is_known

    if is_known(args.name):
        for line in find_entry(args.name).lines():
            console.result(line)
        return 0
    from vitft.models.pretrained.locate import check_weights_name, locate

    check_weights_name(args.name, allow_pickle=args.allow_pickle)
    found = locate(args.name)
    if isinstance(found, CatalogEntry) and found.is_timm:
        from vitft.models.pretrained.timm_weights import complete_entry

        for line in complete_entry(found).lines():
            console.result(line)
        return 0
    args.file, args.classes, args.image_size = args.name, None, None
    return inspect_command(args)


def fetch_command(args: argparse.Namespace) -> int:
    """Download and verify; says where the file lies and which commit it is."""
    from vitft.models.pretrained.catalog import CatalogEntry
    from vitft.models.pretrained.locate import locate

    found = locate(args.name)
    if not isinstance(found, CatalogEntry):
        raise UsageError(f"{args.name} is a file already", fix="give a name of the catalogue")
    from vitft.models.pretrained.fetch import fetch

    if found.is_timm:
        from vitft.models.pretrained.timm_weights import complete_entry

        found = complete_entry(found)
    console.note(f"licence: {found.licence}")
    fetched = fetch(found, allow_pickle=args.allow_pickle)
    rows = {
        "file": console.visible(str(fetched.path)),
        "commit": fetched.revision,
        "sha256": f"{fetched.sha256} (verified)",
    }
    for key, value in rows.items():
        if value:
            console.result(f"{key + ':':<12}{value}")
    return 0


def inspect_command(args: argparse.Namespace) -> int:
    """What is in a file, and what would become of it."""
    from vitft.models.pretrained.locate import check_weights_name

    sides = args.image_size
    if sides and (len(sides) > 2 or min(sides) < 1):
        raise UsageError(
            f"--image-size {' '.join(map(str, sides))} is no size",
            fix="give a side, or height and width, in pixels",
        )
    if args.classes is not None and args.classes < 0:
        raise UsageError(f"--classes is {args.classes}", fix="give 0 for no head, or more")
    check_weights_name(args.file, allow_pickle=args.allow_pickle)
    from vitft.models.pretrained.inspect import inspect

    size = None if not sides else sides[0] if len(sides) == 1 else (sides[0], sides[1])
    seen = inspect(args.file, classes=args.classes, image_size=size, allow_pickle=args.allow_pickle)
    for line in seen.lines():
        console.result(console.visible(line))
    return 0
