"""Tensors of every type that workers may send each other, and messages with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as stnp

from edge_agent.plans import Epoch
from edge_agent.subgraphs import ModelId
from edge_agent.tensors import ElementType
from edge_agent.wire.arrays import pack_arrays
from edge_agent.wire.streaming import Tensors

EPOCH = Epoch(owner="local", incarnation=1, model=ModelId("m" * 64), number=1)
NUMERIC = [t for t in ElementType if t is not ElementType.STRING]
TEXTS = np.array(["", "é", "naïve 文", "x" * 9], object).reshape(2, 2)
NESTED: list[Any] = [
    [np.arange(5, dtype=np.float32), np.zeros((0, 3), np.int8)],
    {1: 0.5, 7: -1.0},
    [{"a": 1}, {"b": 2}],
    [],
    None,
]


def array_of(element_type: ElementType, shape: tuple[int, ...], seed: int = 0) -> Any:
    """An array of that type with any values that it has."""
    dtype = element_type.numpy_dtype
    assert dtype is not None
    drawn = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if element_type is ElementType.BOOL or element_type.bits < 8:
        drawn &= (1 << min(element_type.bits, 1)) - 1
    return drawn.reshape(-1).view(dtype).reshape(shape)


def tensors_of(values: dict[str, Any], run: int = 0) -> tuple[Tensors, list[memoryview]]:
    """A message with these values, and what its tensors are in memory."""
    heads, buffers = pack_arrays(values)
    message = Tensors(
        epoch=EPOCH, run=run, source=0, target=1, tensors=heads, left_s=None, narrowed=()
    )
    return message, buffers


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same in type, shape and every bit."""
    match one:
        case np.ndarray() if one.dtype == object:
            return bool(one.shape == other.shape and (one == other).all())
        case np.ndarray():
            return bool(
                one.dtype == other.dtype
                and one.shape == other.shape
                and one.tobytes() == other.tobytes()
            )
        case list():
            return len(one) == len(other) and all(map(is_same, one, other))
        case _:
            return bool(one == other)


def is_all_same(some: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether they are the same by name, in the same order."""
    return list(some) == list(others) and all(is_same(some[name], others[name]) for name in some)


_shapes = stnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)
arrays = st.builds(array_of, st.sampled_from(NUMERIC), _shapes, st.integers(0, 9))
values = st.one_of(
    arrays, st.just(TEXTS), st.just(np.zeros((0, 2), object)), st.sampled_from(NESTED)
)
named_values = st.lists(values, max_size=5).map(
    lambda some: {f"t{i}": v for i, v in enumerate(some)}
)
