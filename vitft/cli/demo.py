"""`vitft demo`: print the results of two runs on drawn flowers."""

import argparse
from typing import TYPE_CHECKING

from vitft.cli.parser import Parser, Verbs
from vitft.system import console
from vitft.system.imports import heavy_imports

if TYPE_CHECKING:
    from vitft.metrics.results import RunResults


def add_demo(verbs: "Verbs[Parser]") -> None:
    """Add `vitft demo`."""
    parser = verbs.add_parser("demo", help="two small runs on drawn flowers, offline")
    parser.set_defaults(command=demo_command)


def demo_command(_: argparse.Namespace) -> int:
    """Run the demo and print predictions, accuracies and where to continue."""
    with heavy_imports():
        from vitft.data.demo import FLOWERS
        from vitft.predict.rows import Rows
        from vitft.training.demo import run_demo

    done = run_demo()
    rows = Rows("table", 2)
    for prediction in done.predictions:
        rows.add(prediction.path, prediction.classes, prediction.probabilities, prediction.error)
    rows.close()
    console.table(
        ("backbone", "accuracy", "95 % interval"),
        [
            accuracy("pretrained on formula images", done.pretrained),
            accuracy("random", done.random),
        ],
        title="\nsame images, same split, same budget:",
        numbers=2,
    )
    console.result(
        f"exported to {done.export}: largest logit difference {done.export_difference:.1e} on "
        f"{done.export_images} images"
    )
    console.result(f"report: {done.report} (open it in a browser); images: {FLOWERS}")
    console.result("next: vitft finetune --data DIR --weights vit_base_patch16_224_in21k")
    return 0


def accuracy(name: str, results: "RunResults") -> tuple[str, str, str]:
    """Return one row of the comparison."""
    low, high = results["top1_interval"]
    return name, f"{results['top1']:.1%}", f"{low:.1%} to {high:.1%}"
