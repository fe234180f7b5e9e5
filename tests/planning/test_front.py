"""Drawn Pareto sets: every distribution is a mark where the axes say."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning.drawing import coordinate, escaped, scale_of, text_width, tick_text, ticks
from edge_agent.planning.front import Alone, draw_front, shade
from edge_agent.planning.labelling import Box
from edge_agent.plans import Target
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
        assert all(box.overlap(other) < 0.1 for other in boxes[:at])
        assert all(box.overlap(Box.around(x, y, 6)) < 0.1 for x, y in dots)


def _numbers(text: str) -> list[int]:
    if text.endswith("alone"):
        return []
    ends = [[int(end) for end in run.split("-")] for run in text.split(", ")]
    return [number for run in ends for number in range(run[0], run[-1] + 1)]


def test_axes_have_names_and_units() -> None:
    texts = {text.text for text in _parsed(draw_front("x", FOUND, BOTH)).iter(f"{SVG}text")}
    assert {"latency (ms)", "bytes on the wire per request (KiB)"} <= texts


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
    assert [tick_text(mark) for mark in ticks(low, high)] == shown


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
