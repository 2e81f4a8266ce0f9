"""Builder for ONNX nodes and constants."""

from typing import Any

import numpy as np

from vitft.export.formats.base import NumericArray


class GraphBuilder:
    """Nodes and constants of an ONNX graph, with new names that start with `prefix`.

    A constant that another builder has already added to `constants` keeps its name.
    """

    def __init__(self, prefix: str, constants: dict[Any, tuple[str, NumericArray]]) -> None:
        self.prefix, self.constants = prefix, constants
        self.nodes: list[Any] = []

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> str:  # noqa: ANN401
        """Add a node and return the name of its output; numbers and lists become constants."""
        from onnx import helper

        output = f"{self.prefix}{len(self.nodes)}"
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(helper.make_node(operator, names, [output], output, **attributes))
        return output

    def constant(self, value: Any) -> str:  # noqa: ANN401 - a number, or nested lists
        """Return the name of the constant for a value, adding the constant if it is new.

        Floats become float32 and integers int64; a NumPy scalar keeps its type.
        """
        array = np.asarray(value)
        if not isinstance(value, np.generic):
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        name = f"{self.prefix}constant_{len(self.constants)}"
        return self.constants.setdefault((str(value), array.dtype), (name, array))[0]

    def tensors(self) -> list[Any]:
        """Return the constants as ONNX tensors."""
        from onnx import numpy_helper

        return [numpy_helper.from_array(array, name) for name, array in self.constants.values()]
