"""Exponential moving average (EMA) of the trained weights."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """The average of some parameters over the steps, beside the parameters themselves.

    Args:
        parameters: The trained parameters by name.
        decay: Largest decay of the average per step, from 0 to 1; 0 keeps no average.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = parameters, decay
        self.average = {name: p.detach().clone() for name, p in parameters.items() if decay}
        self.swapped_out: dict[str, Tensor] = {}
        """The trained weights while the model holds the average."""

    @property
    def trained(self) -> dict[str, Tensor]:
        """The trained weights, whichever the model holds at the moment."""
        return {**self.parameters, **self.swapped_out}

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Move the average towards the weights after `steps` steps; in early steps by more."""
        decay = min(self.decay, (1 + steps) / (10 + steps))
        for name, mean in self.average.items():
            mean.lerp_(self.parameters[name], 1 - decay)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Let the model hold the average, if there is one, and the trained weights afterwards."""
        if self.average:
            self.swapped_out = {name: p.detach().clone() for name, p in self.parameters.items()}
        try:
            self.load(self.average)
            yield
        finally:
            self.load(self.swapped_out)  # only then may `trained` read the parameters again
            self.swapped_out = {}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set parameters by name."""
        for name, value in weights.items():
            self.parameters[name].copy_(value)
