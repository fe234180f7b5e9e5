"""What changes of load, heat and links do to requests: cases that can be worked out by hand."""

from __future__ import annotations

import pytest

from edge_agent.devices import DeviceId, UnitId
from edge_agent.problems import DeviceStatistics
from edge_agent.profiles import HOST_UNIT
from edge_agent.simulation.simulator import simulate
from edge_agent.simulation.traces import Change, DeviceChange, LinkChange
from edge_agent.simulation.workloads import ClosedLoop, Lone
from tests.simulation.made_problems import (
    A_THEN_B,
    ALL_ON_A,
    A,
    B,
    device,
    host,
    model,
    npu,
    placed,
    problem,
    route,
    times,
    two_devices,
)


def load(at_s: float, device_id: DeviceId, fraction: float) -> DeviceChange:
    return DeviceChange(
        at_s=at_s, statistics=DeviceStatistics(device=device_id, load_fraction=fraction)
    )


def test_a_run_goes_on_slower_from_the_moment_a_load_comes_and_quicker_when_it_goes() -> None:
    made = two_devices(at_a_s=0.5)
    # 0.2 s at full speed, 0.8 s at a half, and what is left of 1 s at full speed.
    trace = (load(0.2, A, 0.5), load(1.0, A, 0.0))
    assert simulate(made, ALL_ON_A, Lone(), trace=trace).requests[0].latency_s == pytest.approx(
        0.2 + 0.8 + 0.4
    )


def test_a_lone_latency_is_that_before_the_trace() -> None:
    made = two_devices(at_a_s=0.5)
    seen = simulate(made, ALL_ON_A, Lone(), trace=(load(0.0, A, 0.5),))
    assert seen.metrics.latency_s == pytest.approx(1.0)
    assert seen.requests[0].latency_s == pytest.approx(2.0)


def test_a_load_leaves_a_twentieth_however_great_it_is() -> None:
    made = two_devices(at_a_s=0.005)
    seen = simulate(made, ALL_ON_A, Lone(), trace=(load(0.0, A, 1.0),))
    assert seen.requests[0].latency_s == pytest.approx(0.01 * 20)


def test_an_observed_slowdown_holds_all_there_is() -> None:
    hot = DeviceStatistics(
        device=A, load_fraction=0.9, speed_fraction=0.5, slowdowns=((HOST_UNIT, 3.0),)
    )
    seen = simulate(
        two_devices(), ALL_ON_A, Lone(), trace=(DeviceChange(at_s=0.0, statistics=hot),)
    )
    assert seen.requests[0].latency_s == pytest.approx(0.06)


def test_a_load_of_the_processor_leaves_an_accelerator_alone_and_heat_does_not() -> None:
    made = problem(model(1), [device(A, times(npu(), [0.01]))])
    routes = (route(placed(0, 1, A, npu())),)
    loaded = simulate(made, routes, Lone(), trace=(load(0.0, A, 0.9),))
    hot = DeviceStatistics(device=A, load_fraction=0.9, speed_fraction=0.5)
    heated = simulate(made, routes, Lone(), trace=(DeviceChange(at_s=0.0, statistics=hot),))
    assert loaded.requests[0].latency_s == pytest.approx(0.01)
    assert heated.requests[0].latency_s == pytest.approx(0.02)


def test_a_pipeline_is_as_slow_as_its_loaded_stage_while_the_load_lasts() -> None:
    made = two_devices(at_a_s=0.01, at_b_s=0.01)
    seen = simulate(
        made, A_THEN_B, ClosedLoop(duration_s=30.0), trace=(load(10.0, B, 0.5), load(20.0, B, 0.0))
    )
    assert seen.answered_per_s(1.0, 10.0) == pytest.approx(100.0, rel=0.01)
    assert seen.answered_per_s(11.0, 20.0) == pytest.approx(50.0, rel=0.01)
    assert seen.answered_per_s(21.0, 30.0) == pytest.approx(100.0, rel=0.01)
    assert seen.ended_s == 30.0
    assert seen.measured_from_s == 15.0


