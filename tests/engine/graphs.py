"""The words in which the tests of the engine spell graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edge_agent.engine.session import Session

Declaration = tuple[str, int, Sequence[int | str] | None]
WriteModel = Callable[..., Path]
OpenModel = Callable[[Path], Session]


def declared(declaration: Declaration) -> onnx.ValueInfoProto:
    """(name, element type, dims) as ONNX declares it."""
    name, element_type, dims = declaration
    return helper.make_tensor_value_info(name, element_type, dims)


def constant(name: str, array: np.ndarray) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(array, name)
