"""Final evaluation, calibration and saving of a run."""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitft.config.sections import TrainSpec
from vitft.data.split import Manifest, Row, distinct_rows
from vitft.features.cut import BothHeads
from vitft.messages.training import confirmed_in_float32
from vitft.metrics.calibration import (
    FittedTemperature,
    ScoredSet,
    are_comparable,
    calibrate_temperature,
    confidence_and_correctness,
    sigmoid,
)
from vitft.metrics.classification import (
    calibrated_metrics,
    classification_metrics,
    probability_metrics,
)
from vitft.metrics.intervals import Floats
from vitft.metrics.label_metrics import fit_thresholds
from vitft.metrics.results import FinalTestResults, RunResults
from vitft.metrics.targets import are_right, fraction_right
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.lora import write_adapter
from vitft.models.pretrained.report import LoadReport
from vitft.models.timm_model import Model
from vitft.models.vit import VisionTransformer
from vitft.system.files import writing
from vitft.system.rundir import RunDir
from vitft.training.batches import Dataset, StageInputs
from vitft.training.loop import Batch, predict_logits
from vitft.training.stages import ScoredImages, image_logits

log = logging.getLogger(__name__)

_MIN_THRESHOLD = 1e-6
"""Minimum distance of a threshold from 0 and 1, equal to the resolution of output probabilities."""


@dataclass(frozen=True, slots=True)
class _FinalEvaluation:
    """Final results of a run, and the temperature that calibrates the logits."""

    temperature: "float | Floats"  # divisor of the logits; one per label (C,) if multi-label
    logits: Tensor  # calibrated logits (n, C) of the validation images, in manifest order
    results: RunResults
    training: ScoredSet | None = None  # calibrated cross-validated set, if calibration used it
    cross_validated: NDArray[np.int32] | None = None  # see `_cross_validated_classes`
    thresholds: tuple[float, ...] = ()  # minimum probability of each label, if multi-label


def evaluate_run(
    inputs: StageInputs,
    model: Model,
    precision: str,
    results: RunResults,
    *,
    scored: ScoredImages | None,
    started: float,
) -> _FinalEvaluation:
    """Evaluate the model on the validation images, fit a temperature and complete the results.

    `scored` contains cross-validated logits that represent the model's logits on new images.
    `started` is the value of `time.monotonic()` at the start of the run.
    """
    every, confirmed = final_logits(inputs, model, precision, inputs.data.manifest.val)
    rows = distinct_rows(inputs.data.manifest.val)
    place = {row.path: i for i, row in enumerate(inputs.data.manifest.val)}
    heads = every[[place[row.path] for row in rows]]
    logits, labels = heads[:, 0], inputs.data.labels(rows).cpu()
    if heads.shape[1] > 1:  # the second head reads the last block
        top1 = fraction_right(are_right(heads[:, 1], labels))
        results = {**results, "head": {**results["head"], "last_block_top1": top1}}
    exact = logits.double()  # shared: with many classes, it is large
    manifest, groups = inputs.data.manifest, inputs.data.user_groups(rows)
    validation = ScoredSet(exact.numpy(), labels.numpy(), groups)
    fitted, training = inputs.data.group.main_only(
        lambda: _calibrate(validation, inputs.data, scored)
    )
    if fitted.note:
        log.debug(f"not calibrated: {fitted.note}")
    thresholds, held_out = np.empty(0), np.array(0.5)
    if manifest.labels:  # each row of `held_out` (n, C) was chosen without its own image
        found = fit_thresholds(validation, training)
        # The largest float below 1 is above every probability that is not rounded to 1.
        thresholds = sigmoid(found.value / fitted.value).clip(_MIN_THRESHOLD, 1 - _MIN_THRESHOLD)
        held_out = sigmoid(found.held_out)
    measured = classification_metrics(
        logits, labels, manifest.outputs, thresholds=held_out, groups=groups
    )
    if "labels" in measured:
        scales = np.broadcast_to(fitted.value, len(thresholds)).tolist()
        per_label = measured["labels"]["per_label"].values()
        for row, value, scale in zip(per_label, thresholds.tolist(), scales, strict=True):
            row["threshold"], row["temperature"] = value, scale
    is_solved = "l2" in results and results["best_epoch"] == 1
    is_whole = not manifest.labels and len(rows) == len(every)
    text = confirmed_in_float32(measured["top1"], results["top1"], precision)
    if precision != "fp32" and not is_solved and is_whole and text:
        log.debug(text)
    metrics = {
        **results,
        **measured,
        **calibrated_metrics(exact, labels, fitted, groups),
        **({} if confirmed is None else {"confirmed_in_float32": confirmed}),
        **_final_test(inputs, model, precision, fitted.value, thresholds),
        "seconds": round(time.monotonic() - started, 1),
    }
    if training is not None:
        training = ScoredSet(training.logits / fitted.value, training.labels)
    scaled = _divided(every[:, 0], fitted.value)
    final = cast("RunResults", metrics)
    predicted = None
    if scored is not None and inputs.data.group.is_main:
        predicted = _cross_validated_classes(inputs.data, scored)
    return _FinalEvaluation(
        fitted.value, scaled, final, training, predicted, tuple(thresholds.tolist())
    )


