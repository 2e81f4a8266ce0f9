"""The stage that fits a head: features, losses, sharing of rows, and what stands for new images."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.training_data import data_set, digest, noted, pooled_inputs, row
from vitft.config.run import config_from_table
from vitft.features.head import HeldOutLogits, SolvedHead
from vitft.features.logistic import Problem, Standardizer
from vitft.features.mixture import HeadMethod
from vitft.features.neighbours import nearest_neighbours
from vitft.models.vit import VisionTransformer
from vitft.training import head_stage as module
from vitft.training.distributed import ProcessGroup
from vitft.training.head_stage import (
    HeadSolver,
    cross_validate_images,
    describe_choice,
    head_choice,
    head_features,
    logits_of_votes,
    of_last_block,
    read_last_block,
    representative_scores,
    set_head,
)
from vitft.training.stages import ScoredImages

ROWS = [row(f"t{i}", i % 3) for i in range(24)] + [row(f"v{i}", i % 3, "val") for i in range(9)]
VIEWS = ("plain", "crop 0 0")


def features() -> dict[Any, Tensor]:
    """Return features (3,) of each image and view, of which two are those of the last block."""
    noise = torch.Generator().manual_seed(0)
    return {
        (one.sha256, view): 2 * torch.eye(3)[one.label] + torch.randn(3, generator=noise)
        for one in ROWS
        for view in VIEWS
    }


def context_of(*, rank: int = 0, size: int = 1, **table: Any) -> Any:
    data = data_set(ROWS, group=ProcessGroup(rank, size))
    model = SimpleNamespace(pre_logits=nn.Linear(3, 3), head=nn.Linear(3, 3))
    with torch.no_grad():
        model.pre_logits.weight.copy_(torch.eye(3))
        model.pre_logits.bias.fill_(1.0)
    best = SimpleNamespace(model=model, results={"best_epoch": 1}, head_results={"l2": 0.1})
    return SimpleNamespace(
        config=config_from_table(table), inputs=pooled_inputs(data, features()), best=best,
        scored=None,
    )  # fmt: skip


def test_the_head_reads_what_pre_logits_makes_of_the_features() -> None:
    context = context_of(train={"views": 1})
    solver, known = HeadSolver(context), features()

    training, validation, distinct = solver.features

    assert [view.name for view in solver.views] == [*VIEWS]
    expected = [known[one.sha256, view] + 1 for view in VIEWS for one in ROWS[:24]]
    torch.testing.assert_close(training, torch.stack(expected))
    torch.testing.assert_close(
        validation, torch.stack([known[one.sha256, "plain"] + 1 for one in ROWS[24:]])
    )
    assert len(distinct) == 33
    assert not training.requires_grad
    assert solver.labels.tolist() == [one.label for one in ROWS[:24]]


def test_a_head_before_other_layers_is_fitted_to_unaugmented_images() -> None:
    context = context_of(train={"freeze": "head,none", "augment": "none"})

    assert [view.name for view in HeadSolver(context).views] == ["plain"]


@pytest.mark.parametrize("rows", [7, 8, 1000])
def test_the_loss_of_a_head_is_its_mean_over_the_training_images(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(module, "MAX_LOGITS", 3 * rows)
    context = context_of(train={"views": 1})
    solver = HeadSolver(context)
    head = nn.Linear(2, 3)
    solved: Any = SimpleNamespace(weight=torch.zeros(3, 2))

    loss = solver.loss(head, solved)

    x, y = solver.features[0][:24, :2], solver.labels
    assert loss == pytest.approx(F.cross_entropy(head(x), y).item(), rel=1e-5)


@pytest.mark.parametrize("balanced", [False, True])
def test_the_rows_of_all_processes_are_those_of_one(
    monkeypatch: pytest.MonkeyPatch, balanced: bool
) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", 5)  # 48 rows of two views in ten chunks
    table: dict[str, Any] = {"train": {"views": 1}, "optim": {"class_weights": balanced}}
    whole = HeadSolver(context_of(**table))
    x = whole.features[0]
    problem = Problem(
        classes=3, l2=0.1, total_weight=torch.full((1, 1), 48.0),
        standardizer=Standardizer.fit(x[:, :2]),
    )  # fmt: skip
    point = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def sums(rank: int, size: int) -> list[Tensor]:
        solver = HeadSolver(context_of(rank=rank, size=size, **table))
        return list(solver.own_objective(problem).sums(point))

    alone = sums(0, 1)
    parts = [sums(rank, 3) for rank in range(3)]

    for i, total in enumerate(alone):
        torch.testing.assert_close(sum((p[i] for p in parts[1:]), parts[0][i]), total)
    objective = HeadSolver(context_of(rank=1, size=3, **table)).own_objective(problem)
    own = [*range(5, 10), *range(20, 25), *range(35, 40)]
    torch.testing.assert_close(objective.x, x[own, :2])


def test_the_solved_head_is_scored_on_validation_images_and_by_cross_validation() -> None:
    context = context_of(optim={"l2": 0.1})
    solver = HeadSolver(context)
    solved = solver.solve()

    found: Any = solver.score(solved, 1.25)

    training, validation, _ = solver.features
    read = solved.method.read
    x, held = training[:, :read], validation[:, :read]
    assert (read, found["l2"], found["first_loss"]) == (2, 0.1, 1.25)
    assert found["cross_validation"]["images"] == 33
    assert context.scored.features.shape == (33, 2)
    assert "label_l2" not in found
    votes = nearest_neighbours(x, solver.labels, held, classes=3)
    truth = torch.tensor([one.label for one in ROWS[24:]])
    assert found["knn_top1"] == pytest.approx((votes.argmax(dim=1) == truth).float().mean().item())
    assert ("head" in found) is bool(solved.candidates)


def test_half_of_the_votes_are_enough_for_a_label() -> None:
    votes = torch.tensor([[0.25, 0.75]])

    assert logits_of_votes(votes, torch.ones(1, 2)).tolist() == [[-0.25, 0.25]]
    assert logits_of_votes(votes, torch.ones(1)).tolist() == [[0.25, 0.75]]


def solved_head(*, alone: float = 1.0, width: int = 2) -> SolvedHead:
    method = HeadMethod(l2=0.1, read=2, alone=alone)
    last = torch.tensor([[1.0, 0], [0, 1], [-1, -1]]), torch.zeros(3)
    weight = torch.arange(3.0 * width).view(3, width)
    return SolvedHead(
        weight=weight, bias=torch.ones(3), last=last, method=method, path=[], candidates=[]
    )


def test_the_fitted_head_and_its_calibrated_part_are_loaded() -> None:
    model: Any = SimpleNamespace(head=nn.Linear(2, 3))
    set_head(model, solved_head())
    assert model.head.weight.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert model.head.bias.tolist() == [1, 1, 1]

    model.last_head = nn.Linear(2, 3)
    set_head(model, solved_head(alone=2.0))
    assert model.last_head.weight.tolist() == [[2, 0], [0, 2], [-2, -2]]


def test_a_model_that_reads_several_blocks_may_be_made_to_read_the_last(
    tiny_vit: VisionTransformer,
) -> None:
    several = VisionTransformer(replace(tiny_vit.config, read_blocks=2))
    last = torch.randn(3, 32), torch.randn(3)
    x = torch.randn(2, 3, 16, 16)

    read_last_block(several, last)
    read_last_block(tiny_vit, last)

    assert several.config.read_blocks == tiny_vit.config.read_blocks == 1
    assert torch.equal(several.head.weight, last[0])  # type: ignore[arg-type]
    assert torch.equal(tiny_vit.head.bias, last[1])  # type: ignore[arg-type]
    assert several(x).shape == (2, 3)


def test_inputs_of_the_last_block_are_made_only_where_several_are_read(
    tiny_vit: VisionTransformer,
) -> None:
    inputs = pooled_inputs(data_set(ROWS), {})
    several = VisionTransformer(replace(tiny_vit.config, read_blocks=2))
    calls: list[str] = []
    extractor: Any = SimpleNamespace(of_last_block=lambda: noted(calls, "asked", "last"))
    read: Any = replace(inputs, extractor=extractor)

    assert of_last_block(read, tiny_vit) is read
    assert of_last_block(replace(read, extractor=None), several).extractor is None
    found: Any = of_last_block(read, several)

    assert (found.extractor, several.config.read_blocks) == ("last", 1)
    assert found.cut.pooled
    assert calls == ["asked"]


def test_the_choice_of_blocks_is_reported_with_the_accuracy_of_the_last(
    tiny_vit: VisionTransformer,
) -> None:
    x, y = torch.tensor([[2.0, 1], [1, 2], [-3, -3], [2, 1]]), torch.tensor([0, 1, 2, 1])
    several = VisionTransformer(replace(tiny_vit.config, read_blocks=2))

    one = head_choice(tiny_vit, solved_head(), x, y)
    two = head_choice(several, solved_head(), x, y)

    assert (one["blocks"], one["last_block_top1"]) == (1, None)
    assert (two["blocks"], two["last_block_top1"]) == (2, 0.75)
    assert two["reads"] == solved_head().method.name


@pytest.mark.parametrize(
    ("top1", "words"),
    [
        (0.9, "cross-validated loss 0.250, of the last block alone 0.500 (accuracy 90.0% and"),
        (0.8, "because its probabilities are better"),
        (0.91, "the head reads the last 3 blocks (cross-validated on the training images: 91.0%;"),
    ],
)
def test_the_log_says_whether_the_accuracy_or_the_loss_decided(top1: float, words: str) -> None:
    candidates = [
        {"reads": "last", "cv_top1": 0.9, "cv_loss": 0.5},
        {"reads": "more", "cv_top1": top1, "cv_loss": 0.25},
    ]
    choice: Any = {"blocks": 3, "reads": "more", "candidates": candidates}

    assert words in describe_choice(choice)
    assert describe_choice(choice | {"blocks": 1}) == (
        "the head reads the last block (cross-validated on the training images: 90.0%)"
    )


def test_images_are_cross_validated_with_their_groups() -> None:
    data = data_set(ROWS, groups={digest("t0"): "g", digest("t3"): "g"})
    distinct = torch.stack([features()[one.sha256, "plain"] for one in data.distinct])
    config = config_from_table({})

    results, scored = cross_validate_images(data, distinct, config, HeadMethod(l2=0.1, read=2))
    few, nothing = cross_validate_images(
        data_set(ROWS[:3]), distinct[:3], config, HeadMethod(l2=0.1, read=2)
    )

    assert results is not None
    assert scored.held_out is not None
    assert scored.held_out.logits.shape == (33, 3)
    assert torch.equal(scored.features, distinct[:, :2])
    assert (few, nothing.held_out) == (None, None)


SCORED = ScoredImages(
    features=torch.zeros(1, 2), held_out=HeldOutLogits(torch.zeros(1), torch.zeros(1, 3))
)


def test_cross_validated_logits_represent_a_solved_head_only() -> None:
    def scores(**changes: Any) -> Any:
        context = context_of(**changes.pop("table", {}))
        context.scored = SCORED
        for name, value in changes.items():
            setattr(context.best, name, value)
        return representative_scores(context, context.inputs)

    assert scores() is SCORED
    assert scores(table={"train": {"freeze": "head,none"}}) is SCORED
    assert scores(results={"best_epoch": 2}) is None
    assert scores(head_results=None) is None
    assert scores(table={"train": {"views": 1}}) is None
    assert scores(table={"optim": {"solver": "adamw"}}) is None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_resumed_run_cross_validates_again_in_the_main_process(rank: int) -> None:
    context = context_of(rank=rank, size=2)
    x = head_features(context.best.model, context.inputs, HeadSolver(context).views)[2]

    found = representative_scores(context, context.inputs)

    if rank:
        assert found is None
        return
    _, expected = cross_validate_images(
        context.inputs.data, x, context.config, HeadMethod(l2=0.1, read=3)
    )
    assert found is not None
    assert found.held_out is not None
    assert expected.held_out is not None
    torch.testing.assert_close(found.held_out.logits, expected.held_out.logits)


def test_labels_with_their_own_penalties_are_cross_validated_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    methods: list[HeadMethod] = []
    monkeypatch.setattr(
        module, "cross_validate_images", lambda *given: (None, noted(methods, given[3], "scores"))
    )
    context = context_of()
    context.best.head_results = {"l2": 0.1, "label_l2": [0.1, 0.2, 0.3]}

    assert representative_scores(context, context.inputs) == "scores"  # type: ignore[comparison-overlap]
    assert (methods[0].l2, methods[0].read) == ((0.1, 0.2, 0.3), 3)
