"""`vitft demo`: run the whole workflow offline on drawings of flowers."""

import argparse

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.messages.comparison import accuracy_columns
from vitft.predict.rows import RowFormat, text_lines
from vitft.system.imports import heavy_imports
from vitft.system.text import count, interval, labelled, percent


@Command("demo")
def _demo_command(_: argparse.Namespace) -> int:
    """Run the demo and print its results."""
    with heavy_imports():
        from vitft.data.demo import DEMO_FOLDER
        from vitft.training.demo import run_demo

    done = run_demo()
    for line in text_lines(RowFormat("table", 2), done.predictions):
        output.exact(line)
    output.table(
        ("backbone", *accuracy_columns(same_images=True, cross_validated=False)[1:]),
        [
            (name, percent(metrics["top1"]), interval(metrics["top1_interval"]))
            for name, metrics in (
                ("pretrained on generated images", done.pretrained),
                ("randomly initialised", done.random),
            )
        ],
        title="\nsame images, split and training budget:",
        numbers=2,
    )
    export = done.export
    head = " with a head on the last block" * bool(export.narrow)
    output.result(
        f"largest logit difference between the export and the run{head}: {export.difference:.1e} "
        f"on {count(export.images, 'image')}"
    )
    output.result(f"images: {DEMO_FOLDER}/, report: {done.report}, export: {export.folder}/")
    output.result(labelled("Next", "vitft finetune --data FOLDER"))
    return 0
