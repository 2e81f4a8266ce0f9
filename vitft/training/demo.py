"""`--data demo` and `vitft demo`: the whole job on drawn flowers, with bundled weights, offline.

The demo fine-tunes twice with the same budget, from the bundled weights and from random ones, so
that what pretraining is worth is measured in front of the user, not told.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitft.config.run import Config, config_from_table, read_recipe
from vitft.data.demo import DEMO_FOLDER, demo_data
from vitft.system import console
from vitft.system.errors import Stopped

log = logging.getLogger(__name__)


def run_demo() -> None:
    """Fine-tune from bundled and from random weights, predict, export, and say where to look."""
    from vitft.training.preflight import check_request

    config = demo_data(config_from_table(read_recipe("demo")))
    random = replace(config, weights=replace(config.weights, name="random:demo"))
    # The pretrained run comes last, so that it is the latest.
    baseline = finetuned(random, check_request(random, None))
    figures = finetuned(config, check_request(config, None))
    run = figures["run"]
    show_predictions(run, figures["validation"])
    exported = run / "export"
    from vitft.export import export_safetensors
    from vitft.report import write_report

    done = export_safetensors(str(run), exported)
    console.table(
        ("backbone", "accuracy", "95 % interval"),
        [row_of("pretrained on formula images", figures), row_of("random", baseline)],
        title="\nsame images, same split, same budget:",
        numbers=2,
    )
    console.result(
        f"the export answers like the run: largest logit difference {done.difference:.1e} on "
        f"{done.images} images"
    )
    page = write_report(run)
    console.result(
        f"look at: {page} (in a browser), {DEMO_FOLDER}/ (images), {exported}/ (the export)"
    )
    console.result(
        "now yours: vitft finetune --data YOUR_FOLDER --weights vit_base_patch16_224_in21k"
    )


def finetuned(config: Config, out: Path) -> dict[str, Any]:
    """The figures of one run, with its folder and validation images."""
    from vitft.data.split import Manifest
    from vitft.system.rundir import RunDir
    from vitft.training.run import finetune

    log.info(f"\n--weights {config.weights.name}")
    result = finetune(config, out=out)
    if result.interrupted:
        raise Stopped(result.exit_code)
    manifest = Manifest.read(RunDir(out).split, Path(config.data.path))
    images = [str(manifest.locate(row)) for row in manifest.val]
    return result.figures | {"run": out, "validation": images}


def show_predictions(run: Path, images: list[str]) -> None:
    """A few validation images, spread over the classes, with the model's answers."""
    from vitft.predict.rows import Rows
    from vitft.predict.torch_engine import Predictor

    rows = Rows("table", 2)
    some = images[:: max(1, len(images) // 6)]
    for prediction in Predictor.from_run(str(run)).stream(some, top_k=2):
        rows.add(prediction.path, prediction.classes, prediction.probabilities, prediction.error)
    rows.close()


def row_of(name: str, figures: dict[str, Any]) -> tuple[str, str, str]:
    """One line of the comparison."""
    low, high = figures["top1_interval"]
    return name, f"{figures['top1']:.1%}", f"{low:.1%} to {high:.1%}"
