"""A Pareto set drawn as an SVG: two targets as axes, a third one as colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from string import ascii_uppercase
from textwrap import wrap

from edge_agent.devices import DeviceId
from edge_agent.distributions import Distribution, Metrics
from edge_agent.planning.drawing import (
    GREY,
    INK,
    Scale,
    box,
    diamond,
    document,
    dot,
    fitting,
    label,
    line,
    lines_of,
    moved,
    polyline,
    scale_of,
    text_width,
    tick_texts,
    ticks,
)
from edge_agent.planning.labelling import Box, Wanted, place
from edge_agent.planning.short import (
    GAP_TO_FRONT,
    devices_of_step,
    devices_text,
    gap_text,
    name_text,
)
from edge_agent.plans import Target

_LEFT, _TOP, _WIDTH, _HEIGHT, _RIGHT = 80.0, 56.0, 640.0, 380.0, 190.0
_LISTED = 24
"""How many of the distributions are listed below."""
_ROW = 16.0
_DOT, _DIAMOND = 6.0, 10.0
_SMALL = 11.0
_BETWEEN = 14.0
"""Columns of the list."""
_MOST_DEVICES = 440.0
"""Of the list's last column, which goes on below."""
_LINE, _MOST_LINES = 13.0, 24
"""Of what goes on there; what is longer ends in an ellipsis."""
_MOST_NAMED = 3
"""Where names take more lines of a row, letters stand for them."""
_FAR = 14.0
"""A label farther from its mark than this is joined to it by a line."""
_COLOURS = ((68, 1, 84), (33, 145, 140), (253, 200, 37))
"""From the least to the most of the third target: dark violet, green, yellow."""
_PLAIN = "#2b6cb0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What one device gives without the others, to be compared with."""

    device: str
    best_of: Target
    """For which target it is the best single device."""
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    target: Target
    scale: Scale
    marks: tuple[float, ...]
    """In units of the scale, ascending; the first and the last are its ends."""
    start: float
    stop: float
    """Where these are, in the drawing."""

    def place(self, value: float) -> float:
        low, high = self.marks[0], self.marks[-1]
        share = (value / self.scale.factor - low) / (high - low)
        return self.start + share * (self.stop - self.start)


def draw_front(
    title: str,
    found: Sequence[Distribution],
    targets: Sequence[Target],
    alone: Sequence[Alone] = (),
    *,
    knows_energy: bool = True,
) -> str:
    """The distributions over the first two targets, numbered from 1 in their order.

    Raises:
        ValueError: there are fewer than two targets, or no distribution.
    """
    if len(targets) < 2 or not found:
        raise ValueError(f"got {len(found)} distributions over {len(targets)} targets, want 1, 2")
    everything = [*(one.metrics for one in found), *(one.metrics for one in alone)]
    bottom = _TOP + _HEIGHT
    x_axis = _axis(targets[0], everything, _LEFT, _LEFT + _WIDTH)
    y_axis = _axis(targets[1], everything, bottom, _TOP)
    shades = _Shades.of(targets[2], found) if len(targets) > 2 else None
    room = _WIDTH + _RIGHT - 16
    parts = [
        label(_LEFT, 22, fitting(title, room, 15, is_bold=True), size=15, is_bold=True),
        label(_LEFT, 40, _subtitle(found, targets), fill=GREY),
        *_grid(x_axis, y_axis),
    ]
    if len(targets) == 2:
        parts.append(_staircase(found, x_axis, y_axis))
    told = [t for t in Target if knows_energy or t is not Target.ENERGY]
    parts += _points(found, x_axis, y_axis, shades, told)
    parts += _alone_marks(alone, x_axis, y_axis)
    parts += _labels(found, alone, x_axis, y_axis)
    parts += _legend(shades, bool(alone))
    columns = _columns(found, targets, told)
    tops = _row_tops(columns, bottom + 62)
    parts += _listing(columns, len(found), bottom + 62, tops)
    height = tops[-1] + _ROW
    listed = max(text_width(text, _SMALL) for cell in columns[-1].cells for text in cell)
    width = max(_LEFT + _WIDTH + _RIGHT, columns[-1].x + listed + _BETWEEN)
    outside = max(0.0, -_title_x(y_axis) + 20)
    return document(width + outside, height, title, moved(parts, outside))


