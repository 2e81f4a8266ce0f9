"""`vitft demo`: two offline runs on drawings of flowers.

One run starts from the bundled weights, the other from random weights. All other settings are the
same, so the difference in accuracy shows the benefit of pretraining.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from vitft.config.run import Config, config_from_table, read_recipe
from vitft.data.demo import demo_data
from vitft.data.image_table import Images
from vitft.export.job import Exported, export_safetensors
from vitft.metrics.results import RunResults
from vitft.predict.rows import Prediction
from vitft.predict.torch_engine import Predictor
from vitft.report.run_page import write_report
from vitft.system.errors import Stopped
from vitft.system.rundir import RunDir
from vitft.training.checks import check_request
from vitft.training.run import run_finetuning

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DemoResults:
    """Outcome of the demo: predictions, export and report are of the pretrained model."""

    pretrained: RunResults
    random: RunResults
    predictions: tuple[Prediction, ...]  # with the top two classes of each image
    export: Exported
    report: Path


def run_demo() -> _DemoResults:
    """Fine-tune bundled and random weights, then predict, export and write the report."""
    config = config_from_table(read_recipe("demo"))
    config = replace(config, data=demo_data(config.data))
    baseline = replace(config, weights=replace(config.weights, name="random:demo"))
    # The pretrained run comes second so that it becomes the latest run.
    _, random = _finetune_demo(baseline)
    run, pretrained = _finetune_demo(config)
    manifest = Images.from_csv(RunDir(run).split, Path(config.data.path))
    images = [str(manifest.locate(row)) for row in manifest.val]
    shown = images[:: max(1, len(images) // 6)]  # about six, spread over the classes
    return _DemoResults(
        pretrained=pretrained,
        random=random,
        predictions=tuple(Predictor.from_run(str(run)).stream(shown, top_k=2)),
        export=export_safetensors(str(run), run / "export"),
        report=write_report(run),
    )


def _finetune_demo(config: Config) -> tuple[Path, RunResults]:
    """Fine-tune once, and return the run directory and the results."""
    config, out = check_request(config, None)
    log.info(f"fine-tuning with --weights {config.weights.name}")
    result = run_finetuning(config, out=out)
    if result.interrupted:
        raise Stopped(result.exit_code)
    return out, result.figures
