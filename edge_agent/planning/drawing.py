"""SVG as text: shapes, axes and how numbers are written. Equal inputs give equal text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from edge_agent.planning.short import number_text
from edge_agent.plans import Target

INK, GREY, PALE = "#1f2933", "#7b8794", "#e4e7eb"
_FONT = "system-ui, 'DejaVu Sans', Arial, sans-serif"
_NARROW = frozenset("ijlfrt .,:;'|!()[]/-I")
_BROAD = frozenset("mwMW@%&+=<>")
_BOLDER = 1.15
"""How much broader bold letters are."""


def document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """A whole SVG file with a white ground."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{coordinate(width)}" '
        f'height="{coordinate(height)}" viewBox="0 0 {coordinate(width)} {coordinate(height)}" '
        f'font-family="{_FONT}" font-size="12">'
    )
    ground = f'<rect width="{coordinate(width)}" height="{coordinate(height)}" fill="#ffffff"/>'
    lines = ('<?xml version="1.0" encoding="UTF-8"?>', head, f"<title>{escaped(title)}</title>")
    return "\n".join((*lines, ground, *parts, "</svg>")) + "\n"


def moved(parts: Sequence[str], right: float) -> list[str]:
    """The parts, moved to the right."""
    if not right:
        return list(parts)
    return [f'<g transform="translate({coordinate(right)} 0)">', *parts, "</g>"]


def escaped(content: str) -> str:
    """Text for an element or an attribute; what XML cannot hold becomes a question mark."""
    legal = (c if c in "\t\n" or (c >= " " and not _is_outside_xml(c)) else "?" for c in content)
    return escape("".join(legal), {'"': "&quot;"})


def _is_outside_xml(character: str) -> bool:
    return "\ud800" <= character <= "\udfff" or character in "\ufffe\uffff"


def coordinate(number: float) -> str:
    """A length with at most two decimals."""
    return f"{round(number, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def label(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    size: float = 12,
    fill: str = INK,
    is_bold: bool = False,
    turned: float = 0.0,
) -> str:
    """A text whose base line begins, has its middle, or ends at (x, y)."""
    weight = ' font-weight="600"' if is_bold else ""
    turn = f' transform="rotate({coordinate(turned)} {coordinate(x)} {coordinate(y)})"'
    return (
        f'<text x="{coordinate(x)}" y="{coordinate(y)}" text-anchor="{anchor}" '
        f'font-size="{coordinate(size)}" fill="{fill}"{weight}{turn if turned else ""}>'
        f"{escaped(content)}</text>"
    )


def line(
    x1: float, y1: float, x2: float, y2: float, *, stroke: str = PALE, width: float = 1
) -> str:
    """A straight line."""
    ends = zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    places = " ".join(f'{name}="{coordinate(value)}"' for name, value in ends)
    return f'<line {places} stroke="{stroke}" stroke-width="{coordinate(width)}"/>'


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    fill: str,
    mark: str = "",
    hover: str = "",
    opacity: float = 1.0,
    rounded: float = 2,
) -> str:
    """A rectangle; `mark` is its class, and `hover` what a reader sees over it."""
    kind = f' class="{mark}"' if mark else ""
    through = f' fill-opacity="{coordinate(opacity)}"' if opacity < 1 else ""
    head = (
        f'<rect{kind} x="{coordinate(x)}" y="{coordinate(y)}" width="{coordinate(width)}" '
        f'height="{coordinate(height)}" rx="{coordinate(rounded)}" fill="{fill}"{through}'
    )
    return f"{head}><title>{escaped(hover)}</title></rect>" if hover else f"{head}/>"


def dot(x: float, y: float, radius: float, *, fill: str, mark: str, hover: str) -> str:
    """A circle."""
    return (
        f'<circle class="{mark}" cx="{coordinate(x)}" cy="{coordinate(y)}" '
        f'r="{coordinate(radius)}" fill="{fill}" stroke="#ffffff">'
        f"<title>{escaped(hover)}</title></circle>"
    )


def diamond(x: float, y: float, radius: float, *, mark: str, hover: str) -> str:
    """A square on its tip, open inside."""
    tips = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
    points = " ".join(f"{coordinate(a)},{coordinate(b)}" for a, b in tips)
    return (
        f'<polygon class="{mark}" points="{points}" fill="none" stroke="{INK}" stroke-width="2">'
        f"<title>{escaped(hover)}</title></polygon>"
    )


