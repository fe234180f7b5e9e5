"""Why nothing can be planned: the first obstacle, with what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.distributions import Infeasible, MissingMemory
from edge_agent.planning.missing import obstacle, why_idle
from edge_agent.planning.planner import EFFORT, plan
from edge_agent.plans import Bound, Target
from edge_agent.problems import Problem
from tests.planning.made_pairs import (
    MB,
    MS,
    bounded,
    now,
    one_segment,
    quick_neighbour,
    refused,
    two_branches,
    with_device,
    with_unit,
    without_link,
)
from tests.simulation.made_problems import A, B, host, model, npu, times


def _heavy(a_mb: int, b_mb: int) -> Problem:
    """Weights of 10, 20, 30 MB with activations of 1, 2, 3 MB, and such memories."""
    made = replace(
        quick_neighbour(), summary=model(3, [4000, 1000], weight_bytes=10 * MB, working_bytes=MB)
    )
    return with_device(with_device(made, A, memory_bytes=a_mb * MB), B, memory_bytes=b_mb * MB)


def test_a_device_that_may_work_is_not_idle_for_a_reason() -> None:
    made = quick_neighbour()
    assert [why_idle(made, device, Target.LATENCY) for device in made.devices] == ["", ""]


def test_a_low_battery_is_told_with_the_charge_that_would_do() -> None:
    made = now(quick_neighbour(), B, battery_fraction=0.07)
    said = why_idle(made, made.device(B), Target.LATENCY)
    assert said == "its battery is at 7 %, and below 20 % a device does no work for others"


def test_a_device_without_a_profile_says_so() -> None:
    made = with_device(quick_neighbour(), B, times=())
    assert why_idle(made, made.device(B), Target.LATENCY) == "it has no latency profile"


def test_a_banned_unit_says_why() -> None:
    made = with_unit(quick_neighbour(), B, banned_because="it is loud")
    assert why_idle(made, made.device(B), Target.LATENCY) == "cpu: it is loud"


def test_what_only_runs_several_at_once_is_for_the_throughput() -> None:
    made = with_device(quick_neighbour(), B, times=(times(host(instances=4), [MS] * 3),), cores=4)
    said = why_idle(made, made.device(B), Target.LATENCY)
    assert said == "none of its configurations runs one request at a time"
    assert why_idle(made, made.device(B), Target.THROUGHPUT) == ""


def test_devices_that_may_do_nothing_are_all_told() -> None:
    made = with_device(with_unit(quick_neighbour(), A, banned_because="it is hot"), B, times=())
    assert refused(made) == (
        "no device may do anything: a: cpu: it is hot; b: it has no latency profile"
    )


def test_a_segment_that_every_unit_refuses_is_named_with_its_operators() -> None:
    made = quick_neighbour()
    for name in (A, B):
        (fitted,) = made.device(name).times
        made = with_device(made, name, times=(replace(fitted, refused=(1,)),))
    assert (
        refused(made) == "segment 1 (nodes 1 to 1: Conv) is refused by every unit that may be used"
    )


def test_a_missing_link_is_named() -> None:
    made = with_device(quick_neighbour(), A, times=())
    assert "there is no link from a to b; add links" in refused(without_link(made, A, B))
    assert "there is no link from b to a; add links" in refused(without_link(made, B, A))
    assert "a to b, b to a" in refused(replace(made, links=()))


def test_what_cannot_be_sent_is_told_apart_from_missing_links() -> None:
    made = with_device(quick_neighbour(), A, times=())
    reason = refused(with_device(made, B, most_crossing_bytes=9999))
    assert reason == (
        "no route leads through the model from a and back: what would be sent is more than is "
        "taken at once (b takes 9.76 KiB)"
    )
    reason = refused(replace(made, output_bytes=None))
    assert reason.endswith(
        "and back: the size of the outputs is not known before they are computed, so the last "
        "segment runs on a"
    )


@pytest.mark.parametrize(
    ("a_mb", "b_mb", "text"),
    [
        # 33 MB for the last segment alone; b takes the others in 32 MB.
        (
            30,
            32,
            "it needs 2.87 MiB more on a, or 11.5 MiB on b (there are a 28.6 MiB, b 30.5 MiB)",
        ),
        # As much on either: the first two need 32 MB, the last 33 MB.
        (32, 32, "it needs 977 KiB more on any of a, b (there are"),
        # The last on b leaves 32 MB to a.
        (20, 33, "it needs 11.5 MiB more on a"),
        # With 12 MB, only the first segment fits on b, 11 MB: 53 MB on a.
        (10, 11, "it needs 41.1 MiB more on a"),
        (0, 0, "it needs 60.1 MiB more on any of a, b"),
    ],
)
def test_the_memory_that_is_missing_is_told(a_mb: int, b_mb: int, text: str) -> None:
    assert f"it fits nowhere, divided or not: {text}" in refused(_heavy(a_mb, b_mb))


def test_what_is_told_to_be_missing_is_enough() -> None:
    with pytest.raises(AssertionError, match="Distribution"):
        refused(_heavy(33, 32))
    with pytest.raises(AssertionError, match="Distribution"):
        refused(_heavy(53, 11))
    assert "fits nowhere" in refused(_heavy(52, 11))


def test_each_memory_is_told_its_own_amount() -> None:
    # The last segment takes 33 MB, on either.
    made = with_device(_heavy(32, 32), A, memory_bytes=32_500_000)
    reason = refused(with_device(made, B, memory_bytes=32_480_000))
    assert "it needs 489 KiB more on a, or 508 KiB on b (there are" in reason


def test_what_is_missing_is_told_in_bytes_too() -> None:
    made = with_device(_heavy(32, 32), A, memory_bytes=32_500_000)
    found = plan(with_device(made, B, memory_bytes=32_480_000), Target.LATENCY)
    assert isinstance(found, Infeasible)
    assert found.missing == (
        MissingMemory(memory="a", more_bytes=500_000, is_least=True),
        MissingMemory(memory="b", more_bytes=520_000, is_least=True),
    )
    # Nothing but memory is told so.
    bounded = replace(_heavy(99, 99), bounds=(Bound(target=Target.LATENCY, limit=1e-9),))
    found = plan(bounded, Target.LATENCY)
    assert isinstance(found, Infeasible)
    assert found.missing == ()


def test_memory_that_no_single_device_can_make_up_for_is_told_so() -> None:
    # Each refuses what the other one takes.
    made = _heavy(5, 5)
    for name, refused_segment in ((A, 0), (B, 2)):
        (fitted,) = made.device(name).times
        made = with_device(made, name, times=(replace(fitted, refused=(refused_segment,)),))
    reason = refused(made)
    assert "its weights are 57.2 MiB, and there are a 4.77 MiB, b 4.77 MiB" in reason
    assert "more memory on one device alone does not help" in reason


def test_the_memory_of_an_accelerator_is_told_apart() -> None:
    made = with_unit(_heavy(5, 5), B, npu().unit, memory_bytes=50 * MB)
    made = with_device(made, B, times=(times(npu(), [MS] * 3),))
    # All of it there needs 63 MB; or the second segment alone on a, 22 MB.
    assert "12.4 MiB more on b/npu0, or 16.3 MiB on a (there are a 4.77 MiB, b/npu0 47.7 MiB)" in (
        refused(made)
    )


BEYOND = [
    (Target.LATENCY, 17.9 * MS, "latency of at most 17.9 ms: the least is 18 ms"),
    (
        Target.ENERGY,
        0.01,
        "energy of at most 0.01 J per request (modelled): the least is 0.024 J per request "
        "(modelled)",
    ),
    (
        Target.MEMORY,
        3299,
        "memory of at most 3.222 KiB on the fullest device: the least is 3.223 KiB",
    ),
    (Target.THROUGHPUT, 1e6, "throughput at least 1000000 requests per second: no more than"),
]


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize(("limited", "limit", "text"), BEYOND, ids=[b[0] for b in BEYOND])
def test_a_bound_beyond_reach_is_told_with_what_can_be_had(
    target: Target, limited: Target, limit: float, text: str
) -> None:
    found = plan(bounded(quick_neighbour(), limited, limit), target)
    assert isinstance(found, Infeasible)
    assert found.reason.startswith(f"beyond reach: {text}")
    assert found.is_certain


def test_a_rate_beyond_one_route_is_told_where_one_is_asked_for() -> None:
    made = one_segment(30 * MS, 6 * MS, most_routes=1)
    reason = refused(bounded(made, Target.THROUGHPUT, 101.0), Target.THROUGHPUT)
    assert reason == (
        "beyond reach: throughput at least 101 requests per second: no more than 100 requests per "
        "second can be had"
    )


def test_bounds_beyond_reach_are_all_told() -> None:
    bounds = (Bound(target=Target.LATENCY, limit=MS), Bound(target=Target.ENERGY, limit=0.001))
    reason = refused(replace(quick_neighbour(), bounds=bounds), Target.BYTES)
    assert "latency of at most 1 ms: the least is 18 ms; energy of at most 0.001 J" in reason


def test_branches_at_once_count_among_what_can_be_had() -> None:
    made = bounded(two_branches(), Target.LATENCY, 20 * MS)
    assert "the least is 21 ms" in obstacle(made, Target.LATENCY, EFFORT).text
    assert refused(made, Target.ENERGY).endswith("the least is 21 ms")


def test_a_reason_is_the_same_for_equal_problems() -> None:
    assert refused(_heavy(30, 32)) == refused(_heavy(30, 32))
