"""What simulated chains give is what the formulas of planning predict, without sharing them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.devices import Layout, UnitId
from edge_agent.distributions import Distribution, Route
from edge_agent.planning.metrics import evaluate
from edge_agent.plans import Target
from edge_agent.problems import DeviceStatistics, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import Configuration
from edge_agent.simulation.network import Transport
from edge_agent.simulation.results import Simulated
from edge_agent.simulation.simulator import simulate
from edge_agent.simulation.workloads import ClosedLoop, Lone, Routing, at_rate
from tests.counting import lines_of
from tests.simulation import made_chains
from tests.simulation.made_problems import (
    A_THEN_B,
    ALL_ON_A,
    A,
    B,
    C,
    device,
    host,
    link,
    model,
    npu,
    placed,
    problem,
    route,
    times,
    two_devices,
)

PLAIN = (Target.LATENCY, Target.ENERGY, Target.MEMORY, Target.BYTES)


def agree(made: Problem, routes: Sequence[Route], seen: Simulated) -> None:
    predicted = evaluate(made, routes)
    for target in PLAIN:
        want = predicted.value(target)
        assert seen.metrics.value(target) == pytest.approx(want, rel=1e-6), target
    assert seen.metrics.throughput_per_s == pytest.approx(predicted.throughput_per_s, rel=0.02)
    assert seen.metrics.throughput_per_s <= predicted.throughput_per_s * 1.01


@settings(max_examples=8)
@given(st.data())
def test_a_chain_gives_what_is_predicted(data: st.DataObject) -> None:
    made = data.draw(made_chains.problems())
    routes = (data.draw(made_chains.routes(made)),)
    agree(made, routes, simulate(made, routes, ClosedLoop()))


@settings(max_examples=8)
@given(st.data())
def test_links_on_one_medium_give_what_is_predicted(data: st.DataObject) -> None:
    made = data.draw(made_chains.problems(media=True))
    routes = (data.draw(made_chains.routes(made)),)
    agree(made, routes, simulate(made, routes, ClosedLoop()))


@pytest.mark.many
@settings(max_examples=400)
@given(st.data())
def test_many_chains_give_what_is_predicted(data: st.DataObject) -> None:
    made = data.draw(made_chains.problems(media=data.draw(st.booleans())))
    routes = (data.draw(made_chains.routes(made)),)
    agree(made, routes, simulate(made, routes, ClosedLoop()))


@settings(max_examples=40)
@given(
    whole_chunks=st.integers(min_value=1, max_value=6),
    rest_bytes=st.integers(min_value=1, max_value=999),
    send_s=st.floats(min_value=0.0, max_value=1e-5),
    wire_s=st.floats(min_value=1e-7, max_value=1e-5),
    receive_s=st.floats(min_value=0.0, max_value=1e-5),
)
def test_a_last_chunk_that_is_not_full_arrives_as_soon_as_three_steps_allow(
    whole_chunks: int, rest_bytes: int, send_s: float, wire_s: float, receive_s: float
) -> None:
    size = whole_chunks * 1000 + rest_bytes
    made = problem(
        model(2, size),
        [
            device(A, times(host(), [0.0, 0.0]), send_s_per_byte=send_s),
            device(B, times(host(), [0.0, 0.0]), receive_s_per_byte=receive_s),
        ],
        [link(A, B, goodput_bytes_per_s=1 / wire_s), link(B, A)],
        chunk_bytes=1000,
    )
    # The longest way through the steps: chunk by chunk, changing the step at some chunk.
    chunks = [1000] * whole_chunks + [rest_bytes]
    ends = range(1, len(chunks) + 1)
    longest_s = max(
        send_s * sum(chunks[:i])
        + wire_s * sum(chunks[i - 1 : j])
        + receive_s * sum(chunks[j - 1 :])
        for i in ends
        for j in ends
        if i <= j
    )
    seen = simulate(made, A_THEN_B, Lone())
    assert seen.metrics.latency_s == pytest.approx(longest_s, rel=1e-9)
    assert seen.metrics.latency_s <= evaluate(made, A_THEN_B).latency_s * (1 + 1e-9)


def test_a_stage_a_transfer_and_the_way_back_add_up() -> None:
    made = two_devices(
        at_a_s=0.01, at_b_s=0.02, crossing_bytes=3000, latency_s=0.001, output_bytes=500
    )
    seen = simulate(made, A_THEN_B, ClosedLoop())
    # 10 ms, 1 + 3 ms, 20 ms, 1 + 0.5 ms; the second stage decides the rate.
    assert seen.metrics.latency_s == pytest.approx(0.0355)
    assert seen.metrics.throughput_per_s == pytest.approx(50.0)
    assert seen.metrics.wire_bytes == 3500
    # 4 W above idle on each processor.
    assert seen.metrics.energy_joules == pytest.approx(4 * 0.03)
    assert seen.busiest is not None
    assert seen.busiest.name == "b"
    assert {use.name: use.busy_fraction for use in seen.resources} == pytest.approx(
        {"a": 0.5, "b": 1.0, "a→b": 0.15, "b→a": 0.025}, abs=1e-6
    )


def test_a_loaded_device_works_longer_but_takes_no_more_energy() -> None:
    loaded = DeviceStatistics(device=A, load_fraction=0.5, speed_fraction=0.5)
    seen = simulate(two_devices(statistics=[loaded]), ALL_ON_A, Lone())
    assert seen.metrics.latency_s == pytest.approx(0.08)
    assert seen.metrics.energy_joules == pytest.approx(4 * 0.02)


def test_a_busy_processor_slows_whatever_runs_on_its_cores() -> None:
    unit = UnitId("xnnpack")
    which = Configuration(unit=unit, layout=Layout.NHWC, threads=1)
    made = problem(
        model(1),
        [
            PlannedDevice(
                id=A,
                units=(PlannedUnit(id=unit),),
                times=(times(which, [0.01]),),
                memory_bytes=1 << 20,
            )
        ],
        statistics=[DeviceStatistics(device=A, load_fraction=0.5)],
    )
    seen = simulate(made, (route(placed(0, 1, A, which)),), Lone())
    assert seen.metrics.latency_s == pytest.approx(0.02)


def test_instances_fill_their_unit_together() -> None:
    made = problem(model(1), [device(A, times(npu(instances=4), [0.02]))])
    routes = (route(placed(0, 1, A, npu(instances=4))),)
    one = simulate(made, routes, ClosedLoop(in_flight=1))
    four = simulate(made, routes, ClosedLoop(in_flight=4))
    more = simulate(made, routes, ClosedLoop(in_flight=5))
    rates = [seen.metrics.throughput_per_s for seen in (one, four, more)]
    assert rates == pytest.approx([50, 200, 200], rel=1e-3)
    # 2 W above idle, shared by four.
    assert four.metrics.energy_joules == pytest.approx(0.02 * 2 / 4)


def test_runs_at_once_on_all_cores_draw_what_the_processor_does() -> None:
    which = host(threads=2, instances=2)
    made = problem(model(1), [device(A, times(which, [0.02]), cores=4)])
    seen = simulate(made, (route(placed(0, 1, A, which)),), ClosedLoop())
    assert seen.metrics.throughput_per_s * seen.metrics.energy_joules == pytest.approx(4.0)


def test_two_stages_on_one_core_share_it() -> None:
    made = two_devices(at_a_s=0.01)
    routes = (route(placed(0, 1, A, host()), placed(1, 2, A, host(layout=Layout.NCHW))),)
    seen = simulate(made, routes, ClosedLoop())
    assert seen.metrics.throughput_per_s == pytest.approx(50.0, rel=0.01)


@pytest.mark.parametrize("chunk_bytes", [100, 1000, 1 << 20])
def test_two_transfers_share_a_medium(chunk_bytes: int) -> None:
    made = two_devices(
        at_a_s=0.001,
        at_b_s=0.001,
        crossing_bytes=30_000,
        output_bytes=10_000,
        medium="wifi",
        chunk_bytes=chunk_bytes,
    )
    rate = simulate(made, A_THEN_B, ClosedLoop(requests=80)).metrics.throughput_per_s
    assert 25.0 * 0.95 <= rate <= 25.0 * 1.01


def test_two_routes_share_a_link() -> None:
    made = problem(
        model(3, [20_000, 30_000]),
        [device(A, times(host(), [0.001] * 3)), device(B, times(host(), [0.001] * 3))],
        [link(A, B), link(B, A)],
    )
    routes = (
        route(placed(0, 1, A, host()), placed(1, 3, B, host()), share=0.5),
        route(placed(0, 2, A, host()), placed(2, 3, B, host()), share=0.5),
    )
    rate = simulate(made, routes, ClosedLoop()).metrics.throughput_per_s
    assert 40.0 * 0.95 <= rate <= 40.0 * 1.01


def test_replicas_take_their_shares_and_together_give_the_sum() -> None:
    made = two_devices(at_a_s=0.005, at_b_s=0.01)
    routes = (
        route(placed(0, 2, A, host()), share=2 / 3),
        route(placed(0, 2, B, host()), share=1 / 3),
    )
    seen = simulate(made, routes, ClosedLoop())
    assert seen.metrics.throughput_per_s == pytest.approx(150.0, rel=0.01)
    taken = [request.route for request in seen.requests]
    assert taken.count(0) / len(taken) == pytest.approx(2 / 3, abs=0.02)


@settings(max_examples=5)
@given(st.data())
def test_routes_with_shares_give_what_is_predicted(data: st.DataObject) -> None:
    made = data.draw(made_chains.problems())
    first = data.draw(st.sampled_from([0.5, 0.25, 0.6]))
    routes = tuple(data.draw(made_chains.routes(made, share=share)) for share in (first, 1 - first))
    seen = simulate(made, routes, ClosedLoop(requests=800)).metrics
    predicted = evaluate(made, routes)
    assert seen.latency_s == pytest.approx(predicted.latency_s)
    assert seen.peak_memory_bytes == pytest.approx(predicted.peak_memory_bytes)
    assert seen.energy_joules == pytest.approx(predicted.energy_joules, rel=0.03)
    assert seen.wire_bytes == pytest.approx(predicted.wire_bytes, rel=0.03)
    assert 0.95 <= seen.throughput_per_s / predicted.throughput_per_s <= 1.01


def test_wrong_shares_are_made_good_by_sending_to_the_free() -> None:
    made = two_devices(at_a_s=0.005, at_b_s=0.01)
    routes = (
        route(placed(0, 2, A, host()), share=0.5),
        route(placed(0, 2, B, host()), share=0.5),
    )
    by_share = simulate(made, routes, ClosedLoop(in_flight=8)).metrics
    to_the_free = simulate(
        made, routes, ClosedLoop(in_flight=8, routing=Routing.TO_THE_FREE)
    ).metrics
    assert by_share.throughput_per_s == pytest.approx(100.0, rel=0.01)
    assert to_the_free.throughput_per_s == pytest.approx(150.0, rel=0.01)


def test_weights_that_two_routes_share_are_there_once() -> None:
    made = two_devices()
    routes = (
        route(placed(0, 2, A, host()), share=0.5),
        route(placed(0, 1, A, host()), placed(1, 2, B, host()), share=0.5),
    )
    seen = simulate(made, routes, Lone())
    # Weights of 1,000 and 2,000 bytes; arenas of 200, 100 and, on b, 200.
    assert dict(seen.memory_bytes) == {"a": 3300.0, "b": 2200.0}


def test_weights_in_half_precision_take_half_of_the_memory() -> None:
    half = replace(npu(), is_half=True)
    made = problem(model(2), [device(A, times(half, [0.01, 0.01]))])
    routes = (route(placed(0, 2, A, half)),)
    seen = simulate(made, routes, ClosedLoop())
    agree(made, routes, seen)
    # Weights of 1,000 and 2,000 bytes, halved; an arena of 200.
    assert dict(seen.memory_bytes) == {"a": 1700.0}


def test_a_request_at_a_low_rate_waits_for_nobody() -> None:
    made = two_devices(at_a_s=0.01, at_b_s=0.01)
    seen = simulate(made, A_THEN_B, at_rate(20.0, 200))
    assert seen.latency.most_s == pytest.approx(seen.metrics.latency_s)
    assert seen.metrics.throughput_per_s == pytest.approx(20.0)
    assert all(queue.most == 0 for queue in seen.queues)


def test_a_rate_above_what_is_possible_makes_latencies_grow() -> None:
    made = two_devices(at_a_s=0.01, at_b_s=0.01)
    seen = simulate(made, ALL_ON_A, at_rate(100.0, 100))
    # Each takes 20 ms and they come every 10 ms: the n-th waits n times 10 ms.
    assert [request.latency_s for request in seen.requests] == pytest.approx(
        [0.02 + 0.01 * i for i in range(100)]
    )
    assert seen.latency.p50_s == pytest.approx(0.02 + 0.01 * 49)
    assert seen.latency.p95_s == pytest.approx(0.02 + 0.01 * 94)
    assert seen.latency.p99_s == pytest.approx(0.02 + 0.01 * 98)


def test_one_thread_of_a_connection_limits_it_however_many_cores_there_are() -> None:
    made = problem(
        model(2, 10_000),
        [
            device(A, times(host(), [1e-4, 1e-4]), cores=4, send_s_per_byte=1e-6),
            device(B, times(host(), [1e-4, 1e-4]), cores=4),
        ],
        [link(A, B, goodput_bytes_per_s=1e8), link(B, A)],
    )
    one = simulate(made, A_THEN_B, ClosedLoop(in_flight=16), transport=Transport(threads=1)).metrics
    four = simulate(made, A_THEN_B, ClosedLoop(in_flight=16)).metrics
    assert one.throughput_per_s == pytest.approx(100.0, rel=0.01)
    assert four.throughput_per_s == pytest.approx(390.0, rel=0.02)


def test_all_cores_of_a_receiver_serve_a_connection_as_plans_assume() -> None:
    made = problem(
        model(1),
        [
            device(A, times(host(), [0.5])),
            device(B, times(host(), [0.001]), cores=2, receive_s_per_byte=2e-6),
        ],
        [link(A, B, goodput_bytes_per_s=1e8), link(B, A, goodput_bytes_per_s=1e8)],
        input_bytes=10_000,
    )
    routes = (route(placed(0, 1, B, host())),)
    # 20 ms of one of two cores to receive, and a run of 1 ms that fills both: 11 ms of the device.
    assert evaluate(made, routes).throughput_per_s == pytest.approx(1 / 0.011)
    agree(made, routes, simulate(made, routes, ClosedLoop()))
    one = simulate(made, routes, ClosedLoop(), transport=Transport(threads=1)).metrics
    assert one.throughput_per_s == pytest.approx(50.0, rel=0.01)


@pytest.mark.parametrize("window_messages", [0, 1, 2])
def test_tiny_windows_never_block_for_good(window_messages: int) -> None:
    """A route that goes back and forth over the same two links, and another one across it."""
    made = problem(
        model(6, [5000, 10, 5000, 10, 5000], weight_bytes=1),
        [device(name, times(host(), [0.001] * 6)) for name in (A, B, C)],
        [link(s, t) for s in (A, B, C) for t in (A, B, C) if s != t],
        output_bytes=5000,
        input_bytes=5000,
        chunk_bytes=1000,
    )
    zigzag = [placed(i, i + 1, (B, A)[i % 2], host()) for i in range(6)]
    across = [placed(0, 2, C, host()), placed(2, 3, B, host()), placed(3, 6, C, host())]
    routes = (route(*zigzag, share=0.5), route(*across, share=0.5))
    seen = simulate(
        made,
        routes,
        ClosedLoop(in_flight=64, requests=300),
        transport=Transport(window_messages=window_messages, window_bytes=1),
    )
    assert len(seen.requests) == 300


def test_a_window_of_one_message_lets_one_pass_at_a_time() -> None:
    made = two_devices(at_a_s=0.001, at_b_s=0.001, crossing_bytes=1000, latency_s=0.01)
    seen = simulate(
        made, A_THEN_B, ClosedLoop(), transport=Transport(window_messages=1, window_bytes=0)
    )
    # 1 ms on the wire, 10 ms there, and 10 ms until the credit is back.
    assert seen.metrics.throughput_per_s == pytest.approx(1 / 0.021, rel=0.01)


def test_equal_questions_have_equal_answers() -> None:
    made = two_devices(crossing_bytes=5000, medium="wifi", output_bytes=700, chunk_bytes=1000)
    first, second = (simulate(made, A_THEN_B, ClosedLoop(), with_spans=True) for _ in range(2))
    assert first == second


def test_a_distribution_is_simulated_as_its_routes() -> None:
    made = two_devices()
    whole = Distribution(
        target=Target.LATENCY,
        routes=A_THEN_B,
        metrics=evaluate(made, A_THEN_B),
        bound=0.0,
    )
    assert simulate(made, whole, Lone()) == simulate(made, A_THEN_B, Lone())


def test_what_takes_no_time_has_no_rate() -> None:
    made = problem(model(1), [device(A, times(host(), [0.0]))])
    seen = simulate(made, (route(placed(0, 1, A, host())),), ClosedLoop(requests=20))
    assert seen.metrics.throughput_per_s == math.inf
    with pytest.raises(ValueError, match="give a number of requests"):
        simulate(made, (route(placed(0, 1, A, host())),), ClosedLoop(duration_s=1.0))


def test_twice_the_requests_are_simulated_with_twice_the_work() -> None:
    made = problem(
        model(3, 3000),
        [device(name, times(host(), [0.01] * 3)) for name in (A, B, C)],
        [link(s, t) for s in (A, B, C) for t in (A, B, C) if s != t],
        input_bytes=3000,
        output_bytes=3000,
        chunk_bytes=1000,
    )
    stages = route(*(placed(i, i + 1, name, host()) for i, name in enumerate((A, B, C))))
    half, whole = (
        lines_of(partial(simulate, made, (stages,), ClosedLoop(requests=requests)))
        for requests in (250, 500)
    )
    assert whole < 2.5 * half


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ((), "want a sum of 1"),
        ((route(placed(0, 2, A, host()), share=0.5),), "want a sum of 1"),
        ((route(placed(0, 1, A, host())),), "got 1 segments, want 2"),
        ((route(placed(1, 2, A, host())),), "got segment 1 after 0"),
        ((route(placed(0, 2, A, npu())),), "device a has no latency profile of npu0"),
    ],
)
def test_routes_that_are_none_are_refused(routes: tuple[Route, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(two_devices(), routes, Lone())


def test_a_hop_without_a_link_is_refused() -> None:
    made = problem(model(2), [device(name, times(host(), [0.1, 0.1])) for name in (A, B)])
    with pytest.raises(ValueError, match="got a hop from a to b, which no link joins"):
        simulate(made, A_THEN_B, Lone())


def test_a_route_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="got route 1, there are 1"):
        simulate(two_devices(), A_THEN_B, Lone(route=1))
