"""What a plan was chosen over: devices that are left out, the runner-up, the best on one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge_agent.distributions import Distribution, LeftOut
from edge_agent.planning.alternatives import alone, compare, devices_of
from edge_agent.plans import Target
from edge_agent.problems import Problem, SegmentPin
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    HOST,
    MS,
    best,
    both_ways,
    now,
    one_segment,
    quick_neighbour,
    two_branches,
    with_device,
    with_links,
    with_unit,
)
from tests.simulation.made_problems import A, B, C, device, link, model, placed, route, times


def left_out(problem: Problem, found: Distribution) -> tuple[LeftOut, ...]:
    return compare(problem, found).left_out


def runner_up(problem: Problem, found: Distribution) -> Distribution | None:
    return compare(problem, found).runner_up


def _with_c(c_s: float = 5 * MS) -> Problem:
    """A third device that is quicker than `a`, and as near as `b`."""
    made = quick_neighbour()
    return replace(
        made,
        devices=(*made.devices, device(C, times(HOST, [c_s] * 3))),
        links=(*made.links, *both_ways(A, C, latency_s=MS), *both_ways(B, C, latency_s=MS)),
    )


def test_the_devices_of_a_plan_are_those_that_compute() -> None:
    assert devices_of(best(quick_neighbour())) == {B}
    assert devices_of(best(replace(quick_neighbour(), input_bytes=30_000))) == {A, B}
    assert devices_of(best(two_branches())) == {A, B}


def test_a_device_that_would_slow_things_down_is_told_with_the_figures() -> None:
    # On a the first segment at least: 20 ms. On c the last: 1 + 10 + 4 + (1 + 1) + 5 + 1.
    assert left_out(_with_c(), best(_with_c())) == (
        LeftOut(device=A, reason="the best route that uses it takes 20 ms, the best of all 18 ms"),
        LeftOut(device=C, reason="the best route that uses it takes 23 ms, the best of all 18 ms"),
    )


def test_a_device_in_the_middle_of_a_route_is_priced_there_too() -> None:
    # c is quick at the second segment alone.
    made = with_device(_with_c(), C, times=(times(HOST, [90 * MS, MS, 90 * MS]),))
    told = {text.device: text.reason for text in left_out(made, best(made))}
    # 10 ms on a, 1 + 4 and 1 on c, 1 + 1 and 2 + 1 on b; or from b and back to it 24 ms.
    assert told[C] == "the best route that uses it takes 21 ms, the best of all 18 ms"


def test_energy_and_bytes_are_told_in_their_own_measure() -> None:
    made = with_unit(with_unit(_with_c(), A, busy_w=9.0), B, busy_w=3.0)
    # 2 W for 6 ms on b. On a the last segment costs 8 W for 10 ms, on c 4 W for 5 ms.
    told = left_out(made, best(made, Target.ENERGY))
    assert [text.reason for text in told] == [
        f"the best route that uses it takes {joules} J per request (modelled), the best of all "
        "0.012 J per request (modelled)"
        for joules in ("0.088", "0.028")
    ]
    told = left_out(made, best(made, Target.BYTES))
    assert [(text.device, text.reason) for text in told] == [
        (name, "the best route that uses it takes 1000 B, the best of all 0 B") for name in (B, C)
    ]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            now(quick_neighbour(), B, battery_fraction=0.1),
            "its battery is at 10 %, and below 20 % a device does no work for others",
        ),
        (with_device(quick_neighbour(), B, times=()), "it has no latency profile"),
        (with_unit(quick_neighbour(), B, banned_because="it is loud"), "cpu: it is loud"),
        (
            replace(quick_neighbour(), links=(link(A, B),)),
            "no link leads back from it to a",
        ),
        (
            with_links(quick_neighbour(), latency_s=20 * MS),
            "the best route that uses it takes 56 ms, the best of all 30 ms",
        ),
    ],
    ids=["battery", "profile", "ban", "links", "distance"],
)
def test_each_reason_to_leave_a_device_out_is_told(made: Problem, reason: str) -> None:
    found = best(made)
    assert found.routes == ALL_ON_A
    assert left_out(made, found) == (LeftOut(device=B, reason=reason),)


def test_where_memory_is_tight_a_device_left_out_is_told_of_with_what_fits() -> None:
    # b holds the last two segments, 5000 bytes and 300 of activations, but not all, 18 ms. With the
    # last on c: 1 + 10 and 4 on b, 1 + 1 and 5 on c, 1.
    made = with_device(with_device(_with_c(), B, memory_bytes=5300), C, memory_bytes=3300)
    found = best(made)
    assert found.routes == A_THEN_B
    assert left_out(made, found) == (
        LeftOut(device=C, reason="the best route found that uses it takes 23 ms, this one 20 ms"),
    )
    (none,) = left_out(with_device(made, C, memory_bytes=900), found)
    assert none.reason == (
        "no route that uses it was found to keep to memory and bounds; with memory and bounds set "
        "aside, the best route that uses it takes 23 ms, the best of all 18 ms"
    )


def test_all_that_is_compared_is_told_step_by_step() -> None:
    made, told = _with_c(), list[float]()
    compared = compare(made, best(made), report=told.append)
    # Without b; with a, and with c; and each of the three alone.
    assert told == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert compared.alone is not None
    assert compared.alone.routes == ALL_ON_B


def test_nobody_is_left_out_where_all_work() -> None:
    made = replace(quick_neighbour(), input_bytes=30_000)
    assert left_out(made, best(made)) == ()


def test_the_runner_up_is_the_best_that_was_told_of_a_device_left_out() -> None:
    # All on b takes 18 ms; with the first segment on a 20 ms, all on a 30 ms, with c 23 ms.
    for made in (quick_neighbour(), _with_c()):
        second = runner_up(made, best(made))
        assert second is not None
        assert second.routes == A_THEN_B
        assert second.metrics.latency_s == pytest.approx(20 * MS)
        (told,) = (out.reason for out in left_out(made, best(made)) if out.device == A)
        assert told.startswith("the best route that uses it takes 20 ms")


def test_the_runner_up_of_two_devices_is_the_better_of_two() -> None:
    # Without b 30 ms on a; without a 1 + 30 + 6 + 1 on b.
    made = replace(quick_neighbour(), input_bytes=30_000)
    assert best(made).routes == A_THEN_B
    second = runner_up(made, best(made))
    assert second is not None
    assert second.routes == ALL_ON_A
    near = replace(quick_neighbour(), input_bytes=20_000)
    second = runner_up(near, best(near))
    assert second is not None
    assert second.routes == ALL_ON_B


def test_a_throughput_is_compared_as_one() -> None:
    made = one_segment(30 * MS, 6 * MS)
    second = runner_up(made, best(made, Target.THROUGHPUT))
    assert second is not None
    assert second.routes == (route(placed(0, 1, B, HOST)),)
    assert second.metrics.throughput_per_s == pytest.approx(100.0)


def test_a_device_left_out_of_a_throughput_is_told_of_in_requests_per_second() -> None:
    # b is full after 6 ms, 1000 / 6 requests per second; c would be after 30 ms, beside a that
    # only starts requests.
    made = _beside(c_s=30 * MS, most_routes=1)
    found = best(made, Target.THROUGHPUT)
    assert devices_of(found) == {B}
    told = {one.device: one.reason for one in left_out(made, found)}
    shown = "requests per second"
    assert told[C] == f"the best found that uses it gives 33.33 {shown}, this one 166.7 {shown}"


def test_a_device_that_gives_as_much_is_told_with_the_bottleneck_and_is_no_contradiction() -> None:
    # 10 kB at a byte in a microsecond keep the medium busy for 10 ms, whichever of b and c it is.
    made = _beside(c_s=6 * MS, medium="air", most_routes=1)
    found = best(made, Target.THROUGHPUT)
    compared = compare(made, found)
    out = C if devices_of(found) == {B} else B
    told = {one.device: one.reason for one in compared.left_out}
    assert told[out] == (
        "no better with it: the best found that uses it gives 100 requests per second as well; "
        "this one is limited by medium air"
    )
    assert compared.runner_up is not None
    assert compared.runner_up.metrics.throughput_per_s == pytest.approx(100.0)


def _beside(*, c_s: float, medium: str = "", **changes: Any) -> Problem:
    """One segment: 100 ms on the owner, 6 ms on b, `c_s` on c."""
    made = one_segment(100 * MS, 6 * MS, **changes)
    if not medium:
        made = replace(made, input_bytes=1000)
    links = (*both_ways(A, B, medium=medium), *both_ways(A, C, medium=medium))
    return replace(made, devices=(*made.devices, device(C, times(HOST, [c_s]))), links=links)


def test_a_device_left_out_of_a_memory_is_told_of_in_bytes() -> None:
    # The last segment alone has as much as the first two: 3000 bytes. With a, it is no less.
    made = replace(_with_c(), summary=model(3, [4000, 1000], weight_bytes=1000, working_bytes=0))
    (out,) = left_out(made, best(made, Target.MEMORY))
    assert out.reason == "no better with it: the best found that uses it needs 2.93 KiB as well"


def test_a_route_as_good_is_told_to_be_no_better() -> None:
    made = _with_c(c_s=2 * MS)
    found = best(made)
    (out,) = {B, C} - devices_of(found)
    told = {one.device: one.reason for one in left_out(made, found)}
    assert told[out] == "no better with it: the best route that uses it takes 18 ms as well"


def test_there_is_no_runner_up_where_nothing_else_will_do() -> None:
    only = with_device(quick_neighbour(), A, times=())
    assert runner_up(only, best(only)) is None
    pins = tuple(SegmentPin(segment=segment, device=B) for segment in range(3))
    pinned = replace(quick_neighbour(), pins=pins)
    assert runner_up(pinned, best(pinned)) is None
    # One segment alone leaves the others free: 1 + 10 on b, 5 back, 20 on a.
    second = runner_up(replace(pinned, pins=pins[:1]), best(pinned))
    assert second is not None
    assert devices_of(second) == {A, B}


def test_the_best_on_one_device_has_its_input_sent() -> None:
    found = alone(quick_neighbour(), Target.LATENCY)
    assert isinstance(found, Distribution)
    assert found.routes == ALL_ON_B
    heavy = alone(replace(quick_neighbour(), input_bytes=30_000), Target.LATENCY)
    assert isinstance(heavy, Distribution)
    assert heavy.routes == ALL_ON_A


def test_nothing_is_best_on_one_device_where_the_model_fits_on_none() -> None:
    made = with_device(with_device(quick_neighbour(), A, memory_bytes=3200), B, memory_bytes=6000)
    assert best(made).routes == A_THEN_B
    assert alone(made, Target.LATENCY) is None


def test_one_device_alone_keeps_to_pins() -> None:
    pins = (SegmentPin(segment=0, device=A),)
    found = alone(replace(quick_neighbour(), pins=pins), Target.LATENCY)
    assert isinstance(found, Distribution)
    assert found.routes == ALL_ON_A
    apart = (*pins, SegmentPin(segment=1, device=B))
    assert alone(replace(quick_neighbour(), pins=apart), Target.LATENCY) is None
