"""Drawn Pareto sets: every distribution is a mark where the axes say."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.devices import DeviceId
from edge_agent.distributions import Distribution, PlacedSubgraph, Route
from edge_agent.planning.drawing import (
    coordinate,
    escaped,
    fitting,
    lines_of,
    scale_of,
    text_width,
    tick_texts,
    ticks,
)
from edge_agent.planning.front import Alone, draw_front, shade
from edge_agent.planning.labelling import Box
from edge_agent.plans import Target
from edge_agent.subgraphs import SegmentRange
from tests.planning.made_plans_over_devices import (
    FOUR,
    GPU,
    LAB,
    ONE,
    PI,
    distribution,
    offloaded,
    whole,
)

SVG = "{http://www.w3.org/2000/svg}"
FOUND = [
    distribution(Target.LATENCY, whole(PI, GPU)),
    distribution(Target.LATENCY, offloaded()),
    distribution(Target.LATENCY, whole(PI, FOUR)),
]
BOTH = (Target.LATENCY, Target.BYTES)
ALONE = Alone(
    device="lab <1>",
    best_of=Target.BYTES,
    metrics=distribution(Target.BYTES, whole(LAB, ONE)).metrics,
)


def _parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)


def test_each_distribution_is_a_numbered_point_and_single_devices_are_diamonds() -> None:
    root = _parsed(draw_front("a & b", FOUND, BOTH, [ALONE]))
    points = [c for c in root.iter(f"{SVG}circle") if c.get("class") == "point"]
    assert len(points) == len(FOUND)
    alone = [p for p in root.iter(f"{SVG}polygon") if p.get("class") == "alone"]
    assert len(alone) == 1
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a & b", "lab <1> alone", "best single device", "1", "2", "3"} <= set(texts)


def test_every_point_has_its_number_in_sight_however_near_they_are() -> None:
    crowd = [
        replace(one, metrics=replace(one.metrics, latency_s=latency_s, wire_bytes=wire_bytes))
        for one, latency_s, wire_bytes in (
            *((FOUND[0], 1e-3 * i, 1e3 * (30 - i)) for i in range(30)),
            *((FOUND[1], 1.0, 1e6 + 4e4 * i) for i in range(6)),
            *((FOUND[2], 0.5, 5e5) for _ in range(3)),
        )
    ]
    root = _parsed(draw_front("x", crowd, BOTH, [ALONE]))
    shapes = list(root)
    dots = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    last_dot = max(at for at, one in enumerate(shapes) if one.tag == f"{SVG}circle")
    labels = [
        one
        for one in shapes[last_dot:]
        if one.tag == f"{SVG}text" and float(one.get("y", "")) < 436 and one.text
        if re.fullmatch(r"[\d, -]+|.* alone", one.text)
    ]
    told = [number for one in labels for number in _numbers(one.text or "")]
    assert sorted(told) == list(range(1, len(crowd) + 1))
    assert "37-39" in [one.text for one in labels]
    boxes = [
        Box(left=x, top=y - 9, right=x + text_width(one.text or "", 11), bottom=y + 2)
        for one in labels
        for x, y in [(float(one.get("x", "")), float(one.get("y", "")))]
    ]
    for at, box in enumerate(boxes):
        apart = replace(box, left=box.left - 5.9, right=box.right + 5.9)
        assert all(apart.overlap(other) < 0.1 for other in boxes[:at])
        assert all(box.overlap(Box.around(x, y, 6)) < 0.1 for x, y in dots)


def _numbers(text: str) -> list[int]:
    if text.endswith("alone"):
        return []
    ends = [[int(end) for end in run.split("-")] for run in text.split(", ")]
    return [number for run in ends for number in range(run[0], run[-1] + 1)]


def _list_of(drawn: str) -> dict[float, list[tuple[float, float, str]]]:
    """(left, right, text) of the cells in each row of the list below the axes, by its height."""
    rows: dict[float, list[tuple[float, float, str]]] = {}
    for one in _parsed(drawn).iter(f"{SVG}text"):
        x, y, text = float(one.get("x", "")), float(one.get("y", "")), one.text or ""
        if y >= 490 and not text.startswith("and "):
            width = text_width(text, 11, is_bold=one.get("font-weight") == "600")
            left = x - width if one.get("text-anchor") == "end" else x
            rows.setdefault(y, []).append((left, left + width, text))
    return rows


VALUES = st.sampled_from([0.0, 1e-9, 1e-3, 0.5497, 1.0, 1819.2, 1e6, 123456789.0, 3e12, math.inf])


@given(
    rows=st.lists(st.tuples(*[VALUES] * 5), min_size=1, max_size=4),
    knows_energy=st.booleans(),
    slack=st.sampled_from([0.0, 0.5, 1e9]),
)
def test_no_column_of_the_list_reaches_into_another(
    rows: list[tuple[float, ...]], knows_energy: bool, slack: float
) -> None:
    names = ("latency_s", "throughput_per_s", "energy_joules", "peak_memory_bytes", "wire_bytes")
    plan = distribution(Target.LATENCY, *[whole(PI, FOUR, 0.1)] * 5, offloaded(0.5), slack=slack)
    found = [
        replace(plan, metrics=replace(plan.metrics, **dict(zip(names, row, strict=True))))
        for row in rows
    ]
    drawn = draw_front("x", found, list(Target), knows_energy=knows_energy)
    listed = _list_of(drawn)
    assert len(listed) == len(rows) + 1
    width = float(_parsed(drawn).get("width", ""))
    for cells in listed.values():
        assert len(cells) == 8
        for (_, right, _), (left, _, _) in itertools.pairwise(cells):
            assert right < left
        assert cells[-1][1] <= width


def test_the_list_tells_values_as_the_text_does_under_their_units() -> None:
    metrics = replace(FOUND[0].metrics, latency_s=5.497e-4, throughput_per_s=1819.2)
    both = (Target.LATENCY, Target.THROUGHPUT, Target.ENERGY)
    one = replace(FOUND[0], metrics=metrics, bound=metrics.latency_s / 1.031)
    two = replace(one, metrics=replace(metrics, latency_s=2e-3, throughput_per_s=math.inf))
    drawn = draw_front("x", [one, two], both, knows_energy=False)
    assert [[text for _, _, text in cells] for cells in _list_of(drawn).values()] == [
        [
            *("no.", "latency (ms)", "throughput (requests/s)", "energy, modelled (J)"),
            *("gap to front", "devices"),
        ],
        ["1", "0.5497", "1819", "not known", "gap ≤ 3.1 %", "pi"],
        ["2", "2", "no limit", "not known", "gap ≤ 276 %", "pi"],
    ]


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0, 1.5e6, ["0", "500000", "1000000", "1500000"]),
        (1e6, 1e6 + 1, ["1000000", "1000000.2", "1000000.4", "1000000.6", "1000000.8", "1000001"]),
        (1e12, 1e12 + 4e9, ["1e+12", "1.001e+12", "1.002e+12", "1.003e+12", "1.004e+12"]),
    ],
)
def test_numbers_at_ticks_differ_however_long_they_are(
    low: float, high: float, shown: list[str]
) -> None:
    assert tick_texts(ticks(low, high)) == shown
    told = tick_texts(ticks(low, high), room=60.0)
    assert told[0] == shown[0]
    kept = [at for at, text in enumerate(told) if text]
    for before, after in itertools.pairwise(kept):
        gap = 60.0 * (after - before)
        assert gap > (text_width(told[before], 11) + text_width(told[after], 11)) / 2


def test_the_name_of_the_upright_axis_stands_beside_long_numbers() -> None:
    found = [
        replace(one, metrics=replace(one.metrics, throughput_per_s=rate))
        for one, rate in zip(FOUND, (1e8, 1e8 + 1, 1e8 + 2), strict=True)
    ]
    root = _parsed(draw_front("x", found, (Target.LATENCY, Target.THROUGHPUT)))
    texts = list(root.iter(f"{SVG}text"))
    (name,) = [one for one in texts if one.get("transform")]
    numbers = [one for one in texts if one.get("text-anchor") == "end" and one.get("x") == "72"]
    assert len(numbers) > 2
    reached = min(72 - text_width(one.text or "", 11) for one in numbers)
    assert float(name.get("x", "")) + 4 <= reached
    (moved,) = root.iter(f"{SVG}g")
    right = float((moved.get("transform") or "").removeprefix("translate(").split()[0])
    assert float(name.get("x", "")) + right >= 16


def _long_named(names: int, routes: int) -> Distribution:
    """Each route over three devices of long names that differ in the middle."""
    ids = [DeviceId(f"factory-floor-hall-{at}-inspection-camera-north") for at in range(names)]
    ways = [[ids[(3 * at + step) % names] for step in range(3)] for at in range(routes)]
    made = [
        Route(
            steps=tuple(
                PlacedSubgraph(
                    segments=SegmentRange(start=at, stop=at + 1), device=one, configuration=ONE
                )
                for at, one in enumerate(way)
            ),
            share=1.0 / routes,
        )
        for way in ways
    ]
    return replace(FOUND[0], routes=tuple(made))


def _devices_cells(drawn: str) -> list[str]:
    """The texts of the list's last column."""
    texts = [t for t in _parsed(drawn).iter(f"{SVG}text") if float(t.get("y", "")) >= 490]
    x = next(t.get("x") for t in texts if t.text == "devices")
    return [t.text or "" for t in texts if t.get("x") == x][1:]


