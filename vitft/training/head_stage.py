"""Training stage that fits the linear head without a training loop and cross-validates it."""

import functools
import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitft.config.run import Config
from vitft.data.image_table import Row
from vitft.data.split import distinct_rows
from vitft.data.transforms import View, eval_view
from vitft.features.cut import cut_model
from vitft.features.head import HeadMethod, LinearHead, SolvedHead, cross_validate, solve_head
from vitft.features.neighbours import nearest_neighbours
from vitft.messages.training import describe_head
from vitft.metrics.calibration import MAX_LOGITS
from vitft.metrics.classification import are_right, fraction_right, mean_loss
from vitft.metrics.results import CrossValidation, SolvedHeadResults
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.training.batches import Dataset, StageInputs, training_views
from vitft.training.fitted import Fitted, ScoredImages
from vitft.training.stages import validate

log = logging.getLogger(__name__)


def solve_head_stage(fitted: Fitted) -> SolvedHead:
    """Fit the linear head, validate it, and score all images by cross-validation."""
    best, model, config, inputs = fitted.best, fitted.model, fitted.config, fitted.inputs
    data, group = inputs.data, inputs.data.group
    views = [eval_view(data.transform)]
    if config.solvable:
        views = training_views(data.transform, config.train, config.optim)
    features = functools.cache(lambda: _head_features(model, inputs, views))  # for the main process

    def solve() -> SolvedHead:
        training, extractor = features()[0], inputs.extractor
        return solve_head(
            training,
            torch.cat([data.labels(data.manifest.train).cpu()] * len(views)),
            classes=len(data.manifest.outputs),
            l2=config.optim.l2,
            balanced=config.balances,
            seed=config.train.seed,
            views=len(views),
            groups=data.group_ids(data.manifest.train),
            read=training.shape[1] if extractor is None else extractor.prefix.leading,
        )

    with fitted.runtime.stopper.deferred_to_next(when=group.size > 1):  # none waits for another
        with console.quiet_step("fitting the head"):
            solved = group.main_only(solve)
        if not solved.method.reads_several:
            fitted.inputs = of_last_block(fitted.inputs, model)
        _set_linear(model.head, solved.weight, solved.bias)
        if model.last_head is not None:
            _set_linear(model.last_head, *(part * solved.method.alone for part in solved.last))
        for tried in solved.path:
            fitted.run.log(tried)
        best.update(validate(fitted.inputs))
        with console.quiet_step("cross-validating the head"):
            results = group.main_only(lambda: _score(fitted, features(), solved))
            best.facts["extra"] = results
    if solved.candidates:
        choice = results["head"]
        last, blocks = choice["candidates"][0], choice["blocks"]
        read = next(c for c in choice["candidates"] if c["reads"] == choice["reads"])
        log.debug(describe_head(last if blocks == 1 else read, last, blocks))
    return solved


