"""How models are commonly divided, on a problem whose right answers are plain to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.baselines import (
    RATE_WAYS,
    WAYS,
    NotPossible,
    best_single_device,
    divided,
    even_split,
    greedy,
    priced,
    replicas,
    split_by_memory,
    split_by_speed,
)
from edge_agent.devices import DeviceId, Layout, UnitId
from edge_agent.distributions import PlacedSubgraph, Route
from edge_agent.planning.metrics import evaluate
from edge_agent.planning.planner import plan
from edge_agent.plans import Target
from edge_agent.problems import Link, PlannedDevice, PlannedUnit, Problem
from edge_agent.profiles import Configuration, SegmentTimes
from tests.planning.made_models import configuration, segment, summary, times

ONE = configuration(Layout.NCHW, 1)
FOUR = configuration(Layout.NCHW, 1, instances=4)
GPU = configuration(Layout.NATIVE, 0, unit="gpu")


def _device(
    name: str, all_times: Sequence[SegmentTimes], memory_bytes: int = 4000
) -> PlannedDevice:
    return PlannedDevice(
        id=DeviceId(name),
        units=(PlannedUnit(id=UnitId("cpu")), PlannedUnit(id=UnitId("gpu"))),
        times=tuple(all_times),
        memory_bytes=memory_bytes,
        cores=4,
    )


def _problem(
    *devices: PlannedDevice, weights: Sequence[int] = (100,) * 4, link_latency_s: float = 0.005
) -> Problem:
    """1 MB/s; 1 kB crosses each cut, 4 kB come in and 2 kB go out."""
    names = [device.id for device in devices]
    return Problem(
        summary=summary(
            [segment(i, weight_bytes=w) for i, w in enumerate(weights)],
            [1000] * (len(weights) - 1),
        ),
        devices=devices,
        owner=names[0],
        links=tuple(
            Link(source=a, target=b, latency_s=link_latency_s, goodput_bytes_per_s=1e6)
            for a in names
            for b in names
            if a != b
        ),
        input_bytes=4000,
        output_bytes=2000,
    )


def _placed(route: Route) -> list[tuple[str, str]]:
    steps = [step for step in route.steps if isinstance(step, PlacedSubgraph)]
    return [(str(step.device), str(step.segments)) for step in steps]


def _configurations(route: Route) -> list[Configuration]:
    return [part.configuration for part in route.parts()]


def test_equal_shares_differ_by_one_segment_at_most() -> None:
    found = [len(part) for _, part in divided([1.0] * 11, [1.0] * 4)]
    assert sum(found) == 11
    assert set(found) == {2, 3}
    assert [str(part) for _, part in divided([1.0] * 6, [1.0] * 3)] == ["0-1", "2-3", "4-5"]


def test_of_more_shares_than_segments_some_get_none() -> None:
    found = divided([1.0, 1.0], [1.0] * 5)
    assert [str(part) for _, part in found] == ["0", "1"]
    assert len({owner for owner, _ in found}) == 2


def test_a_segment_belongs_where_its_middle_lies() -> None:
    # Middles at 1, 3.5, 7.5 of 10; the first share ends at 3, the second at 5.
    found = divided([2.0, 3.0, 5.0], [3.0, 2.0, 5.0])
    assert [(owner, str(part)) for owner, part in found] == [(0, "0"), (1, "1"), (2, "2")]


def test_nothing_goes_to_a_share_of_0() -> None:
    assert {owner for owner, _ in divided([1.0] * 5, [0.0, 1.0, 0.0])} == {1}


def test_amounts_of_0_alone_count_as_equal_ones() -> None:
    assert [str(part) for _, part in divided([0.0] * 4, [1.0, 1.0])] == ["0-1", "2-3"]


def test_an_even_split_takes_the_devices_in_their_order_whatever_their_speed() -> None:
    slow, quick = (
        _device("slow", [times(ONE, [0.1] * 4)]),
        _device("quick", [times(ONE, [0.01] * 4)]),
    )
    (route,) = even_split(_problem(slow, quick), Target.LATENCY)
    assert _placed(route) == [("slow", "0-1"), ("quick", "2-3")]


def test_a_split_by_memory_gives_three_quarters_of_the_weights_to_three_quarters_of_memory() -> (
    None
):
    small = _device("small", [times(ONE, [0.01] * 4)], memory_bytes=1000)
    large = _device("large", [times(ONE, [0.01] * 4)], memory_bytes=3000)
    (route,) = split_by_memory(_problem(small, large), Target.LATENCY)
    assert _placed(route) == [("small", "0"), ("large", "1-3")]
    weights = (50, 50, 50, 450)
    (route,) = split_by_memory(_problem(small, large, weights=weights), Target.LATENCY)
    assert _placed(route) == [("small", "0-2"), ("large", "3")]


def test_a_split_by_speed_gives_the_quicker_device_more_and_ignores_the_link() -> None:
    slow, quick = (
        _device("slow", [times(ONE, [0.03] * 4)]),
        _device("quick", [times(ONE, [0.01] * 4)]),
    )
    for latency_s in (0.0, 100.0):
        (route,) = split_by_speed(_problem(slow, quick, link_latency_s=latency_s), Target.LATENCY)
        assert _placed(route) == [("slow", "0"), ("quick", "1-3")]


def test_a_split_by_speed_counts_the_work_of_each_segment() -> None:
    heavy = [0.03, 0.01, 0.01, 0.01]
    devices = [_device(name, [times(ONE, heavy)]) for name in ("a", "b")]
    (route,) = split_by_speed(_problem(*devices), Target.LATENCY)
    assert _placed(route) == [("a", "0"), ("b", "1-3")]


def test_greedy_moves_on_as_soon_as_that_pays_for_the_next_segment() -> None:
    # Sending 1 kB takes 6 ms, 4 kB 9 ms: segment 0 is done in 10 ms here and 11 ms there.
    here = _device("here", [times(ONE, [0.01, 0.01, 0.01, 0.002])])
    there = _device("there", [times(ONE, [0.002, 0.0039, 0.01, 0.02])])
    (route,) = greedy(_problem(here, there), Target.LATENCY)
    # Segment 1: 10 ms here, 6 + 3.9 there. 2: 10 there, 6 + 10 here. 3: 20 there, 6 + 2 here.
    assert _placed(route) == [("here", "0"), ("there", "1-2"), ("here", "3")]


def test_greedy_pays_for_a_start_and_for_the_borders_of_both_sides() -> None:
    # The GPU saves 9 ms a segment. It cannot have the first one, and 1 ms is the host's border.
    host = times(ONE, [0.01] * 4, border_s_per_byte=1e-6)
    for overhead_s, per_byte, units in (
        (0.0, 0.0, ["cpu", "gpu"]),
        (0.0075, 0.0, ["cpu", "gpu"]),
        (0.0085, 0.0, ["cpu"]),
        (0.0, 8.5e-6, ["cpu"]),
    ):
        gpu = times(GPU, [0.001] * 4, overhead_s, per_byte, refused=[0])
        (route,) = greedy(_problem(_device("here", [host, gpu])), Target.LATENCY)
        assert [which.unit for which in _configurations(route)] == units


def test_greedy_is_better_for_one_configuration_where_no_single_step_pays() -> None:
    host = times(ONE, [0.01] * 4)
    gpu = times(GPU, [0.001] * 4, 0.0095)
    (route,) = greedy(_problem(_device("here", [host, gpu])), Target.LATENCY)
    assert _configurations(route) == [GPU]


def test_greedy_stays_where_no_link_leads_away() -> None:
    here = _device("here", [times(ONE, [0.1] * 4)])
    there = _device("there", [times(ONE, [0.001] * 4)])
    (route,) = greedy(replace(_problem(here, there), links=()), Target.LATENCY)
    assert _placed(route) == [("here", "0-3")]


def test_each_device_uses_its_best_configuration_for_its_part() -> None:
    # Of the first half the GPU is quicker, of the second the processor.
    both = [times(ONE, [0.02, 0.02, 0.01, 0.01]), times(GPU, [0.005, 0.005, 0.03, 0.03])]
    problem = _problem(_device("a", both), _device("b", both))
    (route,) = even_split(problem, Target.LATENCY)
    assert _configurations(route) == [GPU, ONE]


def test_for_the_throughput_the_best_configuration_is_that_of_most_runs_at_once() -> None:
    device = _device("a", [times(ONE, [0.02] * 4), times(FOUR, [0.04] * 4)])
    (quick,) = best_single_device(_problem(device), Target.LATENCY)
    (often,) = best_single_device(_problem(device), Target.THROUGHPUT)
    assert (_configurations(quick), _configurations(often)) == ([ONE], [FOUR])


def test_a_part_that_a_configuration_refuses_is_run_in_another() -> None:
    both = [times(ONE, [0.02] * 4), times(GPU, [0.005] * 4, refused=[1])]
    (route,) = even_split(_problem(_device("a", both), _device("b", both)), Target.LATENCY)
    assert _configurations(route) == [ONE, GPU]


def test_the_best_single_device_pays_for_its_link() -> None:
    here = _device("here", [times(ONE, [0.01] * 4)])
    there = _device("there", [times(ONE, [0.004] * 4)])
    # There: 16 ms, 9 ms for 4 kB and 7 ms for 2 kB. With 15 ms less of latency it pays.
    (route,) = best_single_device(_problem(here, there), Target.LATENCY)
    assert _placed(route) == [("there", "0-3")]
    assert evaluate(_problem(here, there), (route,)).latency_s == pytest.approx(0.032)
    far = _problem(here, there, link_latency_s=0.01)
    (route,) = best_single_device(far, Target.LATENCY)
    assert _placed(route) == [("here", "0-3")]


def test_replicas_serve_by_their_rates() -> None:
    slow, quick = (
        _device("slow", [times(ONE, [0.03] * 4)]),
        _device("quick", [times(ONE, [0.01] * 4)]),
    )
    routes = replicas(_problem(slow, quick), Target.THROUGHPUT)
    assert [route.share for route in routes] == pytest.approx([0.25, 0.75])
    found = evaluate(_problem(slow, quick), routes)
    assert found.throughput_per_s == pytest.approx(1 / 0.12 + 1 / 0.04)


def test_what_may_not_be_deployed_is_not_possible() -> None:
    small = [_device(name, [times(ONE, [0.01] * 4)], memory_bytes=150) for name in ("a", "b")]
    with pytest.raises(NotPossible, match="a has 150 B of memory, 200 B are needed"):
        priced(_problem(*small), Target.LATENCY, even_split)
    with pytest.raises(NotPossible, match="no device runs the whole model"):
        priced(_problem(*small), Target.LATENCY, best_single_device)
    apart = replace(_problem(*small), links=())
    with pytest.raises(NotPossible, match="there is no link from a to b"):
        priced(apart, Target.LATENCY, even_split)


def test_no_way_is_better_than_the_plan() -> None:
    both = [times(ONE, [0.02, 0.01, 0.03, 0.01]), times(FOUR, [0.05] * 4)]
    gpu = times(GPU, [0.005] * 4, 0.001, 1e-6, refused=[2])
    problem = _problem(_device("a", both), _device("b", [*both, gpu]), _device("c", both))
    for target, ways in ((Target.LATENCY, WAYS), (Target.THROUGHPUT, RATE_WAYS)):
        ours = plan(problem, target).metrics.cost(target)  # type: ignore[union-attr]
        for way in ways.values():
            assert priced(problem, target, way).cost(target) >= ours * (1 - 1e-9)
