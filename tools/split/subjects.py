"""Knows which models are divided to check the division, and what each is fed."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

from edge_agent.tensors import Arrays
from models.inputs import standard_inputs


class Unfit(Exception):
    """The model cannot be used for the check; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to divide; small, so that it passes between processes."""

    kind: str
    """node: one of onnx's backend tests; zoo: a real model at `path`."""
    name: str
    path: str = ""

    def open(self, folder: Path) -> tuple[Path, Arrays]:
        """The model file, in `folder` if it has to be written, and inputs for it.

        Raises:
            Unfit: it has fewer than two nodes, or an input that is no array.
        """
        if self.kind == "zoo":
            return Path(self.path), standard_inputs(self.name, 1)
        case = _node_tests()[self.name]
        if len(case.model.graph.node) < 2:
            raise Unfit("fewer than two nodes")
        path = folder / "model.onnx"
        onnx.save(case.model, path)
        return path, _feeds(case)


def node_subjects() -> Iterator[Subject]:
    """The backend tests of the onnx package that come with a model."""
    for name in _node_tests():
        yield Subject(kind="node", name=name)


@functools.cache
def _node_tests() -> dict[str, onnx.backend.test.case.test_case.TestCase]:
    with warnings.catch_warnings():
        # Some overflow on purpose while they are made.
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node") if case.model is not None}


def _feeds(case: onnx.backend.test.case.test_case.TestCase) -> Arrays:
    inputs = case.model.graph.input
    given = list(case.data_sets[0][0]) if case.data_sets else []
    if len(given) != len(inputs):
        raise Unfit("its inputs are not stored")
    feeds: Arrays = {}
    for declared, value in zip(inputs, given, strict=True):
        if isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value)
        if not isinstance(value, (np.ndarray, np.generic)):
            raise Unfit("an input is no tensor")
        array = np.asarray(value)
        if array.dtype.kind not in "biufcOSU" or array.dtype.isbuiltin != 1:
            raise Unfit("an input has a type that numpy lacks")
        feeds[declared.name] = array
    return feeds