def _score(
    fitted: Fitted, features: tuple[Tensor, Tensor, Tensor], solved: SolvedHead
) -> SolvedHeadResults:
    """Score the solved head, and score all images by cross-validation, for later steps too."""
    data, read, (training, validation, distinct) = fitted.inputs.data, solved.method.read, features
    labels, classes = data.labels(data.manifest.train).cpu(), data.manifest.outputs
    plain, held_out = training[: len(labels), :read], validation[:, :read]
    votes = nearest_neighbours(plain, labels, held_out, classes=len(classes))
    truth = data.labels(distinct_rows(data.manifest.val)).cpu()
    zeros = torch.zeros(min(len(labels), max(1, MAX_LOGITS // len(classes))), len(classes))
    results: SolvedHeadResults = {
        "first_loss": sum(
            mean_loss(zeros[: len(some)], some).item() * (len(some) / len(labels))
            for some in labels.split(len(zeros))
        ),
        "l2": solved.l2,
        "knn_top1": fraction_right(are_right(votes - 0.5 * (truth.ndim == 2), truth)),
    }
    if isinstance(solved.method.l2, tuple):
        results["label_l2"] = list(solved.method.l2)
    cross_validation, fitted.scored = _cross_validate_images(
        data, distinct, fitted.config, solved.method
    )
    if cross_validation is not None:
        results["cross_validation"] = cross_validation
    if solved.candidates:
        # Which blocks the head reads, and the scores that led to this choice
        weight, bias = solved.last
        right = (held_out @ weight.T + bias).argmax(dim=1) == truth
        blocks = fitted.model.config.read_blocks
        results["head"] = {
            "blocks": blocks,
            "reads": solved.method.name,
            "candidates": list(solved.candidates),
            "last_block_top1": fraction_right(right) if blocks > 1 else None,
        }
    return results


def of_last_block(inputs: StageInputs, model: Model) -> StageInputs:
    """Make the head read only the last block, and return inputs with the features of that block."""
    if model.config.read_blocks == 1 or inputs.extractor is None:
        return inputs
    extractor = inputs.extractor.of_last_block()
    model.read_last_blocks(1)
    return replace(inputs, extractor=extractor, cut=cut_model(model, "head"))


def _cross_validate_images(
    data: Dataset, distinct: Tensor, config: Config, method: HeadMethod
) -> tuple[CrossValidation | None, ScoredImages]:
    """Cross-validate a method of fitting the head, given features (n, D) of the distinct images."""
    # No head is fitted to validation images that the data names: they may come from elsewhere
    apart = torch.tensor([row.split == "val" for row in data.distinct])
    scores = cross_validate(
        distinct,
        data.labels(data.distinct).cpu(),
        data.manifest.outputs,
        method=method,
        balanced=config.balances,
        seed=config.train.seed,
        groups=data.group_ids(data.distinct),
        units=data.user_groups(data.distinct),
        apart=apart if data.own_split else None,
    )
    results, held_out = scores or (None, None)
    if data.known_to_weights or config.train.views:
        results = None  # the model has seen the images, or is not fitted as these heads are
    features = distinct[:, : method.read]
    return results, ScoredImages(features=features, held_out=held_out)


def representative_scores(fitted: Fitted) -> ScoredImages | None:
    """Return cross-validated logits that represent the model's logits on new images, or None.

    They do if the best head was also solved, without augmented views. Only the main process has
    them. A run resumed after the first stage computes them again from its inputs.
    """
    config, best, first = fitted.config, fitted.best, fitted.start.inputs
    is_first = config.solves(config.train.stages[0]) and best.results["best_epoch"] == 1
    solved = best.facts["extra"] if is_first else None
    if solved is None or config.train.views or first.data.known_to_weights:
        return None
    if fitted.scored is None and first.data.group.is_main:
        _, _, distinct = _head_features(best.model, first, [eval_view(first.data.transform)])
        l2 = tuple(solved.get("label_l2", ())) or solved["l2"]
        method = HeadMethod(l2=l2, read=distinct.shape[1])
        _, fitted.scored = _cross_validate_images(first.data, distinct, config, method)
    return fitted.scored


def _head_features(
    model: Model, inputs: StageInputs, views: Sequence[View]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs to the head: training (views * n, D), by view, validation, and distinct."""
    data = inputs.data
    parts = [inputs_to_head(model, inputs, data.manifest.train, view) for view in views]
    training = torch.cat(parts) if len(parts) > 1 else parts[0]  # a single part is not copied
    validation = inputs_to_head(model, inputs, distinct_rows(data.manifest.val))
    return training, validation, inputs_to_head(model, inputs, data.distinct)


@torch.no_grad()
def inputs_to_head(
    model: Model, inputs: StageInputs, rows: Sequence[Row], view: View | None = None
) -> Tensor:
    """Return the inputs to the head (n, D) for images of the run, in float32 on the CPU."""
    x: Tensor = model.pre_logits.cpu()(inputs.features(rows, view))
    model.pre_logits.to(inputs.data.device)
    return x


def read_last_block(model: Model, head: LinearHead) -> None:
    """Replace the head of a model with one that reads the last block only."""
    model.read_last_blocks(1)
    _set_linear(model.head, *head)


@torch.no_grad()
def _set_linear(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Copy a weight (C, D) and a bias (C,) into a linear layer."""
    assert isinstance(layer, nn.Linear)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
