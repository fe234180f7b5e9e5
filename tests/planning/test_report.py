# ruff: noqa: E501
"""What `plan --devices` prints of plans."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.distributions import Infeasible, LeftOut
from edge_agent.planning.accounts import account
from edge_agent.planning.placed import TEXT_WIDTH
from edge_agent.planning.report import front_table, infeasible_lines, notes, render, target_table
from edge_agent.planning.short import (
    apart_texts,
    bytes_text,
    devices_text,
    gap_text,
    number_text,
    run_text,
    share_texts,
    value_text,
)
from edge_agent.plans import Bound, Target
from edge_agent.problems import DeviceStatistics
from tests.planning.made_plans_over_devices import (
    FOUR,
    GPU,
    LAB,
    ONE,
    PI,
    distribution,
    offloaded,
    problem,
    whole,
)

PLAN = distribution(Target.LATENCY, offloaded(), slack=0.031)
MIXED = distribution(Target.THROUGHPUT, whole(PI, FOUR, 0.75), whole(LAB, ONE, 0.25))
TOLD = """\
For latency: 27 ms, gap ≤ 3.1 %: none gives less than 26.19 ms
  latency 27 ms, 100 requests per second, 0.02 J per request (modelled), 2 MiB in the fullest memory, 2.93 KiB
    on the wire per request

The route of every request, 27.00 ms when it finds everything idle:
    at ms  takes ms
    0.000     10.00  lab/cpu/NCHW/1t runs segment 0, nodes 0-2: Conv×3
    10.00      6.00  lab → pi, what segment 1 and later need: 1000 B: latency 5.00, wire 1.00, processors
                       0.000 and 0.000
    16.00      4.00  pi/gpu/native runs segments 1-2, nodes 3-8: Conv×6
    20.00      7.00  pi → lab, the outputs: 1.95 KiB: latency 5.00, wire 2.00, processors 0.000 and 0.000

Busy at 100 requests per second, the most that the plan gives:
  100.0%  cores of lab, the bottleneck
   40.0%  pi/gpu
   20.0%  pi→lab
   10.0%  lab→pi

Memory, of what may be used:
   12.5%  lab: 1 MiB of 8 MiB
   12.5%  pi/gpu: 2 MiB of 16 MiB

Runner-up, over other devices: lab: 30 ms, 1.11 times this one
The best on one device: this one

How it is predicted:
  lab: estimated from its device profile, off by 0% in the median
  pi: from measured times of this model, off by 0% in the median; its power is not known, so its energy counts
    as 0
