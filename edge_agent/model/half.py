"""How the float16 form of a graph is written, whoever converts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import TensorProto, external_data_helper

from edge_agent.errors import ModelRefused, StorageError
from edge_agent.model.scopes import model_tensors

_EXTERNAL_BYTES = 4096
Convert = Callable[[onnx.ModelProto], onnx.ModelProto]


def write_half(source: Path, destination: Path, convert: Convert) -> None:
    """Write what `convert` makes of the graph at `source`; constants of 4 KiB and more go beside
    it, to `<destination>.weights`.

    Raises:
        ModelRefused: nothing in it is float32, or what `convert` raises.
        StorageError: a file cannot be read or written.
    """
    try:
        model = onnx.load(source, load_external_data=False)
        external_data_helper.load_external_data_for_model(model, str(source.parent))
        made = convert(model)
        if not _has_half(made):
            raise ModelRefused("no float16 form: nothing in it is float32")
        location = f"{destination.name}.weights"
        (destination.parent / location).unlink(missing_ok=True)
        onnx.save(
            made,
            destination,
            save_as_external_data=True,
            location=location,
            size_threshold=_EXTERNAL_BYTES,
        )
    except OSError as error:
        raise StorageError(f"{destination}: cannot be written: {error.strerror}") from error
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise ModelRefused(f"no float16 form: {error}") from error


def _has_half(model: onnx.ModelProto) -> bool:
    casts = (a.i for n in model.graph.node if n.op_type == "Cast" for a in n.attribute)
    kinds = (tensor.data_type for tensor in model_tensors(model))
    return TensorProto.FLOAT16 in {*casts, *kinds}
