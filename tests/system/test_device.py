"""Choice of device and precision."""

import os
import sys
from typing import Any

import pytest
import torch

from tests.support.pretend_gpu import pretend_gpu
from vitft.system import (
    UsageError,
    deterministic_algorithms,
    exact_float32,
    pick_device,
    usable_cores,
)


@pytest.mark.parametrize("name", ["gpu", "banana", "0"])
def test_an_unknown_device_is_refused_in_a_short_sentence(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        pick_device(name)

    assert caught.value.problem == f"cannot use device '{name}': unknown name"
    assert caught.value.fix.startswith("use --device auto")


@pytest.mark.parametrize("name", ["auto", "cuda"])
@pytest.mark.parametrize(("gpus", "expected"), [(4, "cuda:3"), (2, "cuda:1"), (1, "cuda:0")])
def test_each_process_of_torchrun_has_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, name: str, gpus: int, expected: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")

    with pretend_gpu(gpus=gpus):
        assert str(pick_device(name)) == expected


def test_processes_of_torchrun_do_not_share_one_gpu_of_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")

    with pretend_gpu(gpus=4), pytest.raises(UsageError, match="all 4 processes on one") as caught:
        pick_device("cuda:0")

    assert "--device cuda," in caught.value.fix


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_float32_on_a_gpu_is_exact_and_the_settings_of_the_caller_are_restored(
    precision: str,
) -> None:
    cudnn: Any = torch.backends.cudnn
    convolutions, products = cudnn.conv, torch.backends.cuda.matmul
    torch.set_float32_matmul_precision(precision)
    before = convolutions.fp32_precision, products.fp32_precision
    assert before[0] == "tf32"  # torch's default
    with exact_float32(torch.device("cpu")):
        assert (convolutions.fp32_precision, products.fp32_precision) == before

    with exact_float32(torch.device("cuda")):
        assert (convolutions.fp32_precision, products.fp32_precision) == ("ieee", "ieee")
        assert not cudnn.allow_tf32  # reading it raises if torch's two forms of it disagree
        assert torch.get_float32_matmul_precision() == "highest"

    assert (convolutions.fp32_precision, products.fp32_precision) == before
    assert cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == precision
    torch.set_float32_matmul_precision("highest")


def test_an_operation_without_a_deterministic_algorithm_is_an_error_with_a_fix() -> None:
    values, first = torch.zeros(3), torch.tensor([0])

    expected = pytest.raises(UsageError, match=r"put_ does not have a deterministic.*\n  fix: ")
    with expected, deterministic_algorithms():
        values.put_(first, torch.ones(1))
    with deterministic_algorithms():
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"

    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.skipif(sys.platform != "linux", reason="has no affinity")
def test_decode_threads_keep_to_the_cores_and_the_limit_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, every)

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert usable_cores() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(len(every)))  # torchrun sets OMP_NUM_THREADS itself
    assert usable_cores() == 1
