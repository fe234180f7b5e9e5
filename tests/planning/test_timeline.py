"""Timelines: bars equal the legs, nothing is at two places at once, and files that can be read."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from edge_agent.distributions import Distribution
from edge_agent.planning.metrics import Computing, Sending, evaluate, legs
from edge_agent.planning.timeline import Bar, Timeline, lone, steady, timeline
from edge_agent.planning.timeline_files import draw_timelines, trace_events
from edge_agent.plans import Target
from tests.planning.made_pairs import ALL_ON_B, MS, quick_neighbour, with_links
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

SVG = "{http://www.w3.org/2000/svg}"
MIXED = distribution(
    Target.THROUGHPUT, whole(PI, FOUR, 0.25), whole(LAB, ONE, 0.25), offloaded(0.5)
)


def test_the_bars_of_one_request_are_the_legs_of_its_route() -> None:
    route = offloaded()
    assert [(bar.leg, bar.start_s, bar.took_s) for bar in lone(problem(), route)] == [
        (leg, leg.start_s, leg.took_s) for leg in legs(problem(), route)
    ]


def test_lanes_are_devices_in_their_order_then_links() -> None:
    drawn = timeline(problem(), distribution(Target.LATENCY, offloaded()))
    assert [(lane.group, lane.name) for lane in drawn.lanes] == [
        ("lab", "cores"),
        ("pi", "gpu"),
        ("links", "lab → pi"),
        ("links", "pi → lab"),
    ]
    assert (drawn.title, drawn.requests) == ("latency: one request", 1)
    assert drawn.stop_s == pytest.approx(0.010 + 0.006 + 0.004 + 0.007)


def test_a_plan_for_the_throughput_shows_several_requests() -> None:
    drawn = timeline(problem(), MIXED)
    assert drawn.requests >= 6
    assert drawn.title.startswith(f"throughput: {drawn.requests} requests, at ")


def _by_request(bars: tuple[Bar, ...]) -> dict[int, list[Bar]]:
    found: dict[int, list[Bar]] = defaultdict(list)
    for bar in bars:
        found[bar.request].append(bar)
    return found


def test_requests_take_routes_by_their_shares() -> None:
    bars = steady(problem(), MIXED, requests=8)
    taken = [own[0].route for own in _by_request(bars).values()]
    assert [taken.count(route) for route in range(3)] == [2, 2, 4]


def test_each_leg_of_a_request_waits_for_the_one_before_it() -> None:
    for own in _by_request(steady(problem(), MIXED, requests=12)).values():
        for before, after in itertools.pairwise(own):
            assert after.start_s >= before.stop_s - 1e-12


def test_no_resource_is_used_beyond_what_it_is() -> None:
    bars = steady(problem(), MIXED, requests=16)
    busy: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for bar in bars:
        match bar.leg:
            case Computing():
                share = 1.0 / bar.leg.what.configuration.instances
                busy[bar.leg.resource].append((bar.start_s, bar.stop_s, share))
            case Sending():
                stop_s = bar.start_s + bar.leg.wire_s
                busy[bar.leg.link.resource].append((bar.start_s, stop_s, 1.0))
    for taken in busy.values():
        for start_s, _, _ in taken:
            at_once = [share for a, b, share in taken if a <= start_s < b - 1e-12]
            assert sum(at_once) <= 1.0 + 1e-9


def test_instances_work_at_once() -> None:
    # 9 ms on the way, 90 ms of work, four at once: one begins every 22.5 ms.
    bars = steady(problem(), distribution(Target.THROUGHPUT, whole(PI, FOUR)), requests=6)
    began_ms = [bar.start_s / MS for bar in bars if isinstance(bar.leg, Computing)]
    assert began_ms == pytest.approx([9 + 22.5 * n for n in range(6)])


@pytest.mark.parametrize(("medium", "second_ms"), [("air", 20), ("", 13)])
def test_links_on_one_medium_carry_one_after_the_other(medium: str, second_ms: float) -> None:
    # 10 ms on the way there, 6 ms of work, 3 ms on the way back; links of 1 ms latency.
    made = with_links(replace(quick_neighbour(), output_bytes=3000), medium=medium)
    metrics = replace(evaluate(made, ALL_ON_B), throughput_per_s=1000 / 13)
    plan = Distribution(target=Target.THROUGHPUT, routes=ALL_ON_B, metrics=metrics, bound=1000 / 13)
    first, second = _by_request(steady(made, plan, requests=2)).values()
    assert [bar.start_s / MS for bar in first] == pytest.approx([0, 11, 17])
    # It arrives at 13 ms; the answer of the first is on the medium from 17 to 20 ms.
    assert second[0].start_s / MS == pytest.approx(second_ms)


def test_the_steady_rate_is_the_one_that_is_predicted() -> None:
    plan = distribution(Target.THROUGHPUT, offloaded())
    bars = steady(problem(), plan, requests=20)
    ends = [own[-1].stop_s for own in _by_request(bars).values()]
    assert 10 / (ends[19] - ends[9]) == pytest.approx(plan.metrics.throughput_per_s)


def test_bars_of_a_row_do_not_overlap() -> None:
    for lane in timeline(problem(), MIXED).lanes:
        for row in lane.rows:
            for before, after in itertools.pairwise(row):
                assert before.stop_s <= after.start_s + 1e-12


def test_the_trace_has_the_times_of_the_legs_in_microseconds_and_names_who_did_it() -> None:
    plan = distribution(Target.LATENCY, offloaded())
    trace = json.loads(json.dumps(trace_events([timeline(problem(), plan)])))
    events = trace["traceEvents"]
    shown = sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X")
    told = legs(problem(), offloaded())
    assert shown == [(leg.start_s * 1e6, leg.took_s * 1e6) for leg in told]
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert [n for (kind, _, _), n in names.items() if kind == "process_name"] == [
        "lab",
        "pi",
        "links",
    ]
    run = next(e for e in events if e["ph"] == "X" and e["name"] == "[1-2]")
    assert names["process_name", run["pid"], 0] == "pi"
    assert names["thread_name", run["pid"], run["tid"]] == "gpu"
    assert run["args"]["configuration"] == str(GPU)


def test_several_timelines_are_processes_of_their_own() -> None:
    plans = [distribution(Target.LATENCY, offloaded()), MIXED]
    events = trace_events([timeline(problem(), plan) for plan in plans])["traceEvents"]
    assert isinstance(events, list)
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert len(set(names)) == len(names)
    assert names[0] == "latency: one request: lab"


def test_the_drawing_has_a_bar_for_each_leg_and_is_the_same_every_time() -> None:
    plan = distribution(Target.LATENCY, offloaded())
    drawn = draw_timelines("a & b <c>", [timeline(problem(), plan)])
    root = ElementTree.fromstring(drawn)
    marks = [rect.get("class") for rect in root.iter(f"{SVG}rect")]
    assert (marks.count("run"), marks.count("transfer")) == (2, 2)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a & b <c>", "lab cores", "pi gpu", "lab → pi", "time (ms)"} <= set(texts)
    assert drawn == draw_timelines("a & b <c>", [timeline(problem(), plan)])


def test_bars_lie_where_the_time_axis_says() -> None:
    plan = distribution(Target.LATENCY, whole(LAB, ONE))
    root = ElementTree.fromstring(draw_timelines("x", [timeline(problem(), plan)]))
    (run,) = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "run"]
    at = {t.text: float(t.get("x", "")) for t in root.iter(f"{SVG}text") if t.text in ("0", "30")}
    assert float(run.get("x", "")) == at["0"]
    assert float(run.get("width", "")) == pytest.approx(at["30"] - at["0"])


def test_bars_begin_with_the_number_of_their_request_where_colours_repeat() -> None:
    drawn = timeline(problem(), MIXED)
    texts = [t.text or "" for t in _parsed_texts([drawn])]
    told = {text.partition(": ")[0] for text in texts if ": [" in text}
    requests = {str(bar.request) for lane in drawn.lanes for row in lane.rows for bar in row}
    assert {"1"} <= told <= requests
    assert any(text.endswith(": [0-2]") for text in texts)
    repeats = "Each request has a colour; the 8 colours repeat."
    assert any(text.startswith(repeats) for text in texts) == (drawn.requests > 8)
    long = replace(drawn, requests=9)
    assert any((t.text or "").startswith(repeats) for t in _parsed_texts([long]))


def test_of_one_request_no_number_and_no_colour_is_told() -> None:
    drawn = timeline(problem(), distribution(Target.LATENCY, offloaded()))
    texts = [t.text or "" for t in _parsed_texts([drawn])]
    assert "[1-2]" in texts
    assert not [text for text in texts if "colour" in text or text.startswith("0:")]


def _parsed_texts(lines: list[Timeline]) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(draw_timelines("x", lines)).iter(f"{SVG}text"))
