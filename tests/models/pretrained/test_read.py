"""Damaged, hostile and unsupported files: one readable error, no code run, no memory filled."""

import hashlib
import io
import json
import os
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor

from tests.models.pretrained.test_flavours import CONFIG
from vitft import load_pretrained
from vitft.models import VisionTransformer
from vitft.system import WeightsError

MARKER = "code-was-run"


@pytest.fixture
def state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return dict(VisionTransformer(CONFIG).state_dict())


class Evil:
    """Runs a command when a pickle of it is loaded by anything careless."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {MARKER}",)


def safetensors(header: object, body: bytes = b"") -> bytes:
    """A file of the safetensors format with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def laid_out(size: int, **tensors: object) -> bytes:
    """A file of the safetensors format with a body of zeros."""
    return safetensors(tensors, bytes(size))


def tensor_at(*offsets: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def pickled(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


FILE, DAMAGED = "a.safetensors", "damaged safetensors"
NAMELESS = "no named torch tensors, but a"
GOOD = save({"cls_token": torch.zeros(2)})
OPEN_NPY = npy(np.zeros(2, np.float32)).replace(b"(2,), }", b"(2,((((")  # tokenize.TokenError
HUGE_NPY = npy(np.zeros(2, np.float32)).replace(b"(2,), }", b"(999999999999,), }")[:200]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param(FILE, b"", f"{DAMAGED}.*empty", id="no bytes"),
        pytest.param(FILE, GOOD[:-3], DAMAGED, id="cut at the end"),
        pytest.param(FILE, GOOD[:20], DAMAGED, id="cut in the header"),
        pytest.param(FILE, b"\xff" * 64, DAMAGED, id="vast header"),
        pytest.param(FILE, safetensors(b"\xff\xfe{}"), DAMAGED, id="not UTF-8"),
        pytest.param(FILE, safetensors([]), DAMAGED, id="a list"),
        pytest.param(FILE, laid_out(0, a=tensor_at(0, 800)), DAMAGED, id="past the end"),
        pytest.param(
            FILE, laid_out(12, a=tensor_at(0, 8), b=tensor_at(4, 12)), DAMAGED, id="overlap"
        ),
        pytest.param(FILE, laid_out(12, a=tensor_at(4, 12)), DAMAGED, id="hole"),
        pytest.param(FILE, laid_out(8, a=tensor_at(-8, 0)), DAMAGED, id="before"),
        pytest.param(
            FILE, laid_out(8, a=tensor_at(0, 8, shape=(2**40, 2**40))), DAMAGED, id="vast shape"
        ),
        pytest.param(FILE, laid_out(8, a=tensor_at(0, 8, dtype="X9")), DAMAGED, id="unknown type"),
        pytest.param(FILE, b"version https://git-lfs.github.com/x", "git lfs pull", id="pointer"),
        pytest.param(FILE, b"<!DOCTYPE html><html>", "HTML", id="web page"),
        pytest.param(FILE, b"\n <HTML><body>", "HTML", id="page without a type"),
        pytest.param("a.pth", b"", "damaged torch file.*empty", id="empty pickle"),
        pytest.param("a.pth", b"\x80\x02garbage", "damaged torch file", id="broken pickle"),
        pytest.param("a.pth", b"PK\x03\x04 no zip", "damaged torch file", id="broken zip"),
        pytest.param("a.pth", pickled({"a": torch.ones(9)})[:-40], "damaged", id="cut pickle"),
        pytest.param(
            "a.pth", pickled([1, 2]), f"{NAMELESS} value of type list", id="a pickled list"
        ),
        pytest.param("a.pth", pickled({"lr": 0.1}), NAMELESS, id="settings"),
        pytest.param("a.pth", npz(bomb=bytes(10**8)), "damaged.*would unpack", id="pickle bomb"),
        pytest.param("a.npz", b"PK\x05\x06", "damaged .npz", id="broken npz"),
        pytest.param("a.npz", npz(bomb=bytes(10**8)), "damaged.*would unpack", id="npz bomb"),
        pytest.param("a.npz", npz(a=HUGE_NPY), "does not match its", id="vast array"),
        pytest.param("a.npz", npz(a=OPEN_NPY), "damaged .npz", id="bracket left open"),
        pytest.param("a.npz", npz(a=b"no array"), "damaged .npz", id="not an array"),
        pytest.param("a.npz", npz(a=npy(np.array([Evil()]))), "not a numeric type", id="objects"),
    ],
)
def test_a_damaged_or_hostile_file_is_one_sentence(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(WeightsError, match=message) as caught:
        load_pretrained(tmp_path / name, allow_pickle=True)

    assert "\n" not in caught.value.problem
    assert name in caught.value.problem


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_named_and_not_run(
    zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Evil()}, "evil.pth", _use_new_zipfile_serialization=zipped)

    with pytest.raises(WeightsError, match=r"rejected: evil\.pth needs (posix|nt)\.system"):
        load_pretrained("evil.pth", allow_pickle=True)

    assert not Path(MARKER).exists()


