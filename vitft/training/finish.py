"""Final evaluation, calibration and saving of a run."""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitft.data.image_table import Row, distinct_rows
from vitft.features.cut import BothHeads
from vitft.metrics.calibration import (
    FittedTemperature,
    ScoredSet,
    are_comparable,
    calibrate_temperature,
    confidence_and_correctness,
    log_losses,
    sigmoid,
)
from vitft.metrics.classification import (
    are_right,
    calibrated_metrics,
    classification_metrics,
    fit_thresholds,
    fraction_right,
    probability_metrics,
)
from vitft.metrics.intervals import Floats
from vitft.metrics.outputs import Outputs
from vitft.metrics.results import FinalTestResults, RunResults
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.trainable import merge_adapters, write_adapter
from vitft.system import console
from vitft.system.files import writing
from vitft.training.batches import Dataset, are_first, are_new
from vitft.training.loop import predict_logits
from vitft.training.record import Fitted, ScoredImages
from vitft.training.stages import representative_scores

log = logging.getLogger(__name__)

_MIN_THRESHOLD = 1e-6
"""Minimum distance of a threshold from 0 and 1, equal to the resolution of output probabilities."""
_MOST_LOGITS = 2**24  # of cross-validated images in validation.npz, at most (64 MB)


_Evaluated = tuple[RunResults, float | Floats, Outputs, Mapping[str, NDArray[Any]]]
"""Contents of eval.json; the temperature, which divides the logits, or that of each label (C,); the
outputs of the model, with the thresholds of labels; and contents of validation.npz."""


def write_best(fitted: Fitted) -> None:
    """Load the best weights, merge LoRA adapters, and write the model with its metrics so far."""
    best, run = fitted.best, fitted.run
    with fitted.runtime.stopper.deferred_locally():
        best.restore()
        if best.facts["epochs"]:
            fitted.adapter = merge_adapters(fitted.model)
            _write_model(fitted, fitted.inputs.data.manifest.outputs)
            run.write_json(run.eval.name, best.results)


def evaluate(fitted: Fitted) -> _Evaluated:
    """Evaluate the model on the validation images, fit a temperature and complete the results."""
    with console.quiet_step("evaluating the model"):
        # The answers to all validation images; each distinct image counts once
        data, results, scored = fitted.inputs.data, fitted.results, representative_scores(fitted)
        manifest = data.manifest
        every, confirmed = _final_logits(fitted, manifest.val)
        rows, heads = data.validated, every[data.counted]
        logits, labels, groups = heads[:, 0], data.labels(rows).cpu(), data.units(rows)
        if heads.shape[1] > 1:  # the second head reads the last block
            top1 = fraction_right(are_right(heads[:, 1], labels))
            results = {**results, "head": {**results["head"], "last_block_top1": top1}}

        # The temperature and, for several labels, the thresholds
        exact = logits.double()  # shared: with many classes, it is large
        validation = ScoredSet(exact.numpy(), labels.numpy(), groups)
        fit, training = data.group.main_only(lambda: _calibrate(validation, data, scored))
        outputs, held_out = manifest.outputs, None
        if outputs.several:  # each row of `held_out` (n, C) was chosen without its own image
            values, apart = fit_thresholds(validation, training)
            # The largest float below 1 is above every probability that is not rounded to 1.
            limits = _MIN_THRESHOLD, 1 - _MIN_THRESHOLD
            chosen = sigmoid(values / fit.value).clip(*limits).tolist()
            outputs, held_out = replace(outputs, thresholds=tuple(chosen)), sigmoid(apart)

        # Contents of eval.json
        measured = classification_metrics(logits, labels, outputs, held_out=held_out, groups=groups)
        if "labels" in measured:
            scales = np.broadcast_to(fit.value, len(outputs.classes)).tolist()
            per_label = measured["labels"]["per_label"].values()
            for row, value, scale in zip(per_label, outputs.thresholds, scales, strict=True):
                row["threshold"], row["temperature"] = value, scale
        metrics = {
            **results,
            **measured,
            **calibrated_metrics(exact, labels, fit, groups),
            **({} if confirmed is None else {"confirmed_in_float32": confirmed}),
            **({"left_out": data.left_out} if data.left_out else {}),
            **data.known_to_weights(rows),
            **_final_test(fitted, fit.value, outputs),
            "seconds": round(time.monotonic() - fitted.runtime.started, 1),
        }

        # Contents of validation.npz
        arrays = {"logits": _divided(every[:, 0], fit.value).numpy(), "counted": data.counted}
        if training is not None:  # calibration used cross-validated logits as well
            answers, truth = training.logits / fit.value, training.labels
            probability, correct = sigmoid(answers), truth.astype(bool)  # per label (m, C)
            if not manifest.labels:
                probability, right = confidence_and_correctness(answers, truth)
                correct = right.astype(bool)
                arrays["train_label_probability"] = np.exp(-log_losses(answers, truth))
                if answers.size <= _MOST_LOGITS:
                    arrays["train_logits"] = answers.astype(np.float32)
            arrays |= {"train_probability": probability, "train_correct": correct}
        if scored is not None and (predicted := _cross_validated_classes(data, scored)) is not None:
            arrays["cross_validated"] = predicted
    return cast("RunResults", metrics), fit.value, outputs, arrays


