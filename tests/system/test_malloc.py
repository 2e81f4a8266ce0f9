"""glibc malloc: freed memory is kept during training and returned afterwards."""

import platform
import resource

import pytest

from tests.support.children import python

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")

STEPS = """
import ctypes, resource, torch
PR_SET_THP_DISABLE = 41
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # one fault per page on every system
from vitft.system.cores import freed_memory_kept
size = 12 * 2**20  # of 4 bytes: more than glibc keeps by itself
def faults(times=5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(size)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / times
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
begun = resident()
with freed_memory_kept(when=True):
    faults(20)
    print(faults(), resident() - begun)
    del [torch.empty(2**29) for _ in range(2)][:]  # an untouched heap of 4 GiB
    faults(20)
    print(faults())
print(resident() - begun)
"""
PAGES = 48 * 2**20 // resource.getpagesize()


def test_memory_of_a_step_is_kept_for_the_next_and_then_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)

    done = python(STEPS, check=True)

    faults, kept, faults_in_a_large_heap, left = map(float, done.stdout.split())
    assert faults < PAGES / 100
    assert faults_in_a_large_heap < PAGES / 100
    assert kept > 40 * 2**20
    assert left < 20 * 2**20
