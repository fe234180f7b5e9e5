"""Made-up inputs that most models accept, for profiling, comparing and trying out."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edge_agent.errors import InputMismatch
from edge_agent.tensors import (
    Array,
    Arrays,
    ElementType,
    Shape,
    TensorName,
    TensorSpec,
    shape_names,
    size_bytes,
)

_INSIDE = (2, 3)
"""The shape of the tensors in a made-up sequence."""
_WIDE = {ElementType.INT8, ElementType.UINT8}
"""Quantised values and pixels use their whole range."""
_MADE_FROM_BYTES = 16
"""Numbers of most types are made from wider ones."""


def sample_shape(spec: TensorSpec, shapes: Mapping[TensorName, Shape], open_size: int) -> Shape:
    """A concrete shape: as given, else the declared one with open dimensions set.

    The first open dimension, when it is the first of all, is the batch and becomes 1; the
    others become `open_size`.

    Raises:
        InputMismatch: the given shape does not fit the declared one, or the rank is not known.
    """
    given = shapes.get(spec.name)
    if given is not None:
        fits = spec.dims is None or (
            len(given) == len(spec.dims)
            and all(not isinstance(d, int) or d == g for d, g in zip(spec.dims, given, strict=True))
        )
        if not fits:
            got = ",".join(map(str, given))
            raise InputMismatch(f'shape of input "{spec.name}": got [{got}], want {spec}')
        return given
    if spec.dims is None:
        raise InputMismatch(
            f'input "{spec.name}" has no declared rank: give its shape, e.g. '
            f"--shape {spec.name}=1x16"
        )
    return tuple(
        d if isinstance(d, int) else (1 if axis == 0 else open_size)
        for axis, d in enumerate(spec.dims)
    )


def check_shapes(specs: Sequence[TensorSpec], shapes: Mapping[TensorName, Shape]) -> None:
    """Refuse shapes that no input has or that do not fit what it declares.

    Raises:
        InputMismatch: it names the first that is wrong.
    """
    known = {spec.name: spec for spec in specs}
    for name in shapes:
        if name not in known:
            names = ", ".join(f'"{n}"' for n in known) or "none"
            raise InputMismatch(f'got a shape for "{name}", want one of the inputs {names}')
        sample_shape(known[name], shapes, 1)


def complete_shapes(
    specs: Sequence[TensorSpec],
    given: Mapping[TensorName, Shape],
    otherwise: Mapping[TensorName, Shape],
) -> tuple[tuple[TensorName, Shape], ...]:
    """The shapes of a `ShapeSet`, with names: as given, as they follow from what is given (fixed
    sizes, and sizes of the same name), else as in `otherwise`.

    Raises:
        InputMismatch: a shape is given for no input, fits no declaration or no other shape, or
            one that cannot be known is missing.
    """
    check_shapes(specs, given)
    sizes: dict[str, int] = {}
    for spec in specs:
        if spec.name in given:
            _bind(spec, given[spec.name], sizes)
    shapes = []
    names = shape_names(specs)
    for spec in specs:
        if spec.name not in names:
            continue
        shape = given.get(spec.name)
        if shape is None:
            shape = _follows(spec, sizes, otherwise.get(spec.name))
        _bind(spec, shape, sizes)
        shapes.append((spec.name, shape))
    return tuple(shapes)


def _bind(spec: TensorSpec, shape: Shape, sizes: dict[str, int]) -> None:
    for dim, size in zip(spec.dims or (), shape, strict=False):
        if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
            got = ",".join(map(str, shape))
            raise InputMismatch(
                f'shape of input "{spec.name}": got [{got}], want {spec} with {dim} = '
                f"{sizes[dim]} as in another input"
            )


def _follows(spec: TensorSpec, sizes: Mapping[str, int], otherwise: Shape | None) -> Shape:
    if spec.dims is None:
        known: tuple[int | None, ...] = (None,) if otherwise is None else otherwise
    else:
        usual = otherwise if otherwise is not None else (None,) * len(spec.dims)
        known = tuple(
            d if isinstance(d, int) else sizes.get(d or "", size)
            for d, size in zip(spec.dims, usual, strict=True)
        )
    shape = tuple(size for size in known if size is not None)
    if len(shape) < len(known):
        raise InputMismatch(
            f'input "{spec.name}" has open dimensions ({spec}): give its shape too, e.g. --shape '
            f"{spec.name}={'x'.join(str(1 if size is None else size) for size in known)}"
        )
    return shape


def random_array(element_type: ElementType, shape: Shape, rng: np.random.Generator) -> Array:
    """Random values: normal floats, full-range 8-bit integers, 0 or 1 for wider integers (they
    are mostly indices, lengths and masks, and small ones are the safest) and as text, random
    booleans.
    """
    dtype = element_type.numpy_dtype
    if dtype is None:
        return rng.integers(0, 2, shape).astype(str).astype(object)
    if dtype.kind in "fc" or "float" in element_type:
        return rng.standard_normal(shape).astype(dtype)
    if element_type is ElementType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if element_type in _WIDE:
        bounds = np.iinfo(dtype.name)
        return rng.integers(bounds.min, bounds.max, shape, endpoint=True).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _random_container(spec: TensorSpec, rng: np.random.Generator) -> Any:
    values = [random_array(spec.element_type, _INSIDE, rng) for _ in range(2)]
    if not spec.container.startswith("map"):
        return values
    keys: list[Any] = ["0", "1"] if spec.container.startswith("map(string") else [0, 1]
    return dict(zip(keys, (v.item(0) for v in values), strict=True))


def sample_bytes(
    specs: Sequence[TensorSpec], shapes: Mapping[TensorName, Shape], open_size: int = 1
) -> int:
    """Bytes of what `random_arrays` would make, an axis of no size counted as one: numpy has no
    array that would be too large without it.

    Raises:
        InputMismatch: a shape does not fit, or the rank of an input is not known.
    """
    return sum(
        size_bytes(
            spec.element_type, tuple(max(1, d) for d in sample_shape(spec, shapes, open_size))
        )
        for spec in specs
        if not spec.container and (not spec.has_default or spec.name in shapes)
    )


def _bearable(spec: TensorSpec, shapes: Mapping[TensorName, Shape], open_size: int) -> Shape:
    shape = sample_shape(spec, shapes, open_size)
    # Also with a dimension of 0 there is no array of that shape.
    if math.prod(max(1, size) for size in shape) * _MADE_FROM_BYTES > sys.maxsize:
        got = ",".join(map(str, shape))
        raise InputMismatch(
            f'input "{spec.name}": {spec.element_type}[{got}] is larger than any memory, want less'
        )
    return shape


def random_arrays(
    specs: Sequence[TensorSpec],
    shapes: Mapping[TensorName, Shape],
    rng: np.random.Generator,
    open_size: int = 1,
) -> Arrays:
    """One random array per input; those with a default are left out, unless `shapes` has them.

    Raises:
        InputMismatch: a shape does not fit, or no memory could hold it.
    """
    return {
        spec.name: _random_container(spec, rng)
        if spec.container
        else random_array(spec.element_type, _bearable(spec, shapes, open_size), rng)
        for spec in specs
        if not spec.has_default or spec.name in shapes
    }
