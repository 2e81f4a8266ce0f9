"""Choice of device and precision."""

import pytest
import torch

from vitft.system.device import describe_device, one_thread, pick_device, pick_precision
from vitft.system.errors import UsageError


def test_torch_tells_whether_the_processor_computes_in_bf16() -> None:
    """A private function; once it is gone, use torch.cpu.get_capabilities()["avx512_bf16"]."""
    assert torch.cpu._is_avx512_bf16_supported() in (True, False)


def test_a_given_precision_is_kept() -> None:
    assert pick_precision("fp32", torch.device("cpu")) == "fp32"
    assert pick_precision("auto", torch.device("cpu")) in ("bf16", "fp32")


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta"])
def test_an_unusable_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"cannot use device '{name}'"):
        pick_device(name)


def test_a_single_thread_is_described_in_the_singular() -> None:
    with one_thread(when=True):
        assert describe_device(torch.device("cpu")).endswith(", 1 thread)")