def _divided(logits: Tensor, temperature: "float | Floats") -> Tensor:
    """Return logits (n, C) divided by a temperature, or by the temperature of each label (C,)."""
    if isinstance(temperature, float):
        return logits / temperature
    return logits / torch.from_numpy(temperature).to(logits)


def _calibrate(
    validation: ScoredSet, data: Dataset, scored: ScoredImages | None
) -> tuple[FittedTemperature, ScoredSet | None]:
    """Fit a temperature to the validation images and, if comparable, to the cross-validated ones.

    The latter are returned, too, unless they were not used: logits (m, C) and labels (m,).
    """
    training = None
    if scored is not None and scored.held_out is not None:
        validated = {row.sha256 for row in data.manifest.val}
        distinct, (rows, logits) = data.distinct, scored.held_out
        kept = [i for i, row in enumerate(rows.tolist()) if distinct[row].sha256 not in validated]
        own = [distinct[int(rows[i])] for i in kept]
        if own:
            labels, groups = data.labels(own).cpu().numpy(), data.user_groups(own)
            training = ScoredSet(logits[kept].double().numpy(), labels, groups)
    if training is not None and not are_comparable(validation, training):
        log.debug(
            "probabilities are calibrated on the validation images alone, because the validation "
            "loss clearly differs from the cross-validated loss on the training images"
        )
        training = None
    return calibrate_temperature(validation, training), training


def _cross_validated_classes(data: Dataset, scored: ScoredImages) -> NDArray[np.int32] | None:
    """Return the cross-validated class of each row of split.csv (n,), -1 for none.

    The result is None without cross-validation and for several labels.
    """
    if scored.held_out is None or data.manifest.labels:
        return None
    distinct, (rows, logits) = data.distinct, scored.held_out
    predicted = logits.argmax(dim=1).tolist()
    by_digest = {distinct[row].sha256: c for row, c in zip(rows.tolist(), predicted, strict=True)}
    apart = ("val", "test") if data.own_split else ("test",)
    return np.array(
        [-1 if r.split in apart else by_digest.get(r.sha256, -1) for r in data.manifest.rows],
        np.int32,
    )


def _final_test(
    inputs: StageInputs,
    model: Model,
    precision: str,
    temperature: "float | Floats",
    thresholds: Floats,
) -> dict[str, FinalTestResults]:
    """Evaluate the model on the test images other than copies of other images, if any."""
    data = inputs.data
    known = {row.sha256 for row in (*data.manifest.train, *data.manifest.val)}
    others = [row for row in data.manifest.test if row.sha256 not in known]
    rows = distinct_rows(others)
    if not rows:
        if data.manifest.test:
            log.warning("no accuracy on test images: all are copies of the other images")
        return {}
    logits = final_logits(inputs, model, precision, rows)[0][:, 0]
    groups = data.user_groups(rows)
    labels, scaled = data.labels(rows).cpu(), logits.double().numpy() / temperature
    return {
        "test": {
            **classification_metrics(
                _divided(logits, temperature) if len(thresholds) else logits,
                labels,
                data.manifest.outputs,
                thresholds=thresholds,
                groups=groups,
            ),
            **probability_metrics(
                scaled,
                labels,
                temperature=temperature if isinstance(temperature, float) else None,
                groups=groups,
            ),
            "left_out": len(data.manifest.test) - len(others),
        }
    }


