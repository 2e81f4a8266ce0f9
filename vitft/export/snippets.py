"""Programs that classify a photo, one per library, for the README of an exported folder.

The programs are the templates in `programs/`. Every program is complete, is run by the tests, and
gives the same predictions as vitft.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitft.data.transforms import EvalTransform
from vitft.system.text import count, interval, percent

if TYPE_CHECKING:
    from jinja2 import Environment

_PROGRAMS = Path(__file__).parent / "programs"


class Snippet(NamedTuple):
    """A program for one library."""

    title: str
    install: str
    """Command that installs the requirements; empty if none is needed."""
    code: str
    """Program that classifies photo.jpg; it runs in the exported folder."""
    language: str = "python"

    @property
    def source(self) -> str:
        """The program without superfluous blank lines."""
        return re.sub(r"\n{3,}", "\n\n\n", self.code.strip())


class GraphInput(NamedTuple):
    """Kind of input that a graph accepts."""

    takes_bytes: bool = False
    """Whether the graph accepts bytes and normalises them itself."""
    any_size: bool = False
    """Whether the graph accepts images of any size and resizes them itself."""


@functools.cache
def _program_engine() -> "Environment":
    """Return the template engine for programs, which escapes nothing."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    engine = Environment(
        loader=FileSystemLoader(_PROGRAMS),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.globals["count"] = count
    engine.filters |= {"interval": interval, "percent": percent}
    engine.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return engine


def program(name: str, **values: Any) -> str:  # noqa: ANN401 - any template values
    """Return the program of a template."""
    return _program_engine().get_template(f"{name}.j2").render(**values)


GRAPH_LIBRARIES: Mapping[str, Mapping[str, str]] = {
    "onnx": {"onnxruntime": "onnxruntime", "OpenVINO": "openvino"},
    "int8": {"onnxruntime": "onnxruntime", "OpenVINO": "openvino"},
    "torch-export": {"PyTorch": "torch"},
}
"""Titles and packages of the libraries for each format that contains the computation graph."""


def graph_snippets(
    form: str, transform: EvalTransform, takes: GraphInput, thresholds: Sequence[float] = ()
) -> list[Snippet]:
    """Return the programs for a format that contains the computation graph."""
    values = {"transform": transform, "takes": takes, "thresholds": thresholds}
    return [
        Snippet(title, f"pip install {name} numpy pillow", program("graph", library=name, **values))
        for title, name in GRAPH_LIBRARIES[form].items()
    ]