"""


def test_a_plan_is_told_in_full() -> None:
    told = account(
        problem(),
        PLAN,
        runner_up=distribution(Target.LATENCY, whole(LAB, ONE)),
        alone=PLAN,
    )
    assert render(problem(), told) == TOLD


def test_a_mixture_tells_its_routes_with_their_shares_and_who_was_left_out() -> None:
    left_out = (LeftOut(device=PI, reason="banned by --ban pi"),)
    text = render(problem(), account(problem(), MIXED, left_out=left_out))
    assert text.startswith("For throughput: 59.26 requests per second, optimal\n")
    assert "\n  latency 106 ms on the slowest route, 59.26 requests per second," in text
    assert "Route 1, 75 % of the requests, 106.0 ms when it finds everything idle:" in text
    assert "Route 2, 25 % of the requests, 30.00 ms" in text
    assert "\nNot used:\n  pi: banned by --ban pi\n" in text
    assert "pi/cpu/NCHW/1t ×4 runs segments 0-2" in text


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (0.25, "this one"),
        (0.2500001, "59.26 requests per second, as good as this one"),
        (0.2498, "59.24 requests per second, 0.9997 times this one"),
        (0.1, "49.38 requests per second, 0.833 times this one"),
    ],
)
def test_a_runner_up_that_is_as_good_is_called_so(share: float, told: str) -> None:
    other = distribution(Target.THROUGHPUT, whole(PI, FOUR, 1.0 - share), whole(LAB, ONE, share))
    text = render(problem(), account(problem(), MIXED, runner_up=other))
    line = next(line for line in text.splitlines() if line.startswith("Runner-up"))
    assert line.endswith(f": {told}")


def test_no_line_is_longer_than_a_terminal_is_wide() -> None:
    for plan in (PLAN, MIXED):
        lines = [*render(problem(), account(problem(), plan)).splitlines(), *target_table([plan])]
        assert max(map(len, lines)) <= TEXT_WIDTH


def test_resources_that_are_as_full_are_each_a_bottleneck() -> None:
    plan = distribution(Target.THROUGHPUT, whole(PI, FOUR, 4 / 7), whole(LAB, ONE, 3 / 7))
    told = account(problem(), plan)
    assert [round(use.busy_fraction, 6) for use in told.resources[:2]] == [1.0, 1.0]
    text = render(problem(), told)
    assert "cores of lab, a bottleneck" in text
    assert "cores of pi, a bottleneck" in text


def test_budgets_are_those_at_present_and_within_the_bound() -> None:
    tight = replace(
        problem(),
        statistics=(DeviceStatistics(device=LAB, free_memory_bytes=2 << 20),),
        bounds=(Bound(target=Target.MEMORY, limit=float(3 << 20)),),
    )
    told = account(tight, PLAN)
    assert [(use.name, use.budget_bytes) for use in told.memory] == [
        ("lab", 2 << 20),
        ("pi/gpu", 3 << 20),
    ]


def test_the_table_has_all_metrics_of_each_target() -> None:
    assert target_table([PLAN, MIXED]) == [
        "for         latency ms  per s  J, modelled  memory      wire  gap          devices",
        "latency          27.00    100         0.02   2 MiB  2.93 KiB  gap ≤ 3.1 %  lab → pi",
        "throughput       106.0  59.26       0.0825   3 MiB  4.39 KiB  optimal      75 % pi, 25 % lab",
    ]


def test_a_front_is_numbered_and_says_how_far_from_it_each_plan_may_be() -> None:
    assert front_table([PLAN, MIXED]) == [
        "no.  latency ms  per s  J, modelled  memory      wire  gap to front  devices",
        "  1       27.00    100         0.02   2 MiB  2.93 KiB  gap ≤ 3.1 %   lab → pi",
        "  2       106.0  59.26       0.0825   3 MiB  4.39 KiB  optimal       75 % pi, 25 % lab",
    ]


def test_what_is_long_goes_on_below_its_column() -> None:
    routes = [replace(whole(device, which), share=0.1) for device, which in 5 * [(PI, FOUR)]]
    steps = offloaded().steps * 20
    long = replace(MIXED, routes=(*routes, replace(offloaded(), steps=steps, share=0.5)))
    lines = target_table([long])
    assert len(lines) > 2
    assert max(map(len, lines)) <= TEXT_WIDTH
    assert lines[2].startswith(" " * 40)


def test_equal_reasons_are_told_once_and_doubt_is_said() -> None:
    certain = [Infeasible(target=t, reason="no link") for t in (Target.LATENCY, Target.ENERGY)]
    unsure = Infeasible(target=Target.BYTES, reason="nothing was found", is_certain=False)
    assert infeasible_lines([*certain, unsure]) == [
        "No distribution for latency, energy: no link",
        "No distribution for bytes: nothing was found (there may be one all the same: give more "
        "--effort)",
    ]


def test_what_is_estimated_and_what_has_no_power_is_said() -> None:
    assert notes(problem(), [account(problem(), PLAN)]) == [
        "Times are estimated from device profiles, not measured, of lab.",
        "No power is known of pi: what it computes counts as 0 J.",
    ]
    assert notes(problem(), [account(problem(), PLAN), account(problem(), MIXED)])[0] == (
        "Where requests are spread over several routes, the latency is that of the slowest."
    )


@pytest.mark.parametrize(
    ("gap", "shown"),
    [
        (0.0, "optimal"),
        (1e-9, "gap ≤ 0.1 %"),
        (0.031, "gap ≤ 3.1 %"),
        (0.0311, "gap ≤ 3.2 %"),
        (2.5, "gap ≤ 250 %"),
        (float("inf"), "gap not known"),
    ],
)
def test_only_a_gap_of_0_is_called_optimal_and_none_is_rounded_down(gap: float, shown: str) -> None:
    assert gap_text(gap) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        *[(0.0, "0"), (1819.4, "1819"), (999.96, "1000"), (565.23, "565.2"), (11364.1, "11364")],
        *[(1e6, "1000000"), (0.001, "0.001"), (1.2345e-5, "0.00001234"), (-2.5e-5, "-0.000025")],
        *[(1e13, "1e+13"), (1.5e-8, "1.5e-08"), (float("inf"), "inf")],
    ],
)
def test_numbers_of_ordinary_size_have_no_powers_of_ten(number: float, shown: str) -> None:
    assert number_text(number) == shown


def test_routes_over_the_same_devices_are_told_as_one() -> None:
    routes = (whole(PI, FOUR, 0.5), whole(PI, GPU, 0.3), offloaded(0.2))
    assert devices_text(routes) == "80 % pi, 20 % lab → pi"
    assert devices_text((offloaded(),)) == "lab → pi"


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=40))
def test_printed_shares_add_up_to_100_and_are_rounded_up_or_down(parts: list[float]) -> None:
    shares = [part / sum(parts) for part in parts]
    shown = [float(text.removeprefix("< ").removesuffix(" %")) for text in share_texts(shares)]
    told = [s for s, text in zip(shown, share_texts(shares), strict=True) if text[0] != "<"]
    assert sum(told) == pytest.approx(100.0, abs=1e-9)
    step = 0.01 if min(shares) < 0.0095 else 1.0
    assert all(abs(s - 100 * share) <= step + 1e-9 for s, share in zip(shown, shares, strict=True))


def test_shares_of_three_alike_are_not_101_per_cent() -> None:
    assert share_texts([0.335, 0.335, 0.33]) == ["34 %", "33 %", "33 %"]


@pytest.mark.parametrize(
    ("target", "value", "shown"),
    [
        (Target.LATENCY, 0.0271234, "27.12 ms"),
        (Target.THROUGHPUT, 133.333, "133.3 requests per second"),
        (Target.THROUGHPUT, math.inf, "no limit"),
        (Target.ENERGY, 0.0158649, "0.01586 J per request (modelled)"),
        (Target.MEMORY, 3.5 * 2**20, "3.5 MiB"),
        (Target.BYTES, 1000.0, "1000 B"),
    ],
)
def test_a_value_has_its_unit_and_an_energy_is_called_modelled(
    target: Target, value: float, shown: str
) -> None:
    assert value_text(target, value) == shown


@pytest.mark.parametrize(
    ("target", "limit", "value", "shown"),
    [
        (Target.MEMORY, 1e6, 8.385 * 2**20, ("976.6 KiB", "8.385 MiB")),
        (Target.MEMORY, 2**30, 2**30 + 1024, ("1 GiB", "1.000001 GiB")),
        (Target.LATENCY, 0.018, 0.0180001, ("18 ms", "18.0001 ms")),
        (
            Target.THROUGHPUT,
            100.0,
            99.9999,
            ("100 requests per second", "99.9999 requests per second"),
        ),
        (Target.BYTES, 5.0, 5.0, ("5 B", "5 B")),
        (Target.THROUGHPUT, 5.0, math.inf, ("5 requests per second", "no limit")),
    ],
)
def test_a_limit_and_what_misses_it_are_told_in_one_way_and_apart(
    target: Target, limit: float, value: float, shown: tuple[str, str]
) -> None:
    assert apart_texts(target, limit, value) == shown


def test_shares_and_bytes_are_short() -> None:
    assert share_texts([0.5, 0.49, 0.01]) == ["50 %", "49 %", "1 %"]
    assert share_texts([0.9988, 0.0012]) == ["99.88 %", "0.12 %"]
    assert share_texts([1 - 3e-7, 3e-7]) == ["100.00 %", "< 0.01 %"]
    assert [bytes_text(size) for size in (0, 1023, 2048, 3.5 * 2**20, 2**31)] == [
        "0 B",
        "1023 B",
        "2 KiB",
        "3.5 MiB",
        "2 GiB",
    ]


def test_what_slows_a_device_at_present_is_said_where_it_is_predicted() -> None:
    made = replace(problem(), statistics=(DeviceStatistics(device=LAB, load_fraction=0.5),))
    told = render(made, account(made, distribution(Target.LATENCY, whole(LAB, ONE))))
    assert "off by 0% in the median; now 2 times as long" in told
    idle = render(problem(), account(problem(), distribution(Target.LATENCY, whole(LAB, ONE))))
    assert "times as long" not in idle


def test_a_segment_without_nodes_is_said_to_have_none() -> None:
    summary = problem().summary
    empty = replace(summary.segments[0], start=0, stop=0, operators=())
    made = replace(problem(), summary=replace(summary, segments=(empty, *summary.segments[1:])))
    told = render(made, account(made, PLAN))
    assert "lab/cpu/NCHW/1t runs segment 0, which has no nodes\n" in told
    assert "node 0" not in told


def test_runs_are_told_up_to_the_last_one_and_none_as_none() -> None:
    assert [run_text(*run) for run in ((3, 8), (3, 4), (0, 0))] == ["3-7", "3", "-"]
