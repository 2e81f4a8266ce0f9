"""The state of the caller, which a run must not change."""

import random

import numpy as np
import pytest
import torch

from vitft.system import caller_state_preserved


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_generators_and_threads_are_as_before(gpu: bool, fails: bool) -> None:
    torch.set_num_threads(1)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    expected = drawn()
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)

    try:
        with caller_state_preserved(gpu=gpu):
            drawn()
            torch.set_num_threads(2)
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails

    assert torch.get_num_threads() == 1
    assert drawn() == expected
