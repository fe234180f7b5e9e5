"""Whether a request fits its model: names, types, ranks, dimensions, lengths. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import lru_cache

from edge_agent.errors import InputMismatch
from edge_agent.tensors import Shape, TensorSpec
from edge_agent.wire.arrays import payload_bytes as tensors_bytes
from edge_agent.wire.messages import Infer
from edge_agent.wire.parts import TensorHead


def _shape_text(head: TensorHead) -> str:
    return f"{head.element_type}[{','.join(map(str, head.shape))}]"


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f'"{s.name}"' for s in specs) or "none"


def _check_shape(spec: TensorSpec, head: TensorHead, bound: dict[str, int]) -> None:
    if spec.dims is None:
        return
    shape: Shape = head.shape
    fits = len(shape) == len(spec.dims)
    if fits:
        for size, dim in zip(shape, spec.dims, strict=True):
            if isinstance(dim, int) and size != dim:
                fits = False
    if not fits:
        raise InputMismatch(f'input "{spec.name}": got {_shape_text(head)}, want {spec}')
    for size, dim in zip(shape, spec.dims, strict=True):
        if isinstance(dim, str) and bound.setdefault(dim, size) != size:
            raise InputMismatch(
                f'input "{spec.name}": got {_shape_text(head)}, want {spec} with {dim} = '
                f"{bound[dim]} as in the inputs before it"
            )


class RequestCheck:
    """Compares requests with what a model declares; remembers what passed, for the few shapes
    that a model is asked with recur."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._passed = lru_cache(maxsize=256)(self._checked)

    def check(self, message: Infer, payload_bytes: int) -> tuple[str, ...]:
        """The outputs to compute, after checking everything that can be known before running.

        Raises:
            InputMismatch: it names what was got and what is wanted.
        """
        outputs = self._passed(message.tensors, message.outputs)
        want_bytes = tensors_bytes(message.tensors)
        if payload_bytes != want_bytes:
            raise InputMismatch(
                f"payload of {payload_bytes} bytes, want {want_bytes} for its tensors"
            )
        return outputs

    def _checked(
        self, tensors: tuple[TensorHead, ...], outputs: tuple[str, ...] | None
    ) -> tuple[str, ...]:
        heads: dict[str, TensorHead] = {}
        for head in tensors:
            if head.name in heads:
                raise InputMismatch(f'input "{head.name}" was given twice')
            heads[head.name] = head
        known = {spec.name for spec in self._inputs}
        for name in heads:
            if name not in known:
                raise InputMismatch(f'input "{name}" does not exist: want {_names(self._inputs)}')
        bound: dict[str, int] = {}
        for spec in self._inputs:
            found = heads.get(spec.name)
            if found is not None:
                _check_input(spec, found, bound)
            elif not spec.has_default:
                raise InputMismatch(f'input "{spec.name}" is missing: want {spec}')
        return _check_outputs(outputs, self._outputs)


def _check_input(spec: TensorSpec, head: TensorHead, bound: dict[str, int]) -> None:
    if head.is_nested != bool(spec.container):
        got = "a sequence, map or optional" if head.is_nested else _shape_text(head)
        raise InputMismatch(f'input "{spec.name}": got {got}, want {spec}')
    if spec.container:
        return  # ONNX Runtime compares what is inside
    if head.element_type != spec.element_type:
        raise InputMismatch(f'input "{spec.name}": got {_shape_text(head)}, want {spec}')
    _check_shape(spec, head, bound)
    # Also with a dimension of 0 there is no array of that shape.
    element_bytes = max(1, head.element_type.bits // 8)
    if math.prod(max(size, 1) for size in head.shape) * element_bytes > sys.maxsize:
        raise InputMismatch(
            f'input "{spec.name}": {_shape_text(head)} is larger than any memory, want less'
        )


def _check_outputs(asked: tuple[str, ...] | None, outputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    existing: dict[str, TensorSpec] = {spec.name: spec for spec in outputs}
    chosen = tuple(existing) if asked is None else asked
    if len(set(chosen)) != len(chosen):
        raise InputMismatch("an output was asked for twice")
    for name in chosen:
        if name not in existing:
            raise InputMismatch(f'output "{name}" does not exist: want {_names(outputs)}')
    return chosen
