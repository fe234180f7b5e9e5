"""Whether a request fits its model: names, types, ranks, dimensions, lengths. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from edge_agent.errors import InputMismatch
from edge_agent.tensors import Shape, TensorSpec
from edge_agent.wire.frames import padded_total
from edge_agent.wire.messages import Infer, TensorHead


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


def check_request(
    message: Infer,
    payload_bytes: int,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> tuple[str, ...]:
    """The outputs to compute, after checking everything that can be known before running.

    Raises:
        InputMismatch: it names what was got and what is wanted.
    """
    heads: dict[str, TensorHead] = {}
    for head in message.tensors:
        if head.name in heads:
            raise InputMismatch(f'input "{head.name}" was given twice')
        heads[head.name] = head
    known = {spec.name for spec in inputs}
    for name in heads:
        if name not in known:
            raise InputMismatch(f'input "{name}" does not exist: want {_names(inputs)}')
    bound: dict[str, int] = {}
    for spec in inputs:
        found = heads.get(spec.name)
        if found is None:
            raise InputMismatch(f'input "{spec.name}" is missing: want {spec}')
        if spec.element_type.numpy_dtype is None:
            raise InputMismatch(
                f'input "{spec.name}": {spec.element_type} tensors cannot be sent yet'
            )
        if found.element_type != spec.element_type:
            raise InputMismatch(f'input "{spec.name}": got {_shape_text(found)}, want {spec}')
        _check_shape(spec, found, bound)
    want_bytes = padded_total([head.size_bytes for head in message.tensors])
    if payload_bytes != want_bytes:
        raise InputMismatch(f"payload of {payload_bytes} bytes, want {want_bytes} for its tensors")
    return _check_outputs(message.outputs, outputs)


def _check_outputs(asked: tuple[str, ...] | None, outputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    existing: dict[str, TensorSpec] = {spec.name: spec for spec in outputs}
    chosen = tuple(existing) if asked is None else asked
    if len(set(chosen)) != len(chosen):
        raise InputMismatch("an output was asked for twice")
    for name in chosen:
        if name not in existing:
            raise InputMismatch(f'output "{name}" does not exist: want {_names(outputs)}')
        if existing[name].element_type.numpy_dtype is None:
            raise InputMismatch(
                f'output "{name}": {existing[name].element_type} tensors cannot be sent yet; '
                "name the outputs you want"
            )
    return chosen
