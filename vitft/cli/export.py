"""`vitft export`: the trained model as files for other tools, and to the hub."""

import argparse
from typing import TYPE_CHECKING, Any

from vitft.export.plan import EXPORT_FORMATS, NUM_COMPARED, ExportPlan, plan_export
from vitft.system import console
from vitft.system.imports import heavy_imports

if TYPE_CHECKING:
    from vitft.export import Exported

Verbs = argparse._SubParsersAction  # the type argparse gives no public name


def add_export(verbs: "Verbs[Any]") -> None:
    """`vitft export`."""
    parser = verbs.add_parser("export", help="the trained model as files for other tools")
    formats = parser.add_argument_group(
        "formats", "one or several; of several, each gets a folder of its own in DIR"
    )
    for name, text in EXPORT_FORMATS.items():
        formats.add_argument(
            f"--{name}", dest="formats", action="append_const", const=name, default=[], help=text
        )
    parser.add_argument("--run", metavar="RUN", help="run folder, checkpoint or hf:owner/name")
    parser.add_argument("--out", metavar="DIR", help="a new folder (default: export)")
    parser.add_argument(
        "--with-preprocessing", action="store_true", help="graphs take bytes and normalise inside"
    )
    parser.add_argument(
        "--with-resize", action="store_true", help="the ONNX graph takes images of any size"
    )
    parser.add_argument(
        "--images",
        type=int,
        default=NUM_COMPARED,
        metavar="N",
        help=f"validation images to compare on (default: {NUM_COMPARED})",
    )
    hub = parser.add_argument_group("hub")
    hub.add_argument("--push-to-hub", metavar="OWNER/NAME", default="", help="push the folder")
    hub.add_argument("--private", action="store_true", help="a new repository is private")
    hub.add_argument("--revision", metavar="BRANCH", default="", help="push to this branch")
    parser.set_defaults(command=export_command)


def export_command(args: argparse.Namespace) -> int:
    """Write, compare, and only then say done."""
    from vitft.models.find import find_model

    plan = plan_export(
        args.formats or (["timm"] if args.push_to_hub else []),
        args.out,
        with_preprocessing=args.with_preprocessing,
        with_resize=args.with_resize,
        images=args.images,
        repo=args.push_to_hub,
        private=args.private,
        revision=args.revision,
    )
    find_model(args.run)
    with heavy_imports():
        from vitft.export import export_run

    done = export_run(args.run, plan)
    show(done, plan)
    if plan.repo:
        from vitft.export.hub import push

        console.note(f"pushing to {plan.repo}")
        console.result(f"pushed: {push(done, plan)}")
    return 0


def show(done: "Exported", plan: ExportPlan) -> None:
    """One line per format, and what to know about it."""
    for text in done.notes:
        console.note(text)
    on = f"{done.images} validation images" if done.images else "noise (the images no longer exist)"
    columns = ("format", "opened by", "logits differ by", "changed", "MB", "images/s", "original")
    rows = [
        (
            row.name,
            row.by,
            f"{row.difference:.1e}",
            f"{row.changed}",
            f"{row.size / 1e6:.1f}",
            f"{row.speed:.1f}",
            f"{row.original_speed:.1f}",
        )
        for row in done.rows
    ]
    console.table(columns, rows, numbers=5)
    console.result(
        f"exported to {console.visible(str(done.folder))}: largest logit difference "
        f"{done.difference:.1e}, {done.changed} changed classes, on {on}"
    )
    if plan.formats == ("transformers",):
        path = console.visible(str(done.folder))
        console.note(f'next: transformers.pipeline("image-classification", "{path}")')