def _subtitle(found: Sequence[Distribution], targets: Sequence[Target]) -> str:
    count = "1 distribution" if len(found) == 1 else f"{len(found)} distributions"
    return f"{count}: none is better than another for all of {', '.join(targets)}"


def _axis(target: Target, metrics: Sequence[Metrics], start: float, stop: float) -> _Axis:
    values = [v for m in metrics if math.isfinite(v := m.value(target))]
    scale = scale_of(target, values)
    shown = [value / scale.factor for value in values] or [0.0]
    low, high = min(shown), max(shown)
    if low > 0 and low < 0.5 * high:
        low = 0.0
    if low == high:
        low, high = (0.0, 1.0) if not high else (0.9 * low, 1.1 * high)
    return _Axis(target=target, scale=scale, marks=tuple(ticks(low, high)), start=start, stop=stop)


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    bottom, right = _TOP + _HEIGHT, _LEFT + _WIDTH
    parts = []
    room = _WIDTH / (len(x_axis.marks) - 1)
    for mark, text in zip(x_axis.marks, tick_texts(x_axis.marks, room), strict=True):
        x = x_axis.place(mark * x_axis.scale.factor)
        parts += [
            line(x, _TOP, x, bottom),
            label(x, bottom + 18, text, anchor="middle", size=11),
        ]
    for mark, text in zip(y_axis.marks, tick_texts(y_axis.marks), strict=True):
        y = y_axis.place(mark * y_axis.scale.factor)
        parts += [
            line(_LEFT, y, right, y),
            label(_LEFT - 8, y + 4, text, anchor="end", size=11),
        ]
    middle_x, middle_y = _LEFT + _WIDTH / 2, _TOP + _HEIGHT / 2
    return [
        *parts,
        line(_LEFT, bottom, right, bottom, stroke=INK),
        line(_LEFT, _TOP, _LEFT, bottom, stroke=INK),
        label(middle_x, bottom + 38, _axis_text(x_axis.scale), anchor="middle", is_bold=True),
        label(
            _title_x(y_axis),
            middle_y,
            _axis_text(y_axis.scale),
            anchor="middle",
            is_bold=True,
            turned=-90.0,
        ),
    ]


def _title_x(y_axis: _Axis) -> float:
    """Where the name of the upright axis stands: left of its numbers, beyond 0 if they are long."""
    widest = max(text_width(text, 11) for text in tick_texts(y_axis.marks))
    return min(20.0, _LEFT - 8 - widest - 10)


def _axis_text(scale: Scale) -> str:
    return f"{scale.word} ({scale.unit})"


def _placed(
    found: Sequence[Distribution], x_axis: _Axis, y_axis: _Axis
) -> list[tuple[int, float, float, Distribution]]:
    """(number, x, y, distribution) of those that can be drawn."""
    return [
        (number, x_axis.place(x), y_axis.place(y), one)
        for number, one in enumerate(found, start=1)
        if math.isfinite(x := one.metrics.value(x_axis.target))
        and math.isfinite(y := one.metrics.value(y_axis.target))
    ]


def _staircase(found: Sequence[Distribution], x_axis: _Axis, y_axis: _Axis) -> str:
    """The edge of what can be had: between two neighbours, what the worse corner gives."""
    corners: list[tuple[float, float]] = []
    for x, y in sorted({(x, y) for _, x, y, _ in _placed(found, x_axis, y_axis)}):
        if corners:
            before = corners[-1]
            # Of a throughput more is better: its axis leads to the better side.
            is_late = x_axis.target is not Target.THROUGHPUT
            corners.append((x, before[1]) if is_late else (before[0], y))
        corners.append((x, y))
    return polyline(corners)


def _points(
    found: Sequence[Distribution],
    x_axis: _Axis,
    y_axis: _Axis,
    shades: _Shades | None,
    told: Sequence[Target],
) -> list[str]:
    parts: list[str] = []
    for number, x, y, one in _placed(found, x_axis, y_axis):
        fill = _PLAIN if shades is None else shades.colour(one.metrics)
        values = "; ".join(
            f"{name_text(target)} {scale_of(target, [v]).shown(v)}"
            for target in told
            for v in (one.metrics.value(target),)
        )
        hover = f"{number}: {devices_text(one.routes)}; {values}"
        parts.append(dot(x, y, _DOT, fill=fill, mark="point", hover=hover))
    return parts


