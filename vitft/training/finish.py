"""Final evaluation, calibration and saving of a run."""

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from vitft.config.sections import TrainSpec
from vitft.data.split import Manifest
from vitft.metrics.calibration import calibrate_temperature
from vitft.metrics.classification import calibrated_metrics, classification_metrics
from vitft.metrics.results import RunResults
from vitft.models.checkpoint import Card, save_checkpoint
from vitft.models.lora import write_adapter
from vitft.models.pretrained.report import LoadReport
from vitft.models.timm_model import Model
from vitft.system.files import writing
from vitft.system.rundir import RunDir
from vitft.training.dataset import StageInputs
from vitft.training.stages import validation_logits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FinalEvaluation:
    """Final results of a run and the temperature they were computed with."""

    temperature: float
    logits: Tensor
    """Logits (n, C) of the validation images in manifest order, divided by the temperature."""
    results: RunResults


def evaluate_run(
    inputs: StageInputs, model: Model, precision: str, results: RunResults, *, started: float
) -> FinalEvaluation:
    """Evaluate the model on the validation images, fit the temperature and complete the results.

    The metrics in `results` are replaced. `started` is the start of the run by `time.monotonic`.
    """
    logits, confirmed = final_logits(inputs, model, precision)
    labels = inputs.data.labels(inputs.data.manifest.val).cpu()
    fitted = calibrate_temperature(logits.double().numpy(), labels.numpy())
    if fitted.note:
        log.info(f"not calibrated: {fitted.note}")
    metrics = {
        **results,
        **classification_metrics(logits, labels, inputs.data.manifest.classes),
        **calibrated_metrics(logits, labels, fitted),
        **({} if confirmed is None else {"confirmed_in_float32": confirmed}),
        "seconds": round(time.monotonic() - started, 1),
    }
    return FinalEvaluation(fitted.value, logits / fitted.value, cast("RunResults", metrics))


def final_logits(inputs: StageInputs, model: Model, precision: str) -> tuple[Tensor, int | None]:
    """Return the logits whose largest class is that of float32, as predict and exports compute.

    Features in bf16 move a logit by a few thousandths, which matters only where two classes are
    nearly equal. So the images with the smallest margins are recomputed from their pixels in
    float32, until the remaining margins exceed four times the largest change observed.

    Returns:
        Logits (n, C) of the validation images in manifest order, and the number of recomputed
        images; None if all were computed in float32.
    """
    data, size = inputs.data, 8  # images that are recomputed at a time
    rows = data.manifest.val
    logits, _ = validation_logits(inputs)
    if precision == "fp32" or inputs.extractor is None:
        return logits, None
    best = logits.topk(2, dim=-1).values  # (n, 2)
    margins, order = (best[:, 0] - best[:, 1]).sort()
    change, done = 0.0, 0
    while done < len(rows) and (done == 0 or margins[done] < 4 * change):
        chosen = order[done : done + size]
        done += len(chosen)
        for _, pixels in data.decode([rows[i] for i in chosen.tolist()], size):
            with torch.inference_mode():
                exact = model.eval()(data.transform.normalise(pixels)).float().cpu()
            change = max(change, (exact - logits[chosen]).abs().max().item())
            logits[chosen] = exact
    return logits, done


def write_calibrated(run: RunDir, model: Model, card: Card, calibrated: FinalEvaluation) -> None:
    """Divide the head by the temperature, and replace weights and results on disk.

    eval.json is missing while the weights change, so that it never describes other weights than
    those beside it. Call this where a signal cannot interrupt it.
    """
    if run.writes:
        with writing(run.eval):
            run.eval.unlink(missing_ok=True)
    if calibrated.temperature != 1:
        assert isinstance(model.head, nn.Linear)
        with torch.no_grad():
            for parameter in model.head.parameters():
                parameter.div_(calibrated.temperature)
        write_model(run, model, card)
    run.write_arrays("validation.npz", logits=calibrated.logits.numpy())
    run.write_json(run.eval.name, calibrated.results)


def write_lora_adapter(
    run: RunDir, adapter: Mapping[str, Tensor], model: Model, train: TrainSpec, card: Card
) -> None:
    """Write the LoRA matrices by themselves, if `train.keep_adapter` asks for them."""
    if not train.keep_adapter or not run.writes:
        return
    folder = run.path / "adapter"
    shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed right after this
    write_adapter(folder, dict(adapter), model, train, base=card.weights.get("name", ""))
    log.info(f"adapter, for peft.PeftModel.from_pretrained: {folder}")


def write_model(run: RunDir, model: Model, card: Card) -> None:
    """Write the checkpoint of the run."""
    if run.writes:
        save_checkpoint(run.model, model.state_dict(), card)


def model_card(model: Model, report: LoadReport, manifest: Manifest) -> Card:
    """Return the card of the trained model."""
    return Card(
        architecture=model.config,
        transform=report.transform,
        classes=manifest.classes,
        weights=report.provenance,
        pos_embed=report.positions,
        split=manifest.digest,
    )
