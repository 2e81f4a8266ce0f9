"""`vitft demo`: fine-tune, predict, export and report on drawn flowers, offline.

The demo trains twice with the same budget, from the bundled weights and from random ones, so that
the value of pretraining is measured on the user's machine.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from vitft.cli import output
from vitft.cli.parser import Commands
from vitft.config.run import Config, config_from_table, read_recipe
from vitft.metrics.results import RunResults
from vitft.system.errors import Stopped
from vitft.system.imports import heavy_imports
from vitft.system.rundir import RunDir


def add_demo(commands: Commands) -> None:
    """Add `vitft demo`."""
    parser = commands.add_parser(
        "demo", help="fine-tune, predict and export on drawn images, without a network"
    )
    parser.set_defaults(command=demo_command)


def demo_command(_: argparse.Namespace) -> int:
    """Fine-tune from bundled and from random weights, predict and export."""
    with heavy_imports():
        from vitft.data.demo import DEMO_FOLDER, demo_data
        from vitft.export import export_safetensors
        from vitft.report import write_report

    config = demo_data(config_from_table(read_recipe("demo")))
    random = replace(config, weights=replace(config.weights, name="random:demo"))
    baseline = train_demo(random)[1]
    run, metrics = train_demo(config)  # last, so that it is runs/latest
    print_predictions(run, Path(config.data.path))
    export = run / "export"
    done = export_safetensors(str(run), export)
    output.table(
        ("backbone", "accuracy", "95 % interval"),
        [row_of("pretrained on formula images", metrics), row_of("random", baseline)],
        title="\nsame images, split and budget:",
        numbers=2,
    )
    output.result(
        f"export compared with the run on {done.images} images: largest logit difference "
        f"{done.difference:.1e}"
    )
    output.result(f"images: {DEMO_FOLDER}/, report: {write_report(run)}, export: {export}/")
    output.result("next: vitft finetune --data FOLDER --weights vit_base_patch16_224_in21k")
    return 0


def train_demo(config: Config) -> tuple[Path, RunResults]:
    """Return the directory and the metrics of a new run.

    Raises:
        Stopped: The run was interrupted.
    """
    from vitft.training.preflight import check_request
    from vitft.training.run import finetune

    output.note(f"\n--weights {config.weights.name}")
    result = finetune(config, out=check_request(config, None))
    if result.interrupted:
        raise Stopped(result.exit_code)
    return result.run, result.figures


def print_predictions(run: Path, data: Path) -> None:
    """Print the predictions for some validation images of different classes."""
    from vitft.data.split import Manifest
    from vitft.predict.rows import RowWriter
    from vitft.predict.torch_engine import Predictor

    manifest = Manifest.read(RunDir(run).split, data)
    images = [str(manifest.locate(row)) for row in manifest.val]
    rows = RowWriter("table", 2, output.exact)
    some = images[:: max(1, len(images) // 6)]
    for prediction in Predictor.from_run(str(run)).stream(some, top_k=2):
        rows.add(prediction)
    rows.close()


def row_of(name: str, metrics: RunResults) -> tuple[str, str, str]:
    """Return the row of a run in the table."""
    low, high = metrics["top1_interval"]
    return name, f"{metrics['top1']:.1%}", f"{low:.1%} to {high:.1%}"
