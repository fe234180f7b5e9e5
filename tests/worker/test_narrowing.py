"""What workers send each other in fewer bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_agent.errors import ProtocolError
from edge_agent.stages import Division
from edge_agent.tensors import ElementType, WireType
from edge_agent.wire.arrays import pack_arrays
from edge_agent.wire.parts import TensorHead
from edge_agent.wire.streaming import Narrowed, Tensors
from edge_agent.worker.flows import Arrived
from edge_agent.worker.narrowing import LEAST_BYTES, check_narrowed, narrow, widen
from tests.system.running import wait_until
from tests.worker.made_stages import EPOCH, Computing, Whole, crossings, divided

X = np.linspace(-3.0, 5.0, LEAST_BYTES, dtype=np.float32).reshape(64, -1)
CHAIN = crossings("o>0 x", "0>1 a", "1>o z")
PLACES = {0: "one", 1: "two"}


def as_wire(division: Division, *wires: WireType | None) -> Division:
    return Division(
        crossings=tuple(
            replace(crossing, wire=wire)
            for crossing, wire in zip(division.crossings, wires, strict=True)
        )
    )


def sent(values: dict[str, Any], wire: WireType | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what is on the way, what comes of it)."""
    narrowed_arrays, narrowed = narrow(values, wire)
    heads, _ = pack_arrays(narrowed_arrays)
    check_narrowed(heads, narrowed, wire)
    return narrowed_arrays, widen(narrowed_arrays, narrowed, wire)


def test_only_large_float32_tensors_are_sent_in_fewer_bits() -> None:
    values = {
        "small": np.ones(10, np.float32),
        "x": X,
        "double": X.astype(np.float64),
        "half": X.astype(np.float16),
        "whole": np.arange(5000),
        "sequence": [X, X],
        "y": -X,
    }
    on_the_way, wide = sent(values, WireType.FP16)
    for name, value in values.items():
        if name in ("x", "y"):
            assert on_the_way[name].dtype == np.float16
            np.testing.assert_array_equal(wide[name], value.astype(np.float16))
            assert wide[name].dtype == np.float32
        else:
            assert on_the_way[name] is wide[name] is value
    assert list(wide) == list(values)


def test_eight_bits_come_back_within_a_step() -> None:
    on_the_way, wide = sent({"x": X, "y": 10 * X}, WireType.INT8)
    for name, value in (("x", X), ("y", 10 * X)):
        assert on_the_way[name].dtype == np.uint8
        np.testing.assert_allclose(wide[name], value, rtol=0, atol=1.01 * np.ptp(value) / 255)


def test_what_fewer_bits_cannot_hold_is_sent_as_it_is() -> None:
    large = np.where(X > 4, np.float32(1e6), X)
    on_the_way, wide = sent({"x": large, "y": X}, WireType.FP16)
    assert on_the_way["x"] is wide["x"] is large
    assert on_the_way["y"].dtype == np.float16
    assert wide["y"].dtype == np.float32


HEADS = (
    TensorHead("a", ElementType.FLOAT16, (4,)),
    TensorHead("b", ElementType.FLOAT32, (4,)),
    TensorHead("c", ElementType.UINT8, (4,)),
)


