"""The speed of a machine, measured without torch."""

import sys

import pytest

from vitft.system import speed


@pytest.mark.parametrize(
    ("durations", "seconds"),
    [((0.5, 0.25, 1.0), 0.25), ((0.5, 0.5, 0.125), 0.125), ((0.0, 0.0, 0.0), 1e-6)],
)
def test_the_speed_is_that_of_the_best_of_three_products_on_every_core(
    monkeypatch: pytest.MonkeyPatch, durations: tuple[float, ...], seconds: float
) -> None:
    ends = iter([time for spent in durations for time in (10.0, 10.0 + spent)])
    monkeypatch.setattr(speed.time, "process_time", lambda: next(ends))
    monkeypatch.setattr(speed, "usable_cores", lambda: 6)

    found = speed.cpu_speed.__wrapped__()

    # four images of 197 tokens, 768 to 3072 numbers each, in billions
    assert found == pytest.approx(6 * 1.859125248 / seconds)
    assert next(ends, None) is None


def test_the_speed_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    speed.cpu_speed.cache_clear()

    first = speed.cpu_speed()
    monkeypatch.setattr(speed, "usable_cores", lambda: 10**6)

    assert speed.cpu_speed() == first > 0
    speed.cpu_speed.cache_clear()


@pytest.mark.parametrize(
    ("system", "machine", "driver", "has_gpu"),
    [
        ("linux", "x86_64", None, False),
        ("linux", "x86_64", "/usr/bin/nvidia-smi", True),
        ("linux", "arm64", None, False),
        ("darwin", "x86_64", None, False),
        ("darwin", "arm64", None, True),
    ],
)
def test_a_driver_or_an_apple_chip_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    machine: str,
    driver: str | None,
    *,
    has_gpu: bool,
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(speed.platform, "machine", lambda: machine)
    monkeypatch.setattr(speed.shutil, "which", lambda name: driver and f"{driver} {name}")

    assert speed.has_gpu() is has_gpu
