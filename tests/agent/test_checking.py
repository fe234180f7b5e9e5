"""Whether a request fits its model, and what is said when it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.agent.checking import RequestCheck
from edge_agent.errors import InputMismatch
from edge_agent.tensors import ElementType, TensorName, TensorSpec
from edge_agent.wire.messages import Infer
from edge_agent.wire.parts import TensorHead
from tests.agent.made_lanes import spec

FLOATS, INTS = ElementType.FLOAT32, ElementType.INT64
INPUTS = (spec("x", "N", 3), spec("ids", "N", None, element_type=INTS))
OUTPUTS = (spec("y", "N"), spec("text", "N", element_type=ElementType.STRING))
GOOD = (TensorHead("x", FLOATS, (2, 3)), TensorHead("ids", INTS, (2, 7)))
GOOD_BYTES = 64 + 112


def check(
    heads: tuple[TensorHead, ...],
    outputs: tuple[str, ...] | None = ("y",),
    payload_bytes: int = GOOD_BYTES,
    inputs: tuple[TensorSpec, ...] = INPUTS,
) -> tuple[str, ...]:
    infer = Infer("r", "m", heads, outputs, None)
    return RequestCheck(inputs, OUTPUTS).check(infer, payload_bytes)


def test_a_request_that_fits_gets_the_outputs_it_asks_for() -> None:
    assert check(GOOD) == ("y",)
    assert check(GOOD[::-1], (), 128 + 24) == ()


def test_without_a_wish_all_outputs_are_computed() -> None:
    infer = Infer("r", "m", GOOD, None, None)
    assert RequestCheck(INPUTS, OUTPUTS[:1]).check(infer, GOOD_BYTES) == ("y",)


@pytest.mark.parametrize(
    ("heads", "says"),
    [
        ((), 'input "x" is missing: want float32[N,3]'),
        (GOOD[:1], 'input "ids" is missing: want int64[N,?]'),
        ((*GOOD, GOOD[0]), 'input "x" was given twice'),
        (
            (*GOOD, TensorHead("z", FLOATS, ())),
            'input "z" does not exist: want "x", "ids"',
        ),
        (
            (TensorHead("x", INTS, (2, 3)), GOOD[1]),
            'input "x": got int64[2,3], want float32[N,3]',
        ),
        (
            (TensorHead("x", FLOATS, (2, 4)), GOOD[1]),
            'input "x": got float32[2,4], want float32[N,3]',
        ),
        (
            (TensorHead("x", FLOATS, (2, 3, 1)), GOOD[1]),
            'input "x": got float32[2,3,1], want float32[N,3]',
        ),
        (
            (GOOD[0], TensorHead("ids", INTS, (5, 7))),
            'input "ids": got int64[5,7], want int64[N,?] with N = 2 as in the inputs before it',
        ),
    ],
)
def test_what_does_not_fit_is_named_with_what_is_wanted(
    heads: tuple[TensorHead, ...], says: str
) -> None:
    with pytest.raises(InputMismatch) as error:
        check(heads)
    assert str(error.value) == says


@pytest.mark.parametrize("payload_bytes", [0, GOOD_BYTES - 1, GOOD_BYTES + 1, 2**63])
def test_a_payload_of_another_length_is_refused(payload_bytes: int) -> None:
    with pytest.raises(InputMismatch, match=f"payload of {payload_bytes} bytes, want 176"):
        check(GOOD, payload_bytes=payload_bytes)


@pytest.mark.parametrize("last", [0, 1, 2**48])
def test_shapes_beyond_every_memory_are_refused_and_not_allocated(last: int) -> None:
    heads = (TensorHead("x", FLOATS, (2**48, 2**48, last)),)
    length = heads[0].size_bytes
    with pytest.raises(InputMismatch, match=f"281474976710656,{last}. is larger than any memory"):
        check(heads, payload_bytes=length, inputs=(spec("x", *"abc"),))


def test_what_passed_once_is_still_compared_with_the_length_of_its_payload() -> None:
    check = RequestCheck(INPUTS, OUTPUTS).check
    infer = Infer("r", "m", GOOD, ("y",), None)
    assert check(infer, GOOD_BYTES) == check(infer, GOOD_BYTES) == ("y",)
    with pytest.raises(InputMismatch, match="payload of 1 bytes, want 176"):
        check(infer, 1)


def test_requests_of_many_shapes_pass_and_are_not_all_remembered() -> None:
    check = RequestCheck((spec("x", "N", 1),), OUTPUTS).check
    for size in range(1000):
        heads = (TensorHead("x", FLOATS, (size, 1)),)
        assert check(Infer("r", "m", heads, ("y",), None), 4 * size) == ("y",)


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (("z",), 'output "z" does not exist: want "y", "text"'),
        (("y", "y"), "an output was asked for twice"),
    ],
)
def test_outputs_that_cannot_be_had_are_refused(outputs: tuple[str, ...] | None, says: str) -> None:
    with pytest.raises(InputMismatch) as error:
        check(GOOD, outputs)
    assert str(error.value).startswith(says)


def test_an_input_of_any_rank_takes_any_shape() -> None:
    free = TensorSpec(name=TensorName("x"), element_type=FLOATS, dims=None)
    for shape in ((), (3,), (1, 2, 3)):
        size = TensorHead("x", FLOATS, shape).size_bytes
        assert check((TensorHead("x", FLOATS, shape),), ("y",), size, (free,)) == ("y",)


def test_text_has_the_size_that_its_head_tells() -> None:
    words = spec("words", "N", element_type=ElementType.STRING)
    head = TensorHead("words", ElementType.STRING, (1,), 9)
    assert check((head,), ("y",), 9, (words,)) == ("y",)
    with pytest.raises(InputMismatch, match="payload of 8 bytes, want 9"):
        check((head,), ("y",), 8, (words,))


def test_an_input_with_a_default_may_be_left_out() -> None:
    free = replace(spec("w", 3), has_default=True)
    inputs = (*INPUTS, free)
    assert check(GOOD, ("y",), inputs=inputs) == ("y",)
    with_default = (*GOOD, TensorHead("w", FLOATS, (2,)))
    with pytest.raises(InputMismatch, match=r'"w": got float32\[2\], want float32\[3\]'):
        check(with_default, ("y",), GOOD_BYTES, inputs)


def test_a_model_without_inputs_says_so() -> None:
    with pytest.raises(InputMismatch, match='"x" does not exist: want none'):
        check(GOOD, inputs=())