@pytest.mark.parametrize(
    ("wire", "narrowed", "told"),
    [
        (None, [Narrowed(tensor=0)], "got tensors in fewer bits, want them as they are"),
        (WireType.FP16, [Narrowed(tensor=3)], "got tensor 3 in fewer bits after tensor -1, of 3"),
        (
            WireType.FP16,
            [Narrowed(tensor=0), Narrowed(tensor=0)],
            "got tensor 0 in fewer bits after tensor 0, of 3",
        ),
        (
            WireType.FP16,
            [Narrowed(tensor=1)],
            'tensor "b": got float32 in fewer bits, want float16',
        ),
        (WireType.FP16, [Narrowed(tensor=2)], 'tensor "c": got uint8 in fewer bits, want float16'),
        (WireType.INT8, [Narrowed(tensor=0)], 'tensor "a": got float16 in fewer bits, want uint8'),
        (WireType.INT8, [Narrowed(tensor=2, scale=0.0)], 'tensor "c": got a scale of 0'),
        (WireType.INT8, [Narrowed(tensor=2, scale=np.nan)], 'tensor "c": got a scale of nan'),
        (WireType.INT8, [Narrowed(tensor=2, scale=-1.0)], 'tensor "c": got a scale of -1'),
        (WireType.INT8, [Narrowed(tensor=2, scale=np.inf)], 'tensor "c": got a scale of inf'),
    ],
)
def test_what_was_not_agreed_is_refused(
    wire: WireType | None, narrowed: list[Narrowed], told: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_narrowed(HEADS, narrowed, wire)
    assert str(caught.value) == told


@pytest.mark.parametrize(("wire", "dtype"), [("fp16", np.float16), ("int8", np.uint8)])
def test_a_chain_gives_what_comes_of_the_values_that_were_sent(wire: str, dtype: type) -> None:
    """Only between the two others, so that what the owner gets tells what the second one got."""
    taken: list[np.ndarray] = []

    def second(feeds: dict[str, Any]) -> dict[str, Any]:
        taken.append(feeds["a"].copy())
        return {"z": feeds["a"] * 2}

    division = as_wire(CHAIN, None, WireType(wire), None)
    runners = {0: Computing(lambda f: {"a": f["x"] + 1}), 1: Computing(second)}
    whole = Whole(lambda f: {"z": (f["x"] + 1) * 2})
    with divided(division, PLACES, runners, whole) as made:
        came: list[Tensors] = []
        end = made.places["two"].neighbours["one"]
        arrived = end.receiver.arrived

        def listen(stream: Any, found: Arrived) -> None:
            came.append(found.message)
            arrived(stream, found)

        made.places["two"].stages.arrived = listen  # type: ignore[method-assign]
        for factor in (1.0, 7.0):
            x = X * np.float32(factor)
            got = made.runner.run({"x": x}, ["z"])["z"]
            _, wide = sent({"a": x + 1}, WireType(wire))
            np.testing.assert_array_equal(taken[-1], wide["a"])
            np.testing.assert_array_equal(got, wide["a"] * 2)
            assert not np.array_equal(got, (x + 1) * 2)
        assert [m.tensors[0].element_type.numpy_dtype for m in came] == [np.dtype(dtype)] * 2
        assert whole.runs == 0


def test_the_owner_sends_and_takes_fewer_bits_too() -> None:
    division = as_wire(CHAIN, WireType.FP16, None, WireType.FP16)
    runners = {
        0: Computing(lambda f: {"a": f["x"] + 1}),
        1: Computing(lambda f: {"z": f["a"] * 2}),
    }
    with divided(division, PLACES, runners, None) as made:
        got = made.runner.run({"x": X}, ["z"])["z"]
        assert got.dtype == np.float32
        taken = X.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(got, ((taken + 1) * 2).astype(np.float16))


def test_fewer_bits_that_were_not_agreed_end_the_stream() -> None:
    runners = {
        0: Computing(lambda f: {"a": f["x"] + 1}),
        1: Computing(lambda f: {"z": f["a"] * 2}),
    }
    with divided(CHAIN, PLACES, runners, None) as made:
        heads, buffers = pack_arrays({"a": X.astype(np.float16)})
        message = Tensors(
            epoch=EPOCH, run=1, source=0, target=1, tensors=heads, left_s=None, narrowed=()
        )
        line = made.places["one"].neighbours["two"]
        line.put(msgspec.structs.replace(message, narrowed=(Narrowed(tensor=0),)), buffers)
        broken = made.places["two"].broken
        wait_until(partial(bool, broken), "the stream ends")
        assert broken == ["got tensors in fewer bits, want them as they are"]
