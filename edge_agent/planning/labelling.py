"""Where labels go beside marks, so that no mark and no other label hides them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

HEIGHT = 11.0
"""Of a label's box."""
_NEAR, _RINGS, _STEP = 9.0, 7, 9.0
_APART = 6.0
"""Between labels beside each other, so that 8 and 9 do not read as 89."""
_DIRECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle in the drawing; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, x: float, y: float, radius: float) -> Box:
        """The square around a mark."""
        return cls(left=x - radius, top=y - radius, right=x + radius, bottom=y + radius)

    def overlap(self, other: Box) -> float:
        """The area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(width, 0.0) * max(height, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A label of a mark at (x, y)."""

    x: float
    y: float
    width: float


def place(wanted: Sequence[Wanted], marks: Sequence[Box], inside: Box) -> tuple[Box, ...]:
    """A box for each label, near its mark, free of `marks` and apart from each other.

    Where there is no such box, the one of which the least is covered.
    """
    taken = list(marks)
    found = []
    for one in wanted:
        best = min(_hidden(_boxes(one), taken, inside), key=lambda pair: pair[0])[1]
        found.append(best)
        taken.append(replace(best, left=best.left - _APART, right=best.right + _APART))
    return tuple(found)


def _hidden(boxes: Iterator[Box], taken: Sequence[Box], inside: Box) -> Iterator[tuple[float, Box]]:
    """(area that is covered or outside, box), up to the first of which nothing is."""
    for box in boxes:
        area = (box.right - box.left) * (box.bottom - box.top)
        hidden = area - box.overlap(inside) + sum(box.overlap(other) for other in taken)
        # What floats leave of an area is none.
        if hidden < 1e-6:
            yield 0.0, box
            return
        yield hidden, box


def _boxes(one: Wanted) -> Iterator[Box]:
    """The nearest first, and of those as near, first to the upper right."""
    for ring in range(_RINGS):
        reach = _NEAR + ring * _STEP
        for turn in range(_DIRECTIONS):
            angle = math.tau * (turn / _DIRECTIONS + 1 / 8)
            x, y = one.x + reach * math.cos(angle), one.y - reach * math.sin(angle)
            # The corner or side that faces the mark is at (x, y).
            left = x - one.width * (1.0 - math.cos(angle)) / 2
            top = y - HEIGHT * (1.0 + math.sin(angle)) / 2
            yield Box(left=left, top=top, right=left + one.width, bottom=top + HEIGHT)