def _divided(logits: Tensor, temperature: "float | Floats") -> Tensor:
    """Return logits (n, C) divided by a temperature, or by the temperature of each label (C,)."""
    return logits / torch.as_tensor(temperature).to(logits)


def _calibrate(
    validation: ScoredSet, data: Dataset, scored: ScoredImages | None
) -> tuple[FittedTemperature, ScoredSet | None]:
    """Fit a temperature to the validation images and, if comparable, to cross-validated ones."""
    training = None
    if scored is not None and scored.held_out is not None:
        validated = {row.sha256 for row in data.manifest.val}
        distinct, (rows, logits) = data.distinct, scored.held_out
        kept = [i for i, row in enumerate(rows.tolist()) if distinct[row].sha256 not in validated]
        own = [distinct[int(rows[i])] for i in kept]
        if own:
            labels, groups = data.labels(own).cpu().numpy(), data.units(own)
            training = ScoredSet(logits[kept].double().numpy(), labels, groups)
    if training is not None and not are_comparable(validation, training):
        log.debug(
            "probabilities are calibrated on the validation images alone, because the validation "
            "loss clearly differs from the cross-validated loss on the training images"
        )
        training = None
    return calibrate_temperature(validation, training), training


def _cross_validated_classes(data: Dataset, scored: ScoredImages) -> NDArray[np.int32] | None:
    """Return the cross-validated class, or most probable label, of each row of split.csv (n,).

    It is -1 for rows that are not cross-validated.
    """
    if scored.held_out is None:
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
    fitted: Fitted, temperature: "float | Floats", outputs: Outputs
) -> dict[str, FinalTestResults]:
    """Evaluate the model on the test images other than copies of other images, if any."""
    data = fitted.inputs.data
    if not data.manifest.test:
        return {}
    test, known = data.manifest.test, data.manifest.where(data.manifest.column("split") != "test")
    others = [*compress(test, are_new(test, known.rows, data.copies))]
    every = distinct_rows(others)
    rows = [*compress(every, are_first(every, data.copies))]
    if not rows:
        log.warning("the test images are not evaluated: all are copies of other images")
        return {}
    logits = _final_logits(fitted, rows)[0][:, 0]
    labels, groups = data.labels(rows).cpu(), data.units(rows)
    scaled = logits.double().numpy() / temperature
    logits = _divided(logits, temperature) if outputs.several else logits
    measured = classification_metrics(logits, labels, outputs, groups=groups)
    single = temperature if isinstance(temperature, float) else None
    more = probability_metrics(scaled, labels, temperature=single, groups=groups)
    left_out = len(test) - len(others) + len(every) - len(rows)
    found = {**measured, **more, "left_out": left_out, **data.known_to_weights(rows)}
    return {"test": cast("FinalTestResults", found)}