def final_logits(
    inputs: StageInputs, model: Model, precision: str, rows: Sequence[Row]
) -> tuple[Tensor, int | None]:
    """Return logits whose top classes match those of `vitft predict` and exported models.

    If the head of the model reads several blocks, there are H = 2 heads: the second one reads only
    the last block and is used in some exports (see `BothHeads`). Otherwise, H is 1.

    Features in bf16 change logits by a few thousandths, which matters only if the two largest
    logits of an image are nearly equal. The images with the smallest margins between these two
    logits are therefore recomputed from pixels in float32, until the remaining margins exceed four
    times the largest change observed. For multi-label models, all images are recomputed because the
    thresholds are not known yet. The result does not depend on the number of processes.

    Returns:
        Logits (n, H, C) of the images in the order of `rows`, and the number of recomputed images:
        None if there is no need to, because the precision is fp32 or nothing is frozen.
    """
    data, size = inputs.data, 8  # number of images recomputed at a time
    heads: nn.Module = model
    if isinstance(model, VisionTransformer) and model.last_head is not None and inputs.cut.pooled:
        heads = BothHeads(model)
        inputs = replace(inputs, cut=inputs.cut._replace(suffix=heads))
    logits = image_logits(inputs, rows)
    if heads is model:
        logits = logits[:, None]
    if precision == "fp32" or inputs.extractor is None:
        return logits, None
    if data.manifest.labels:
        margins, order = -torch.ones(len(rows)), torch.arange(len(rows))  # none is certain
    else:
        best = logits.topk(2, dim=-1).values  # (n, H, 2)
        margins, order = (best[..., 0] - best[..., 1]).amin(dim=1).sort()
    change, done, batches = 0.0, 0, [order[i : i + size] for i in range(0, len(order), size)]
    while done < len(rows) and (done == 0 or margins[done] < 4 * change):
        some = batches[done // size :][: data.group.size]
        own = [rows[i] for batch in data.group.shard(some) for i in batch.tolist()]
        recomputed = data.group.gather(exact_logits(inputs, heads, own))
        for chosen, exact in zip(some, recomputed, strict=False):
            if done and margins[done] >= 4 * change:
                break
            done += len(chosen)
            exact = exact.view(len(chosen), *logits.shape[1:])
            change = max(change, (exact - logits[chosen]).abs().max().item())
            logits[chosen] = exact
    return logits, done


def exact_logits(inputs: StageInputs, model: nn.Module, rows: Sequence[Row]) -> Tensor:
    """Return the output of a model for images, computed from pixels in float32 in one batch."""
    if not rows:
        return torch.empty(0)
    data = inputs.data
    batches = (
        Batch(data.transform.normalise(pixels), data.labels(chunk))
        for chunk, pixels in data.decode(rows, len(rows))
    )
    return predict_logits(model, batches, device=data.device, limit=inputs.limit)[0]


def write_calibrated(run: RunDir, model: Model, card: Card, calibrated: _FinalEvaluation) -> None:
    """Divide the head by the temperature, and replace the weights and results on disk.

    eval.json is removed while the weights are replaced, so it never describes weights other than
    those on disk. Call this function only while signals are deferred.
    """
    if run.writes:
        with writing(run.eval):
            run.eval.unlink(missing_ok=True)
    if calibrated.thresholds or calibrated.temperature != 1:
        assert isinstance(model.head, nn.Linear)
        temperature = calibrated.temperature
        with torch.no_grad():
            for parameter in model.head.parameters():
                if isinstance(temperature, float):
                    parameter.div_(temperature)
                else:  # one row of the weight, and one bias, per label
                    divisor = torch.from_numpy(temperature).to(parameter)
                    parameter.div_(divisor[:, None] if parameter.ndim == 2 else divisor)
        write_model(run, model, replace(card, thresholds=calibrated.thresholds))
    arrays = {"logits": calibrated.logits.numpy()}
    if calibrated.training is not None:
        probability, correct = confidence_and_correctness(*calibrated.training[:2])
        if calibrated.thresholds:  # per label (m, C)
            probability = sigmoid(calibrated.training.logits)
            correct = calibrated.training.labels.astype(np.float64)
        arrays |= {"train_probability": probability, "train_correct": correct.astype(bool)}
    if calibrated.cross_validated is not None:
        arrays["cross_validated"] = calibrated.cross_validated
    run.write_arrays("validation.npz", **arrays)
    run.write_json(run.eval.name, calibrated.results)


def write_lora_adapter(
    run: RunDir, adapter: Mapping[str, Tensor], model: Model, train: TrainSpec, card: Card
) -> None:
    """Write the LoRA matrices to a separate folder if `train.keep_adapter` is set."""
    if not train.keep_adapter or not run.writes:
        return
    folder = run.path / "adapter"
    shutil.rmtree(folder, ignore_errors=True)  # may remain from a killed process
    write_adapter(folder, dict(adapter), model, train, base=card.weights.get("name", ""))
    log.info(f"wrote the LoRA adapter to {folder} (open it with peft.PeftModel.from_pretrained)")


def write_model(run: RunDir, model: Model, card: Card) -> None:
    """Write the checkpoint of a run."""
    if run.writes:
        save_checkpoint(run.model, model.state_dict(), card)


def model_card(model: Model, report: LoadReport, manifest: Manifest) -> Card:
    """Return the card of the trained model."""
    return Card(
        architecture=model.config,
        transform=report.transform,
        classes=manifest.outputs,
        thresholds=(0.5,) * len(manifest.labels),
        weights=report.provenance,
        pos_embed=report.positions,
        split=manifest.digest,
    )
