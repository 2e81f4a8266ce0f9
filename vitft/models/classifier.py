"""Loading of a trained model: a checkpoint of vitft, or a model of another tool with class names.

A model of another tool is described by the config.json beside it, as pretrained weights are.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from vitft.models.card import Card
from vitft.models.checkpoint import load_checkpoint
from vitft.models.checkpoint_file import lacks_card
from vitft.models.pretrained.weights import open_pretrained
from vitft.system.errors import RunError, WeightsError


def load_classifier(
    path: Path, *, digest: Callable[[], str] | None = None
) -> tuple[Mapping[str, Tensor], Card]:
    """Return the tensors of a trained model under vitft's names, and its card.

    (The tensors of a timm model have timm's names.)

    Args:
        path: Path from `find.find_model`.
        digest: As in `load_checkpoint`.

    Raises:
        RunError: The file is missing or damaged, does not describe a classifier completely, or has
            a head that vitft cannot use.
    """
    if not lacks_card(path):
        return load_checkpoint(path, digest=digest)
    try:
        weights = open_pretrained(path)
    except WeightsError as error:
        raise RunError(error.problem, fix=error.fix) from error
    reason = weights.unusable_head
    if not weights.classes:
        reason = "vitft did not write it, and no config.json beside it lists the classes"
    if reason:
        raise RunError(
            f"cannot classify with {path}: {reason}",
            fix=f"use it as pretrained weights: vitft finetune --data DIR --weights {path}",
        )
    card = Card(
        architecture=weights.architecture,
        transform=weights.transform,
        classes=weights.classes,
        weights=weights.provenance,
    )
    return weights.tensors, card
