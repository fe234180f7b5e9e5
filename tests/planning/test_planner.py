"""Changing one input of a problem changes the plan in the direction that it should."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.devices import DeviceId, Layout
from edge_agent.distributions import Distribution
from edge_agent.planning.planner import plan
from edge_agent.plans import Target
from edge_agent.problems import Problem, SegmentPin
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Fork
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    B_THEN_A,
    HOST,
    MB,
    MS,
    best,
    forked,
    latency_ms,
    now,
    one_segment,
    quick_neighbour,
    refused,
    routes_of,
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
    link,
    model,
    npu,
    placed,
    problem,
    route,
    times,
)

WHOLE_ON_A = (route(placed(0, 1, A, HOST)),)
WHOLE_ON_B = (route(placed(0, 1, B, HOST)),)


# Links


def test_the_quick_neighbour_does_all_of_it() -> None:
    assert routes_of(quick_neighbour()) == ALL_ON_B
    assert latency_ms(quick_neighbour()) == pytest.approx(18.0)


def test_a_slower_link_keeps_the_work_at_home() -> None:
    # All on b takes 1 + 100 + 6 + 1 ms, the last two there 10 + 41 + 4 + 1, the last 20 + 11 + 3.
    slow = with_links(quick_neighbour(), goodput_bytes_per_s=1e5)
    assert routes_of(slow) == ALL_ON_A
    assert latency_ms(slow) == pytest.approx(30.0)


def test_a_faster_link_shortens_the_latency() -> None:
    quick = with_links(quick_neighbour(), goodput_bytes_per_s=1e7)
    assert routes_of(quick) == ALL_ON_B
    assert latency_ms(quick) == pytest.approx(1 + 1 + 6 + 1)


def test_less_goodput_moves_the_cut_to_where_little_crosses() -> None:
    # All on b takes 1 + 20 + 6 + 1 ms, from the first cut on 10 + (1 + 8) + 4 + 1.
    slower = with_links(quick_neighbour(), goodput_bytes_per_s=5e5)
    assert routes_of(slower) == A_THEN_B
    assert latency_ms(slower) == pytest.approx(24.0)


def test_more_latency_of_a_link_keeps_the_work_at_home() -> None:
    far = with_links(quick_neighbour(), latency_s=20 * MS)
    assert routes_of(far) == ALL_ON_A
    near = with_links(quick_neighbour(), latency_s=0.0)
    assert routes_of(near) == ALL_ON_B
    assert latency_ms(near) == pytest.approx(16.0)


@pytest.mark.parametrize(("source", "target"), [(A, B), (B, A)])
def test_a_lost_link_is_never_used(source: DeviceId, target: DeviceId) -> None:
    assert routes_of(without_link(quick_neighbour(), source, target)) == ALL_ON_A


def test_each_direction_of_a_link_counts_by_itself() -> None:
    # The way back carries an empty answer: only its latency counts.
    back = with_link(quick_neighbour(), B, A, goodput_bytes_per_s=1.0)
    assert routes_of(back) == ALL_ON_B
    assert latency_ms(back) == pytest.approx(18.0)
    there = with_link(quick_neighbour(), A, B, goodput_bytes_per_s=1.0)
    assert routes_of(there) == ALL_ON_A


def test_what_can_be_reached_only_round_a_corner_is_reached_there() -> None:
    # c does the last segment in 1 ms and answers a itself, but gets its input from b alone.
    made = problem(
        model(3, 1000),
        [
            device(A, times(HOST, [5 * MS, 50 * MS, 50 * MS])),
            device(B, times(HOST, [50 * MS, 5 * MS, 50 * MS])),
            device(C, times(HOST, [50 * MS, 50 * MS, 5 * MS])),
        ],
        [link(A, B), link(B, C), link(C, A)],
    )
    ring = (route(placed(0, 1, A, HOST), placed(1, 2, B, HOST), placed(2, 3, C, HOST)),)
    assert routes_of(made) == ring
    assert latency_ms(made) == pytest.approx(5 + 1 + 5 + 1 + 5)
    assert routes_of(replace(made, links=(link(A, C), link(C, B), link(B, A)))) != ring


def test_a_medium_that_both_directions_share_lowers_the_throughput() -> None:
    # a does 30 ms, b takes 10 ms of the way there and 5 ms of the way back. With wires for each,
    # a share x goes to b where 30 (1 - x) = 10 x; on one medium where 30 (1 - x) = 15 x.
    wired = one_segment(30 * MS, 6 * MS, output_bytes=5000)
    shared = with_links(wired, medium="air")
    by_wire, by_air = best(wired, Target.THROUGHPUT), best(shared, Target.THROUGHPUT)
    assert by_wire.metrics.throughput_per_s == pytest.approx(1000 / 7.5)
    assert by_air.metrics.throughput_per_s == pytest.approx(1000 / 10)
    assert [r.share for r in by_wire.routes] == pytest.approx([3 / 4, 1 / 4])
    assert [r.share for r in by_air.routes] == pytest.approx([2 / 3, 1 / 3])


def test_energy_of_a_link_keeps_the_work_at_home() -> None:
    # a draws 4 W over 10 ms, b over 5 ms; the way there costs 10 kB.
    made = one_segment(10 * MS, 5 * MS)
    assert routes_of(made, Target.ENERGY) == WHOLE_ON_B
    assert best(made, Target.ENERGY).metrics.energy_joules == pytest.approx(0.02)
    costly = with_links(made, joules_per_byte=3e-6)
    assert routes_of(costly, Target.ENERGY) == WHOLE_ON_A
    cheap = with_links(made, joules_per_byte=1e-6)
    assert best(cheap, Target.ENERGY).metrics.energy_joules == pytest.approx(0.03)


# Devices and their state


def test_a_slower_unit_gets_less_of_the_work() -> None:
    # On b all takes 12 + 9 ms at a factor of 1.5; at 3 the last two take 16 + 12, all 12 + 18.
    slowed = [now(quick_neighbour(), B, slowdowns=(("cpu", by),)) for by in (1.5, 3.0, 8.0)]
    assert [latency_ms(made) for made in slowed] == pytest.approx([21.0, 28.0, 30.0])
    assert [routes_of(made) for made in slowed] == [ALL_ON_B, A_THEN_B, ALL_ON_A]


def test_a_unit_that_is_quicker_than_predicted_gets_more_of_the_work() -> None:
    assert routes_of(now(quick_neighbour(), A, slowdowns=(("cpu", 0.1),))) == ALL_ON_A


def test_load_of_others_counts_on_the_processor_alone() -> None:
    made = quick_neighbour()
    assert latency_ms(now(made, B, load_fraction=0.5)) == pytest.approx(24.0)
    assert routes_of(now(made, B, load_fraction=1.0)) == ALL_ON_A
    on_npu = with_device(made, B, times=(times(npu(), [2 * MS] * 3),))
    assert latency_ms(now(on_npu, B, load_fraction=1.0)) == pytest.approx(18.0)


def test_heat_that_slows_a_device_down_slows_all_its_units() -> None:
    made = quick_neighbour()
    assert latency_ms(now(made, B, speed_fraction=0.5)) == pytest.approx(24.0)
    on_npu = with_device(made, B, times=(times(npu(), [2 * MS] * 3),))
    assert latency_ms(now(on_npu, B, speed_fraction=0.5)) == pytest.approx(24.0)
    assert routes_of(now(made, B, speed_fraction=0.1)) == ALL_ON_A


def test_what_was_observed_counts_instead_of_load_and_heat() -> None:
    state = now(
        quick_neighbour(), B, slowdowns=(("cpu", 1.0),), load_fraction=0.9, speed_fraction=0.1
    )
    assert latency_ms(state) == pytest.approx(18.0)


def test_a_low_battery_spares_a_device_from_the_work_of_others() -> None:
    made = quick_neighbour()
    assert routes_of(now(made, B, battery_fraction=0.19)) == ALL_ON_A
    assert routes_of(now(made, B, battery_fraction=0.2)) == ALL_ON_B
    patient = replace(made, least_battery_fraction=0.5)
    assert routes_of(now(patient, B, battery_fraction=0.4)) == ALL_ON_A


def test_an_owner_with_a_low_battery_still_does_its_own_work() -> None:
    quick_owner = with_device(quick_neighbour(), A, times=(times(HOST, [MS] * 3),))
    assert routes_of(now(quick_owner, A, battery_fraction=0.01)) == ALL_ON_A


def test_less_free_memory_divides_what_was_whole() -> None:
    # Weights of 1, 2, 3 kB and 300 bytes of activations at most: all of it needs 6300 bytes.
    made = quick_neighbour()
    assert routes_of(now(made, B, free_memory_bytes=6300)) == ALL_ON_B
    assert routes_of(now(made, B, free_memory_bytes=6299)) == A_THEN_B
    assert routes_of(now(made, B, free_memory_bytes=0)) == ALL_ON_A


def test_free_memory_gives_no_more_than_the_budget() -> None:
    made = with_device(quick_neighbour(), B, memory_bytes=6299)
    assert routes_of(now(made, B, free_memory_bytes=1 << 30)) == A_THEN_B


def test_a_smaller_budget_divides_a_model_and_the_smallest_refuses_it() -> None:
    alone = replace(quick_neighbour(), devices=quick_neighbour().devices[:1], links=())
    assert routes_of(with_device(alone, A, memory_bytes=6300)) == ALL_ON_A
    assert "fits nowhere" in refused(with_device(alone, A, memory_bytes=6299))
    both = with_device(with_device(quick_neighbour(), A, memory_bytes=3200), B, memory_bytes=6299)
    assert routes_of(both) == A_THEN_B
    # Nothing but the first two on a, 3200 bytes, and the last on b, 3300, fits now.
    tight = with_device(both, B, memory_bytes=3300)
    assert routes_of(tight) == (route(placed(0, 2, A, HOST), placed(2, 3, B, HOST)),)
    assert "fits nowhere" in refused(with_device(tight, B, memory_bytes=3299))


def test_a_model_that_fits_nowhere_is_told_what_is_missing() -> None:
    # Weights of 10, 20, 30 MB, activations of 1, 2, 3 MB. The least: 32 MB on a, 33 MB on b.
    made = replace(
        quick_neighbour(),
        summary=model(3, [4000, 1000], weight_bytes=10 * MB, working_bytes=MB),
    )
    tight = with_device(with_device(made, A, memory_bytes=32 * MB), B, memory_bytes=20 * MB)
    reason = refused(tight)
    assert "fits nowhere, divided or not: it needs 12.4 MiB more on b" in reason
    assert "there are a 30.5 MiB, b 19.1 MiB" in reason


def test_an_accelerator_has_a_memory_of_its_own() -> None:
    # Its 2 ms per segment beat the 3 ms of the processor beside it, as long as it holds 6300 bytes.
    made = with_device(
        quick_neighbour(), B, times=(times(HOST, [3 * MS] * 3), times(npu(), [2 * MS] * 3))
    )
    on_npu = (route(placed(0, 3, B, npu())),)
    assert routes_of(with_unit(made, B, NPU, memory_bytes=6300)) == on_npu
    # Then one segment is left to the processor: 1 + 10 + 3 + 4 + 1 ms.
    shared = (route(placed(0, 1, B, HOST), placed(1, 3, B, npu())),)
    assert routes_of(with_unit(made, B, NPU, memory_bytes=6299)) == shared
    none = with_unit(made, B, NPU, memory_bytes=0)
    assert latency_ms(none) == pytest.approx(1 + 10 + 9 + 1)
    # What is in it is not in the memory of the device.
    small = with_device(with_unit(made, B, NPU, memory_bytes=6300), B, memory_bytes=0)
    assert routes_of(small) == on_npu


def test_a_banned_unit_is_not_used() -> None:
    made = with_device(
        quick_neighbour(), B, times=(times(HOST, [3 * MS] * 3), times(npu(), [2 * MS] * 3))
    )
    assert routes_of(made) == (route(placed(0, 3, B, npu())),)
    without = with_unit(made, B, NPU, banned_because="the user said so")
    assert routes_of(without) == ALL_ON_B
    neither = with_unit(without, B, banned_because="the user said so")
    assert routes_of(neither) == ALL_ON_A


def test_everything_banned_is_said() -> None:
    made = with_unit(
        with_unit(quick_neighbour(), A, banned_because="it is hot"), B, banned_because="it is loud"
    )
    reason = refused(made)
    assert "a: cpu: it is hot" in reason
    assert "b: cpu: it is loud" in reason


def test_the_power_of_a_unit_moves_the_work_for_least_energy() -> None:
    made = quick_neighbour()
    assert routes_of(made, Target.ENERGY) == ALL_ON_B
    assert best(made, Target.ENERGY).metrics.energy_joules == pytest.approx(4 * 6 * MS)
    hungry = with_unit(made, B, busy_w=31.0)
    assert routes_of(hungry, Target.ENERGY) == ALL_ON_A
    assert best(hungry, Target.ENERGY).metrics.energy_joules == pytest.approx(4 * 30 * MS)
    # Only what it draws above idle counts.
    assert routes_of(with_unit(made, B, idle_w=30.0, busy_w=31.0), Target.ENERGY) == ALL_ON_B


# Sizes


def test_a_heavier_input_keeps_the_beginning_at_the_owner() -> None:
    made = replace(quick_neighbour(), input_bytes=30_000)
    assert routes_of(made) == A_THEN_B
    assert latency_ms(made) == pytest.approx(20.0)
    assert routes_of(replace(made, input_bytes=0)) == ALL_ON_B


def test_a_heavier_answer_keeps_the_end_at_the_owner() -> None:
    # 1 + 10 + 4 on b, 1 + 1 back, 10 on a.
    made = replace(quick_neighbour(), output_bytes=20_000)
    assert routes_of(made) == B_THEN_A
    assert latency_ms(made) == pytest.approx(27.0)


def test_smaller_chunks_let_sending_and_receiving_overlap() -> None:
    # A microsecond per byte on the wire and one at the receiver: 10 + 10 ms as one chunk,
    # 1 + 10 ms in chunks of 1000 bytes.
    made = with_device(one_segment(15 * MS, MS), B, receive_s_per_byte=1e-6)
    assert routes_of(made) == WHOLE_ON_A
    chunked = replace(made, chunk_bytes=1000)
    assert routes_of(chunked) == WHOLE_ON_B
    assert latency_ms(chunked) == pytest.approx(12.0)


def test_a_device_gets_no_message_that_is_larger_than_it_takes() -> None:
    made = quick_neighbour()
    assert routes_of(with_device(made, B, most_crossing_bytes=10_000)) == ALL_ON_B
    assert routes_of(with_device(made, B, most_crossing_bytes=9_999)) == A_THEN_B
    last = with_device(made, B, most_crossing_bytes=3_999)
    assert routes_of(last) == (route(placed(0, 2, A, HOST), placed(2, 3, B, HOST)),)
    assert routes_of(with_device(made, B, most_crossing_bytes=999)) == ALL_ON_A


def test_the_owner_too_takes_no_answer_that_is_too_large() -> None:
    made = with_device(replace(quick_neighbour(), output_bytes=2000), A, most_crossing_bytes=1999)
    assert routes_of(made) == B_THEN_A


@pytest.mark.parametrize("target", Target)
def test_an_answer_of_unknown_size_is_made_by_the_owner(target: Target) -> None:
    made = replace(quick_neighbour(), output_bytes=None)
    found = best(made, target)
    assert all(route.steps[-1].device == A for route in found.routes)
    assert routes_of(made) == B_THEN_A


@pytest.mark.parametrize("target", Target)
def test_a_request_of_unknown_size_is_begun_by_the_owner(target: Target) -> None:
    made = replace(quick_neighbour(), input_bytes=None)
    found = best(made, target)
    assert all(route.steps[0].device == A for route in found.routes)
    assert routes_of(made) == A_THEN_B


def test_processor_time_of_a_byte_counts_for_latency_and_for_throughput() -> None:
    made = one_segment(20 * MS, MS)
    assert latency_ms(made) == pytest.approx(11.0)
    for end, key in ((A, "send_s_per_byte"), (B, "receive_s_per_byte")):
        some = with_device(made, end, **{key: 0.5e-6})
        assert latency_ms(some) == pytest.approx(10 + 5 + 1)
        assert routes_of(with_device(made, end, **{key: 2e-6})) == WHOLE_ON_A
    # At the other ends nothing but the empty answer is sent.
    assert latency_ms(with_device(made, A, receive_s_per_byte=1.0)) == pytest.approx(11.0)
    # b receives for 20 ms and computes for 1 ms: 21 x = 20 (1 - x).
    busy = best(with_device(made, B, receive_s_per_byte=2e-6), Target.THROUGHPUT)
    assert busy.metrics.throughput_per_s == pytest.approx(1000 * 41 / 420)
    # Two cores have half of that each, and of a run that uses one of them all.
    cores = best(with_device(made, B, receive_s_per_byte=2e-6, cores=2), Target.THROUGHPUT)
    assert cores.metrics.throughput_per_s == pytest.approx(1000 * 31 / 220)


def test_processor_time_of_a_byte_costs_energy() -> None:
    # 4 W for 10 ms at a, or for 5 ms at b and for receiving 10 kB.
    made = with_device(one_segment(10 * MS, 5 * MS), B, receive_s_per_byte=0.4e-6)
    assert best(made, Target.ENERGY).metrics.energy_joules == pytest.approx(0.036)
    assert routes_of(made, Target.ENERGY) == WHOLE_ON_B
    dear = with_device(made, B, receive_s_per_byte=0.6e-6)
    assert routes_of(dear, Target.ENERGY) == WHOLE_ON_A


# Configurations


def test_instances_serve_the_throughput_and_threads_the_latency() -> None:
    two, four = host(threads=4), host(instances=4)
    made = problem(
        model(1), [device(A, times(two, [10 * MS]), times(four, [20 * MS]), cores=4)], ()
    )
    assert routes_of(made) == (route(placed(0, 1, A, two)),)
    rate = best(made, Target.THROUGHPUT)
    assert rate.routes == (route(placed(0, 1, A, four)),)
    assert rate.metrics.throughput_per_s == pytest.approx(200.0)
    assert rate.metrics.latency_s == pytest.approx(20 * MS)


def test_instances_need_an_arena_each() -> None:
    # 1000 bytes of weights and 100 for the activations of each of four.
    two, four = host(threads=4), host(instances=4)
    made = problem(
        model(1), [device(A, times(two, [10 * MS]), times(four, [20 * MS]), cores=4)], ()
    )
    fits = best(with_device(made, A, memory_bytes=1400), Target.THROUGHPUT)
    assert fits.routes == (route(placed(0, 1, A, four)),)
    tight = plan(with_device(made, A, memory_bytes=1399), Target.THROUGHPUT)
    assert isinstance(tight, Distribution)
    assert tight.routes == (route(placed(0, 1, A, two)),)


def test_a_dear_border_keeps_subgraphs_together() -> None:
    # One unit is quick on the first segment, the other on the second; 1000 bytes cross.
    one, other = host(), host(layout=Layout.BLOCKED)

    def made(border_s_per_byte: float) -> Problem:
        profiles = [
            times(which, seconds, border_s_per_byte=border_s_per_byte)
            for which, seconds in ((one, [2 * MS, 7 * MS]), (other, [9 * MS, 3 * MS]))
        ]
        return problem(model(2, 1000), [device(A, *profiles)])

    divided = (route(placed(0, 1, A, one), placed(1, 2, A, other)),)
    assert routes_of(made(1e-6)) == divided
    assert latency_ms(made(1e-6)) == pytest.approx(2 + 1 + 1 + 3)
    assert routes_of(made(3e-6)) == (route(placed(0, 2, A, one)),)
    assert latency_ms(made(3e-6)) == pytest.approx(9.0)


def test_no_turn_is_paid_between_two_that_keep_channels_last() -> None:
    one, other = host(layout=Layout.NHWC), host(threads=2, layout=Layout.NHWC)

    def made(turn_s_per_byte: float) -> Problem:
        profiles = [
            times(which, seconds, border_s_per_byte=3e-6, turn_s_per_byte=turn_s_per_byte)
            for which, seconds in ((one, [2 * MS, 7 * MS]), (other, [9 * MS, 3 * MS]))
        ]
        return problem(model(2, 1000), [device(A, *profiles, cores=2)])

    assert routes_of(made(0.0)) == (route(placed(0, 2, A, one)),)
    assert routes_of(made(2e-6)) == (route(placed(0, 1, A, one), placed(1, 2, A, other)),)
    assert latency_ms(made(2e-6)) == pytest.approx(2 + 1 + 1 + 3)


def test_starting_a_subgraph_costs_its_overhead() -> None:
    one, other = host(), host(layout=Layout.BLOCKED)

    def made(overhead_s: float) -> Problem:
        profiles = [
            times(which, seconds, overhead_s=overhead_s)
            for which, seconds in ((one, [2 * MS, 7 * MS]), (other, [9 * MS, 3 * MS]))
        ]
        return problem(model(2), [device(A, *profiles)])

    assert latency_ms(made(3 * MS)) == pytest.approx(2 + 3 + 2 * 3)
    assert routes_of(made(5 * MS)) == (route(placed(0, 2, A, one)),)


# What the user says


def test_a_pinned_segment_runs_where_it_is_pinned() -> None:
    made = replace(quick_neighbour(), pins=(SegmentPin(segment=0, device=A, pattern="first*"),))
    assert routes_of(made) == A_THEN_B
    made = replace(quick_neighbour(), pins=(SegmentPin(segment=2, device=A, pattern="last*"),))
    assert routes_of(made) == B_THEN_A


def test_a_segment_is_pinned_to_a_unit() -> None:
    made = with_device(
        quick_neighbour(), B, times=(times(HOST, [3 * MS] * 3), times(npu(), [2 * MS] * 3))
    )
    pinned = replace(made, pins=(SegmentPin(segment=1, device=B, unit=HOST.unit),))
    (found,) = routes_of(pinned)
    assert [step.segments for step in found.parts() if step.configuration == HOST] == [  # type: ignore[union-attr]
        SegmentRange(start=1, stop=2)
    ]


def test_a_pin_to_what_refuses_the_segment_cannot_be_kept() -> None:
    only_npu = (replace(times(npu(), [2 * MS, 0.0, 2 * MS]), refused=(1,)),)
    made = with_device(quick_neighbour(), B, times=only_npu)
    pinned = replace(made, pins=(SegmentPin(segment=1, device=B, pattern="conv*"),))
    reason = refused(pinned)
    assert "segment 1 (nodes 1 to 1: Conv) cannot run where it is pinned" in reason
    assert '"conv*" on b' in reason


def test_two_pins_that_exclude_each_other_cannot_be_kept() -> None:
    pins = tuple(SegmentPin(segment=1, device=d, pattern=f"{d}*") for d in (A, B))
    assert '"a*" on a, "b*" on b' in refused(replace(quick_neighbour(), pins=pins))


def test_a_pin_to_a_device_out_of_reach_is_said() -> None:
    alone = without_link(quick_neighbour(), B, A)
    reason = refused(replace(alone, pins=(SegmentPin(segment=1, device=B),)))
    assert "there is no link from b to a" in reason


def test_one_route_is_used_where_one_is_asked_for() -> None:
    # Together 30 (1 - x) = 10 x; alone the way to b is full at 100 per second.
    made = one_segment(30 * MS, 6 * MS)
    assert len(routes_of(made, Target.THROUGHPUT)) == 2
    one = best(replace(made, most_routes=1), Target.THROUGHPUT)
    assert one.routes == WHOLE_ON_B
    assert one.metrics.throughput_per_s == pytest.approx(100.0)


def test_branches_run_at_once_only_where_they_may() -> None:
    with_fork, without = two_branches(), two_branches(with_branches=False)
    assert latency_ms(without) == pytest.approx(30.0)
    assert routes_of(without) == ALL_ON_A
    assert latency_ms(with_fork) == pytest.approx(21.0)
    (found,) = routes_of(with_fork)
    assert found.steps[0] == placed(0, 1, A, HOST)
    assert found.steps[1] in (
        forked(A, (0, A, HOST), (1, B, HOST)),
        forked(A, (1, A, HOST), (0, B, HOST)),
    )


def test_branches_that_cost_more_to_send_than_they_save_run_in_turn() -> None:
    far = with_links(two_branches(), latency_s=6 * MS)
    assert routes_of(far) == ALL_ON_A
    heavy = two_branches()
    (fork,) = heavy.summary.forks
    larger = replace(fork, branches=tuple(replace(b, input_bytes=12_000) for b in fork.branches))
    heavy = replace(heavy, summary=replace(heavy.summary, forks=(larger,)))
    assert routes_of(heavy) == ALL_ON_A


def test_branches_run_on_two_units_of_one_device() -> None:
    fork = Fork(
        segments=SegmentRange(start=1, stop=3),
        branches=(branch(1, [1.0, 0.0]), branch(2, [0.0, 1.0])),
    )
    made = problem(
        model(3, forks=[fork]),
        [device(A, times(HOST, [4 * MS, 4 * MS, 9 * MS]), times(npu(), [6 * MS, 7 * MS, 6 * MS]))],
    )
    # In turn 4 + 4 + 6 ms; at once 4 ms, then 4 and 6 ms.
    assert latency_ms(made) == pytest.approx(10.0)
    assert latency_ms(replace(made, with_branches=False)) == pytest.approx(14.0)