def test_a_route_over_long_names_goes_on_below_and_is_there_whole() -> None:
    long, short = _long_named(3, 1), FOUND[1]
    drawn = draw_front("x", [long, short], BOTH)
    first, second, third, last = _devices_cells(drawn)
    assert [first, second, third] == [
        "factory-floor-hall-0-inspection-camera-north →",
        "factory-floor-hall-1-inspection-camera-north →",
        "factory-floor-hall-2-inspection-camera-north",
    ]
    assert last == "lab → pi"
    rows = _list_of(drawn)
    heights = [y for y, cells in rows.items() if len(cells) == 5]
    assert len(heights) == 3
    assert heights[2] - heights[1] == pytest.approx(16 + 2 * 13)
    assert float(_parsed(drawn).get("height", "")) >= max(rows) + 10


def test_letters_stand_for_names_that_would_take_many_lines_and_are_explained() -> None:
    drawn = draw_front("x", [_long_named(4, 3), FOUND[1]], BOTH)
    cells = _devices_cells(drawn)
    assert " ".join(cells[:-7]) == "34 % A → B → C, 33 % D → A → B, 33 % C → D → A"
    assert cells[-7] == "E → F"
    assert cells[-6:] == [
        *(
            f"{key}: factory-floor-hall-{at}-inspection-camera-north"
            for at, key in enumerate("ABCD")
        ),
        "E: lab",
        "F: pi",
    ]
    assert float(_parsed(drawn).get("height", "")) >= max(_list_of(drawn)) + 10


