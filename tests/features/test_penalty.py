"""The penalty of a head: its sample of images and classes, and its fall with their number."""

import pytest
import torch
from torch import Tensor

from vitft.features import head, logistic, penalty
from vitft.features.folds import sample_classes
from vitft.features.head import solve_head
from vitft.features.label_errors import out_of_fold_logits
from vitft.features.logistic import Standardizer, linear_logits, rough_fit, solve_logistic
from vitft.features.penalty import PENALTIES, choose_penalty, default_penalty


def many_classes(
    classes: int, each: int, *, width: int = 24, noise: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Draw overlapping Gaussian clouds."""
    generator = torch.Generator().manual_seed(classes)
    centres = torch.randn(classes, width, generator=generator)
    y = torch.arange(classes).repeat(each)
    return centres[y] + noise * torch.randn(len(y), width, generator=generator), y


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the fraction of correct predictions."""
    return (logits.argmax(dim=1) == y).float().mean().item()


def sampled(y: Tensor, classes: int, **limits: int) -> tuple[Tensor, Tensor, int]:
    """Draw a sample of at most 100 images and 1,000 logits if no other limits are given."""
    usual = {"most": 100, "most_logits": 1000, "per_class": 5, "seed": 0}
    return sample_classes(y, classes, **(usual | limits))


def test_all_images_are_used_within_the_limits() -> None:
    y = torch.arange(10).repeat(10)

    images, targets, classes = sampled(y, 10)

    assert torch.equal(images, torch.arange(100))
    assert torch.equal(targets, y)
    assert classes == 10


def test_images_are_left_out_before_classes() -> None:
    y = torch.arange(10).repeat(20)

    images, targets, classes = sampled(y, 10)

    assert torch.bincount(targets).tolist() == [10] * 10
    assert torch.equal(targets, y[images])
    assert classes == 10


@pytest.mark.parametrize("each", [2, 7, 50])
def test_classes_are_left_out_if_there_would_be_fewer_than_five_images_of_each(each: int) -> None:
    y = torch.arange(100).repeat(each)

    images, targets, classes = sampled(y, 100)

    assert 5 <= classes < 20  # of 100 images, at least five are wanted per class
    assert len(images) * classes <= 1000
    assert torch.equal(torch.unique(targets), torch.arange(classes))
    assert len(images) >= min(each, 5) * classes
    by_class = dict(zip(y[images].tolist(), targets.tolist(), strict=True))
    assert len(by_class) == classes
    assert [by_class[label] for label in y[images].tolist()] == targets.tolist()


def test_classes_with_one_image_are_left_out_first() -> None:
    y = torch.cat([torch.arange(100), torch.arange(10)])  # ten of a hundred classes have two

    images, _, classes = sampled(y, 100)

    assert classes == 10
    assert set(y[images].tolist()) == set(range(10))


def test_labels_are_never_left_out() -> None:
    y = torch.eye(100).repeat(3, 1)

    images, targets, labels = sampled(y, 100)

    assert labels == 100
    assert torch.equal(targets, y[images])
    assert len(images) <= 10


def test_penalties_fall_with_the_number_of_classes_beyond_a_hundred() -> None:
    x, y = many_classes(200, 2, width=3, noise=3.0)
    few, some = y < 100, torch.ones(1, len(y))

    _, of_200 = choose_penalty(x, y, some, classes=200, seed=0)
    _, of_100 = choose_penalty(x[few], y[few], some[:, few], classes=100, seed=0)

    assert [score.l2 for score in of_100] == list(PENALTIES[: len(of_100)])
    assert [2 * score.l2 for score in of_200] == list(PENALTIES[: len(of_200)])


def test_a_penalty_chosen_for_some_classes_suits_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(penalty, "PENALTY_LOGITS", 3000)
    x, y = many_classes(120, 8, noise=1.2)
    x, y, fresh, truth = x[:480], y[:480], x[480:], y[480:]

    solved = solve_head(x, y, classes=120, l2=0, balanced=False, seed=0)

    standardizer = Standardizer.fit(x)
    tried = {
        l2: solve_logistic(standardizer(x), y, torch.ones(1, 480), classes=120, l2=l2)[0]
        for l2 in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    }
    found = {l2: accuracy(linear_logits(standardizer(fresh), w), truth) for l2, w in tried.items()}
    own = accuracy(fresh @ solved.weight.T + solved.bias, truth)
    assert own >= max(found.values()) - 0.02
    assert solved.l2 in [score.l2 for score in solved.path]


def test_views_and_near_duplicates_stay_together_in_a_sample_of_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(penalty, "PENALTY_LOGITS", 500)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 30, generator=generator)
    y = torch.arange(40).repeat(5)  # independent of the features
    twice, copies = torch.cat([noise, noise]), torch.arange(200).repeat(2)

    of_views = solve_head(twice, y.repeat(2), classes=40, l2=0, balanced=False, seed=0, views=2)
    of_copies = solve_head(
        twice, y.repeat(2), classes=40, l2=0, balanced=False, seed=0, groups=copies
    )

    for solved in (of_views, of_copies):
        assert max(tried.top1 for tried in solved.path) < 0.4  # chance is a tenth


