"""Quantities as people write them, "34 GB/s": a number and its unit, to and from SI numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_WRITTEN = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf|-inf)\s*(\S.*?)?\s*")
_THOUSANDS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What a kind of quantity is counted in."""

    name: str
    example: str
    factors: Mapping[str, float]
    """Of each unit it may be written in, what one of it is in the SI unit; that one has 1."""
    most: float
    """In the SI unit. Beyond it a number is a slip of the pen, and sums of it lose the rest."""
    least: float = 0.0
    """Of what is above 0."""


def _sizes(suffix: str = "") -> dict[str, float]:
    decimal = {f"{prefix}B{suffix}": factor for prefix, factor in _THOUSANDS.items()}
    binary = {f"{prefix}iB{suffix}": 1024.0**power for power, prefix in enumerate("KMGT", start=1)}
    return decimal | binary


SIZE = Measure(name="bytes", example="8 GiB", factors=_sizes(), most=1e17)
BANDWIDTH = Measure(
    name="bytes per second", example="34 GB/s", factors=_sizes("/s"), most=1e17, least=1.0
)
DURATION = Measure(
    name="seconds",
    example="20 us",
    factors={"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9},
    most=86_400.0,
)
PACE = Measure(
    name="seconds per byte",
    example="0.6 ns/B",
    factors={"s/B": 1.0, "us/B": 1e-6, "ns/B": 1e-9, "ps/B": 1e-12, "s/GB": 1e-9},
    most=1e-3,
)
POWER = Measure(name="watts", example="2.7 W", factors={"W": 1.0, "mW": 1e-3, "kW": 1e3}, most=1e6)
RATE = Measure(
    name="operations per second, a multiply-add as two",
    example="76.8 GFLOP/s",
    factors={
        f"{prefix}{unit}": factor
        for unit in ("OP/s", "FLOP/s")
        for prefix, factor in _THOUSANDS.items()
    },
    most=1e18,
    least=1.0,
)


def parse(text: str, measure: Measure) -> float:
    """The number in the SI unit.

    Raises:
        ValueError: it is no number, has no unit or one of another kind, is negative, without end
            or outside of the measure's range; the message is what is wrong and what is wanted, to
            be put behind a place.
    """
    number = _number(text, measure)
    if number > measure.most or 0.0 < number < measure.least:
        least = f"at least {written(measure.least, measure)} and " if measure.least else ""
        raise ValueError(
            f'got "{text}", {_want(measure)}, {least}at most {written(measure.most, measure)}'
        )
    return number


def _number(text: str, measure: Measure) -> float:
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise ValueError(f'got "{text}", {_want(measure)}')
    unit = found[2] or ""
    if unit not in measure.factors:
        raise ValueError(f'got "{text}", {_want(measure)}, in one of {", ".join(measure.factors)}')
    number = float(found[1]) * measure.factors[unit]
    if math.isnan(number) or number < 0:
        raise ValueError(f'got "{text}", {_want(measure)}, a number of at least 0')
    return number


def _want(measure: Measure) -> str:
    return f'want {measure.name} as in "{measure.example}"'


def written(number: float, measure: Measure) -> str:
    """The number with the unit in which it is shortest; `parse` gives exactly it again,
    if it is within the measure's range."""
    options = [
        f"{_digits(number / factor)} {unit}"
        for unit, factor in measure.factors.items()
        if number and 1 <= number / factor < 1000
    ]
    exact = [text for text in options if _number(text, measure) == number]
    plain = f"{_digits(number)} {next(u for u, f in measure.factors.items() if f == 1.0)}"
    return min((*exact, plain), key=len)


def _digits(number: float) -> str:
    number = float(number)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
