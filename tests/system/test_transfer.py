"""Copies between devices, on a machine without a GPU."""

import torch

from vitft.system import start_reading, to_device


def test_tensors_on_the_cpu_are_not_copied() -> None:
    cpu, tensor = torch.device("cpu"), torch.arange(3)

    assert to_device(tensor, cpu) is tensor
    assert to_device(tensor, torch.device("meta")).device.type == "meta"


def test_several_tensors_are_read_in_their_order() -> None:
    first, second = torch.arange(3), torch.ones(2, 2)

    found = start_reading([first, second])()

    assert [tensor.tolist() for tensor in found] == [first.tolist(), second.tolist()]
    assert len(start_reading([first])()) == 1