def test_heads_of_many_classes_are_fitted_to_their_optimum() -> None:
    x, y = many_classes(400, 4)
    x, y, fresh, truth = x[:1200], y[:1200], x[1200:], y[1200:]
    one = torch.ones(1, len(y))

    rough = rough_fit(x, y, one, classes=400, l2=1e-5)[0]

    exact = solve_logistic(x, y, one, classes=400, l2=1e-5, tolerance=1e-7)[0]
    wanted = accuracy(linear_logits(fresh, exact), truth)
    assert accuracy(linear_logits(fresh, rough), truth) == pytest.approx(wanted, abs=0.01)
    assert wanted > 0.5


def test_the_head_does_not_depend_on_how_many_logits_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = many_classes(12, 9)
    kept = torch.stack([torch.arange(len(y)) % 5 != k for k in range(5)]).float()
    usual = rough_fit(x, y, kept, classes=12, l2=1e-2)
    rows = []
    terms = logistic.CrossEntropyObjective.terms

    def counted(
        self: logistic.CrossEntropyObjective, w: Tensor, x: Tensor, part: slice
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows.append(len(x))
        return terms(self, w, x, part)

    monkeypatch.setattr(logistic.CrossEntropyObjective, "terms", counted)
    monkeypatch.setattr(logistic, "CHUNK_LOGITS", 5 * 12 * 10)
    monkeypatch.setattr(logistic, "CHUNK_ROWS", 25)
    pieces = rough_fit(x, y, kept, classes=12, l2=1e-2)

    torch.testing.assert_close(pieces, usual, atol=2e-3, rtol=0)
    assert rows[:13] == [10, 10, 5, 10, 10, 5, 10, 10, 5, 10, 10, 5, 8]


def test_a_head_of_many_logits_is_fitted_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = many_classes(6, 10)
    usual = solve_head(x, y, classes=6, l2=0.01, balanced=False, seed=0)
    seen = []
    sums = logistic.HeadObjective.sums

    def spied(self: logistic.HeadObjective, flat: Tensor) -> list[Tensor]:
        seen.append(self.x.dtype)
        return sums(self, flat)

    monkeypatch.setattr(logistic.HeadObjective, "sums", spied)
    monkeypatch.setattr(head, "FLOAT64_LOGITS", 359)
    large = solve_head(x, y, classes=6, l2=0.01, balanced=False, seed=0)
    assert set(seen) == {torch.float32}

    monkeypatch.setattr(head, "FLOAT64_LOGITS", 360)
    solve_head(x, y, classes=6, l2=0.01, balanced=False, seed=0)
    assert torch.float64 in seen
    torch.testing.assert_close(large.weight, usual.weight, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("images", "width", "classes", "precision"),
    [
        pytest.param(20_000, 1, 1000, torch.float64, id="20 million logits"),
        pytest.param(20_001, 1, 1000, torch.float32, id="more logits"),
        pytest.param(10_000, 1000, 2, torch.float64, id="10 million values"),
        pytest.param(10_000, 1001, 2, torch.float32, id="more values"),
    ],
)
def test_ten_million_values_or_twenty_million_logits_are_the_most_in_float64(
    monkeypatch: pytest.MonkeyPatch, images: int, width: int, classes: int, precision: torch.dtype
) -> None:
    seen: list[torch.dtype] = []

    def solved(x: Tensor, **_: object) -> Tensor:
        seen.append(x.dtype)
        return torch.zeros(1, classes, width + 1)

    monkeypatch.setattr(head, "solve_logistic", solved)
    monkeypatch.setattr(head, "rough_fit", lambda *_, **__: None)
    x = torch.zeros(images, width)
    unit = Standardizer(torch.zeros(width), torch.ones(width))

    head.fit_logistic(x, torch.zeros(1), torch.ones(1, 1), unit, classes=classes, l2=0.1)

    assert seen == [precision]


@pytest.mark.parametrize("processes", [2, 4])
def test_sums_over_the_rows_have_the_same_bits_for_1_2_and_4_processes(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(logistic, "CHUNK_ROWS", 7)
    x, y = many_classes(5, 30)
    x, generator = x.double(), torch.Generator().manual_seed(0)  # sums of float32 would be exact
    weights = torch.rand(2, len(y), generator=generator, dtype=torch.float64)
    flat = torch.randn(2, 5 * 25, generator=generator, dtype=torch.float64)

    def objective(own: Tensor, labels: Tensor, weight: Tensor) -> logistic.HeadObjective:
        return problem.objective(own, labels, weight, stride=count)

    found = []
    for count in (1, processes):
        problem = logistic.Problem(
            classes=5,
            l2=0.1,
            total_weight=weights.sum(dim=1, keepdim=True),
            standardizer=None,
            processes=count,
        )
        parts = [
            objective(x[7 * rank :], y[7 * rank :], weights[:, 7 * rank :]).sums(flat)
            for rank in range(count)
        ]
        found.append([logistic.add_in_pairs(terms) for terms in zip(*parts, strict=True)])

    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_the_default_penalty_suits_many_classes() -> None:
    x, y = many_classes(150, 5, noise=0.8)
    groups = torch.arange(len(y))

    logits = [
        out_of_fold_logits(x, y, groups, classes=150, seed=0, l2=l2)
        for l2 in (default_penalty(y, 150), default_penalty(y, 10))
    ]

    assert accuracy(logits[0], y) > accuracy(logits[1], y) + 0.05
    assert default_penalty(y, 2) == default_penalty(y, 10)
    assert default_penalty(torch.eye(150), 150) == default_penalty(y, 10)  # one loss for each label