def test_a_load_flips_which_of_two_plans_is_the_better_one() -> None:
    made = two_devices(at_a_s=0.01, at_b_s=0.01)
    trace = (load(0.0, B, 0.8),)
    loop = ClosedLoop(requests=400)
    rates = [
        simulate(made, plan, loop, trace=changes).metrics.throughput_per_s
        for changes in ((), trace)
        for plan in (A_THEN_B, ALL_ON_A)
    ]
    assert rates == pytest.approx([100.0, 50.0, 20.0, 50.0], rel=0.01)


def test_a_slower_link_carries_what_is_left_at_its_new_rate() -> None:
    made = two_devices(at_a_s=0.1, at_b_s=0.1, crossing_bytes=1_000_000)
    # Starts at 0.1 s; a half is over at 0.6 s; the rest takes four times as long.
    slower = LinkChange(at_s=0.6, source=A, target=B, goodput_fraction=0.25)
    seen = simulate(made, A_THEN_B, Lone(), trace=(slower,))
    assert seen.requests[0].latency_s == pytest.approx(0.1 + 0.5 + 2.0 + 0.1)


def test_what_is_on_a_link_waits_while_it_is_down_and_others_on_its_medium_pass() -> None:
    made = two_devices(
        at_a_s=0.1, at_b_s=0.1, crossing_bytes=1_000_000, output_bytes=1_000_000, medium="wifi"
    )
    trace = (
        LinkChange(at_s=0.6, source=A, target=B, goodput_fraction=0.0),
        LinkChange(at_s=5.0, source=A, target=B, goodput_fraction=1.0),
    )
    seen = simulate(made, A_THEN_B, Lone(), trace=trace)
    assert seen.requests[0].latency_s == pytest.approx(5.0 + 0.5 + 0.1 + 1.0)
    both = (route(placed(0, 2, A, host()), share=0.5), route(placed(0, 2, B, host()), share=0.5))
    down = (LinkChange(at_s=0.0, source=A, target=B, goodput_fraction=0.0),)
    some = simulate(made, both, ClosedLoop(in_flight=4, duration_s=10.0), trace=down)
    assert {request.route for request in some.requests} == {0}
    assert some.unanswered == 4


def test_a_link_that_is_down_for_good_ends_the_simulation_with_nothing_answered() -> None:
    down = (LinkChange(at_s=0.0, source=A, target=B, goodput_fraction=0.0),)
    seen = simulate(two_devices(), A_THEN_B, ClosedLoop(in_flight=3, requests=9), trace=down)
    assert seen.requests == ()
    assert seen.unanswered == 3
    assert seen.metrics.throughput_per_s == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (load(1.0, DeviceId("z"), 0.5), "got device z, which is not there: there are a, b"),
        (
            DeviceChange(
                at_s=1.0,
                statistics=DeviceStatistics(device=A, slowdowns=((UnitId("gpu9"), 2.0),)),
            ),
            "got a slowdown of unit gpu9, a has cpu, npu0",
        ),
        (
            LinkChange(at_s=1.0, source=A, target=DeviceId("z"), goodput_fraction=1.0),
            "got link a-z, which is not there: there are a-b, b-a",
        ),
    ],
)
def test_a_change_of_what_is_not_there_is_refused(change: Change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(two_devices(), A_THEN_B, Lone(), trace=(change,))


def test_changes_have_a_time_and_a_fraction_that_can_be() -> None:
    with pytest.raises(ValueError, match="got at_s -1, want a number of at least 0"):
        load(-1.0, A, 0.5)
    with pytest.raises(ValueError, match=r"got goodput_fraction -0\.5, want at least 0"):
        LinkChange(at_s=0.0, source=A, target=B, goodput_fraction=-0.5)
