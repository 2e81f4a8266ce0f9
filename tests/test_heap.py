"""glibc's heap while training: what is freed stays, and goes back to the system afterwards."""

import resource
import subprocess
import sys

import pytest

from vitft.heap import SETTINGS, glibc

pytestmark = pytest.mark.skipif(glibc("mallopt") is None, reason="another C library than glibc")

STEPS = """
import contextlib, resource, torch
from vitft.heap import freed_memory_kept
size = 12 * 2**20  # numbers of 4 bytes: above what glibc keeps by itself
def faults(times=5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(size)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / times
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
begun = resident()
with freed_memory_kept(when={when}):
    faults(20)
    print(faults(), resident() - begun)
print(resident() - begun)
"""
PAGES = 48 * 2**20 // resource.getpagesize()


def steps(monkeypatch: pytest.MonkeyPatch, *, when: bool, **variables: str) -> list[float]:
    """Page faults per large tensor, bytes that stay meanwhile, and bytes that stay afterwards."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = STEPS.replace("{when}", str(when))
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    return [float(number) for number in done.stdout.split()]


def test_a_steps_memory_is_kept_for_the_next_and_then_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults, kept, left = steps(monkeypatch, when=True)

    assert faults < PAGES / 100
    assert kept > 40 * 2**20
    assert left < 20 * 2**20


@pytest.mark.parametrize(
    ("when", "variables"),
    [
        pytest.param(False, {}, id="not asked for"),
        pytest.param(True, {"MALLOC_TRIM_THRESHOLD_": "131072"}, id="set up by the user"),
    ],
)
def test_otherwise_glibc_does_as_it_always_does(
    monkeypatch: pytest.MonkeyPatch, when: bool, variables: dict[str, str]
) -> None:
    faults, kept, _ = steps(monkeypatch, when=when, **variables)

    assert faults > PAGES / 2
    assert kept < 20 * 2**20
