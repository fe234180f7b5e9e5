"""What is sent to another device in fewer bits, and made float32 again there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from edge_agent.engine.narrowing import from_eight_bits, from_half, to_eight_bits, to_half
from edge_agent.errors import ProtocolError
from edge_agent.tensors import Arrays, ElementType, WireType
from edge_agent.wire.parts import TensorHead
from edge_agent.wire.streaming import Narrowed

LEAST_BYTES: Final = 4096
"""Smaller tensors are sent as they are: to narrow one takes about 20 µs at both ends together."""
_SENT_AS: Final = {WireType.FP16: ElementType.FLOAT16, WireType.INT8: ElementType.UINT8}


def narrow(arrays: Arrays, wire: WireType | None) -> tuple[Arrays, tuple[Narrowed, ...]]:
    """(what is sent, which of it in fewer bits). A float32 tensor stays as it is if `wire` cannot
    hold a value in it."""
    if wire is None:
        return arrays, ()
    sent: Arrays = {}
    narrowed: list[Narrowed] = []
    for at, (name, value) in enumerate(arrays.items()):
        found = _narrowed(value, wire) if _may_be(value) else None
        if found is None:
            sent[name] = value
        else:
            sent[name], scale, zero_point = found
            narrowed.append(Narrowed(tensor=at, scale=scale, zero_point=zero_point))
    return sent, tuple(narrowed)


def _may_be(value: Any) -> bool:
    # Sequences and the like are no arrays.
    return (
        isinstance(value, np.ndarray) and value.dtype == np.float32 and value.nbytes >= LEAST_BYTES
    )


def _narrowed(value: Any, wire: WireType) -> tuple[Any, float, int] | None:
    if wire is WireType.INT8:
        return to_eight_bits(value)
    half = to_half(value)
    return None if half is None else (half, 1.0, 0)


def check_narrowed(
    heads: Sequence[TensorHead], narrowed: Sequence[Narrowed], wire: WireType | None
) -> None:
    """Refuse what was not agreed. Raises: ProtocolError."""
    if narrowed and wire is None:
        raise ProtocolError("got tensors in fewer bits, want them as they are")
    before = -1
    for one in narrowed:
        if not before < one.tensor < len(heads):
            raise ProtocolError(
                f"got tensor {one.tensor} in fewer bits after tensor {before}, of {len(heads)}"
            )
        before = one.tensor
        assert wire is not None
        head, want = heads[one.tensor], _SENT_AS[wire]
        if head.element_type is not want or head.is_nested:
            raise ProtocolError(
                f'tensor "{head.name}": got {head.element_type} in fewer bits, want {want}'
            )
        if not 0 < one.scale < math.inf:
            raise ProtocolError(f'tensor "{head.name}": got a scale of {one.scale:g}')


def widen(arrays: Arrays, narrowed: Sequence[Narrowed], wire: WireType | None) -> Arrays:
    """What was sent, as float32 again. `check_narrowed` has let it pass."""
    if not narrowed:
        return arrays
    names = list(arrays)
    wide = dict(arrays)
    for one in narrowed:
        name = names[one.tensor]
        value = arrays[name]
        if wire is WireType.INT8:
            wide[name] = from_eight_bits(value, one.scale, one.zero_point)
        else:
            wide[name] = from_half(value)
    return wide
