"""Timelines as files: an SVG for people, and events for trace viewers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge_agent.planning.drawing import (
    GREY,
    INK,
    PALE,
    box,
    document,
    fitting,
    label,
    line,
    scale_of,
    text_width,
    tick_texts,
    ticks,
)
from edge_agent.planning.metrics import Sending
from edge_agent.planning.timeline import Bar, Lane, Timeline, bar_facts, bar_name
from edge_agent.plans import Target

_WIDTH = 900.0
_LEAST_LEFT = 120.0
_ROW, _GAP = 20.0, 6.0
_RIGHT = 30.0
_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#975a16", "#2c7a7b", "#c53030")
_MICROSECONDS = 1e6

TraceEvent = dict[str, object]


def draw_timelines(title: str, lines: Sequence[Timeline]) -> str:
    """The timelines below each other, each with an axis of its own, as an SVG.

    A bar is a leg of a request and has its colour and number; transfers are paler than runs.
    """
    left = max([_LEAST_LEFT, *(text_width(_lane_name(k)) + 16 for t in lines for k in t.lanes)])
    parts = [
        label(16, 24, fitting(title, left + _WIDTH - 16, 15, is_bold=True), size=15, is_bold=True)
    ]
    legend = _legend(lines)
    parts += [label(16, 42 + 15 * i, t, size=11, fill=GREY) for i, t in enumerate(legend)]
    top = 55.0 + 15 * len(legend)
    for drawn in lines:
        panel, top = _panel(drawn, left, top)
        parts += panel
    return document(left + _WIDTH + _RIGHT, top, title, parts)


def _legend(lines: Sequence[Timeline]) -> list[str]:
    kinds = "Runs are dark and say which segments, transfers are pale and say how many bytes."
    most = max((drawn.requests for drawn in lines), default=0)
    if most <= 1:
        return [kinds]
    again = f"; the {len(_COLOURS)} colours repeat" if most > len(_COLOURS) else ""
    requests = (
        f"Each request has a colour{again}. Where there is room, a bar begins with the number of "
        "its request, counted from 0."
    )
    return [requests, kinds]


def _panel(drawn: Timeline, left: float, top: float) -> tuple[list[str], float]:
    scale = scale_of(Target.LATENCY, [drawn.stop_s])
    marks = ticks(0.0, drawn.stop_s / scale.factor, most=10)
    per_unit = _WIDTH / marks[-1]
    rows = sum(len(lane.rows) for lane in drawn.lanes)
    height = rows * _ROW + len(drawn.lanes) * _GAP
    begin, bottom = top + 12, top + 12 + height
    parts = [label(16, top, drawn.title, size=13, is_bold=True)]
    room = _WIDTH / (len(marks) - 1)
    for mark, text in zip(marks, tick_texts(marks, room), strict=True):
        x = left + mark * per_unit
        parts += [
            line(x, begin, x, bottom),
            label(x, bottom + 16, text, anchor="middle", size=11),
        ]
    parts.append(
        label(left + _WIDTH / 2, bottom + 34, f"time ({scale.unit})", anchor="middle", size=11)
    )
    y = begin
    for lane in drawn.lanes:
        parts.append(label(left - 8, y + _ROW - 6, _lane_name(lane), anchor="end"))
        for row in lane.rows:
            for bar in row:
                is_numbered = drawn.requests > 1
                parts += _drawn_bar(bar, left, y, per_unit / scale.factor, is_numbered=is_numbered)
            y += _ROW
        y += _GAP
        parts.append(line(left, y - _GAP / 2, left + _WIDTH, y - _GAP / 2, stroke=PALE))
    return parts, bottom + 70


def _drawn_bar(
    bar: Bar, left: float, y: float, width_per_s: float, *, is_numbered: bool
) -> list[str]:
    x, width = left + bar.start_s * width_per_s, bar.took_s * width_per_s
    is_transfer = isinstance(bar.leg, Sending)
    facts = ", ".join(f"{key} {_fact(value)}" for key, value in bar_facts(bar).items())
    hover = (
        f"{bar_name(bar)}: {bar.start_s * 1e3:.4g} ms to {bar.stop_s * 1e3:.4g} ms "
        f"({bar.took_s * 1e3:.4g} ms); {facts}"
    )
    parts = [
        box(
            x,
            y + 1,
            max(width, 0.75),
            _ROW - 2,
            fill=_COLOURS[bar.request % len(_COLOURS)],
            mark="transfer" if is_transfer else "run",
            hover=hover,
            opacity=0.35 if is_transfer else 1.0,
        )
    ]
    texts = (f"{bar.request}: {bar_name(bar)}", str(bar.request)) if is_numbered else ()
    fits = (t for t in (*texts, bar_name(bar)) if text_width(t, 11) <= width - 6)
    text = next(fits, None)
    if text is not None:
        fill = INK if is_transfer else "#ffffff"
        parts.append(label(x + width / 2, y + 14, text, anchor="middle", size=11, fill=fill))
    return parts


def _fact(value: str | int | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _lane_name(lane: Lane) -> str:
    is_link = any(isinstance(bar.leg, Sending) for row in lane.rows for bar in row)
    return lane.name if is_link else f"{lane.group} {lane.name}"


def trace_events(lines: Sequence[Timeline]) -> dict[str, object]:
    """The timelines in the Trace Event Format, times in microseconds: complete events (`ph` X), a
    process for each device and one for the links, a thread for each row of a lane.

    Several timelines are processes of their own, called by their targets.

    Source: Trace Event Format, Google, "Complete Events" and "Metadata Events".
    """
    events: list[TraceEvent] = []
    pid = 0
    for drawn in lines:
        groups = list(dict.fromkeys(lane.group for lane in drawn.lanes))
        prefix = f"{drawn.title}: " if len(lines) > 1 else ""
        for group in groups:
            pid += 1
            events.append(_metadata("process_name", pid, 0, f"{prefix}{group}"))
            lanes = [lane for lane in drawn.lanes if lane.group == group]
            for tid, (name, row) in enumerate(_named_rows(lanes), start=1):
                events.append(_metadata("thread_name", pid, tid, name))
                events += (_complete(bar, pid, tid) for bar in row)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named_rows(lanes: Sequence[Lane]) -> Iterator[tuple[str, Sequence[Bar]]]:
    for lane in lanes:
        for at, row in enumerate(lane.rows, start=1):
            yield (f"{lane.name} {at}" if len(lane.rows) > 1 else lane.name), row


def _metadata(what: str, pid: int, tid: int, name: str) -> TraceEvent:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(bar: Bar, pid: int, tid: int) -> TraceEvent:
    return {
        "name": bar_name(bar),
        "cat": "transfer" if isinstance(bar.leg, Sending) else "run",
        "ph": "X",
        "ts": bar.start_s * _MICROSECONDS,
        "dur": bar.took_s * _MICROSECONDS,
        "pid": pid,
        "tid": tid,
        "args": bar_facts(bar),
    }