def _labels(
    found: Sequence[Distribution], alone: Sequence[Alone], x_axis: _Axis, y_axis: _Axis
) -> list[str]:
    """What is written beside the points and diamonds, above all of them."""
    points = _placed(found, x_axis, y_axis)
    diamonds = _placed_alone(alone, x_axis, y_axis)
    texts = [(x, y, f"{one.device} alone") for x, y, one in diamonds]
    texts += [(x, y, runs_text(numbers)) for x, y, numbers in _together(points)]
    boxes = place(
        [Wanted(x=x, y=y, width=text_width(text, _SMALL)) for x, y, text in texts],
        [
            *(Box.around(x, y, _DOT + 1) for _, x, y, _ in points),
            *(Box.around(x, y, _DIAMOND) for x, y, _ in diamonds),
        ],
        Box(left=_LEFT, top=_TOP, right=_LEFT + _WIDTH, bottom=_TOP + _HEIGHT),
    )
    parts = []
    for (x, y, text), at in zip(texts, boxes, strict=True):
        near_x, near_y = min(max(x, at.left), at.right), min(max(y, at.top), at.bottom)
        if math.dist((x, y), (near_x, near_y)) > _FAR:
            parts.append(line(x, y, near_x, near_y, stroke=GREY))
        parts.append(label(at.left, at.bottom - 2, text, size=_SMALL))
    return parts


def _together(
    points: Sequence[tuple[int, float, float, Distribution]],
) -> list[tuple[float, float, list[int]]]:
    """(x, y, numbers) of points; those that cover each other are one."""
    groups: list[tuple[float, float, list[int]]] = []
    for number, x, y, _ in points:
        near = next((g for g in groups if math.dist(g[:2], (x, y)) < _DOT / 2), None)
        if near is None:
            groups.append((x, y, [number]))
        else:
            near[2].append(number)
    return groups


