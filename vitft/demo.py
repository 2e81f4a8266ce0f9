"""`--data demo` and `vitft demo`: the whole job on drawn flowers, with bundled weights, offline.

The demo fine-tunes twice with the same budget, from the bundled weights and from random ones, so
that what pretraining is worth is measured in front of the user, not told.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitft import console
from vitft.config import Config, from_table, read_recipe
from vitft.data.demo import draw_demo
from vitft.errors import Stopped

FLOWERS = Path("demo_flowers")
"""Where the drawn images are put, in the folder the command is run in."""


def demo_data(config: Config) -> Config:
    """Replace `--data demo` by a folder of drawn flowers, drawn now if it is not there yet."""
    if config.data.path != "demo":
        return config
    if not FLOWERS.exists():
        console.note(f"drawing flowers into {FLOWERS}/")
        draw_demo(FLOWERS)
    return replace(config, data=replace(config.data, path=str(FLOWERS)))


@contextlib.contextmanager
def demo_elsewhere(config: Config) -> Iterator[Config]:
    """As `demo_data`, but flowers that are drawn now are gone afterwards."""
    if config.data.path != "demo" or FLOWERS.exists():
        yield demo_data(config)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / FLOWERS
        draw_demo(place)
        yield replace(config, data=replace(config.data, path=str(place)))


def run_demo() -> None:
    """Fine-tune from bundled and from random weights, predict, export, and say where to look."""
    from vitft.preflight import check_request

    config = demo_data(from_table(read_recipe("demo")))
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
    console.result(f"look at: {page} (in a browser), {FLOWERS}/ (images), {exported}/ (the export)")
    console.result(
        "now yours: vitft finetune --data YOUR_FOLDER --weights vit_base_patch16_224_in21k"
    )


def finetuned(config: Config, out: Path) -> dict[str, Any]:
    """The figures of one run, with its folder and validation images."""
    from vitft.data.split import Manifest
    from vitft.rundir import RunDir
    from vitft.train import finetune

    console.note(f"\n--weights {config.weights.name}")
    result = finetune(config, out=out)
    if result.interrupted:
        raise Stopped(result.exit_code)
    manifest = Manifest.read(RunDir(out).split, Path(config.data.path))
    images = [str(manifest.locate(row)) for row in manifest.val]
    return result.figures | {"run": out, "validation": images}


def show_predictions(run: Path, images: list[str]) -> None:
    """A few validation images, spread over the classes, with the model's answers."""
    from vitft.predict import Predictor
    from vitft.rows import Rows

    rows = Rows("table", 2)
    some = images[:: max(1, len(images) // 6)]
    for prediction in Predictor.from_run(str(run)).stream(some, top_k=2):
        rows.add(prediction.path, prediction.classes, prediction.probabilities, prediction.error)
    rows.close()


def row_of(name: str, figures: dict[str, Any]) -> tuple[str, str, str]:
    """One line of the comparison."""
    low, high = figures["top1_interval"]
    return name, f"{figures['top1']:.1%}", f"{low:.1%} to {high:.1%}"
