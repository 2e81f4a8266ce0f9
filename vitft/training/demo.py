"""`vitft demo`: two runs on drawn flowers with the same budget, offline.

One starts from the bundled weights and one from random ones, which measures what pretraining is
worth.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from vitft.config.run import Config, config_from_table, read_recipe
from vitft.data.demo import demo_data
from vitft.data.split import Manifest
from vitft.export import export_safetensors
from vitft.metrics.results import RunResults
from vitft.predict.prediction import Prediction
from vitft.predict.torch_engine import Predictor
from vitft.report.run_page import write_report
from vitft.system.errors import Stopped
from vitft.system.rundir import RunDir
from vitft.training.checks import check_request
from vitft.training.run import run_finetuning

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResults:
    """Outcome of the demo."""

    pretrained: RunResults
    random: RunResults
    predictions: tuple[Prediction, ...]
    """Two classes each, by the pretrained model."""
    export: Path
    """Folder of the exported pretrained model."""
    export_difference: float
    """Largest difference of a logit between the export and the run."""
    export_images: int
    """Images on which they were compared."""
    report: Path
    """The page of the pretrained run."""


def run_demo() -> DemoResults:
    """Fine-tune from bundled and from random weights, predict, export and write the report.

    Raises:
        Stopped: A run was stopped by a signal.
    """
    config = demo_data(config_from_table(read_recipe("demo")))
    baseline = replace(config, weights=replace(config.weights, name="random:demo"))
    # The pretrained run comes last, so that it is the latest.
    _, random = finetune_demo(baseline)
    run, pretrained = finetune_demo(config)
    manifest = Manifest.read(RunDir(run).split, Path(config.data.path))
    images = [str(manifest.locate(row)) for row in manifest.val]
    shown = images[:: max(1, len(images) // 6)]  # six, spread over the classes
    export = run / "export"
    compared = export_safetensors(str(run), export)
    return DemoResults(
        pretrained=pretrained,
        random=random,
        predictions=tuple(Predictor.from_run(str(run)).stream(shown, top_k=2)),
        export=export,
        export_difference=compared.difference,
        export_images=compared.images,
        report=write_report(run),
    )


def finetune_demo(config: Config) -> tuple[Path, RunResults]:
    """Fine-tune once; return the run directory and the results."""
    out = check_request(config, None)
    log.info(f"\n--weights {config.weights.name}")
    result = run_finetuning(config, out=out)
    if result.interrupted:
        raise Stopped(result.exit_code)
    return out, result.figures
