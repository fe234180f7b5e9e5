"""Where tensors are sent in fewer bits, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.devices import DeviceId
from edge_agent.planning.metrics import (
    processor_s_per_byte,
    sending_joules_per_byte,
    wire_s_per_byte,
)
from edge_agent.planning.narrowing import as_it_is, float32_share, narrowed
from edge_agent.problems import Link, PlannedDevice, Problem
from edge_agent.tensors import ElementType, TensorName, TensorSpec, WireType
from tests.planning.made_profiles import worked

A, B = DeviceId("a"), DeviceId("b")
MODEL = worked((10, 20), (1000,))


def spec(kind: ElementType, *dims: int | str) -> TensorSpec:
    return TensorSpec(name=TensorName("t"), element_type=kind, dims=dims)


def device(name: DeviceId, s_per_byte: float) -> PlannedDevice:
    return PlannedDevice(
        id=name,
        units=(),
        times=(),
        memory_bytes=1 << 30,
        send_s_per_byte=s_per_byte,
        receive_s_per_byte=s_per_byte,
    )


def link(goodput_bytes_per_s: float) -> Link:
    return Link(
        source=A, target=B, latency_s=1e-3, goodput_bytes_per_s=goodput_bytes_per_s, medium="air"
    )


SUMMARY = replace(
    MODEL,
    inputs=(spec(ElementType.FLOAT32, 100),),
    outputs=(spec(ElementType.FLOAT32, 10),),
    cuts=tuple(replace(c, crossing=(spec(ElementType.FLOAT32, 50),)) for c in MODEL.cuts),
)


def test_on_a_slow_link_half_of_the_bytes_are_sent() -> None:
    found = narrowed(link(1e6), device(A, 2.4e-9), device(B, 4.8e-9), WireType.FP16, SUMMARY)
    assert (found.wire, found.ratio) == (WireType.FP16, 0.5)
    assert (found.latency_s, found.goodput_bytes_per_s, found.medium) == (1e-3, 1e6, "air")
    # That of a desktop, and of one at half its pace.
    assert found.narrow_s_per_byte == pytest.approx(0.2e-9)
    assert found.widen_s_per_byte == pytest.approx(0.2e-9)
    assert as_it_is(found) == link(1e6)


def test_eight_bits_are_a_quarter() -> None:
    found = narrowed(link(1e6), device(A, 2.4e-9), device(B, 2.4e-9), WireType.INT8, SUMMARY)
    assert (found.wire, found.ratio) == (WireType.INT8, 0.25)


def test_where_sending_costs_next_to_nothing_tensors_are_sent_as_they_are() -> None:
    """To make and unmake a half takes a tenth of 0.3 ns at the pace of the fastest; half of the
    steps has to be more than that."""
    for goodput, is_narrowed in ((12e9, True), (20e9, False)):
        ends = device(A, 0.0), device(B, 0.0)
        # 0.5 / goodput against 0.03e-9: the limit is at 16.7e9.
        found = narrowed(link(goodput), *ends, WireType.FP16, SUMMARY)
        assert (found.wire is not None) is is_narrowed
        assert is_narrowed or found == link(goodput)


def test_only_float32_is_counted() -> None:
    mixed = replace(
        SUMMARY,
        inputs=(spec(ElementType.INT64, 10),),
        outputs=(spec(ElementType.FLOAT32, 10),),
        cuts=tuple(
            replace(c, crossing=(spec(ElementType.FLOAT16, 10), spec(ElementType.FLOAT32, 15)))
            for c in MODEL.cuts
        ),
    )
    # 80 of int64, 40, 20 of float16, 60.
    assert float32_share(mixed) == pytest.approx(0.5)
    found = narrowed(link(1e6), device(A, 2.4e-9), device(B, 2.4e-9), WireType.FP16, mixed)
    assert found.ratio == pytest.approx(0.75)
    assert found.narrow_s_per_byte == pytest.approx(0.1e-9)


def test_where_sizes_are_not_known_tensors_are_counted() -> None:
    open_size = replace(SUMMARY, inputs=(spec(ElementType.INT64, "N"),))
    assert float32_share(open_size) == pytest.approx(2 / 3)


def test_a_model_without_float32_is_sent_as_it_is() -> None:
    whole = replace(
        SUMMARY,
        inputs=(spec(ElementType.UINT8, 10),),
        outputs=(),
        cuts=tuple(replace(c, crossing=()) for c in MODEL.cuts),
    )
    assert float32_share(whole) == 0.0
    assert narrowed(link(1.0), device(A, 1.0), device(B, 1.0), WireType.FP16, whole) == link(1.0)


def test_what_a_byte_costs_on_a_narrowed_link() -> None:
    fewer = replace(
        link(1e6),
        ratio=0.25,
        wire=WireType.INT8,
        narrow_s_per_byte=1e-9,
        widen_s_per_byte=3e-9,
        joules_per_byte=8e-9,
    )
    problem = Problem(
        summary=SUMMARY,
        devices=(device(A, 4e-9), device(B, 4e-9)),
        owner=A,
        links=(fewer,),
    )
    assert wire_s_per_byte(fewer) == pytest.approx(0.25e-6)
    assert processor_s_per_byte(problem, fewer) == pytest.approx((2e-9, 4e-9))
    # Without known powers, of the link alone.
    assert sending_joules_per_byte(problem, fewer) == pytest.approx(2e-9)
