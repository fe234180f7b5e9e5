"""Arms of a fork run at once and meet again: cases that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_agent.distributions import PlacedArm, PlacedFork, Route
from edge_agent.planning.metrics import evaluate
from edge_agent.problems import Problem
from edge_agent.simulation.network import Transport
from edge_agent.simulation.simulator import simulate
from edge_agent.simulation.spans import SpanKind
from edge_agent.simulation.workloads import ClosedLoop, Lone
from edge_agent.subgraphs import SegmentRange
from edge_agent.summaries import Fork, SharedInput
from tests.simulation.made_problems import (
    A,
    B,
    branch,
    device,
    host,
    link,
    model,
    npu,
    placed,
    problem,
    times,
)

FORK = Fork(
    segments=SegmentRange(start=1, stop=2),
    branches=(
        branch(1, [0.5], input_bytes=1000, output_bytes=2000),
        branch(2, [0.5], input_bytes=1000, output_bytes=2000),
    ),
)


def forked(
    *,
    send_s_per_byte: float = 0.0,
    receive_s_per_byte: float = 0.0,
    border_s_per_byte: float = 0.0,
) -> Problem:
    on_a, on_npu, on_b = (
        times(which, [0.01, middle_s, 0.01], border_s_per_byte=border_s_per_byte)
        for which, middle_s in ((host(), 0.04), (npu(), 0.02), (host(), 0.02))
    )
    return problem(
        model(3, [1000, 4000], forks=[FORK]),
        [
            device(
                A,
                on_a,
                on_npu,
                send_s_per_byte=send_s_per_byte,
                receive_s_per_byte=receive_s_per_byte,
            ),
            device(B, on_b),
        ],
        [link(A, B), link(B, A)],
    )


def around(*arms: PlacedArm) -> tuple[Route]:
    fork = PlacedFork(fork=0, segments=FORK.segments, home=A, arms=arms)
    return (Route(steps=(placed(0, 1, A, host()), fork, placed(2, 3, A, host()))),)


AT_HOME = PlacedArm(branches=(0,), device=A, configuration=host())
ON_NPU = PlacedArm(branches=(1,), device=A, configuration=npu())
ELSEWHERE = PlacedArm(branches=(1,), device=B, configuration=host())


def test_arms_on_two_units_take_as_long_as_the_longer_one() -> None:
    seen = simulate(forked(), around(AT_HOME, ON_NPU), ClosedLoop())
    assert seen.metrics.latency_s == pytest.approx(0.01 + 0.02 + 0.01)
    # The processor has 10 + 20 + 10 ms of every request.
    assert seen.metrics.throughput_per_s == pytest.approx(25.0, rel=0.01)
    assert seen.metrics.energy_joules == pytest.approx(0.04 * 4 + 0.01 * 2)


def test_an_arm_elsewhere_gets_its_part_and_sends_its_part_back() -> None:
    seen = simulate(forked(), around(ON_NPU, ELSEWHERE_FIRST), Lone(), with_spans=True)
    # There 1 ms, 10 ms of work, back 2 ms: longer than 10 ms on the other unit.
    assert seen.metrics.latency_s == pytest.approx(0.01 + 0.013 + 0.01)
    assert seen.metrics.wire_bytes == 3000
    runs = [(s.where, s.start_s, s.stop_s) for s in seen.spans if s.kind is SpanKind.RUN]
    assert [where for where, _, _ in runs] == ["a", "a/npu0", "b", "a"]
    assert [at_s for _, *ends in runs for at_s in ends] == pytest.approx(
        [0.0, 0.01, 0.01, 0.02, 0.011, 0.021, 0.023, 0.033]
    )


ELSEWHERE_FIRST = PlacedArm(branches=(0,), device=B, configuration=host())


@pytest.mark.parametrize(
    ("arms", "fork_ms"),
    [
        # 20 and 10 ms of work, 1000 bytes in and 2000 out at 1 us each.
        ((AT_HOME, ON_NPU), 20 + 3),
        # And 1 + 2 ms on the way.
        ((ON_NPU, ELSEWHERE_FIRST), 3 + 10 + 3),
    ],
    ids=["on two units", "on two devices"],
)
def test_arms_pay_for_what_they_take_in_and_give_out(
    arms: tuple[PlacedArm, ...], fork_ms: float
) -> None:
    made = forked(border_s_per_byte=1e-6)
    predicted = evaluate(made, around(*arms))
    # Before the fork 1000 bytes, after it 4000.
    assert predicted.latency_s == pytest.approx((10 + 1 + fork_ms + 4 + 10) * 1e-3)
    seen = simulate(made, around(*arms), ClosedLoop()).metrics
    assert seen.latency_s == pytest.approx(predicted.latency_s)
    assert seen.energy_joules == pytest.approx(predicted.energy_joules)
    assert seen.throughput_per_s == pytest.approx(predicted.throughput_per_s, rel=0.01)


def test_transfers_delay_an_arm_on_the_cores_that_make_them_ready() -> None:
    made = forked(send_s_per_byte=2e-6, receive_s_per_byte=1e-6)
    seen = simulate(made, around(AT_HOME, ELSEWHERE), ClosedLoop())
    # Beside 20 ms of its own work, the core sends for 2 ms and receives for 2 ms.
    assert seen.metrics.latency_s == pytest.approx(0.01 + 0.024 + 0.01)
    assert seen.metrics.throughput_per_s == pytest.approx(1 / 0.044, rel=0.01)


def test_forks_with_tiny_windows_never_block_for_good() -> None:
    seen = simulate(
        forked(),
        around(AT_HOME, ELSEWHERE),
        ClosedLoop(in_flight=40, requests=200),
        transport=Transport(window_messages=0, window_bytes=0),
    )
    assert len(seen.requests) == 200
    # The processor of the home is full all the same: it has 40 ms of each request.
    assert seen.metrics.throughput_per_s == pytest.approx(25.0, rel=0.01)


def test_what_both_branches_read_is_sent_once() -> None:
    read = SharedInput(size_bytes=1000, branches=(0, 1))
    other = SharedInput(size_bytes=400, branches=(0, 1))
    both = PlacedArm(branches=(0, 1), device=B, configuration=host())
    for shared, sent in (((), 2000), ((read,), 1000), ((other,), 1600)):
        made = forked()
        summary = replace(made.summary, forks=(replace(FORK, shared=shared),))
        seen = simulate(replace(made, summary=summary), around(both), ClosedLoop())
        assert seen.metrics.wire_bytes == sent + 4000