def _final_logits(fitted: Fitted, rows: Sequence[Row]) -> tuple[Tensor, int | None]:
    """Return logits whose top classes match those of `vitft predict` and exported models.

    If the head of the model reads several blocks, there are H = 2 heads: the second one reads only
    the last block and is used in some exports (see `BothHeads`). Otherwise, H is 1.

    Features in bf16 change logits by a few thousandths, which matters only if the two largest
    logits of an image are nearly equal. The images with the smallest margins between these two
    logits are therefore recomputed from pixels in float32, until the remaining margins exceed four
    times the largest change observed. For multi-label models, all images are recomputed because the
    thresholds are not known yet. The result does not depend on the number of processes.
    Their shape is (n, H, C). The number of recomputed images, or None, follows.
    """
    inputs, heads = fitted.inputs, cast("nn.Module", fitted.model)
    data = inputs.data
    size = 8 if data.device.type == "cpu" else 64  # number of images recomputed at a time
    if fitted.model.config.read_blocks > 1 and inputs.cut.pooled:
        heads = BothHeads(fitted.model)
        inputs = replace(inputs, cut=inputs.cut._replace(suffix=heads))
    logits = inputs.logits(rows)
    if heads is fitted.model:
        logits = logits[:, None]
    if fitted.precision == "fp32" or inputs.extractor is None:
        return logits, None
    if data.manifest.labels:
        margins, order = -torch.ones(len(rows)), torch.arange(len(rows))  # none is certain
    else:
        best = logits.topk(2, dim=-1).values  # (n, H, 2)
        margins, order = (best[..., 0] - best[..., 1]).amin(dim=1).sort()
    change, done, needed = 0.0, 0, 1  # the largest change only grows, and so does `needed`
    while done < min(needed, len(rows)):
        some = order[done : -(-needed // size) * size]
        own = [rows[i] for i in data.group.shard(some.tolist(), size)]
        views = (data.transform.normalise(pixels) for _, pixels in data.decode(own, size))
        found = predict_logits(heads, views, device=data.device, limit=inputs.limit)
        exact = data.group.all_gather(found, len(some), size).view_as(logits[some])
        change = max(change, (exact - logits[some]).abs().max().item())
        logits[some] = exact
        done, needed = done + len(some), int((margins < 4 * change).sum())
    return logits, done


def write_final(fitted: Fitted, evaluated: _Evaluated) -> None:
    """Divide the head by the temperature, and replace the weights and results on disk.

    eval.json is removed while the weights are replaced, so it never describes weights other than
    those on disk. The LoRA matrices are written to a folder, too, if `train.keep_adapter` is set.
    """
    run, model, (results, temperature, outputs, arrays) = fitted.run, fitted.model, evaluated
    with fitted.runtime.stopper.deferred_locally():
        if run.writes:
            with writing(run.eval):
                run.eval.unlink(missing_ok=True)
        if outputs.several or temperature != 1:
            assert isinstance(model.head, nn.Linear)
            with torch.no_grad():
                for parameter in model.head.parameters():
                    by_label = parameter.movedim(0, -1)
                    by_label.copy_(_divided(by_label, temperature))
            _write_model(fitted, outputs)
        run.write_arrays("validation.npz", **arrays)
        run.write_json(run.eval.name, results)
        fitted.final = results
    train = fitted.config.train
    if train.keep_adapter and run.writes:
        folder, origin = run.path / "adapter", fitted.start.report.provenance
        shutil.rmtree(folder, ignore_errors=True)  # may remain from a killed process
        write_adapter(folder, dict(fitted.adapter), model, train, base=origin.get("name", ""))
        log.info(
            f"wrote the LoRA adapter to {folder} (open it with peft.PeftModel.from_pretrained)"
        )


def _write_model(fitted: Fitted, outputs: Outputs) -> None:
    report, data = fitted.start.report, fitted.inputs.data
    card = Card(
        architecture=fitted.model.config,
        transform=data.transform,
        **outputs.table,
        weights=report.provenance,
        pos_embed=report.positions,
        split=data.manifest.digest,
    )
    if fitted.run.writes:
        save_checkpoint(fitted.run.model, fitted.model.state_dict(), card)
