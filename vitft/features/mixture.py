"""Cross-validated choice between linear heads that read one block and heads that read several.

There are three candidates: logistic regression on the features of the last block, linear
discriminant analysis on the features of several blocks, and a mixture of the two. The mixture is a
weighted sum of their log-probabilities. Their normalisers are the same for all classes and can be
omitted, so every candidate is a single linear layer. The choice does not use validation images.

Notation: n images, D feature dimensions, C classes, K folds; the features `x` are (n, D), and the
class indices `y` are (n,). The leading columns of `x` are the features of the last block.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.folds import Folded
from vitft.features.logistic import minimise, rough_fit
from vitft.metrics.intervals import Groups, mean_error
from vitft.metrics.results import LAST_BLOCK, MIXTURE, SEVERAL_BLOCKS, HeadCandidate
from vitft.metrics.targets import are_right, fraction_right
from vitft.system.device import one_thread

# linear discriminant analysis with a shrunken covariance, in closed form --------------------------

_SINGLE_THREAD_VALUES = 10**7
"""Number of values in a feature matrix below which a single thread is used. More threads would save
less than a second and could even be slower on a busy machine.
"""
_SMALLEST_VARIANCE = 1e-6  # of a class, on average; identical images would have 0


def solve_discriminant(
    x: Tensor, y: Tensor, sample_weight: Tensor, *, classes: int, shrinkages: Sequence[float]
) -> Tensor:
    """Fit a linear discriminant analysis for each of several values of the shrinkage in (0, 1].

    Each class is a Gaussian, and its prior is its fraction of the total `sample_weight` (n,). The
    logit of a class without images is log(0.5 / number of rows used) for every image.

    Returns:
        The heads (S, C, D + 1), float64: weights and, in the last column, biases.
    """
    with one_thread(when=x.numel() < _SINGLE_THREAD_VALUES):
        used = sample_weight > 0
        x, y, weight = x[used].double(), y[used], sample_weight[used].double()
        weight = weight / weight.sum()
        membership = F.one_hot(y, classes).double() * weight[:, None]  # (n, C)
        prior = membership.sum(dim=0)  # (C,)
        means = membership.T @ x / prior.clamp(min=torch.finfo(prior.dtype).tiny)[:, None]  # (C, D)
        unbiased = len(y) / max(1, len(y) - int((prior > 0).sum()))
        residual = (x - means[y]) * (weight * unbiased).sqrt()[:, None]  # R^T R is the covariance
        variance = max(residual.square().sum().item() / x.shape[1], _SMALLEST_VARIANCE)
        weights = _inverse_products(residual, means.T, variance, shrinkages).mT  # (S, C, D)
        floor = 0.5 / len(y)  # an unseen class is rarer than 1 in n images
        bias = prior.clamp(min=floor).log() - 0.5 * (weights * means).sum(dim=-1)  # (S, C)
        return torch.cat([weights, bias[..., None]], dim=-1)


def _inverse_products(
    residual: Tensor, vectors: Tensor, variance: float, shrinkages: Sequence[float]
) -> Tensor:
    """Return inverse((1 - s) R^T R + s * variance * I) @ vectors (S, D, C) for shrinkages s.

    The residual R is (n, D), and the vectors are (D, C).
    """
    found = []
    is_dual = len(residual) < residual.shape[1]  # n equations, by the Woodbury identity, not D
    rows = residual.float()  # twice as fast; rounding errors are far below the ridge
    gram = (rows @ rows.T if is_dual else rows.T @ rows).double()
    identity = torch.eye(len(gram), dtype=gram.dtype)
    projected = residual @ vectors if is_dual else vectors
    for shrinkage in shrinkages:
        ridge, kept = shrinkage * variance, 1 - shrinkage
        factor = torch.linalg.cholesky(kept * gram + ridge * identity)
        solved = torch.cholesky_solve(projected, factor)
        if is_dual:
            solved = (vectors - kept * residual.T @ solved) / ridge
        found.append(solved)
    return torch.stack(found)


# cross-validated choice between linear heads that read one block and heads that read several ------

_SHRINKAGES = (0.02, 0.1, 0.3, 0.6, 0.9)
_MIN_IMAGES = 20  # for several blocks; with fewer, the evidence is too weak
_PRIOR = (0.0, -2.5)  # means of log weights; a priori, the second head has little weight
_PRIOR_STRENGTH = 3.0  # penalty per squared deviation, in losses of one image

_FACTOR_EXPONENTS = (-4.0, 2.0)  # base-10 logarithms of factors that calibrate logits


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMethod:
    """Method for fitting a linear head to standardised features."""

    l2: "float | tuple[float, ...]"  # of the logistic regression, or of each label's
    read: int  # number of leading features that the logistic regression reads
    logistic: float = 1.0  # factor applied to the logits of the logistic regression
    discriminant: float = 0.0  # factor of the discriminant analysis; 0 if unused
    shrinkage: float = 0.0
    name: str = LAST_BLOCK
    alone: float = 1.0  # calibrates the logistic regression if used alone

    @property
    def reads_several(self) -> bool:
        """Whether the head reads more than the leading features."""
        return self.discriminant > 0

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        sample_weight: Tensor,
        *,
        classes: int,
        start: Tensor | None = None,
    ) -> Tensor:
        """Return one approximate head for each of K sets of sample weights (K, n).

        The heads are (K, C, D + 1), or (K, C, read + 1) if they read only the leading features. In
        this case, the optimisation starts from the heads `start`.
        """
        leading = x[:, : self.read]
        if not self.reads_several:
            return rough_fit(leading, y, sample_weight, classes=classes, l2=self.l2, start=start)
        logistic = rough_fit(leading, y, sample_weight, classes=classes, l2=self.l2)
        discriminant = [
            solve_discriminant(x, y, one, classes=classes, shrinkages=[self.shrinkage])[0]
            for one in sample_weight
        ]
        return self.combine(logistic, torch.stack(discriminant))

    def combine(self, logistic: Tensor, discriminant: Tensor) -> Tensor:
        """Return the weighted sums of heads (..., C, read + 1) and (..., C, D + 1)."""
        total = self.discriminant * discriminant
        total[..., : self.read] += self.logistic * logistic[..., :-1]
        total[..., -1] += self.logistic * logistic[..., -1]
        return total


class Candidate(NamedTuple):
    """A head method with its cross-validated log-probabilities (n, C)."""

    method: HeadMethod
    scores: Tensor
    groups: Groups | None = None  # of the images (n,), for standard errors

    def losses(self, y: Tensor) -> Tensor:
        """Return the cross-entropy of each image (n,) in nats."""
        return F.cross_entropy(self.scores, y, reduction="none")

    def top1(self, y: Tensor) -> float:
        """Return the cross-validated accuracy."""
        return fraction_right(are_right(self.scores, y))

    def described(self, y: Tensor, today: "Candidate | None" = None) -> HeadCandidate:
        """Return the candidate's results, with its gain over the last block's head, `today`."""
        found: HeadCandidate = {
            "reads": self.method.name,
            "cv_loss": self.losses(y).mean().item(),
            "cv_top1": self.top1(y),
        }
        if today is not None:
            found["cv_gain"], found["cv_gain_error"] = _gain_and_error(self, today, y)
        return found


def choose_head_method(
    data: Folded, *, l2: "float | tuple[float, ...]", read: int, groups: Groups | None = None
) -> tuple[HeadMethod, list[HeadCandidate]]:
    """Choose the method for fitting the head, and return it with the scores of all candidates.

    `l2` is the penalty of the logistic regression, and `read` the number of leading features that
    belong to the last block. Standard errors are computed from the group numbers `groups` (n,).
    """
    truth, plain = data.truth, HeadMethod(l2=l2, read=read)
    heads = plain.fit(data.x, data.y, data.weights, classes=data.classes)
    sharpness, scores = tempered(data.held_out(heads), truth)
    today = Candidate(plain, scores, groups)
    if len(truth) < _MIN_IMAGES:
        return plain, [today.described(truth)]
    shrinkage, factor, several_scores = choose_shrinkage(data)
    alone = HeadMethod(
        l2=l2,
        read=read,
        logistic=0.0,
        discriminant=factor,
        shrinkage=shrinkage,
        name=SEVERAL_BLOCKS,
        alone=sharpness,
    )
    several = Candidate(alone, several_scores, groups)
    one, other = mixture_weights(today.scores, several.scores, truth)
    both = replace(alone, logistic=one * sharpness, discriminant=other * factor, name=MIXTURE)
    summed = (one * today.scores + other * several.scores).log_softmax(dim=-1)
    mixture = Candidate(both, summed, groups)
    chosen = choose_candidate(today, several, mixture, truth)
    others = (several.described(truth, today), mixture.described(truth, today))
    return chosen.method, [today.described(truth), *others]


def choose_shrinkage(data: Folded) -> tuple[float, float, Tensor]:
    """Choose the shrinkage of the discriminant analysis.

    Returns:
        The shrinkage with the lowest loss, the factor that calibrates the logits, and the
        calibrated held-out log-probabilities (n, C) of the images.
    """
    found = [
        solve_discriminant(data.x, data.y, one, classes=data.classes, shrinkages=_SHRINKAGES)
        for one in data.weights
    ]
    tried = [tempered(data.held_out(heads), data.truth) for heads in torch.stack(found, dim=1)]
    losses = [F.cross_entropy(scores, data.truth).item() for _, scores in tried]
    best = losses.index(min(losses))
    return _SHRINKAGES[best], *tried[best]


def tempered(logits: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """Return a factor that calibrates logits (n, C), and the calibrated log-probabilities (n, C).

    The factor minimises a loss in which each label is replaced by a random one with probability
    1 / n. Otherwise, if all images are classified correctly, the loss would fall without end.
    """
    images, classes = logits.shape
    target = F.one_hot(y, classes) * (1 - 1 / images) + 1 / (images * classes)

    def loss(exponent: float) -> float:
        log_probabilities = (10**exponent * logits).log_softmax(dim=-1)
        return -(target * log_probabilities).sum().item()

    # Golden-section search for the only minimum
    (low, high), ratio = _FACTOR_EXPONENTS, (5**0.5 - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = loss(a), loss(b)
    while high - low > 1e-3:
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = loss(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = loss(b)
    factor = 10 ** ((low + high) / 2)
    return factor, (factor * logits).log_softmax(dim=-1)


def choose_candidate(
    today: Candidate, several: Candidate, mixture: Candidate, y: Tensor
) -> Candidate:
    """Return the candidate to use.

    Discriminant analysis alone is preferred to the mixture if its loss is lower by more than one
    standard error and its accuracy is not lower. The preferred candidate is used only if its loss
    is lower than that of the head on the last block, too, by more than one standard error.
    """
    better = mixture
    if is_lower(several, mixture, y) and several.top1(y) >= mixture.top1(y):
        better = several
    return better if is_lower(better, today, y) else today


def is_lower(one: Candidate, other: Candidate, y: Tensor) -> bool:
    """Return whether `one` has a lower loss than `other`, by more than a standard error."""
    gain, error = _gain_and_error(one, other, y)
    return gain > error


def _gain_and_error(one: Candidate, other: Candidate, y: Tensor) -> tuple[float, float]:
    """Return how much lower the loss of `one` is than that of `other`, and the standard error."""
    gain = (other.losses(y) - one.losses(y)).double().numpy()
    return float(gain.mean()), mean_error(gain, one.groups)


def mixture_weights(one: Tensor, other: Tensor, y: Tensor) -> tuple[float, float]:
    """Return weights of two log-probabilities (n, C) with the lowest loss, near `_PRIOR`."""
    prior, strength = torch.tensor(_PRIOR, dtype=torch.float64), _PRIOR_STRENGTH / len(y)
    parts = torch.stack([one, other]).double()  # (2, n, C)

    def value_and_gradient(point: Tensor) -> tuple[Tensor, Tensor]:  # (1, 2) -> (1,), (1, 2)
        weights = point[0].exp()
        logits = torch.einsum("m,mnc->nc", weights, parts)
        probabilities = logits.softmax(dim=-1)
        error = probabilities - F.one_hot(y, logits.shape[1])
        slope = weights * torch.einsum("nc,mnc->m", error, parts) / len(y)
        offset = point[0] - prior
        loss = F.cross_entropy(logits, y) + strength * offset.square().sum()
        return loss[None], (slope + 2 * strength * offset)[None]

    found = minimise(value_and_gradient, prior[None], steps=60, tolerance=1e-6)[0].exp()
    return found[0].item(), found[1].item()
