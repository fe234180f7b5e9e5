"""When what is deployed is replaced, and what that costs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from edge_agent.distributions import Infeasible, Route
from edge_agent.planning.legality import objections
from edge_agent.planning.metrics import evaluate
from edge_agent.planning.replan import Replanned, ReplanPolicy, replan
from edge_agent.plans import Target
from edge_agent.problems import Problem, SegmentPin
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    HOST,
    MS,
    THROUGH_B,
    best,
    bounded,
    branches_through_b,
    forked,
    now,
    one_segment,
    quick_neighbour,
    two_branches,
    with_device,
    with_unit,
)
from tests.simulation.made_problems import A, B, model, placed, route

ON_A, ON_B = route(placed(0, 1, A, HOST)), route(placed(0, 1, B, HOST))
POLICY = ReplanPolicy(horizon_s=60.0, compile_s=1.0, least_gain=0.02)


def _replan(
    made: Problem,
    previous: tuple[Route, ...],
    target: Target = Target.LATENCY,
    policy: ReplanPolicy = POLICY,
) -> Replanned:
    found = replan(made, target, previous, policy)
    assert isinstance(found, Replanned)
    assert found.distribution.metrics == evaluate(made, found.distribution.routes)
    return found


def _off_by(made: Problem, on_a: float, on_b: float) -> Problem:
    """The problem with latency profiles that may be off by such a share."""
    for name, error in ((A, on_a), (B, on_b)):
        (fitted,) = made.device(name).times
        made = with_device(made, name, times=(replace(fitted, error_fraction=error),))
    return made


def test_the_best_plan_stays() -> None:
    found = _replan(quick_neighbour(), ALL_ON_B)
    assert found.distribution == best(quick_neighbour())
    assert not found.is_change
    assert found.gain == pytest.approx(0.0)
    assert found.change.is_free


def test_a_gain_beyond_the_noise_is_worth_a_change() -> None:
    # 30 ms on a, 18 ms on b: two fifths of 60 s are saved, and the change takes one.
    found = _replan(quick_neighbour(), ALL_ON_A)
    assert found.is_change
    assert found.distribution == best(quick_neighbour())
    assert found.gain == pytest.approx(0.4)
    assert found.noise == 0.0
    assert found.change.bytes_to_send == ((B, 6000),)
    assert found.change.subgraphs_to_compile == ((B, 1),)
    assert found.change.seconds == pytest.approx(0.007 + 1.0)
    assert "more than 2.0%" in found.reason


def test_a_gain_within_the_noise_is_not() -> None:
    # a takes 20 ms now; the first segment there and the rest on b 6.7 + 5 + 4 + 1.
    made = _off_by(now(quick_neighbour(), A, slowdowns=(("cpu", 2 / 3),)), 0.12, 0.12)
    found = _replan(made, ALL_ON_A)
    assert found.gain == pytest.approx(1 / 6)
    assert found.noise == pytest.approx(0.12 * (20 + 20 / 3 + 4) / 20)
    assert not found.is_change
    assert found.distribution.routes == ALL_ON_A
    assert "gain 16.7% is within 18.4%" in found.reason
    # The same gain with profiles that are good is worth it.
    assert _replan(_off_by(made, 0.01, 0.01), ALL_ON_A).is_change


@pytest.mark.parametrize(("error", "is_change"), [(0.33, True), (0.34, False)])
def test_the_change_begins_where_the_gain_exceeds_the_noise(error: float, is_change: bool) -> None:
    # 12 ms of 30 to gain, 30 + 6 ms off by a share: at a third the two are equal.
    found = _replan(_off_by(quick_neighbour(), error, error), ALL_ON_A)
    assert found.noise == pytest.approx(1.2 * error)
    assert found.is_change is is_change


def test_what_both_have_in_common_is_no_noise() -> None:
    # The first segment stays on a, whose profile is worth nothing.
    made = _off_by(replace(quick_neighbour(), input_bytes=30_000), 5.0, 0.0)
    previous = (route(placed(0, 1, A, HOST), placed(1, 2, B, HOST), placed(2, 3, A, HOST)),)
    assert best(made).routes == A_THEN_B
    found = _replan(made, previous)
    assert found.noise == pytest.approx(5.0 * 10 / (10 + 5 + 2 + 2 + 10))
    common = _replan(_off_by(made, 0.0, 0.0), previous)
    assert common.noise == 0.0
    assert common.is_change
    same = _replan(made, A_THEN_B)
    assert same.noise == 0.0


def test_a_route_that_few_requests_take_is_little_noise() -> None:
    # b takes 99 ms where a takes 1, so that it gets a hundredth of the requests.
    made = _off_by(one_segment(1 * MS, 99 * MS, input_bytes=0), 0.0, 0.01)
    policy = ReplanPolicy(horizon_s=60.0, compile_s=0.1, least_gain=0.0)
    found = _replan(made, (ON_A,), Target.THROUGHPUT, policy)
    assert found.gain == pytest.approx(0.01)
    # A hundredth of 99 ms may be off by a hundredth; the requests take 0.99 + 0.99 ms.
    assert found.noise == pytest.approx(0.01 * 0.99 / 1.98)
    assert found.is_change


def test_a_small_gain_is_not_worth_a_change_however_certain() -> None:
    policy = replace(POLICY, least_gain=0.41)
    found = _replan(quick_neighbour(), ALL_ON_A, policy=policy)
    assert not found.is_change
    assert found.gain == pytest.approx(0.4)
    assert _replan(quick_neighbour(), ALL_ON_A, policy=replace(policy, least_gain=0.39)).is_change


def test_a_change_must_pay_for_itself() -> None:
    # Two fifths of the time are saved, and a change takes 1.007 s: it pays after 2.5 s.
    short, long = (replace(POLICY, horizon_s=s) for s in (2.5, 2.6))
    kept = _replan(quick_neighbour(), ALL_ON_A, policy=short)
    assert not kept.is_change
    assert kept.distribution.routes == ALL_ON_A
    assert kept.reason == (
        "deployed 30 ms, best 18 ms: gain 40.0% saves 1 s in 2.5 s, and the change takes 1.01 s"
    )
    assert _replan(quick_neighbour(), ALL_ON_A, policy=long).is_change


NAMED = {
    Target.LATENCY: ("deployed 30 ms, best 18 ms: gain 40.0%", "saves 24 s in 60 s"),
    Target.THROUGHPUT: (
        "deployed 33.33 requests per second, best 160 requests per second: gain 79.2%",
        "saves 47.5 s in 60 s",
    ),
    Target.ENERGY: (
        "deployed 0.12 J per request (modelled), best 0.024 J per request (modelled): gain 80.0%",
        "saves 189 J (modelled) in the 59 s after the change, at most 33.33 requests per second, "
        "and the change draws 4 J (modelled)",
    ),
    Target.MEMORY: (
        "deployed 6.15 KiB, best 3.22 KiB: gain 47.6%",
        "decides alone: what the change sends and compiles is no memory",
    ),
}


@pytest.mark.parametrize("target", NAMED)
def test_the_reason_is_in_the_unit_of_the_target(target: Target) -> None:
    found = _replan(quick_neighbour(), ALL_ON_A, target)
    gain, balance = NAMED[target]
    assert found.is_change
    assert found.reason.startswith(
        f"{gain}, more than 2.0%, the least that is worth a change; it {balance}"
    )


def test_a_gain_that_is_too_small_is_told_in_the_unit_of_the_target() -> None:
    for target, value in (
        (Target.LATENCY, "18 ms"),
        (Target.ENERGY, "0.024 J per request (modelled)"),
    ):
        found = _replan(quick_neighbour(), ALL_ON_B, target)
        assert found.reason == (
            f"deployed {value}, best {value}: gain 0.0% is within 2.0%, the least that is worth a "
            "change"
        )


# What is not counted in seconds: the change takes 1 s and some milliseconds, and only what comes
# after it saves anything.


@pytest.mark.parametrize("target", [Target.ENERGY, Target.MEMORY, Target.BYTES])
def test_a_change_that_is_not_ready_before_all_changes_again_saves_nothing(target: Target) -> None:
    previous = ALL_ON_B if target is Target.BYTES else ALL_ON_A
    found = _replan(quick_neighbour(), previous, target, replace(POLICY, horizon_s=1.0))
    assert not found.is_change
    assert re.search(r"saves nothing in 1 s: the change takes 1(\.01)? s$", found.reason)


def _two_cuts() -> tuple[Problem, Route]:
    """The last segment is on `b`, and 4 kB cross the cut before it, where 1 kB crosses the first;
    to get there 200 kB of weights are sent in 0.2 s."""
    made = quick_neighbour()
    summary = model(3, [1000, 4000], weight_bytes=100_000)
    pins = (SegmentPin(segment=2, device=B, pattern="head*"),)
    return replace(made, summary=summary, pins=pins), route(
        placed(0, 2, A, HOST), placed(2, 3, B, HOST)
    )


@pytest.mark.parametrize(
    ("asked_per_s", "pays_s", "at_rate"),
    # 3 kB per request, 10 or at most 50 of them per second: 200 kB take 6.7 or 1.33 s more.
    [(10.0, 1.201 + 20 / 3, "at 10 requests"), (None, 1.201 + 4 / 3, "at most 50 requests")],
)
def test_bytes_must_be_worth_the_bytes_that_are_sent_for_them(
    asked_per_s: float | None, pays_s: float, at_rate: str
) -> None:
    made, deployed = _two_cuts()
    if asked_per_s:
        made = bounded(made, Target.THROUGHPUT, asked_per_s)
    short, long = (replace(POLICY, horizon_s=pays_s * by) for by in (0.999, 1.001))
    kept = _replan(made, (deployed,), Target.BYTES, short)
    assert kept.change.bytes_to_send == ((B, 200_000),)
    assert not kept.is_change
    assert kept.reason.startswith("deployed 3.91 KiB, best 1000 B: gain 75.0% saves 195 KiB in the")
    assert kept.reason.endswith(f"{at_rate} per second, and the change sends 195 KiB")
    assert _replan(made, (deployed,), Target.BYTES, long).is_change


@pytest.mark.parametrize(
    ("asked_per_s", "pays_s"),
    # 96 mJ per request, and a second of a core of 4 W to compile: after 41.7 requests.
    [(10.0, 1.007 + 4 / 0.96), (None, 1.007 + 4 / (0.096 * 100 / 3))],
)
def test_energy_must_be_worth_what_the_change_draws(
    asked_per_s: float | None, pays_s: float
) -> None:
    made = quick_neighbour()
    if asked_per_s:
        made = bounded(made, Target.THROUGHPUT, asked_per_s)
    short, long = (replace(POLICY, horizon_s=pays_s * by) for by in (0.999, 1.001))
    kept = _replan(made, ALL_ON_A, Target.ENERGY, short)
    assert not kept.is_change
    assert kept.reason.endswith("and the change draws 4 J (modelled)")
    assert _replan(made, ALL_ON_A, Target.ENERGY, long).is_change


NOISES = {
    # 30 ms on one and 6 on the other, 30 % off, of at most 30.
    Target.LATENCY: 0.36,
    # 30 ms on one; then five eighths of the requests 10 there and 4 on the other, the rest 6.
    Target.THROUGHPUT: 0.41,
    # A core of b draws 10 W where one of a draws 4: 120 and 60 mJ of at most 120.
    Target.ENERGY: 0.45,
    Target.MEMORY: 0.0,
    Target.BYTES: 0.0,
}


@pytest.mark.parametrize("target", list(Target))
def test_only_what_follows_from_times_is_off_as_they_are(target: Target) -> None:
    made = _off_by(with_unit(quick_neighbour(), B, busy_w=11.0), 0.3, 0.3)
    previous = ALL_ON_B if target is Target.BYTES else ALL_ON_A
    found = _replan(made, previous, target)
    assert found.noise == pytest.approx(NOISES[target])


def test_less_memory_is_certain_however_little_is_known_of_times() -> None:
    found = _replan(_off_by(quick_neighbour(), 5.0, 5.0), ALL_ON_A, Target.MEMORY)
    assert found.gain == pytest.approx(3000 / 6300)
    assert found.is_change


def test_energy_within_the_noise_of_times_is_no_gain() -> None:
    # A core of b draws 11 W: 66 mJ there, 120 here.
    made = _off_by(with_unit(quick_neighbour(), B, busy_w=12.0), 0.3, 0.3)
    found = _replan(made, ALL_ON_A, Target.ENERGY)
    assert found.noise == pytest.approx(0.3 * (120 + 66) / 120)
    assert not found.is_change
    assert "gain 45.0% is within 46.5%, by which predictions may be off" in found.reason


def test_what_stays_deployed_is_judged_against_what_the_best_could_be() -> None:
    kept = _replan(quick_neighbour(), ALL_ON_A, policy=replace(POLICY, horizon_s=0.0))
    assert kept.distribution.bound == pytest.approx(18 * MS)
    assert kept.distribution.gap == pytest.approx(30 / 18 - 1)


def test_a_device_that_is_gone_is_given_up_whatever_that_costs() -> None:
    alone = replace(quick_neighbour(), devices=quick_neighbour().devices[:1], links=())
    found = _replan(alone, ALL_ON_B, policy=replace(POLICY, horizon_s=0.0, least_gain=1.0))
    assert found.is_change
    assert found.distribution.routes == ALL_ON_A
    assert found.gain == 1.0
    assert found.reason == "what is deployed cannot go on: device b is gone"
    assert found.change.subgraphs_to_compile == ((A, 1),)


@pytest.mark.parametrize(
    "made",
    [
        with_device(quick_neighbour(), B, memory_bytes=6299),
        now(quick_neighbour(), B, free_memory_bytes=6299),
        now(quick_neighbour(), B, battery_fraction=0.1),
        bounded(quick_neighbour(), Target.BYTES, 9999),
        replace(quick_neighbour(), links=()),
    ],
    ids=["budget", "free memory", "battery", "bound", "links"],
)
def test_what_is_not_legal_any_more_is_given_up(made: Problem) -> None:
    never = replace(POLICY, horizon_s=0.0, least_gain=1.0)
    found = _replan(made, ALL_ON_B, policy=never)
    assert found.is_change
    assert "cannot go on" in found.reason
    assert not objections(made, found.distribution.routes)


def test_branches_that_must_not_run_at_once_any_more_are_given_up() -> None:
    previous = (Route(steps=(placed(0, 1, A, HOST), forked(A, (0, A, HOST), (1, B, HOST)))),)
    assert not _replan(two_branches(), previous).is_change
    found = _replan(two_branches(with_branches=False), previous)
    assert found.is_change
    assert found.distribution.routes == ALL_ON_A


def test_a_fork_whose_home_is_to_be_spared_is_given_up() -> None:
    never = replace(POLICY, horizon_s=0.0, least_gain=1.0)
    made = branches_through_b()
    assert not _replan(made, THROUGH_B, policy=never).is_change
    low = now(made, B, battery_fraction=0.01)
    found = _replan(low, THROUGH_B, policy=never)
    assert found.is_change
    assert found.reason == (
        "what is deployed cannot go on: the battery of b is too low to work for others"
    )
    assert B not in {fork.home for route in found.distribution.routes for fork in route.forks()}
    assert not objections(low, found.distribution.routes)


def test_nothing_deployed_is_the_first_plan() -> None:
    found = _replan(quick_neighbour(), ())
    assert found.is_change
    assert found.distribution == best(quick_neighbour())
    assert found.change.bytes_to_send == ((B, 6000),)


def test_nothing_to_go_on_with_is_said() -> None:
    nothing = with_device(with_device(quick_neighbour(), A, memory_bytes=0), B, memory_bytes=0)
    found = replan(nothing, Target.LATENCY, ALL_ON_A, POLICY)
    assert isinstance(found, Infeasible)
    assert "fits nowhere" in found.reason


def test_deployed_routes_get_other_shares_for_nothing() -> None:
    # Alike when both were idle; now b takes three times as long, and gets a quarter.
    made = one_segment(10 * MS, 10 * MS, input_bytes=0)
    previous = tuple(replace(r, share=0.5) for r in (ON_A, ON_B))
    assert not _replan(made, previous, Target.THROUGHPUT).is_change
    slowed = now(made, B, slowdowns=(("cpu", 3.0),))
    found = _replan(slowed, previous, Target.THROUGHPUT)
    assert found.is_change
    assert [r.share for r in found.distribution.routes] == pytest.approx([0.75, 0.25])
    assert found.distribution.metrics.throughput_per_s == pytest.approx(1000 / 7.5)
    assert found.gain == pytest.approx(0.0)
    assert found.change.is_free
    assert found.reason.endswith("the deployed routes get other shares")


@pytest.mark.parametrize("off", [0.0, 3e-14, -3e-14])
def test_shares_that_differ_by_rounding_are_no_change(off: float) -> None:
    made = one_segment(10 * MS, 7 * MS, input_bytes=0)
    shares = (7 / 17 + off, 10 / 17 - off)
    previous = tuple(replace(r, share=s) for r, s in zip((ON_A, ON_B), shares, strict=True))
    found = _replan(made, previous, Target.THROUGHPUT)
    assert not found.is_change
    assert found.distribution.routes == previous
    assert found.gain == 0.0
    assert "gain 0.0%" in found.reason


def test_shares_that_do_not_serve_a_bound_any_more_are_no_reason_to_change_more() -> None:
    # With half of the traffic on b 66.7 per second are served, with a quarter 133.3.
    made = one_segment(10 * MS, 10 * MS, input_bytes=0)
    slowed = bounded(now(made, B, slowdowns=(("cpu", 3.0),)), Target.THROUGHPUT, 100.0)
    previous = tuple(replace(r, share=0.5) for r in (ON_A, ON_B))
    found = _replan(slowed, previous, Target.THROUGHPUT)
    assert found.is_change
    assert found.change.is_free
    assert found.gain == pytest.approx(0.0)
    assert [r.share for r in found.distribution.routes] == pytest.approx([0.75, 0.25])


def test_a_rate_that_other_shares_reach_keeps_the_routes_for_every_target() -> None:
    made = one_segment(10 * MS, 10 * MS, input_bytes=0)
    slowed = bounded(now(made, B, slowdowns=(("cpu", 3.0),)), Target.THROUGHPUT, 133.0)
    previous = tuple(replace(r, share=0.5) for r in (ON_A, ON_B))
    found = _replan(slowed, previous, Target.LATENCY)
    assert found.is_change
    assert found.change.is_free
    assert found.distribution.metrics.throughput_per_s == pytest.approx(1000 / 7.5)


def test_a_rate_that_no_shares_reach_is_told_so() -> None:
    # 133.4 per second are more than any shares give.
    made = now(one_segment(10 * MS, 10 * MS, input_bytes=0), B, slowdowns=(("cpu", 3.0),))
    previous = tuple(replace(r, share=0.5) for r in (ON_A, ON_B))
    found = replan(bounded(made, Target.THROUGHPUT, 133.4), Target.LATENCY, previous, POLICY)
    assert isinstance(found, Infeasible)
    assert "no more than 133.3 requests per second can be had" in found.reason


@pytest.mark.parametrize("target", list(Target))
def test_equal_inputs_give_equal_answers(target: Target) -> None:
    first, second = (replan(quick_neighbour(), target, A_THEN_B, POLICY) for _ in range(2))
    assert first == second