def test_numbers_that_are_not_finite_are_counted(tmp_path: Path, state: dict[str, Tensor]) -> None:
    state["norm.weight"][:3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    save_file(state, tmp_path / "a.safetensors")

    with pytest.raises(WeightsError, match=r"tensor norm\.weight contains 3 non-finite values"):
        load_pretrained(tmp_path / "a.safetensors")


def test_large_numbers_whose_sum_overflows_are_finite(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    save_file(state | {"norm.weight": torch.full((192,), 3e38)}, tmp_path / "a.safetensors")

    assert load_pretrained(tmp_path / "a.safetensors")[1].loaded == len(state)


def test_a_known_digest_is_compared(tmp_path: Path, state: dict[str, Tensor]) -> None:
    save_file(state, tmp_path / "a.safetensors")
    digest = hashlib.sha256((tmp_path / "a.safetensors").read_bytes()).hexdigest()

    _, report = load_pretrained(tmp_path / "a.safetensors", sha256=digest)
    assert report.provenance["sha256"] == digest
    with pytest.raises(WeightsError, match=f"the sha256 of .* is {digest}, not 00ff"):
        load_pretrained(tmp_path / "a.safetensors", sha256="00ff")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_safetensors_are_mapped_and_not_copied(tmp_path: Path, state: dict[str, Tensor]) -> None:
    save_file(state, tmp_path / "a.safetensors")

    model, _ = load_pretrained(tmp_path / "a.safetensors")

    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if str(tmp_path) in line]
    mapped = [range(int(low, 16), int(high, 16)) for low, high in ranges]
    pointers = [tensor.data_ptr() for tensor in model.state_dict().values()]
    assert all(any(pointer in area for area in mapped) for pointer in pointers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[" * 100_000, "is not valid JSON", id="deep"),
        ('{"num_attention_heads": "x"}', "num_attention_heads: Expected `int`"),
        ('{"num_attention_heads": 1e9}', "num_attention_heads: Expected `int`"),
        ('{"num_attention_heads": 1000000000}', "num_attention_heads: Expected `int` <= 1024"),
        ('{"num_attention_heads": 0}', "not a multiple of the number of attention heads, 0"),
        ('{"model_args": {"img_size": "x"}}', "img_size.*: Expected `int`"),
        ('{"model_args": 5}', "model_args: Expected `object`, got `int`"),
        ('{"pretrained_cfg": {"mean": 5, "std": 5}}', "mean: Expected `array`"),
        ('{"mean": [NaN, 0, 0], "std": [1, 1, 1]}', "mean: Out of range"),
        ('{"mean": [0, 0, 0], "std": [0, 1, 1]}', "std.*: Expected `float` >="),
        ('{"mean": [0, 0], "std": [1, 1]}', "mean and std have 2 values each"),
        ('{"crop_pct": 7}', "crop: Expected `float` <= 1.0"),
        ('{"interpolation": "magic"}', "interpolation.*'magic'"),
        ('{"label_names": {"a": "b"}}', r"label_names\[0\]: Expected `str`, got `null`"),
    ],
)
def test_a_hostile_config_beside_the_weights_is_refused_by_its_key(
    text: str, message: str, tmp_path: Path, state: dict[str, Tensor]
) -> None:
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(WeightsError, match=message):
        load_pretrained(tmp_path)


EXPANDED = torch.zeros(1).expand(10**6, 10**6)
TWICE = b"""{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
             "a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"""


def kept(tensor: Tensor) -> bytes:
    return pickled({"a": tensor})


def typed(kind: str, size: int) -> bytes:
    """A file with one tensor of eight numbers of the given type."""
    return laid_out(size, cls_token=tensor_at(0, size, shape=(8,), dtype=kind))


def nested(inner: str) -> bytes:
    """A file whose header nests a list 100,000 times."""
    return safetensors(inner.replace("X", "[" * 100_000 + "]" * 100_000).encode())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.pth", kept(EXPANDED), "larger than the file", id="expanded"),
        pytest.param("a.pth", kept(torch.zeros(3, device="meta")), "has no data", id="meta"),
        pytest.param("a.pth", kept(torch.ones(3).to_sparse()), "dense", id="sparse"),
        pytest.param("a.pth", kept(torch.ones(3, dtype=torch.cfloat)), "complex64", id="complex"),
        pytest.param("a.pth", kept(torch.ones(3).to(torch.float8_e4m3fn)), "float8", id="8 bits"),
        pytest.param(FILE, typed("F4", 4), "unsupported type F4", id="F4"),
        pytest.param(FILE, typed("F8_E4M3", 8), "unsupported type F8", id="F8"),
        pytest.param(FILE, typed("C64", 64), "unsupported type C64", id="C64"),
        pytest.param(FILE, nested('{"a":X}'), DAMAGED, id="deep header"),
        pytest.param(FILE, nested('{"__metadata__":{"a":X}}'), DAMAGED, id="deep metadata"),
        pytest.param(FILE, safetensors(TWICE, bytes(8)), DAMAGED, id="a tensor twice"),
    ],
)
def test_tensors_that_are_not_arrays_in_the_file_are_refused_at_once(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    started = time.process_time()

    with pytest.raises(WeightsError, match=message):
        load_pretrained(tmp_path / name, allow_pickle=True)

    assert time.process_time() - started < 2


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 2), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize(
    "name", [n for n in VisionTransformer(CONFIG).state_dict() if "blocks.1." not in n]
)
def test_a_tensor_of_any_other_shape_is_refused_with_its_name_or_use(
    tmp_path: Path, state: dict[str, Tensor], name: str, shape: tuple[int, ...]
) -> None:
    save_file(state | {name: torch.zeros(shape)}, tmp_path / "a.safetensors")

    with pytest.raises(WeightsError):
        load_pretrained(tmp_path / "a.safetensors")
