"""Choice of device and precision."""

from typing import Any

import pytest
import torch

from vitft.system import device as device_module
from vitft.system.device import (
    ExactBlocks,
    describe_device,
    exact_float32,
    float32_backends,
    gpu_precision,
    named_device,
    one_thread,
    peak_memory,
    peak_resident,
    pick_device,
    pick_precision,
    torch_threads,
    usable_devices,
    vector_instructions,
    worker_threads,
)
from vitft.system.errors import UsageError


def test_torch_tells_whether_the_processor_computes_in_bf16() -> None:
    """A private function; once it is gone, use torch.cpu.get_capabilities()["avx512_bf16"]."""
    assert torch.cpu._is_avx512_bf16_supported() in (True, False)


def test_a_given_precision_is_kept() -> None:
    assert pick_precision("fp32", torch.device("cpu")) == "fp32"
    assert pick_precision("auto", torch.device("cpu")) in ("bf16", "fp32")


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta"])
@pytest.mark.parametrize(
    ("gpus", "fix"),
    [(0, "use --device auto or cpu"), (2, "use --device auto, cpu, cuda:0 or cuda:1")],
)
def test_an_unusable_device_is_answered_with_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, name: str, gpus: int, fix: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    with pytest.raises(UsageError, match=rf"cannot use device '{name}'") as caught:
        pick_device(name)

    assert caught.value.fix == fix


@pytest.mark.parametrize("name", ["gpu", "banana", "0"])
def test_an_unknown_device_is_refused_in_a_short_sentence(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        pick_device(name)

    assert caught.value.problem == f"cannot use device '{name}': unknown name"
    assert caught.value.fix.startswith("use --device auto")


def test_a_single_thread_is_described_in_the_singular() -> None:
    with one_thread(when=True):
        assert describe_device(torch.device("cpu")).endswith(", 1 thread)")


@pytest.mark.parametrize(
    ("gpu", "capability", "has_bf16", "precision"),
    [
        ("H100", (9, 0), True, "bf16"),
        ("A100", (8, 0), True, "bf16"),
        ("T4", (7, 5), False, "fp16"),
        ("V100", (7, 0), False, "fp16"),
        ("GTX 1080", (6, 1), False, "fp32"),
    ],
)
def test_a_gpu_computes_in_its_fastest_precision(
    gpu: str, capability: tuple[int, int], has_bf16: bool, precision: str
) -> None:
    assert gpu_precision(capability, has_bf16=has_bf16) == precision


def test_float32_on_a_gpu_is_exact_and_the_settings_of_the_caller_are_restored() -> None:
    cudnn: Any = torch.backends.cudnn
    convolutions, products = cudnn.conv, torch.backends.cuda.matmul
    before = convolutions.fp32_precision, products.fp32_precision
    assert before[0] == "tf32"  # torch's default
    with exact_float32(torch.device("cpu")):
        assert (convolutions.fp32_precision, products.fp32_precision) == before

    with exact_float32(torch.device("cuda")):
        assert (convolutions.fp32_precision, products.fp32_precision) == ("ieee", "ieee")

    assert (convolutions.fp32_precision, products.fp32_precision) == before


@pytest.mark.parametrize(
    ("cuda", "mps", "number", "found"),
    [
        (True, False, 1, "cuda:1"),
        (True, True, 0, "cuda:0"),
        (False, True, 1, "mps"),
        (False, False, 1, "cpu"),
    ],
)
def test_auto_is_a_gpu_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, number: int, found: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    assert str(pick_device("auto", number=number)) == found


def test_the_first_gpu_is_chosen_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    assert pick_device("auto") == torch.device("cuda", 0)
    assert pick_device("cpu") == named_device("cpu") == torch.device("cpu")


def test_mps_is_listed_where_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)

    assert usable_devices() == "auto, cpu or mps"


@pytest.mark.parametrize(
    ("kind", "has_bf16", "precision"),
    [("cpu", True, "bf16"), ("cpu", False, "fp32"), ("mps", True, "fp32")],
)
def test_a_processor_computes_in_bf16_where_it_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, has_bf16: bool, precision: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)

    assert pick_precision("auto", torch.device(kind)) == precision


def test_a_gpu_that_only_emulates_bf16_does_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def supported(*, including_emulation: bool = True) -> bool:
        asked.append(including_emulation)
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))

    assert pick_precision("auto", torch.device("cuda")) == "fp16"
    assert asked == [False]


def test_float32_stays_exact_until_the_last_thread_has_left() -> None:
    blocks = ExactBlocks()
    before = [backend.fp32_precision for backend in float32_backends()]
    found = []

    for step in (blocks.enter, blocks.enter, blocks.leave, blocks.enter, blocks.leave):
        step()
        found.append({backend.fp32_precision for backend in float32_backends()})
    blocks.leave()

    assert found == [{"ieee"}] * 5
    assert [backend.fp32_precision for backend in float32_backends()] == before
    assert blocks.count == 0


def test_float32_is_restored_after_an_error() -> None:
    before = [backend.fp32_precision for backend in float32_backends()]

    with pytest.raises(ZeroDivisionError), exact_float32(torch.device("cuda")):
        1 / 0  # noqa: B018

    assert [backend.fp32_precision for backend in float32_backends()] == before


def test_a_gpu_is_described_by_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA T4")

    assert describe_device(torch.device("cuda:1")) == "cuda:1 (NVIDIA T4)"
    assert vector_instructions(torch.device("cuda:1")) == ""
    assert vector_instructions(torch.device("cpu")) == torch.backends.cpu.get_cpu_capability()


def test_workers_are_as_many_as_threads_of_torch_or_the_cores_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_module, "usable_cores", lambda: 7)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert worker_threads() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    assert worker_threads() == 7


def test_the_number_of_threads_is_restored_even_after_an_error() -> None:
    torch.set_num_threads(2)

    with torch_threads(3):
        assert torch.get_num_threads() == 3
    with one_thread(when=False):
        assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), one_thread(when=True):
        assert torch.get_num_threads() == 1 / 0

    assert torch.get_num_threads() == 2


def test_the_peak_of_the_memory_is_in_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = peak_resident()
    assert resident is not None
    assert 50 * 2**20 < resident < 64 * 2**30  # Python with torch

    monkeypatch.setattr(device_module, "peak_resident", lambda: 5 * 2**20 + 1)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 7 * 2**20 + 1)
    assert peak_memory(torch.device("cpu")) == {"resident": 5}
    assert peak_memory(torch.device("cuda")) == {"resident": 5, "gpu": 7}
    monkeypatch.setattr(device_module, "peak_resident", lambda: None)
    assert peak_memory(torch.device("cpu")) == {}


@pytest.mark.parametrize(("system", "unit"), [("Linux", 1024), ("Darwin", 1)])
def test_without_proc_the_peak_is_that_of_getrusage_in_its_unit(
    monkeypatch: pytest.MonkeyPatch, system: str, unit: int
) -> None:
    import resource
    from types import SimpleNamespace

    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("vitft.system.device.Path.read_text", missing)
    monkeypatch.setattr("vitft.system.device.platform.system", lambda: system)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=300_000))

    assert peak_resident() == 300_000 * unit


def test_the_peak_is_read_from_proc_in_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "VmPeak:\t  9 kB\nVmHWM:\t  120 kB\nVmRSS:\t  5 kB\n"
    monkeypatch.setattr("vitft.system.device.Path.read_text", lambda *_, **__: text)

    assert peak_resident() == 120 * 1024
