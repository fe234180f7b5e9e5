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
from split.hazards import HAZARDS, Hazard


class Unfit(Exception):
    """The model cannot be used for the check; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to divide; small, so that it passes between processes."""

    kind: str
    """node: one of onnx's backend tests; zoo: a real model at `path`; hazard: a made one."""
    name: str
    path: str = ""

    def open(self, folder: Path) -> tuple[Path, Arrays]:
        """The model file, in `folder` if it has to be written, and inputs for it.

        Raises:
            Unfit: it has fewer than two nodes, or an input that is no array.
        """
        if self.kind == "zoo":
            return Path(self.path), standard_inputs(self.name, 1)
        if self.kind == "hazard":
            return _made(HAZARDS[self.name](), folder)
        case = _node_tests()[self.name]
        if len(case.model.graph.node) < 2:
            raise Unfit("fewer than two nodes")
        path = folder / "model.onnx"
        onnx.save(case.model, path)
        return path, _feeds(case)


def _made(hazard: Hazard, folder: Path) -> tuple[Path, Arrays]:
    path = folder / "model.onnx"
    if hazard.external_from_bytes is None:
        onnx.save(hazard.model, path)
    else:
        onnx.save(
            hazard.model,
            path,
            save_as_external_data=True,
            location="model.data",
            size_threshold=hazard.external_from_bytes,
        )
    return path, hazard.feeds


def hazard_subjects() -> Iterator[Subject]:
    """The models that were made for what breaks a naive division."""
    for name in HAZARDS:
        yield Subject(kind="hazard", name=name)


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
        # Lists, maps and None are sequences, maps and empty optionals.
        is_array = isinstance(value, (np.ndarray, np.generic))
        feeds[declared.name] = np.asarray(value) if is_array else value
    return feeds
