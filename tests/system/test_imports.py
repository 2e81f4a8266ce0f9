"""Optional libraries, and the import of torch."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from vitft.system import EXTRA_LIBRARIES, UsageError, require_extra

FIND = importlib.util.find_spec


def without(*missing: str) -> Callable[..., Any]:
    return lambda name, *rest: None if name in missing else FIND(name, *rest)


def test_the_first_missing_library_is_named_with_the_command_that_installs_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", without("onnxruntime"))

    with pytest.raises(UsageError, match="drawing needs onnxruntime, which is not inst") as missing:
        require_extra("onnx", feature="drawing")

    assert missing.value.fix == "run pip install onnx onnxscript onnxruntime"
    require_extra("onnx", feature="drawing", libraries=("onnx",))
    monkeypatch.setattr(importlib.util, "find_spec", without())
    require_extra("onnx", feature="drawing")


def test_every_extra_has_libraries_to_install() -> None:
    for extra in EXTRA_LIBRARIES:
        with pytest.raises(UsageError, match=r"fix: run pip install \S+"):
            require_extra(extra, feature="drawing", libraries=("no_such_library",))
