"""What has to be sent and compiled to go from one distribution to another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.devices import Layout
from edge_agent.distributions import Route, Step
from edge_agent.planning.changes import Change, change
from edge_agent.problems import Problem
from tests.planning.made_pairs import (
    A_THEN_B,
    ALL_ON_A,
    ALL_ON_B,
    B_THEN_A,
    HOST,
    MS,
    forked,
    one_segment,
    quick_neighbour,
    two_branches,
    with_device,
    with_links,
    without_link,
)
from tests.simulation.made_problems import A, B, C, device, host, link, npu, placed, times

COMPILE_S = 0.5
COMPILE_J = 4.0 * COMPILE_S
"""Of one subgraph: a core draws 4 W more than when it is idle."""


def _change(made: Problem, before: tuple[Route, ...], after: tuple[Route, ...]) -> Change:
    return change(made, before, after, compile_s=COMPILE_S)


def _route(*steps: Step) -> tuple[Route, ...]:
    return (Route(steps=steps),)


def test_what_stays_as_it_is_costs_nothing() -> None:
    for routes in (ALL_ON_A, ALL_ON_B, A_THEN_B):
        found = _change(quick_neighbour(), routes, routes)
        assert found == Change(bytes_to_send=(), subgraphs_to_compile=(), seconds=0.0, joules=0.0)
        assert found.is_free


def test_other_shares_cost_nothing() -> None:
    one, other = (replace(r, share=0.5) for r in (*ALL_ON_A, *ALL_ON_B))
    shared = (replace(other, share=0.9), replace(one, share=0.1))
    assert _change(quick_neighbour(), (one, other), shared).is_free


def test_a_device_gets_the_weights_that_it_has_not() -> None:
    # Weights of 1, 2, 3 kB over 1 ms and 1 us per byte; then a subgraph is compiled.
    assert _change(quick_neighbour(), ALL_ON_A, ALL_ON_B) == Change(
        bytes_to_send=((B, 6000),),
        subgraphs_to_compile=((B, 1),),
        seconds=pytest.approx(0.507),
        joules=COMPILE_J,
    )
    # The owner compiles at the same time.
    assert _change(quick_neighbour(), ALL_ON_A, A_THEN_B) == Change(
        bytes_to_send=((B, 5000),),
        subgraphs_to_compile=((A, 1), (B, 1)),
        seconds=pytest.approx(0.506),
        joules=2 * COMPILE_J,
    )


def test_a_device_keeps_the_weights_that_it_has() -> None:
    assert _change(quick_neighbour(), A_THEN_B, ALL_ON_B) == Change(
        bytes_to_send=((B, 1000),),
        subgraphs_to_compile=((B, 1),),
        seconds=pytest.approx(0.502),
        joules=COMPILE_J,
    )
    # Another cut among the same segments is compiled again, and nothing is sent.
    assert _change(quick_neighbour(), ALL_ON_B, A_THEN_B) == Change(
        bytes_to_send=(),
        subgraphs_to_compile=((A, 1), (B, 1)),
        seconds=COMPILE_S,
        joules=2 * COMPILE_J,
    )


def test_the_owner_has_all_weights() -> None:
    found = _change(quick_neighbour(), ALL_ON_B, ALL_ON_A)
    assert found == Change(
        bytes_to_send=(), subgraphs_to_compile=((A, 1),), seconds=COMPILE_S, joules=COMPILE_J
    )
    assert not found.is_free


def test_everything_is_new_where_nothing_was() -> None:
    assert _change(quick_neighbour(), (), A_THEN_B).bytes_to_send == ((B, 5000),)
    assert _change(quick_neighbour(), (), A_THEN_B).subgraphs_to_compile == ((A, 1), (B, 1))


def test_what_two_routes_have_in_common_is_sent_and_compiled_once() -> None:
    both = (replace(ALL_ON_B[0], share=0.5), replace(B_THEN_A[0], share=0.5))
    found = _change(quick_neighbour(), ALL_ON_A, both)
    assert found.bytes_to_send == ((B, 6000),)
    assert found.subgraphs_to_compile == ((A, 1), (B, 2))
    assert found.seconds == pytest.approx(0.007 + 2 * COMPILE_S)


def test_threads_and_instances_are_no_reason_to_compile() -> None:
    before = _route(placed(0, 3, A, host(threads=1)))
    for which in (host(threads=4), host(instances=4)):
        assert _change(quick_neighbour(), before, _route(placed(0, 3, A, which))).is_free


@pytest.mark.parametrize(
    "which",
    [host(layout=Layout.NHWC), npu(), replace(HOST, is_half=True), replace(HOST, falls_back=True)],
    ids=str,
)
def test_another_form_is_compiled_from_the_weights_that_are_there(which: object) -> None:
    after = _route(placed(0, 3, B, which))  # type: ignore[arg-type]
    assert _change(quick_neighbour(), ALL_ON_B, after) == Change(
        bytes_to_send=(), subgraphs_to_compile=((B, 1),), seconds=COMPILE_S, joules=COMPILE_J
    )


def test_the_same_layout_on_another_unit_is_compiled() -> None:
    before = _route(placed(0, 3, B, replace(npu(), layout=Layout.NHWC)))
    after = _route(placed(0, 3, B, host(layout=Layout.NHWC)))
    assert _change(quick_neighbour(), before, after) == Change(
        bytes_to_send=(), subgraphs_to_compile=((B, 1),), seconds=COMPILE_S, joules=COMPILE_J
    )


def test_devices_prepare_at_once_and_the_slowest_counts() -> None:
    made = quick_neighbour()
    made = replace(
        made,
        devices=(*made.devices, device(C, times(HOST, [MS] * 3))),
        links=(*made.links, link(A, C, goodput_bytes_per_s=1e3), link(C, A)),
    )
    after = _route(placed(0, 1, B, HOST), placed(1, 2, C, HOST), placed(2, 3, A, HOST))
    assert _change(made, ALL_ON_A, after) == Change(
        bytes_to_send=((B, 1000), (C, 2000)),
        subgraphs_to_compile=((A, 1), (B, 1), (C, 1)),
        seconds=pytest.approx(2.0 + COMPILE_S),
        joules=3 * COMPILE_J,
    )


def test_without_a_link_from_the_owner_the_best_other_one_counts() -> None:
    made = without_link(quick_neighbour(), A, B)
    made = replace(
        made,
        devices=(*made.devices, device(C, times(HOST, [MS] * 3))),
        links=(*made.links, link(C, B, goodput_bytes_per_s=6e3)),
    )
    assert _change(made, ALL_ON_A, ALL_ON_B).seconds == pytest.approx(1.0 + COMPILE_S)
    none = without_link(quick_neighbour(), A, B)
    assert _change(none, ALL_ON_A, ALL_ON_B).seconds == float("inf")


def test_the_energy_of_a_change_is_that_of_sending_and_compiling() -> None:
    # 6 kB at 1 mJ per byte on the wire, 10 us of a core of 4 W there and 20 us here; 2 J compile.
    made = with_links(quick_neighbour(), joules_per_byte=1e-3)
    made = with_device(with_device(made, A, send_s_per_byte=1e-5), B, receive_s_per_byte=2e-5)
    found = _change(made, ALL_ON_A, ALL_ON_B)
    assert found.joules == pytest.approx(6000 * (1e-3 + 4.0 * 3e-5) + COMPILE_J)
    # What is sent over the link of another one costs what that takes.
    third = device(C, times(HOST, [MS] * 3))
    around = replace(without_link(made, A, B), devices=(*made.devices, third))
    around = replace(around, links=(*around.links, link(C, B, joules_per_byte=2e-3)))
    found = _change(around, ALL_ON_A, ALL_ON_B)
    assert found.joules == pytest.approx(6000 * (2e-3 + 4.0 * 2e-5) + COMPILE_J)
    none = without_link(made, A, B)
    assert _change(none, ALL_ON_A, ALL_ON_B).joules == float("inf")


def test_nothing_is_sent_where_there_are_no_weights() -> None:
    made = one_segment(MS, MS)
    (segment,) = made.summary.segments
    light = replace(made.summary, segments=(replace(segment, weight_bytes=0),))
    after = _route(placed(0, 1, B, HOST))
    assert _change(replace(made, summary=light), (), after) == Change(
        bytes_to_send=(), subgraphs_to_compile=((B, 1),), seconds=COMPILE_S, joules=COMPILE_J
    )


# Branches: each has 500 bytes of weights; the segments they are made of have 2 and 3 kB.

FORKED = _route(placed(0, 1, A, HOST), forked(A, (0, A, HOST), (1, B, HOST)))


def test_an_arm_gets_the_weights_of_its_branches() -> None:
    found = _change(two_branches(), ALL_ON_A, FORKED)
    assert found.bytes_to_send == ((B, 500),)
    assert found.subgraphs_to_compile == ((A, 2), (B, 1))


def test_a_device_that_ran_the_segments_of_a_fork_has_its_branches() -> None:
    found = _change(two_branches(), ALL_ON_B, FORKED)
    assert found.bytes_to_send == ()
    assert found.subgraphs_to_compile == ((A, 2), (B, 1))


def test_a_device_that_ran_all_branches_has_the_segments_of_their_fork() -> None:
    made = with_device(
        two_branches(), B, times=(times(HOST, [10 * MS] * 3), times(npu(), [10 * MS] * 3))
    )
    on_b = _route(placed(0, 1, A, HOST), forked(B, (0, B, HOST), (1, B, npu())))
    found = _change(made, on_b, ALL_ON_B)
    assert found.bytes_to_send == ((B, 1000),)
    assert found.subgraphs_to_compile == ((B, 1),)
