"""Optional libraries, and the import of torch."""

import gc
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pytest

from vitft.system.errors import UsageError
from vitft.system.imports import (
    EXTRA_LIBRARIES,
    heavy_imports,
    install_command,
    missing_library_command,
    require_extra,
    requirements,
)

STATED = [
    "torch>=2.4",
    "onnx>=1.16; extra == 'onnx'",
    'onnxruntime >=1.18 ; python_version >= "3.11" and extra == "onnx"',
    "pyarrow>=15 ; extra == 'parquet'",
    "pytest; extra == 'dev'",
]


FIND = importlib.util.find_spec


def without(*missing: str) -> Callable[..., Any]:
    return lambda name, *rest: None if name in missing else FIND(name, *rest)


def test_the_first_missing_library_is_named_with_the_command_that_installs_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: STATED)
    monkeypatch.setattr(importlib.util, "find_spec", without("onnxruntime"))

    with pytest.raises(UsageError, match="drawing needs onnxruntime, which is not inst") as missing:
        require_extra("onnx", feature="drawing")

    assert missing.value.fix == "run pip install 'onnx>=1.16' 'onnxruntime >=1.18'"
    require_extra("onnx", feature="drawing", libraries=("onnx",))
    monkeypatch.setattr(importlib.util, "find_spec", without())
    require_extra("onnx", feature="drawing")


def test_requirements_are_those_that_the_installed_package_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: STATED)
    assert requirements("onnx") == ["onnx>=1.16", "onnxruntime >=1.18"]
    assert requirements("parquet") == ["pyarrow>=15"]
    assert requirements("heic") == ["pillow-heif"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: None)
    assert requirements("parquet") == ["pyarrow"]

    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert requirements("serve") == ["fastapi", "uvicorn", "python-multipart"]


def test_every_extra_states_its_requirements_in_the_package() -> None:
    for extra in EXTRA_LIBRARIES:
        assert requirements(extra)


def test_the_command_in_a_reason_is_found() -> None:
    fix = install_command(["a>=1", "b"])

    assert fix == "run pip install 'a>=1' b"
    assert missing_library_command(f"an HEIC image: {fix}") == "pip install 'a>=1' b"
    assert missing_library_command("an HEIC image") == ""


def test_garbage_is_not_collected_while_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with heavy_imports("loading"):
        assert gc.isenabled()  # it has been imported
    assert capsys.readouterr().err == ""
    monkeypatch.delitem(sys.modules, "torch")
    frozen = gc.get_freeze_count()

    with pytest.raises(ZeroDivisionError), heavy_imports("loading"):  # noqa: PT012
        assert not gc.isenabled()
        raise ZeroDivisionError

    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    assert capsys.readouterr().err == "loading\n"
    monkeypatch.setenv("RANK", "1")
    with heavy_imports("loading"):
        pass
    assert capsys.readouterr().err == ""


def test_a_caller_without_garbage_collection_keeps_it_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    gc.disable()
    try:
        with heavy_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
