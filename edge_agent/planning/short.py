"""Distributions in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from edge_agent.distributions import PlacedFork, PlacedSubgraph, Route, Step


def devices_text(routes: Sequence[Route]) -> str:
    """Which devices take part in each route and with what share: `62 % lab → pi, 38 % pi`.

    Routes over the same devices in the same order are told as one.
    """
    shares: dict[str, float] = {}
    for route in routes:
        way = _devices(route)
        shares[way] = shares.get(way, 0.0) + route.share
    if len(shares) == 1:
        return next(iter(shares))
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{share_text(share)} {way}" for way, share in ordered)


def share_text(share: float) -> str:
    """A share of the traffic: `62 %`; less than one per cent with two digits."""
    return f"{share * 100:.0f} %" if share >= 0.0095 else f"{share * 100:.2g} %"


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


def bytes_text(size_bytes: float) -> str:
    """Bytes in the unit that a person would use."""
    for unit, factor in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if size_bytes >= factor:
            size = size_bytes / factor
            return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"
    return f"{size_bytes:.0f} B"


def _devices(route: Route) -> str:
    names = [str(name) for step in route.steps for name in _devices_of(step)]
    return " → ".join(name for name, _ in groupby(names))


def _devices_of(step: Step) -> tuple[str, ...]:
    match step:
        case PlacedSubgraph():
            return (str(step.device),)
        case PlacedFork():
            others = sorted({str(arm.device) for arm in step.arms} - {str(step.home)})
            return (f"{step.home} | {' | '.join(others)}",) if others else (str(step.home),)
