"""`vitft weights`: list, inspect and download pretrained weights."""

import argparse
from pathlib import Path
from typing import Any

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.models.pretrained.catalog import has_gpu
from vitft.system.errors import UsageError
from vitft.system.text import duration


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
        output.table(headings, rows, numbers=2, drop=("px", "classes", "trained on"))
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
