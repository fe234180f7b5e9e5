"""Roofline times by hand, and which configurations are left unmeasured."""

from __future__ import annotations

import pytest

from edge_agent.devices import DeviceState, Layout
from edge_agent.planning.score import NOT_WORTH_MEASURING, estimate_s, score, worth_measuring
from tests.planning.made_models import IDLE, PROCESSOR, accelerator, configuration, segment

COMPUTE_BOUND = segment(0, operations=10**9, activation_bytes=10**6, weight_bytes=10**6)
MEMORY_BOUND = segment(1, operations=10**6, activation_bytes=6 * 10**8, weight_bytes=4 * 10**8)


def test_each_segment_takes_the_slower_of_arithmetic_and_memory() -> None:
    assert estimate_s([COMPUTE_BOUND], IDLE, PROCESSOR) == pytest.approx(0.1)
    assert estimate_s([MEMORY_BOUND], IDLE, PROCESSOR) == pytest.approx(0.1)
    assert estimate_s([COMPUTE_BOUND, MEMORY_BOUND], IDLE, PROCESSOR) == pytest.approx(0.2)


def test_a_score_holds_what_the_subgraph_demands() -> None:
    half_serial = segment(2, operations=10**9, parallel=0.5, activation_bytes=0, weight_bytes=0)
    demand = score([COMPUTE_BOUND, half_serial], IDLE, PROCESSOR)
    assert demand.operations == 2 * 10**9
    assert demand.bytes_moved == 2 * 10**6
    assert demand.operations_per_byte == pytest.approx(1000.0)
    assert demand.parallel_fraction == pytest.approx(0.75)
    assert demand.estimated_s == pytest.approx(0.2)
    assert demand.score == pytest.approx(2000.0)


def test_a_subgraph_below_the_cost_of_a_launch_scores_below_one() -> None:
    assert score([segment(0, operations=10**5)], IDLE, PROCESSOR).score == pytest.approx(0.1)


def test_a_subgraph_without_counted_work_scores_zero() -> None:
    idle = segment(0, operations=0, activation_bytes=0, weight_bytes=0)
    demand = score([idle], IDLE, PROCESSOR)
    assert (demand.score, demand.operations_per_byte, demand.parallel_fraction) == (0, 0, 0)


def test_a_device_half_taken_by_others_takes_twice_as_long() -> None:
    busy = DeviceState(free_memory_bytes=2**33, load_fraction=0.5)
    assert estimate_s([COMPUTE_BOUND], busy, PROCESSOR) == pytest.approx(0.2)


def test_what_does_not_fit_into_free_memory_is_read_again_slowly() -> None:
    half_free = DeviceState(free_memory_bytes=5 * 10**8, load_fraction=0.0)
    assert estimate_s([MEMORY_BOUND], half_free, PROCESSOR) == pytest.approx(0.1 * 10.5)


def test_threads_shorten_only_the_parallel_share() -> None:
    half_serial = segment(0, operations=10**9, parallel=0.5)
    assert estimate_s([half_serial], IDLE, PROCESSOR, threads=2) == pytest.approx(0.075)


def test_blocked_and_nhwc_are_not_measured_without_an_operator_that_uses_them() -> None:
    offered = [configuration(layout) for layout in (Layout.NCHW, Layout.NHWC, Layout.BLOCKED)]
    worth = worth_measuring([segment(0, operator="MatMul")], offered, IDLE, PROCESSOR)
    assert worth.configurations == (configuration(Layout.NCHW),)
    assert [r.candidate for r in worth.rejections] == ["[0] cpu/NHWC/1t", "[0] cpu/blocked/1t"]
    assert {r.reason for r in worth.rejections} == {NOT_WORTH_MEASURING}


def test_every_layout_is_measured_where_there_are_convolutions() -> None:
    offered = [configuration(layout) for layout in (Layout.NCHW, Layout.NHWC, Layout.BLOCKED)]
    worth = worth_measuring([segment(0)], offered, IDLE, PROCESSOR)
    assert worth.configurations == tuple(offered)


def test_control_flow_may_hide_convolutions() -> None:
    worth = worth_measuring(
        [segment(0, operator="If")], [configuration(Layout.BLOCKED)], IDLE, PROCESSOR
    )
    assert not worth.rejections


def test_threads_that_cannot_pay_their_barriers_are_not_measured() -> None:
    offered = [configuration(threads=1), configuration(threads=2)]
    tiny = worth_measuring([segment(0, operations=10_000)], offered, IDLE, PROCESSOR)
    assert tiny.configurations == (configuration(threads=1),)
    assert tiny.rejections[0].detail == (
        "2 threads would save about 0 µs and pay 15 µs for 3 barriers"
    )
    large = worth_measuring([segment(0, operations=10**7)], offered, IDLE, PROCESSOR)
    assert large.configurations == tuple(offered)


def test_threads_without_parallel_operators_are_not_measured() -> None:
    serial = segment(0, operations=10**9, parallel=0.0)
    worth = worth_measuring([serial], [configuration(threads=2)], IDLE, PROCESSOR)
    assert worth.configurations == ()


def test_an_accelerator_is_not_measured_for_less_work_than_a_launch_and_two_copies() -> None:
    gpu = accelerator()
    small = segment(0, operations=5 * 10**5)
    assert not worth_measuring([small], [gpu], IDLE, PROCESSOR).configurations
    large = segment(0, operations=5 * 10**6)
    assert worth_measuring([large], [gpu], IDLE, PROCESSOR).configurations == (gpu,)
    copied = worth_measuring([large], [gpu], IDLE, PROCESSOR, border_bytes=10**8)
    assert copied.configurations == ()


def test_another_unit_on_the_host_has_nothing_to_copy() -> None:
    openvino = configuration(unit="openvino")
    small = segment(0, operations=5 * 10**5)
    worth = worth_measuring([small], [openvino], IDLE, PROCESSOR, border_bytes=10**8)
    assert worth.configurations == (openvino,)


def test_an_accelerator_has_no_threads_to_doubt() -> None:
    serial = segment(0, operations=10**9, parallel=0.0)
    worth = worth_measuring([serial], [accelerator()], IDLE, PROCESSOR)
    assert worth.configurations == (accelerator(),)


def test_more_instances_than_memory_holds_are_not_measured() -> None:
    offered = [configuration(instances=1), configuration(instances=2)]
    large = segment(0, activation_bytes=6 * 10**8, weight_bytes=10**8)
    state = DeviceState(free_memory_bytes=10**9, load_fraction=0.0)
    assert worth_measuring([large], offered, state, PROCESSOR).configurations == (offered[0],)


def test_a_run_of_no_segments_is_refused() -> None:
    with pytest.raises(ValueError, match="got no segments"):
        score([], IDLE, PROCESSOR)
    with pytest.raises(ValueError, match="got no segments"):
        worth_measuring([], [], IDLE, PROCESSOR)