def test_many_distributions_over_long_names_say_how_many_more_there_are() -> None:
    drawn = draw_front("x", [_long_named(30, 10)] * 26, BOTH)
    more = next(t for t in _parsed(drawn).iter(f"{SVG}text") if t.text == "and 2 more")
    first_of_key = next(t for t in _parsed(drawn).iter(f"{SVG}text") if (t.text or "")[:2] == "A:")
    assert more.get("y") == first_of_key.get("y")
    assert any((t.text or "").startswith("D1: ") for t in _parsed(drawn).iter(f"{SVG}text"))


@given(st.text(alphabet="ab →", max_size=60), st.floats(1.0, 400.0))
def test_lines_hold_every_word_and_are_no_wider_but_for_a_word(text: str, width: float) -> None:
    lines = lines_of(text, width)
    assert " ".join(lines).split() == text.split()
    assert all(text_width(line) <= width or " " not in line.strip() for line in lines)


def test_a_text_is_clipped_where_it_would_be_too_wide() -> None:
    assert fitting("short", 100) == "short"
    long = fitting("m" * 400, 300, 15, is_bold=True)
    assert long.endswith("m…")
    assert 270 < text_width(long, 15, is_bold=True) <= 300


def test_axes_have_names_and_units() -> None:
    texts = {text.text for text in _parsed(draw_front("x", FOUND, BOTH)).iter(f"{SVG}text")}
    assert {"latency (ms)", "bytes on the wire per request (KiB)"} <= texts


