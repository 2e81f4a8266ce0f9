"""glibc's heap while training: what is freed stays, and goes back to the system afterwards."""

import resource
import subprocess
import sys

import pytest

from vitft.system.malloc import LARGEST, MMAP_THRESHOLD, SETTINGS

ABLE = (
    "import sys; from vitft.system.malloc import *; f = glibc('mallopt'); "
    "sys.exit(not (f and f({}, {})))"
)
pytestmark = pytest.mark.skipif(
    subprocess.run(
        [sys.executable, "-c", ABLE.format(MMAP_THRESHOLD, LARGEST)], check=False
    ).returncode
    != 0,
    reason="another C library, or a glibc that keeps no large blocks",
)

STEPS = """
import ctypes, resource, torch
PR_SET_THP_DISABLE = 41
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # a fault a page, whatever the system does
from vitft.system.malloc import freed_memory_kept
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
    del [torch.empty(2**29) for _ in range(2)][:]  # a heap of 4 GiB that nobody touched
    faults(20)
    print(faults())
print(resident() - begun)
"""
PAGES = 48 * 2**20 // resource.getpagesize()


def steps(monkeypatch: pytest.MonkeyPatch, *, when: bool, **variables: str) -> list[float]:
    """Page faults per tensor, bytes kept meanwhile, faults again, bytes kept afterwards."""
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
    faults, kept, faults_in_a_large_heap, left = steps(monkeypatch, when=True)

    assert faults < PAGES / 100
    assert faults_in_a_large_heap < PAGES / 100
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
    faults, kept, *_ = steps(monkeypatch, when=when, **variables)

    assert faults > PAGES / 2
    assert kept < 20 * 2**20