def runs_text(numbers: Sequence[int]) -> str:
    """Ascending numbers, those that follow each other as one run: `1-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)


def _placed_alone(
    alone: Sequence[Alone], x_axis: _Axis, y_axis: _Axis
) -> list[tuple[float, float, Alone]]:
    """(x, y, device) of those that can be drawn."""
    return [
        (x_axis.place(x), y_axis.place(y), one)
        for one in alone
        if math.isfinite(x := one.metrics.value(x_axis.target))
        and math.isfinite(y := one.metrics.value(y_axis.target))
    ]


def _alone_marks(alone: Sequence[Alone], x_axis: _Axis, y_axis: _Axis) -> list[str]:
    return [
        diamond(
            x,
            y,
            _DIAMOND,
            mark="alone",
            hover=f"{one.device}: the best single device for {one.best_of}",
        )
        for x, y, one in _placed_alone(alone, x_axis, y_axis)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shades:
    """The colours of the third target."""

    target: Target
    low: float
    high: float
    scale: Scale

    @classmethod
    def of(cls, target: Target, found: Sequence[Distribution]) -> _Shades:
        values = [v for one in found if math.isfinite(v := one.metrics.value(target))] or [0.0]
        return cls(target=target, low=min(values), high=max(values), scale=scale_of(target, values))

    def colour(self, metrics: Metrics) -> str:
        value = metrics.value(self.target)
        if not math.isfinite(value):
            return "#ffffff"
        span = self.high - self.low
        return shade((value - self.low) / span if span else 0.0)


def shade(share: float) -> str:
    """The colour at a share of the way from the least to the most."""
    place = min(max(share, 0.0), 1.0) * (len(_COLOURS) - 1)
    at = min(int(place), len(_COLOURS) - 2)
    rest = place - at
    mixed = (round(a + (b - a) * rest) for a, b in zip(_COLOURS[at], _COLOURS[at + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _legend(shades: _Shades | None, has_alone: bool) -> list[str]:
    x, y = _LEFT + _WIDTH + 24, _TOP + 8
    parts = []
    if shades is not None:
        words = [line for word in shades.scale.word.split(", ") for line in wrap(word, 20)]
        parts += [label(x, y + 14 * i, word, size=11) for i, word in enumerate(words)]
        y += 14 * len(words)
        steps = 24
        for i in range(steps):
            fill = shade(1 - i / (steps - 1))
            parts.append(box(x, y + i * 5, 16, 5.5, fill=fill, mark="shade", rounded=0))
        parts += [
            label(x + 24, y + 9, shades.scale.shown(shades.high), size=11),
            label(x + 24, y + steps * 5, shades.scale.shown(shades.low), size=11),
        ]
        y += steps * 5 + 28
    if has_alone:
        parts += [
            diamond(x + 8, y - 4, 8, mark="key", hover="best single device"),
            label(x + 24, y, "best single device", size=11),
        ]
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """Of the list of distributions."""

    title: str
    cells: tuple[tuple[str, ...], ...]
    """The lines of each."""
    x: float
    """Its right end where `is_number`, else its left one."""
    is_number: bool


def _columns(
    found: Sequence[Distribution], targets: Sequence[Target], told: Sequence[Target]
) -> list[_Column]:
    """Each as wide as the widest of what stands in it; the last one has several lines."""
    listed = found[:_LISTED]
    contents = [("no.", [str(number) for number in range(1, len(listed) + 1)], False)]
    for target in targets:
        values = [one.metrics.value(target) for one in listed]
        scale = scale_of(target, values)
        cells = [scale.number(value) if target in told else "not known" for value in values]
        contents.append((f"{name_text(target)} ({scale.unit})", cells, True))
    contents.append((GAP_TO_FRONT, [gap_text(one.gap) for one in listed], False))
    columns, x = [], _LEFT
    for title, cells, is_number in contents:
        width = max(text_width(cell, _SMALL) for cell in cells)
        width = max(width, text_width(title, _SMALL, is_bold=True))
        at = x + width if is_number else x
        lines = tuple((cell,) for cell in cells)
        columns.append(_Column(title=title, cells=lines, x=at, is_number=is_number))
        x += width + _BETWEEN
    return [*columns, _Column(title="devices", cells=_devices_cells(listed), x=x, is_number=False)]


def _devices_cells(listed: Sequence[Distribution]) -> tuple[tuple[str, ...], ...]:
    """Of each, which devices take part; where letters stand for them, one more says for which."""
    named = tuple(_devices_lines(one, {}) for one in listed)
    if max(map(len, named)) <= _MOST_NAMED:
        return named
    letters = _letters(listed)
    key = tuple(f"{letter}: {device}" for device, letter in letters.items())
    return (*(_devices_lines(one, letters) for one in listed), key)


def _letters(listed: Sequence[Distribution]) -> dict[DeviceId, str]:
    """A letter for each device, in the order in which they take part."""
    devices = dict.fromkeys(
        device
        for one in listed
        for route in one.routes
        for step in route.steps
        for device in devices_of_step(step)
    )
    return {
        device: ascii_uppercase[at % 26] + (str(at // 26) if at >= 26 else "")
        for at, device in enumerate(devices)
    }


def _devices_lines(one: Distribution, names: Mapping[DeviceId, str]) -> tuple[str, ...]:
    """Which devices take part, whole: a share stays with its device, an arrow behind its one."""
    text = devices_text(one.routes, names)
    kept = text.replace(" → ", "\u00a0→ ").replace(" % ", "\u00a0%\u00a0")
    lines = [text.replace("\u00a0", " ") for text in lines_of(kept, _MOST_DEVICES, _SMALL)]
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"{lines[_MOST_LINES - 1]} …"]
    return tuple(lines)


def _row_tops(columns: Sequence[_Column], top: float) -> list[float]:
    """The height of each row's first line, and of what would follow the last row."""
    lines = (
        max(map(len, cells)) for cells in zip_longest(*(c.cells for c in columns), fillvalue=())
    )
    return list(accumulate((_ROW + _LINE * (n - 1) for n in lines), initial=top + _ROW))


def _listing(
    columns: Sequence[_Column], count: int, top: float, tops: Sequence[float]
) -> list[str]:
    parts = []
    for column in columns:
        anchor = "end" if column.is_number else "start"
        parts.append(label(column.x, top, column.title, anchor=anchor, size=_SMALL, is_bold=True))
        for y, cell in zip(tops, column.cells, strict=False):
            parts += [
                label(column.x, y + _LINE * at, text, anchor=anchor, size=_SMALL)
                for at, text in enumerate(cell)
            ]
    if count > _LISTED:
        more = f"and {count - _LISTED} more"
        parts.append(label(_LEFT, tops[_LISTED], more, size=_SMALL, fill=GREY))
    return parts
