"""Optional libraries, and the import of torch."""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from vitft.system import EXTRA_LIBRARIES, UsageError, require_extra

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


def test_every_extra_states_its_requirements_in_the_package() -> None:
    for extra in EXTRA_LIBRARIES:
        with pytest.raises(UsageError, match=r"fix: run pip install \S+"):
            require_extra(extra, feature="drawing", libraries=("no_such_library",))


def test_libraries_are_named_without_versions_if_vitft_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def requires(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)

    with pytest.raises(UsageError, match=r"fix: run pip install pillow-heif$"):
        require_extra("heic", feature="drawing", libraries=("no_such_library",))
