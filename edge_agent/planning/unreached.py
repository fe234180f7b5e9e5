"""Why no route leads where it should: links, pins, and what cannot be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from edge_agent.devices import DeviceId
from edge_agent.planning.metrics import crossing_bytes
from edge_agent.planning.short import bytes_text
from edge_agent.problems import Problem


def why_unreached(problem: Problem, device: DeviceId, leads: Callable[[Problem], bool]) -> str:
    """What keeps every route from a device; `leads` says of a problem whether any, whatever it
    costs, runs a segment there."""
    found = _unlinked(problem, device) or what_blocks(problem, leads)
    if found:
        return found
    segments = range(len(problem.summary.segments))
    if all(set(segments) <= set(times.refused) for times in problem.device(device).times):
        return "its units refuse all segments"
    return "what its units take of the model cannot be handed over to them and back"


def what_blocks(problem: Problem, leads: Callable[[Problem], bool]) -> str:
    """Of what cannot be sent and of pins, that without which `leads` holds: each by itself or,
    where none does that, all of them together; empty if not even that helps."""
    found = list(_obstacles(problem))
    alone = [text for text, without in found if leads(without(problem))]
    if alone:
        return "; ".join(alone)
    free = problem
    for _, without in found:
        free = without(free)
    if found and leads(free):
        return "; ".join(text for text, _ in found)
    return ""


def _unlinked(problem: Problem, device: DeviceId) -> str:
    """That links do not lead there and back; empty if they do."""
    links = {(link.source, link.target) for link in problem.links}
    owner = problem.owner
    there = device in _reached(owner, links)
    back = owner in _reached(device, links)
    if there and back:
        return ""
    if not there and not back:
        return f"no link leads there from {owner}, and none back"
    return f"no link leads {f'back from it to {owner}' if there else f'there from {owner}'}"


def _reached(start: DeviceId, links: set[tuple[DeviceId, DeviceId]]) -> set[DeviceId]:
    """Where links lead to, over other devices too."""
    found, at = {start}, [start]
    while at:
        here = at.pop()
        for source, target in sorted(links):
            if source == here and target not in found:
                found.add(target)
                at.append(target)
    return found


def _obstacles(problem: Problem) -> Iterator[tuple[str, Callable[[Problem], Problem]]]:
    """(what may be in the way, the problem without it)."""
    sizes = _unknown_sizes(problem)
    if sizes:
        yield sizes, _with_known_sizes
    limits = [
        f"{device.id} takes {bytes_text(device.most_crossing_bytes)}"
        for device in problem.devices
        if device.most_crossing_bytes is not None
    ]
    if limits:
        text = f"what would be sent is more than is taken at once ({', '.join(limits)})"
        yield text, _without_limits
    if problem.pins:
        wanted = dict.fromkeys(
            f'"{pin.pattern}" on {pin.device}' + (f"/{pin.unit}" if pin.unit else "")
            for pin in problem.pins
        )
        yield f"pins forbid it ({', '.join(wanted)})", _without_pins


def _unknown_sizes(problem: Problem) -> str:
    """Which sizes of what would be sent are not known; empty if all are."""
    owner, last = problem.owner, len(problem.summary.segments)
    inner = [p for p in range(1, last) if crossing_bytes(problem, p) is None]
    parts = []
    if problem.input_bytes is None:
        parts.append(f"the size of the inputs is not known, so the first segment runs on {owner}")
    if problem.output_bytes is None:
        parts.append(
            "the size of the outputs is not known before they are computed, so the last segment "
            f"runs on {owner}"
        )
    if parts and last == 1:
        parts[-1] += ", and there is no other segment"
    if inner:
        of = f"{len(inner)} of the {last - 1} places" if last > 2 else "the one place"
        parts.append(
            f"at {of} where the model may be divided, what crosses has no known size or cannot "
            "leave its device"
        )
    return "; ".join(parts)


def _with_known_sizes(problem: Problem) -> Problem:
    summary = problem.summary
    cuts = tuple(
        replace(cut, crossing_bytes=cut.crossing_bytes or 0, others=()) for cut in summary.cuts
    )
    return replace(
        problem,
        summary=replace(summary, cuts=cuts),
        input_bytes=problem.input_bytes or 0,
        output_bytes=problem.output_bytes or 0,
    )


def _without_limits(problem: Problem) -> Problem:
    devices = (replace(device, most_crossing_bytes=None) for device in problem.devices)
    return replace(problem, devices=tuple(devices))


def _without_pins(problem: Problem) -> Problem:
    return replace(problem, pins=())
