"""What a distribution gives, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.devices import Layout
from edge_agent.distributions import PlacedArm, PlacedFork, Route
from edge_agent.planning.metrics import (
    Computing,
    Sending,
    evaluate,
    latency_s,
    legs,
    memory_bytes,
    resource_loads,
    sending_s,
)
from edge_agent.simulation.simulator import simulate
from edge_agent.simulation.workloads import ClosedLoop
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Fork, SharedInput
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    HOST,
    MS,
    both_ways,
    forked,
    now,
    quick_neighbour,
    two_branches,
    with_device,
    with_link,
    with_links,
    with_unit,
    without_link,
)
from tests.simulation.made_problems import (
    NPU,
    A,
    B,
    C,
    branch,
    device,
    host,
    model,
    npu,
    placed,
    problem,
    route,
    times,
)


def test_a_chain_over_two_devices_in_every_metric() -> None:
    # 10 ms, 1 + 4 ms on the way, 4 ms, 1 ms back.
    found = evaluate(quick_neighbour(), A_THEN_B)
    assert found.latency_s == pytest.approx(20 * MS)
    assert found.throughput_per_s == pytest.approx(100.0)
    assert found.energy_joules == pytest.approx(4 * 14 * MS)
    assert found.peak_memory_bytes == 2000 + 3000 + 300
    assert found.wire_bytes == 4000
    assert found.latency_error_s == 0.0


def test_the_legs_of_a_route_follow_each_other() -> None:
    run, sent, away, back = legs(quick_neighbour(), A_THEN_B[0])
    assert isinstance(run, Computing)
    assert isinstance(sent, Sending)
    assert isinstance(away, Computing)
    assert isinstance(back, Sending)
    assert [leg.start_s / MS for leg in (run, sent, away, back)] == pytest.approx([0, 10, 15, 19])
    assert [leg.took_s / MS for leg in (run, sent, away, back)] == pytest.approx([10, 5, 4, 1])
    assert (sent.boundary, sent.size_bytes, back.boundary, back.size_bytes) == (1, 4000, 3, 0)
    assert latency_s((run, sent, away, back)) == pytest.approx(20 * MS)


def test_what_has_no_known_size_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="the answer cannot be sent: its size is not known"):
        legs(replace(quick_neighbour(), output_bytes=None), A_THEN_B[0])
    with pytest.raises(ValueError, match="what a request brings cannot be sent"):
        legs(replace(quick_neighbour(), input_bytes=None), ALL_ON_B[0])


def test_the_latency_of_a_mixture_is_that_of_its_slowest_route() -> None:
    mixed = (replace(ALL_ON_B[0], share=0.75), replace(ALL_ON_A[0], share=0.25))
    found = evaluate(quick_neighbour(), mixed)
    assert found.latency_s == pytest.approx(30 * MS)
    # The link is busy for 10 ms of three quarters of the requests, a for 30 ms of the others.
    assert found.throughput_per_s == pytest.approx(1000 / 7.5)
    assert found.energy_joules == pytest.approx(4 * (0.75 * 6 + 0.25 * 30) * MS)
    assert found.wire_bytes == pytest.approx(7500)
    # Weights that both have are on two devices.
    assert found.peak_memory_bytes == 6300


def test_a_route_that_no_request_takes_is_in_memory_and_else_counts_nothing() -> None:
    made = quick_neighbour()
    alone = evaluate(made, ALL_ON_B)
    spare = replace(ALL_ON_A[0], share=0.0)
    found = evaluate(made, (*ALL_ON_B, spare))
    assert found.latency_s == alone.latency_s < evaluate(made, ALL_ON_A).latency_s
    assert found.throughput_per_s == alone.throughput_per_s
    held = memory_bytes(made, (*ALL_ON_B, spare))
    assert held == memory_bytes(made, ALL_ON_B) | memory_bytes(made, ALL_ON_A)


def test_errors_of_profiles_add_up_over_a_route() -> None:
    made = quick_neighbour()
    for name, error in ((A, 0.1), (B, 0.5)):
        (fitted,) = made.device(name).times
        made = with_device(made, name, times=(replace(fitted, error_fraction=error),))
    assert evaluate(made, A_THEN_B).latency_error_s == pytest.approx((1 + 2) * MS)


@pytest.mark.parametrize(
    ("size", "chunk", "took"),
    [
        # One chunk: each step waits for the one before.
        (1000, 1 << 20, 7 + 1000 * (1 + 2 + 3)),
        (1000, 1000, 7 + 1000 * (1 + 2 + 3)),
        # Then the slowest one of the three sets the pace.
        (1000, 100, 7 + 100 * (1 + 2 + 3) + 900 * 3),
        (0, 100, 7),
    ],
)
def test_sending_is_a_pipeline_of_chunks(size: int, chunk: int, took: float) -> None:
    found = sending_s(
        size,
        latency_s=7.0,
        send_s_per_byte=1.0,
        wire_s_per_byte=2.0,
        receive_s_per_byte=3.0,
        chunk_bytes=chunk,
    )
    assert found == pytest.approx(took)


def test_processors_are_busy_with_what_they_send_and_receive() -> None:
    # 1000 bytes per chunk; 0.5 us per byte at a, which is slowed down by 2, 3 us at b of 2 cores.
    made = with_device(quick_neighbour(), A, send_s_per_byte=0.5e-6)
    made = with_device(made, B, receive_s_per_byte=3e-6, cores=2)
    made = now(replace(made, chunk_bytes=1000), A, load_fraction=0.5)
    loads = resource_loads(made, [(1.0, legs(made, A_THEN_B[0]))])
    assert loads["a"] / MS == pytest.approx(20 + 4)
    assert loads["a→b"] / MS == pytest.approx(4)
    assert loads["b"] / MS == pytest.approx(4 + 6)
    assert loads["b→a"] == 0.0
    # 20 + 1 + (1 + 1 + 3) + 3 * 3 + 4 + 1
    assert evaluate(made, A_THEN_B).latency_s / MS == pytest.approx(40)
    # Of b half of the processor's 4 W for each core.
    joules = (4 * 10 + 2 * 4 + 4000 * 1e-3 * (0.5 * 4 + 3 * 2)) * MS
    assert evaluate(made, A_THEN_B).energy_joules == pytest.approx(joules)


def test_a_loaded_processor_takes_longer_to_receive_and_no_more_energy() -> None:
    made = now(with_device(quick_neighbour(), B, receive_s_per_byte=1e-6), B, load_fraction=0.5)
    (received,) = (
        leg for leg in legs(made, A_THEN_B[0]) if isinstance(leg, Sending) and leg.link.target == B
    )
    assert received.receive_s / MS == pytest.approx(8)
    found = evaluate(made, A_THEN_B)
    # 10 ms on a; 1 + 4 + 8 ms to b, 8 ms of work there; 1 ms back.
    assert found.latency_s / MS == pytest.approx(10 + 13 + 8 + 1)
    # 4 W: 10 ms on a, undisturbed 4 ms of work and 4 ms of receiving on b.
    assert found.energy_joules == pytest.approx(4 * (10 + 4 + 4) * MS)


def test_a_medium_is_one_resource() -> None:
    made = with_links(replace(quick_neighbour(), output_bytes=3000), medium="air")
    loads = resource_loads(made, [(1.0, legs(made, A_THEN_B[0]))])
    assert loads == {
        "a": pytest.approx(10 * MS),
        "b": pytest.approx(4 * MS),
        "medium air": pytest.approx(7 * MS),
    }


def test_each_direction_has_its_own_goodput() -> None:
    made = with_link(replace(quick_neighbour(), output_bytes=3000), B, A, goodput_bytes_per_s=1e5)
    assert evaluate(made, A_THEN_B).latency_s / MS == pytest.approx(20 + 30)
    assert evaluate(made, A_THEN_B).throughput_per_s == pytest.approx(1000 / 30)


def test_instances_share_a_resource_and_the_power_of_an_accelerator() -> None:
    which = npu(instances=4)
    made = problem(model(1), [device(A, times(which, [20 * MS]))])
    found = evaluate(made, (route(placed(0, 1, A, which)),))
    assert found.latency_s == pytest.approx(20 * MS)
    assert found.throughput_per_s == pytest.approx(200)
    assert found.energy_joules == pytest.approx(2.0 / 4 * 20 * MS)
    assert found.peak_memory_bytes == 1000 + 4 * 100


def test_threads_draw_their_share_of_the_processor() -> None:
    which = host(threads=3)
    made = problem(model(1), [device(A, times(which, [20 * MS]), cores=4)])
    found = evaluate(made, (route(placed(0, 1, A, which)),))
    assert found.energy_joules == pytest.approx(4.0 * 3 / 4 * 20 * MS)


@pytest.mark.parametrize(("threads", "instances"), [(1, 1), (4, 1), (2, 2), (1, 4)])
def test_runs_at_once_draw_together_what_their_threads_do(threads: int, instances: int) -> None:
    which = host(threads=threads, instances=instances)
    made = problem(model(1), [device(A, times(which, [20 * MS]), cores=4)])
    routes = (route(placed(0, 1, A, which)),)
    found = evaluate(made, routes)
    assert found.energy_joules == pytest.approx(4.0 * threads / 4 * 20 * MS)
    assert found.throughput_per_s * found.energy_joules <= 4.0 * (1 + 1e-12)
    seen = simulate(made, routes, ClosedLoop()).metrics
    assert seen.energy_joules == pytest.approx(found.energy_joules)
    assert seen.throughput_per_s == pytest.approx(found.throughput_per_s)


def test_runs_that_need_more_cores_than_there_are_are_refused() -> None:
    for which in (host(threads=5), host(threads=2, instances=3), host(instances=5)):
        with pytest.raises(ValueError, match="cores at once, want at most the 4 that it has"):
            device(A, times(which, [MS]), cores=4)


def test_what_others_delay_costs_no_energy() -> None:
    made = now(quick_neighbour(), A, load_fraction=0.5)
    assert evaluate(made, ALL_ON_A).latency_s == pytest.approx(60 * MS)
    assert evaluate(made, ALL_ON_A).energy_joules == pytest.approx(4 * 30 * MS)


NCHW, NHWC, NHWC_2 = host(), host(layout=Layout.NHWC), host(layout=Layout.NHWC, threads=2)


@pytest.mark.parametrize(
    ("first", "second", "borders_ms"),
    [
        (NCHW, NHWC, 2 + 2),
        (NHWC, NHWC_2, (2 - 1.5) + (2 - 1.5)),
        (NCHW, npu(), 2 + 2),
        (npu(), npu(instances=2), 0),
    ],
    ids=str,
)
def test_borders_between_units_and_layouts(first, second, borders_ms: float) -> None:  # type: ignore[no-untyped-def]
    profiles = [
        times(
            which,
            [MS, MS],
            border_s_per_byte=2e-6,
            turn_s_per_byte=1.5e-6 if which.layout is Layout.NHWC else 0.0,
        )
        for which in (first, second)
    ]
    made = problem(model(2, 1000), [device(A, *profiles)])
    found = evaluate(made, (route(placed(0, 1, A, first), placed(1, 2, A, second)),))
    assert found.latency_s / MS == pytest.approx(2 + borders_ms)


def test_a_border_to_another_device_is_paid_in_full_on_both_sides() -> None:
    profile = times(NHWC, [MS, MS], border_s_per_byte=2e-6, turn_s_per_byte=1.5e-6, overhead_s=MS)
    made = problem(
        model(2, 1000), [device(A, profile), device(B, profile)], both_ways(A, B), input_bytes=9000
    )
    # Two overheads, two segments, two borders, a transfer of 1 ms; inputs are no border.
    found = evaluate(made, (route(placed(0, 1, A, NHWC), placed(1, 2, B, NHWC)),))
    assert found.latency_s / MS == pytest.approx(2 + 2 + 4 + 1)


def test_weights_are_there_once_for_each_unit_layout_and_precision() -> None:
    half = replace(npu(), is_half=True)
    made = with_device(quick_neighbour(), B, times=())

    def used(*whole: Route) -> dict[str, float]:
        return dict(memory_bytes(made, whole))

    one = route(placed(0, 3, B, HOST))
    assert used(one) == {"b": 6000 + 300}
    # Other threads: the same weights, another arena.
    assert used(one, route(placed(0, 3, B, host(threads=2)))) == {"b": 6000 + 300 + 300}
    assert used(one, route(placed(0, 3, B, NHWC))) == {"b": 2 * (6000 + 300)}
    assert used(route(placed(0, 3, B, half))) == {"b": 3000 + 300}
    assert used(one, route(placed(0, 1, B, HOST), placed(1, 3, B, npu()))) == {
        "b": 6000 + 300 + 100 + 5000 + 300
    }


def test_an_accelerator_with_memory_of_its_own_is_counted_by_itself() -> None:
    made = with_unit(with_device(quick_neighbour(), B, times=()), B, NPU, memory_bytes=1 << 20)
    found = memory_bytes(made, (route(placed(0, 1, B, HOST), placed(1, 3, B, npu())),))
    assert found == {"b": 1100, "b/npu0": 5300}


# Forks


AT_HOME_AND_AWAY = (Route(steps=(placed(0, 1, A, HOST), forked(A, (0, A, HOST), (1, B, HOST)))),)


def test_the_arms_of_a_fork_run_at_once() -> None:
    made = two_branches()
    found = evaluate(made, AT_HOME_AND_AWAY)
    assert found.latency_s / MS == pytest.approx(10 + 0.5 + 10 + 0.5)
    assert found.throughput_per_s == pytest.approx(1000 / 20)
    assert found.energy_joules == pytest.approx(4 * 30 * MS)
    assert found.peak_memory_bytes == 1000 + 100 + 500 + 50
    assert found.wire_bytes == 0


def test_a_fork_waits_for_its_slowest_arm() -> None:
    made = now(two_branches(), A, slowdowns=(("cpu", 3.0),))
    assert evaluate(made, AT_HOME_AND_AWAY).latency_s / MS == pytest.approx(30 + 30)


def test_an_arm_at_home_waits_for_what_its_cores_send_and_receive() -> None:
    made = two_branches()
    (fork,) = made.summary.forks
    second = replace(fork.branches[1], input_bytes=2000, output_bytes=1000)
    fork = replace(fork, branches=(fork.branches[0], second))
    made = replace(made, summary=replace(made.summary, forks=(fork,)))
    # There and back 0.5 + 2 + 10 + 0.5 + 1 ms.
    assert evaluate(made, AT_HOME_AND_AWAY).latency_s / MS == pytest.approx(10 + 14)
    busy = with_device(made, A, send_s_per_byte=1e-6, receive_s_per_byte=2e-6)
    (at_home,) = (
        leg
        for leg in legs(busy, AT_HOME_AND_AWAY[0])
        if isinstance(leg, Computing) and leg.device == A and leg.segments.start == 1
    )
    assert at_home.took_s / MS == pytest.approx(10 + 2 + 2)
    # b's 10 ms with 0.5 + 2 + 2 and 0.5 + 1 + 2 ms around them.
    assert evaluate(busy, AT_HOME_AND_AWAY).latency_s / MS == pytest.approx(10 + 18)
    # What the cores do is counted once.
    loads = resource_loads(busy, [(1.0, legs(busy, AT_HOME_AND_AWAY[0]))])
    assert loads["a"] / MS == pytest.approx(10 + 10 + 2 + 2)


@pytest.mark.parametrize(("medium", "waits_ms"), [("", 0.0), ("air", 2.0)])
def test_arms_on_other_devices_wait_for_a_medium(medium: str, waits_ms: float) -> None:
    fork = Fork(
        segments=SegmentRange(start=1, stop=3),
        branches=tuple(branch(b + 1, w, input_bytes=2000) for b, w in enumerate(([1, 0], [0, 1]))),
    )
    made = problem(
        model(3, forks=[fork]),
        [device(name, times(HOST, [10 * MS] * 3)) for name in (A, B, C)],
        [*both_ways(A, B, medium=medium), *both_ways(A, C, medium=medium)],
    )
    routes = (Route(steps=(placed(0, 1, A, HOST), forked(A, (0, B, HOST), (1, C, HOST)))),)
    assert evaluate(made, routes).latency_s / MS == pytest.approx(10 + waits_ms + 2 + 10)


@pytest.mark.parametrize(("medium", "fork_ms"), [("", 11 + 2), ("air", 12 + 2)])
def test_results_of_arms_come_back_in_the_order_in_which_they_are_ready(
    medium: str, fork_ms: float
) -> None:
    # c is ready after 10 ms, b after 11; each result takes 2 ms on the way.
    fork = Fork(
        segments=SegmentRange(start=1, stop=3),
        branches=tuple(branch(b + 1, w, output_bytes=2000) for b, w in enumerate(([1, 0], [0, 1]))),
    )
    made = problem(
        model(3, forks=[fork]),
        [
            device(name, times(HOST, [10 * MS, middle_s, 10 * MS]))
            for name, middle_s in ((A, 10 * MS), (B, 11 * MS), (C, 10 * MS))
        ],
        [*both_ways(A, B, medium=medium), *both_ways(A, C, medium=medium)],
    )
    routes = (Route(steps=(placed(0, 1, A, HOST), forked(A, (0, B, HOST), (1, C, HOST)))),)
    assert evaluate(made, routes).latency_s / MS == pytest.approx(10 + fork_ms)


@pytest.mark.parametrize(("shared_bytes", "sent_bytes"), [(0, 4000), (2000, 2000), (500, 3500)])
def test_what_several_branches_of_an_arm_read_is_sent_once(
    shared_bytes: int, sent_bytes: int
) -> None:
    parts = ([0.2, 0.2], [0.3, 0.3], [0.5, 0.5])
    fork = Fork(
        segments=SegmentRange(start=1, stop=3),
        branches=tuple(branch(b + 1, w, input_bytes=2000) for b, w in enumerate(parts)),
        shared=(SharedInput(size_bytes=shared_bytes, branches=(0, 1, 2)),),
    )
    made = problem(
        model(3, forks=[fork]),
        [device(name, times(HOST, [10 * MS] * 3)) for name in (A, B)],
        both_ways(A, B),
    )
    arms = PlacedFork(
        fork=0,
        segments=fork.segments,
        home=A,
        arms=(
            PlacedArm(branches=(0, 1), device=B, configuration=HOST),
            PlacedArm(branches=(2,), device=A, configuration=HOST),
        ),
    )
    found = evaluate(made, (Route(steps=(placed(0, 1, A, HOST), arms)),))
    assert found.wire_bytes == sent_bytes
    # A byte takes a microsecond; both arms do half of 20 ms.
    assert found.latency_s / MS == pytest.approx(10 + sent_bytes / 1000 + 10)


# What is no distribution


@pytest.mark.parametrize("shares", [(), (0.5,), (0.5, 0.6), (1.5, -0.5)])
def test_shares_add_up_to_1(shares: tuple[float, ...]) -> None:
    routes = tuple(replace(ALL_ON_A[0], share=share) for share in shares)
    with pytest.raises(ValueError, match="want a sum of 1, none below 0"):
        evaluate(quick_neighbour(), routes)


def test_what_a_route_lacks_is_said() -> None:
    made = quick_neighbour()
    with pytest.raises(ValueError, match="there is no link from a to b"):
        evaluate(without_link(made, A, B), A_THEN_B)
    with pytest.raises(ValueError, match="got segment 1, want 0 there"):
        evaluate(made, (route(placed(1, 3, A, HOST)),))
    with pytest.raises(ValueError, match="got 2 segments, want 3"):
        evaluate(made, (route(placed(0, 2, A, HOST)),))
    with pytest.raises(ValueError, match="device a has no latency profile of npu0/native"):
        evaluate(made, (route(placed(0, 3, A, npu())),))
    cuts = tuple(replace(cut, crossing_bytes=None) for cut in made.summary.cuts)
    unknown = replace(made, summary=replace(made.summary, cuts=cuts))
    with pytest.raises(ValueError, match="before segment 1"):
        evaluate(unknown, A_THEN_B)
    assert evaluate(unknown, ALL_ON_B) == evaluate(made, ALL_ON_B)
