"""Distributions and their metrics in a few words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

from edge_agent.devices import DeviceId
from edge_agent.distributions import PlacedFork, PlacedSubgraph, Route, Step
from edge_agent.plans import Target

GAP_TO_FRONT = "gap to front"
"""What the gap of a member of a Pareto set is called: how much better, in the target that it was
made for, one that is no worse in the others may be."""
JOULES_TITLE = "J, modelled"
"""The title of a column of energies: no meter reads what a plan will draw."""
_LEAST_WHOLE = 0.0095
"""From here on a share is shown in whole per cents."""


def devices_text(routes: Sequence[Route], names: Mapping[DeviceId, str] | None = None) -> str:
    """Which devices take part in each route and with what share: `62 % lab → pi, 38 % pi`.

    Routes over the same devices in the same order are told as one. `names`: what devices are called
    there; None: as their ids.
    """
    shares: dict[str, float] = {}
    for route in routes:
        way = _devices(route, names or {})
        shares[way] = shares.get(way, 0.0) + route.share
    if len(shares) == 1:
        return next(iter(shares))
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    texts = share_texts([share for _, share in ordered])
    return ", ".join(f"{text} {way}" for text, (way, _) in zip(texts, ordered, strict=True))


def devices_of_step(step: Step) -> tuple[DeviceId, ...]:
    """That of a subgraph; the home of a fork, then the other devices of its arms."""
    match step:
        case PlacedSubgraph():
            return (step.device,)
        case PlacedFork():
            return (step.home, *sorted({arm.device for arm in step.arms} - {step.home}))


def share_texts(shares: Sequence[float]) -> list[str]:
    """Shares of the traffic in per cent, `62 %`, that add up to what the shares do; all have two
    decimals if one is below one per cent. Rounded by largest remainders (Hare, A Treatise on the
    Election of Representatives, 1859)."""
    digits = 0 if min(shares, default=1.0) >= _LEAST_WHOLE else 2
    unit = 100 * 10**digits
    exact = [share * unit for share in shares]
    counts = [int(number) for number in exact]
    left = round(sum(exact)) - sum(counts)
    by_rest = sorted(range(len(exact)), key=lambda at: (counts[at] - exact[at], at))
    for at in by_rest[: max(left, 0)]:
        counts[at] += 1
    least = f"< {10**-digits:g} %"
    return [
        f"{count / 10**digits:.{digits}f} %" if count or not share else least
        for count, share in zip(counts, shares, strict=True)
    ]


def gap_text(gap: float) -> str:
    """Only what is known to be the best is called so."""
    if gap == 0.0:
        return "optimal"
    # Rounded up: what is printed must not promise too much.
    per_cent = gap * 100
    if per_cent == float("inf"):
        return "gap not known"
    digits = 1 if per_cent < 99.95 else 0
    step = 10.0**-digits
    shown = round(-(-per_cent // step) * step, digits)
    return f"gap ≤ {shown:.{digits}f} %"


def run_text(start: int, stop: int) -> str:
    """The members of [start, stop), as in "3-7"; "-" if there is none."""
    if start == stop:
        return "-"
    return f"{start}-{stop - 1}" if stop - start > 1 else str(start)


def number_text(number: float, digits: int = 4) -> str:
    """A number with so many digits, and all of those before its point; powers of ten only where
    there would be a dozen digits or more."""
    if not math.isfinite(number):
        return f"{number:g}"
    if 10.0 ** (digits - 1) <= abs(number) < 1e12:
        return f"{number:.0f}"
    shown = f"{number:.{digits}g}"
    if "e-" not in shown or abs(number) < 1e-6:
        return shown
    decimals = digits - 1 - math.floor(math.log10(abs(number)))
    return f"{number:.{decimals}f}".rstrip("0")


def ms_text(duration_s: float | None, *, signed: bool = False) -> str:
    """Milliseconds with three or four digits; `-` for what is not known."""
    if duration_s is None:
        return "-"
    duration_ms = duration_s * 1e3
    digits = next((d for d, above in enumerate((1e4, 1e2, 1.0)) if abs(duration_ms) >= above), 3)
    return f"{duration_ms:+.{digits}f}" if signed else f"{duration_ms:.{digits}f}"


def rate_text(per_s: float) -> str:
    """A throughput without its unit."""
    return number_text(per_s) if math.isfinite(per_s) else "no limit"


def bytes_text(size_bytes: float, digits: int = 3) -> str:
    """Bytes in the unit that a person would use."""
    for unit, factor in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if size_bytes >= factor:
            return f"{number_text(size_bytes / factor, digits)} {unit}"
    return f"{size_bytes:.0f} B"


def value_text(target: Target, value: float) -> str:
    """A metric with its unit; an energy is called modelled."""
    return _value_text(target, value, 3 if target in (Target.MEMORY, Target.BYTES) else 4)


def apart_texts(target: Target, limit: float, value: float) -> tuple[str, str]:
    """Two values as of `value_text`, with the digits that tell them apart if they differ."""
    found = [
        (_value_text(target, limit, digits), _value_text(target, value, digits))
        for digits in range(4, 17)
    ]
    return next((texts for texts in found if texts[0] != texts[1]), found[0])


def _value_text(target: Target, value: float, digits: int) -> str:
    if not math.isfinite(value):
        return "no limit"
    match target:
        case Target.LATENCY:
            return f"{number_text(value * 1e3, digits)} ms"
        case Target.THROUGHPUT:
            return f"{number_text(value, digits)} requests per second"
        case Target.ENERGY:
            return f"{number_text(value, digits)} J per request (modelled)"
        case Target.MEMORY | Target.BYTES:
            return bytes_text(value, digits)


def name_text(target: Target) -> str:
    """What a value of the target is called where only its unit stands beside it."""
    return f"{target}, modelled" if target is Target.ENERGY else str(target)


def _devices(route: Route, names: Mapping[DeviceId, str]) -> str:
    ways = (_devices_of(step, names) for step in route.steps)
    return " → ".join(way for way, _ in groupby(ways))


def _devices_of(step: Step, names: Mapping[DeviceId, str]) -> str:
    return " | ".join(names.get(device, device) for device in devices_of_step(step))