def test_an_energy_is_called_modelled_wherever_it_is_drawn() -> None:
    drawn = draw_front("x", FOUND, list(Target))
    texts = ["".join(text.itertext()) for text in _parsed(drawn).iter()]
    in_joules = [text for text in texts if "energy" in text and re.search(r"\bm?J\b", text)]
    # In what a reader sees over each point, and in the title of the list's column.
    assert len(in_joules) > len(FOUND)
    assert all("energy, modelled" in text for text in in_joules)


def test_points_lie_where_the_ticks_say() -> None:
    root = _parsed(draw_front("x", FOUND, BOTH))
    places = {
        text.text: float(text.get("x", ""))
        for text in root.iter(f"{SVG}text")
        if text.get("text-anchor") == "middle" and text.get("font-size") == "11"
    }
    per_ms = (places["100"] - places["0"]) / 100
    shown = [float(c.get("cx", "")) for c in root.iter(f"{SVG}circle")]
    told = [places["0"] + per_ms * one.metrics.latency_s * 1e3 for one in FOUND]
    assert shown == pytest.approx(told, abs=0.01)


def test_a_third_target_is_a_colour_with_a_legend() -> None:
    targets = (Target.LATENCY, Target.BYTES, Target.ENERGY)
    root = _parsed(draw_front("x", FOUND, targets))
    colours = [c.get("fill") for c in root.iter(f"{SVG}circle")]
    joules = [one.metrics.energy_joules for one in FOUND]
    assert colours[joules.index(max(joules))] == shade(1.0)
    assert colours[joules.index(min(joules))] == shade(0.0)
    assert [r for r in root.iter(f"{SVG}rect") if r.get("class") == "shade"]


def test_the_same_front_is_drawn_the_same() -> None:
    assert draw_front("x", FOUND, BOTH, [ALONE]) == draw_front("x", FOUND, BOTH, [ALONE])


def test_one_target_is_no_front() -> None:
    with pytest.raises(ValueError, match="got 3 distributions over 1 targets"):
        draw_front("x", FOUND, [Target.LATENCY])


@given(low=st.floats(-1e9, 1e9), span=st.floats(1e-6, 1e9))
def test_ticks_are_round_and_cover_what_is_drawn(low: float, span: float) -> None:
    high = low + span
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return
    found = ticks(low, high)
    assert 2 <= len(found) <= 9
    slack = 1e-6 * (high - low)
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0, 100, ["0", "20", "40", "60", "80", "100"]),
        (0, 0.3, ["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"]),
        (5, 5, ["5", "6"]),
    ],
)
def test_ticks_are_what_a_person_would_choose(low: float, high: float, shown: list[str]) -> None:
    assert tick_texts(ticks(low, high)) == shown


@pytest.mark.parametrize(
    ("target", "value", "shown"),
    [
        (Target.LATENCY, 0.0123, "12.3 ms"),
        (Target.LATENCY, 2.5, "2.5 s"),
        (Target.ENERGY, 0.5, "500 mJ"),
        (Target.MEMORY, 3 << 20, "3 MiB"),
        (Target.THROUGHPUT, 40, "40 requests/s"),
        (Target.BYTES, 0, "0 B"),
    ],
)
def test_values_have_the_unit_that_suits_them(target: Target, value: float, shown: str) -> None:
    assert scale_of(target, [value]).shown(value) == shown


@given(st.text())
def test_any_text_is_valid_xml(text: str) -> None:
    parsed = ElementTree.fromstring(f'<a b="{escaped(text)}">{escaped(text)}</a>')
    assert len(parsed.text or "") == len(text)


def test_lengths_have_no_more_digits_than_they_need() -> None:
    assert [coordinate(x) for x in (1.0, 1.5, 1.256, -0.001, 100.0)] == [
        "1",
        "1.5",
        "1.26",
        "0",
        "100",
    ]
