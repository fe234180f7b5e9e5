"""Made-up inputs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.errors import InputMismatch
from edge_agent.samples import (
    check_shapes,
    complete_shapes,
    random_array,
    random_arrays,
    sample_shape,
)
from edge_agent.tensors import ElementType, TensorName, TensorSpec

NUMERIC = [t for t in ElementType if t is not ElementType.STRING]


def spec(
    *dims: int | str | None, element_type: ElementType = ElementType.FLOAT32, name: str = "x"
) -> TensorSpec:
    return TensorSpec(name=TensorName(name), element_type=element_type, dims=dims)


def unranked() -> TensorSpec:
    return TensorSpec(name=TensorName("x"), element_type=ElementType.FLOAT32, dims=None)


def test_an_open_first_dimension_is_the_batch_and_the_others_get_the_open_size() -> None:
    assert sample_shape(spec("N", 3, "H", None), {}, 224) == (1, 3, 224, 224)


def test_a_declared_shape_is_kept() -> None:
    assert sample_shape(spec(2, 0, 5), {}, 64) == (2, 0, 5)
    assert sample_shape(spec(), {}, 64) == ()


def test_a_given_shape_goes_before_the_declared_one() -> None:
    assert sample_shape(spec("N", 3), {TensorName("x"): (8, 3)}, 64) == (8, 3)
    assert sample_shape(unranked(), {TensorName("x"): (8,)}, 64) == (8,)


@pytest.mark.parametrize("given_shape", [(8, 4), (8,), (8, 3, 1), ()])
def test_a_given_shape_that_does_not_fit_is_refused(given_shape: tuple[int, ...]) -> None:
    with pytest.raises(InputMismatch, match=r'"x": got \[.*\], want float32\[N,3\]'):
        sample_shape(spec("N", 3), {TensorName("x"): given_shape}, 64)


def test_an_input_of_unknown_rank_needs_a_shape() -> None:
    with pytest.raises(InputMismatch, match="--shape x=1x16"):
        sample_shape(unranked(), {}, 64)


def test_a_shape_for_no_input_is_refused() -> None:
    check_shapes([spec("N")], {TensorName("x"): (2,)})
    with pytest.raises(InputMismatch, match='"z", want one of the inputs "x"'):
        check_shapes([spec("N")], {TensorName("z"): (2,)})


@given(st.sampled_from(NUMERIC), st.lists(st.integers(0, 4), max_size=3).map(tuple))
def test_every_numeric_type_gets_values_of_its_type(
    element_type: ElementType, shape: tuple[int, ...]
) -> None:
    array = random_array(element_type, shape, np.random.default_rng(0))
    assert array.dtype == element_type.numpy_dtype
    assert array.shape == shape


def test_pixels_use_their_whole_range_and_indices_are_small() -> None:
    rng = np.random.default_rng(0)
    pixels = random_array(ElementType.UINT8, (10_000,), rng)
    assert (pixels.min(), pixels.max()) == (0, 255)
    signed = random_array(ElementType.INT8, (10_000,), rng)
    assert (signed.min(), signed.max()) == (-128, 127)
    assert set(random_array(ElementType.INT64, (1000,), rng).tolist()) == {0, 1}


def test_text_is_digits_which_most_models_of_text_can_read() -> None:
    words = random_array(ElementType.STRING, (3, 100), np.random.default_rng(0))
    assert (words.dtype, words.shape) == (object, (3, 100))
    assert set(words.ravel().tolist()) == {"0", "1"}


def test_inputs_with_a_default_are_left_out_unless_they_are_asked_for() -> None:
    free = dataclasses.replace(spec(3, name="w"), has_default=True)
    rng = np.random.default_rng(0)
    assert list(random_arrays([spec(2), free], {}, rng)) == ["x"]
    assert list(random_arrays([spec(2), free], {TensorName("w"): (3,)}, rng)) == ["x", "w"]


@pytest.mark.parametrize("shape", [(2**31, 2**31), (2**62, 2**62, 0), (2**60,)])
def test_what_no_memory_holds_is_not_made_up(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputMismatch, match="is larger than any memory"):
        random_arrays([spec(*shape)], {}, np.random.default_rng(0))


def test_the_same_seed_gives_the_same_arrays() -> None:
    specs = [spec(2, 3), spec(4, element_type=ElementType.INT64, name="ids")]
    first, second = (random_arrays(specs, {}, np.random.default_rng(7)) for _ in range(2))
    assert list(first) == ["x", "ids"]
    assert all((first[name] == second[name]).all() for name in first)


X, Y = TensorName("x"), TensorName("y")


def test_shapes_follow_from_the_given_ones_and_from_the_usual_ones() -> None:
    specs = [spec("N", "L"), spec("N", "L", name="y"), spec("N", 3, None, name="z"), spec(name="w")]
    got = complete_shapes(specs, {X: (2, 7)}, {TensorName("z"): (9, 3, 5)})
    assert got == (("x", (2, 7)), ("y", (2, 7)), ("z", (2, 3, 5)), ("w", ()))


def test_a_scalar_and_a_size_of_zero_may_be_given() -> None:
    specs = [unranked(), spec("N", name="y")]
    assert complete_shapes(specs, {X: (), Y: (0,)}, {}) == (("x", ()), ("y", (0,)))
    assert complete_shapes(specs, {Y: (4,)}, {X: ()}) == (("x", ()), ("y", (4,)))


def test_shapes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputMismatch, match=r'"y": got \[3\], want float32\[N\] with N = 2'):
        complete_shapes([spec("N"), spec("N", name="y")], {X: (2,), Y: (3,)}, {})


@pytest.mark.parametrize(
    ("wanted", "example"),
    [(spec("N", 3, None), "x=1x3x1"), (unranked(), "x=1")],
)
def test_a_shape_that_nothing_tells_is_asked_for(wanted: TensorSpec, example: str) -> None:
    with pytest.raises(InputMismatch, match=f"give its shape too, e.g. --shape {example}"):
        complete_shapes([wanted, spec("M", name="y")], {Y: (1,)}, {})


@pytest.mark.parametrize("given", [{X: (1, 2)}, {X: (5,)}, {Y: (1,)}])
def test_shapes_that_no_input_has_are_refused(given: dict[TensorName, tuple[int, ...]]) -> None:
    with pytest.raises(InputMismatch):
        complete_shapes([spec(4)], given, {})
