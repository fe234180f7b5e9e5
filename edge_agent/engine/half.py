"""How the converter to float16 that ONNX Runtime brings along is called."""

from __future__ import annotations

import importlib
from typing import Any, Final

from edge_agent.engine.runtime import load_runtime, runtime_errors, runtime_version
from edge_agent.errors import ModelRefused, RuntimeUnavailable

_MODULE: Final = "onnxruntime.transformers.float16"
_FUNCTION: Final = "convert_float_to_float16"
_OTHERS: Final = (AttributeError, LookupError, AssertionError)
"""What the converter, which is written in Python, raises over models that it did not expect, beside
what its libraries raise."""


def to_half(model: Any) -> Any:
    """`model`, an ONNX model with all its weights inside, in float16 where it says float32, but
    for inputs and outputs. It is changed on the way.

    Raises: RuntimeUnavailable: this build has no converter; ModelRefused: it does not convert the
        model.
    """
    load_runtime()
    try:
        convert = getattr(importlib.import_module(_MODULE), _FUNCTION)
    except (ImportError, AttributeError) as error:
        raise RuntimeUnavailable(
            f"ONNX Runtime {runtime_version()} has no converter to float16: {error}"
        ) from error
    errors: tuple[type[Exception], ...] = (*runtime_errors(), *_OTHERS)
    try:
        return convert(model, keep_io_types=True)
    except errors as error:
        raise ModelRefused(
            f"no float16 form: ONNX Runtime does not convert it: {type(error).__name__}: {error}"
        ) from error
