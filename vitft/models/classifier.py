"""Loading of trained models: vitft checkpoints, and other tools' models that have class names.

Like pretrained weights, a model from another tool is described by the config.json next to it.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from vitft.metrics.summary import Results
from vitft.models.card import RUN_KEY, Card, config_beside, foreign_thresholds
from vitft.models.checkpoint import load_checkpoint
from vitft.models.checkpoint_file import lacks_card
from vitft.models.pretrained.weights import PretrainedWeights, open_pretrained
from vitft.system.errors import RunError, WeightsError
from vitft.system.text import labelled, shell_quote

log = logging.getLogger(__name__)


def load_classifier(
    path: Path, *, digest: Callable[[], str] | None = None
) -> tuple[Mapping[str, Tensor], Card]:
    """Return the tensors and the card of a trained model at a path from `find.find_model`.

    The tensors of a timm model have timm's names; all others have vitft's names. `digest` is as in
    `load_checkpoint`.

    Raises:
        RunError: The file is missing, damaged or not supported, or has no head for known classes.
    """
    if not lacks_card(path):
        return load_checkpoint(path, digest=digest)
    try:
        weights = open_pretrained(path)
    except WeightsError as error:
        raise RunError(error.problem, fix=error.fix) from error
    reason = weights.unusable_head
    if not weights.classes:
        reason = "vitft did not write it, and no config.json next to it lists the classes"
    log_assumptions(weights)
    if reason:
        raise RunError(
            f"cannot classify with {path}: {reason}",
            fix="use it as pretrained weights: vitft finetune --data DIR --weights "
            f"{shell_quote(str(path))}. Published weights need their name, e.g. "
            "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors",
        )
    card = Card(
        architecture=weights.architecture,
        transform=weights.transform,
        classes=weights.classes,
        weights=weights.provenance,
        thresholds=foreign_thresholds(path),
        run=Results.from_json(config_beside(path).get(RUN_KEY)),
    )
    return weights.tensors, card


def log_assumptions(weights: PretrainedWeights) -> None:
    """Log what was assumed, and why the classes have the names of ImageNet if they are unnamed."""
    notes = [*weights.notes]
    if weights.label_set:
        notes.append(
            f"the class names come from {weights.label_set} in timm, because the weights are "
            f"named {weights.published} and have {len(weights.classes):,} outputs"
        )
    for note in notes:
        log.info(labelled("Note", note))