def polyline(points: Sequence[tuple[float, float]], *, stroke: str = GREY) -> str:
    """Lines from point to point."""
    places = " ".join(f"{coordinate(x)},{coordinate(y)}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{stroke}" stroke-dasharray="3 3"/>'


def text_width(content: str, size: float = 12, *, is_bold: bool = False) -> float:
    """How wide a text is at most, in the broadest of the fonts that are asked for (DejaVu Sans)."""
    return sum(map(_character_width, content)) * size * (_BOLDER if is_bold else 1.0)


def _character_width(character: str) -> float:
    """In font sizes."""
    if character in _NARROW:
        return 0.42
    if character in _BROAD:
        return 1.0
    if character.isascii():
        return 0.79 if character.isupper() else 0.65
    return 1.3 if east_asian_width(character) in "WF" else 1.0


def fitting(content: str, width: float, size: float = 12, *, is_bold: bool = False) -> str:
    """The text, or its beginning if it is wider than `width`."""
    if text_width(content, size, is_bold=is_bold) <= width:
        return content
    kept = len(content)
    while kept and text_width(content[:kept] + "…", size, is_bold=is_bold) > width:
        kept -= 1
    return content[:kept].rstrip() + "…"


def lines_of(content: str, width: float, size: float = 12) -> list[str]:
    """The text in lines no wider than `width`, broken between words; a word may be wider."""
    found = [""]
    for word in content.split(" "):
        longer = f"{found[-1]} {word}" if found[-1] else word
        if found[-1] and text_width(longer, size) > width:
            found.append(word)
        else:
            found[-1] = longer
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Of a target's metrics, the unit that suits their size."""

    word: str
    """What the metric is, for an axis."""
    unit: str
    factor: float
    """How many SI units it is."""

    def number(self, value: float) -> str:
        """A value without its unit."""
        return number_text(value / self.factor) if math.isfinite(value) else "no limit"

    def shown(self, value: float) -> str:
        """A value with its unit."""
        return f"{self.number(value)} {self.unit}" if math.isfinite(value) else "no limit"


_WORDS = {
    Target.LATENCY: "latency",
    Target.THROUGHPUT: "throughput",
    Target.ENERGY: "energy per request, modelled",
    Target.MEMORY: "peak memory on the fullest device",
    Target.BYTES: "bytes on the wire per request",
}
_SIZES = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
_UNITS: dict[Target, tuple[tuple[str, float], ...]] = {
    Target.LATENCY: (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)),
    Target.THROUGHPUT: (("requests/s", 1.0),),
    Target.ENERGY: (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6)),
    Target.MEMORY: _SIZES,
    Target.BYTES: _SIZES,
}


def scale_of(target: Target, values: Iterable[float]) -> Scale:
    """The largest unit of which the greatest of the finite values is at least one."""
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    units = _UNITS[target]
    unit, factor = next((u for u in units if most >= u[1]), units[-1])
    if not most:
        unit, factor = next((u for u in units if u[1] == 1.0), units[0])
    return Scale(word=_WORDS[target], unit=unit, factor=factor)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers that cover [low, high]: multiples of 1, 2 or 5 times a power of ten.

    From the last one that is not above `low` to the first one that is not below `high`.
    """
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low, low + 1.0] if low == high else [0.0, 1.0]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def tick_texts(marks: Sequence[float], room: float = math.inf, size: float = 11) -> list[str]:
    """The numbers at the ticks, with the digits that tell them apart and without what floats
    leave; "" at as many as it takes for the rest to have `room` from tick to tick."""
    step = min((after - before for before, after in pairwise(marks)), default=0.0)
    most = max(map(abs, marks), default=0.0)
    texts = [_tick_text(mark, step, most) for mark in marks]
    widest = max((text_width(text, size) for text in texts), default=0.0) + size
    every = max(1, math.ceil(widest / room))
    return [text if at % every == 0 else "" for at, text in enumerate(texts)]


def _tick_text(mark: float, step: float, most: float) -> str:
    if not step:
        return f"{mark:.6g}"
    decimals = -math.floor(math.log10(step) + 1e-9)
    if most >= 1e9 or decimals > 9:
        digits = max(1, math.floor(math.log10(most)) + 1 + decimals)
        return f"{mark:.{digits}g}"
    text = f"{mark:.{max(decimals, 0)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
