"""float32 tensors in fewer bits, as numpy and the formula of ONNX have them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edge_agent.engine.narrowing import from_eight_bits, from_half, to_eight_bits, to_half

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def floats(limit: float) -> st.SearchStrategy[np.ndarray]:
    numbers = st.floats(-limit, limit, width=32)
    return SHAPES.flatmap(lambda shape: arrays.arrays(np.float32, shape, elements=numbers))


@given(floats(65504.0))
def test_halves_are_those_of_numpy(values: np.ndarray) -> None:
    half = to_half(values)
    assert half is not None
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, values.astype(np.float16))
    wide = from_half(half)
    assert (wide.dtype, wide.shape) == (np.float32, values.shape)
    np.testing.assert_array_equal(wide, half.astype(np.float32))


def test_a_half_is_the_nearest_even() -> None:
    step = 2.0**-10
    between = np.float32([1 + step / 2, 1 + 3 * step / 2, -1 - step / 2])
    half = to_half(between)
    assert half is not None
    assert half.tolist() == [1.0, 1 + 2 * step, -1.0]


@given(floats(2.0**100))
def test_eight_bits_are_as_near_as_a_step_allows(values: np.ndarray) -> None:
    found = to_eight_bits(values)
    reach = float(max(values.max(initial=0.0), 0.0)) - float(min(values.min(initial=0.0), 0.0))
    if found is None:
        assert 0 < reach / 255 < 2.0**-125
        return
    quantised, scale, zero_point = found
    assert (quantised.dtype, quantised.shape) == (np.uint8, values.shape)
    wide = from_eight_bits(quantised, scale, zero_point)
    assert (wide.dtype, wide.shape) == (np.float32, values.shape)
    if reach:
        assert scale == pytest.approx(reach / 255, rel=1e-6)
        # What is rounded is also where 0 lies.
        np.testing.assert_allclose(wide, values, rtol=0, atol=1.001 * scale)
    else:
        np.testing.assert_array_equal(wide, values)


def test_eight_bits_follow_the_formula() -> None:
    values = np.float32([[-1.0, 0.0], [0.5, 1.55]])
    found = to_eight_bits(values)
    assert found is not None
    quantised, scale, zero_point = found
    assert (quantised.tolist(), zero_point) == ([[0, 100], [150, 255]], 100)
    assert scale == pytest.approx(0.01)
    np.testing.assert_allclose(from_eight_bits(quantised, scale, zero_point), values, rtol=1e-5)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_is_not_narrowed(value: float) -> None:
    values = np.float32([1.0, value, 2.0])
    assert to_half(values) is None
    assert to_eight_bits(values) is None


def test_what_fewer_bits_cannot_hold_is_not_narrowed() -> None:
    assert to_half(np.float32([65504.0])) is not None
    assert to_half(np.float32([65520.0])) is None
    assert to_half(np.float32([-65520.0])) is None
    assert to_eight_bits(np.float32([3e38, -3e38])) is None
    assert to_eight_bits(np.float32([1e-44, 0.0])) is None


def test_an_array_that_is_not_in_order_is_read_in_order() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    half, quantised = to_half(values), to_eight_bits(values)
    assert half is not None
    assert quantised is not None
    np.testing.assert_array_equal(half, values)
    np.testing.assert_allclose(from_eight_bits(*quantised), values, atol=11 / 255)
