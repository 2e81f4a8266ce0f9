"""Linear discriminant analysis with a shrunken covariance, in closed form.

All classes share one covariance matrix, which is shrunk towards a multiple of the identity. The
method needs fewer images per feature dimension than logistic regression to find good directions.

Notation: n images, D feature dimensions, C classes, S shrinkages; the features `x` are (n, D), and
the class indices `y` are (n,).

Source: Friedman 1989, "Regularized Discriminant Analysis", section 3, with lambda = 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.system.device import one_thread

_SINGLE_THREAD_VALUES = 10**7
"""Number of values in a feature matrix below which a single thread is used. More threads would save
less than a second and could even be slower on a busy machine.
"""
_SMALLEST_VARIANCE = 1e-6
"""Lower bound on the mean within-class variance, which would otherwise be 0 if the images of each
class were identical."""


def solve_discriminant(
    x: Tensor, y: Tensor, sample_weight: Tensor, *, classes: int, shrinkages: Sequence[float]
) -> Tensor:
    """Fit a linear discriminant analysis for each of several values of the shrinkage in (0, 1].

    Rows whose `sample_weight` (n,) is zero are not used. The logit of a class without images is
    log(0.5 / number of rows used) for every image.

    Returns:
        The heads (S, C, D + 1), float64: weights and, in the last column, biases. Each class is
        modelled as a Gaussian, and its prior is its fraction of the total sample weight.
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
    """Return inverse(covariance) @ vectors (S, D, C) for several shrinkages.

    The smaller of two systems is solved: D equations, or n equations by the Woodbury identity.

    Args:
        residual: Matrix R (n, D) such that R^T R is the covariance before shrinkage.
        vectors: Vectors (D, C), one per column.
        variance: Diagonal value of the matrix towards which the covariance is shrunk.
        shrinkages: Fractions s; the covariance is (1 - s) R^T R + s * variance * I.
    """
    found = []
    is_dual = len(residual) < residual.shape[1]
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
