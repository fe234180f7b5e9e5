"""What counts as the same output."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stnp

from edge_agent.profiling.tolerance import disagreement, largest_difference
from edge_agent.tensors import Array


def wrong(got: Array, want: Array, *, is_quantised: bool = False) -> str | None:
    return disagreement({"y": got}, {"y": want}, is_quantised=is_quantised)


@given(stnp.arrays(stnp.floating_dtypes(sizes=(16, 32, 64)), stnp.array_shapes(min_dims=0)))
def test_every_array_agrees_with_itself(array: Array) -> None:
    assert wrong(array.copy(), array) is None


@pytest.mark.parametrize(
    ("dtype", "is_quantised", "within", "beyond"),
    [
        ("float32", False, 9e-4, 2e-3),
        ("float16", False, 8e-3, 3e-2),
        ("float64", False, 9e-7, 2e-6),
        ("float32", True, 4e-2, 6e-2),
        ("float64", True, 4e-2, 6e-2),
    ],
)
def test_floats_may_differ_by_a_share_of_the_largest_value(
    dtype: str, is_quantised: bool, within: float, beyond: float
) -> None:
    want = np.array([1.0, -100.0, 0.0]).astype(dtype)
    for share, agrees in ((within, True), (beyond, False)):
        got = (want.astype(np.float64) + np.array([share * 100.0, 0.0, 0.0])).astype(dtype)
        assert (wrong(got, want, is_quantised=is_quantised) is None) == agrees


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("is_quantised", [False, True])
def test_a_bound_takes_the_place_of_every_tolerance_of_floats(
    dtype: str, is_quantised: bool
) -> None:
    want = {"y": np.array([100.0, 0.0]).astype(dtype), "n": np.array([3])}
    for bound, error, agrees in ((0.2, 19, True), (0.2, 21, False), (1e-4, 1, False)):
        got = {"y": np.array([100.0 + error, 0.0]).astype(dtype), "n": np.array([3])}
        found = disagreement(got, want, is_quantised=is_quantised, bound=bound)
        assert (found is None) == agrees
    wrong_whole = want | {"n": np.array([4])}
    assert disagreement(wrong_whole, want, is_quantised=is_quantised, bound=0.9) == (
        'output "n": differs'
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_bytes_may_differ_by_one_step_also_at_the_ends_of_their_range(dtype: str) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    want = np.array([low, high, 5], dtype)
    assert wrong(np.array([low + 1, high - 1, 4], dtype), want) is None
    assert "differs by 2 steps" in str(wrong(np.array([low, high - 2, 5], dtype), want))
    assert f"differs by {high - low} steps" in str(wrong(np.array([high, high, 5], dtype), want))


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (np.array([1, 2], np.int64), np.array([1, 3], np.int64)),
        (np.array([True]), np.array([False])),
        (np.array([np.nan, 1.0]), np.array([1.0, np.nan])),
        (np.array([np.inf, 1.0]), np.array([-np.inf, 1.0])),
        (np.array([np.inf, 1.0]), np.array([1.0, 1.0])),
        (np.array([np.nan]), np.array([0.0])),
        (np.array([1e-30]), np.array([0.0])),
    ],
)
def test_what_differs_is_told(got: Array, want: Array) -> None:
    assert str(wrong(got, want)).startswith('output "y": differs')


def test_infinite_and_undefined_values_agree_in_the_same_places() -> None:
    array = np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)
    assert wrong(array.copy(), array) is None
    assert wrong(np.full(3, np.nan), np.full(3, np.nan)) is None


def test_empty_outputs_agree() -> None:
    for dtype in ("float32", "int8", "int64", "bool"):
        assert wrong(np.zeros((0, 3), dtype), np.zeros((0, 3), dtype)) is None


def test_another_type_shape_or_no_output_is_told_first() -> None:
    want = np.zeros((2, 3), np.float32)
    assert wrong(want.astype(np.float64), want) == (
        'output "y": got float64[2, 3], want float32[2, 3]'
    )
    assert wrong(want.reshape(3, 2), want) == 'output "y": got float32[3, 2], want float32[2, 3]'
    assert disagreement({}, {"y": want}, is_quantised=False) == 'output "y" is missing'


def test_the_first_output_that_differs_is_named() -> None:
    good, bad = np.zeros(2, np.float32), np.ones(2, np.float32)
    reference = {"a": good, "b": good, "c": good}
    found = disagreement({"a": good, "b": bad, "c": bad}, reference, is_quantised=False)
    assert str(found).startswith('output "b"')


@given(st.integers(-(2**62), 2**62))
def test_wide_integers_must_be_equal(value: int) -> None:
    want = np.array([value], np.int64)
    assert wrong(want.copy(), want) is None
    assert wrong(want + 1, want) == 'output "y": differs'


@pytest.mark.parametrize(
    ("got", "want", "absolute", "relative"),
    [
        (np.float32([1, 2]), np.float32([1, 4]), 2.0, 0.5),
        (np.float32([0]), np.float32([0]), 0.0, 0.0),
        (np.float32([1]), np.float32([0]), 1.0, np.inf),
        (np.float32([np.nan, 1]), np.float32([np.nan, 1]), 0.0, 0.0),
        (np.float32([np.inf, 1]), np.float32([1, 1]), np.inf, np.inf),
        (np.float32([]), np.float32([]), 0.0, 0.0),
        (np.uint8([3]), np.uint8([4]), 1.0, 0.25),
        (np.array([True]), np.array([False]), 1.0, np.inf),
        (np.complex64([3j]), np.complex64([4j]), 1.0, 0.25),
        (np.array(["a"]), np.array(["a"]), 0.0, 0.0),
        (np.array(["a"]), np.array(["b"]), np.inf, np.inf),
        (np.float32([1]), np.float32([[1]]), np.inf, np.inf),
        (np.float32([1]), np.float64([1]), np.inf, np.inf),
    ],
)
def test_the_largest_difference_is_told_for_every_type(
    got: Array, want: Array, absolute: float, relative: float
) -> None:
    assert largest_difference(got, want) == (absolute, relative)
