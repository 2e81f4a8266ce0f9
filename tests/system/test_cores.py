"""CPU cores, and the rough speed of the machine."""

import os
import platform
import shutil
import sys
import time

import pytest

from vitft.system import cores, speed


def test_processes_on_a_machine_divide_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert (cores.node_cores(), cores.local_processes(), cores.usable_cores()) == (8, 1, 8)

    for processes, share in (("2", 4), ("3", 2), ("8", 1), ("9", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert cores.usable_cores() == share


def test_without_affinities_all_cores_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores.node_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.node_cores() == 1


@pytest.mark.parametrize(
    ("system", "machine", "driver", "found"),
    [
        ("linux", "x86_64", None, False),
        ("linux", "x86_64", "/usr/bin/nvidia-smi", True),
        ("linux", "arm64", None, False),
        ("darwin", "x86_64", None, False),
        ("darwin", "arm64", None, True),
    ],
)
def test_a_gpu_has_an_nvidia_driver_or_is_in_an_apple_chip(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, driver: str | None, found: bool
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(shutil, "which", lambda _: driver)

    assert speed.has_gpu() is found


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0.0, 0.5, 0.5, 0.7, 0.7, 1.6], 8 * 1.859125248 / 0.2),  # the fastest of three
        ([0.0] * 6, 8 * 1.859125248 / 1e-6),  # too fast for the clock
    ],
)
def test_the_speed_is_that_of_the_fastest_product_on_all_cores(
    monkeypatch: pytest.MonkeyPatch, times: list[float], expected: float
) -> None:
    clock = iter(times)
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    monkeypatch.setattr(speed, "usable_cores", lambda: 8)

    found = speed.cpu_speed.__wrapped__()  # 788 x 768 x 3072 multiply-adds are 1.86 billion

    assert found == pytest.approx(expected)
    assert next(clock, None) is None
