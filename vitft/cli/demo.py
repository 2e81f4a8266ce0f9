"""`vitft demo`: the whole workflow offline, in two runs on drawings of flowers.

One run starts from the bundled weights, the other from random weights. All other settings are the
same, so the difference in accuracy shows the benefit of pretraining.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.config.run import config_from_table, read_recipe
from vitft.export.plan import plan_export
from vitft.messages.results import INTERVAL
from vitft.predict.rows import RowFormat, text_lines
from vitft.system.errors import Stopped
from vitft.system.imports import heavy_imports
from vitft.system.rundir import RunDir
from vitft.system.text import count, interval, labelled, percent


@Command("demo")
def _demo_command(_: argparse.Namespace) -> int:
    """Fine-tune random and bundled weights, then predict, export and write the report."""
    with heavy_imports():
        from vitft.data.demo import DEMO_FOLDER, demo_data
        from vitft.data.image_table import Images
        from vitft.export.job import export_run
        from vitft.predict.torch_engine import Predictor
        from vitft.report.run_page import write_report
        from vitft.training.checks import check_request
        from vitft.training.run import run_finetuning

    config = config_from_table(read_recipe("demo"))
    config = replace(config, data=demo_data(config.data))
    random = replace(config, weights=replace(config.weights, name="random:demo"))
    done = []
    for settings in (random, config):  # in this order: the pretrained run becomes the latest run
        checked, listed, out = check_request(settings, None)
        output.note(f"fine-tuning with --weights {checked.weights.name}")
        done.append(run_finetuning(checked, out=out, folder=listed))
        if done[-1].interrupted:
            raise Stopped(done[-1].exit_code)
    run = done[-1].run
    manifest = Images.from_csv(RunDir(run).split, Path(config.data.path))
    images = [str(manifest.locate(row)) for row in manifest.val]
    shown = images[:: max(1, len(images) // 6)]  # about six, spread over the classes
    predictions = tuple(Predictor.from_run(str(run)).stream(shown, top_k=2))
    export = export_run(str(run), plan_export(["safetensors"], str(run / "export")))
    report = write_report(run)
    for line in text_lines(RowFormat("table", 2), predictions):
        output.exact(line)
    names = ("pretrained on generated images", "randomly initialised")
    output.table(
        ("backbone", "accuracy", INTERVAL),
        [
            (name, percent(one.figures["top1"]), interval(one.figures["top1_interval"]))
            for name, one in zip(names, reversed(done), strict=True)
        ],
        title="\nsame images, split and training budget:",
        numbers=2,
    )
    head = " with a head on the last block" * bool(export.narrow)
    output.result(
        f"largest logit difference between the export and the run{head}: {export.difference:.1e} "
        f"on {count(export.images, 'image')}"
    )
    output.result(f"images: {DEMO_FOLDER}/, report: {report}, export: {export.folder}/")
    output.result(labelled("Next", "vitft finetune --data FOLDER"))
    return 0
