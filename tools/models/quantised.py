"""Knows how 8-bit models are made of the ones in 32-bit floating point, as people do it.

ONNX Runtime's own static quantisation: unsigned activations, signed weights, one scale a tensor,
calibrated on seeded inputs, batch normalisations folded before. Only their speed is of interest.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import version_converter

from models.inputs import standard_inputs

Arrays = Mapping[str, np.typing.NDArray[np.generic]]

OPSET = 13
"""The first one in which quantisation is whole."""
CALIBRATION_SEEDS = (1, 2)


def quantise(source: Path, source_name: str, form: str, destination: Path) -> None:
    """Write the model at `source` to `destination` with 8-bit convolutions and products.

    `form` is QOperator (quantised operators) or QDQ (operators between DequantizeLinear and
    QuantizeLinear).
    """
    from onnxruntime import quantization

    class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._inputs = iter([standard_inputs(source_name, s) for s in CALIBRATION_SEEDS])

        def get_next(self) -> Arrays | None:
            return next(self._inputs, None)

    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".quantised-") as folder:
        folded = Path(folder) / "folded.onnx"
        _fold(source, folded, Path(folder))
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)  # it recommends preprocessing, which was done
        try:
            quantization.quantize_static(
                folded,
                partial,
                Calibration(),
                quant_format=quantization.QuantFormat[form],
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        finally:
            logging.disable(level)
    partial.replace(destination)


def _fold(source: Path, destination: Path, folder: Path) -> None:
    import onnxruntime

    model = onnx.load(source)
    if max(o.version for o in model.opset_import if not o.domain) < OPSET:
        model = version_converter.convert_version(model, OPSET)
    newer = folder / "newer.onnx"
    onnx.save(model, newer)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(destination)
    onnxruntime.InferenceSession(newer, options, providers=["CPUExecutionProvider"])
