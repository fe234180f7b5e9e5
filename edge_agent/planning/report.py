"""The text of `plan --devices`: a table of distributions, and each of them told in full."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from textwrap import wrap

from edge_agent.distributions import Distribution, Infeasible, MemoryUse
from edge_agent.planning.accounts import Account, Prediction, ResourceUse, RouteAccount
from edge_agent.planning.cost import node_range
from edge_agent.planning.explain import clipped, main_operators
from edge_agent.planning.metrics import FULL, Computing, Leg, Sending, resource_text
from edge_agent.planning.placed import TEXT_WIDTH, wrapped
from edge_agent.planning.present import spared_text
from edge_agent.planning.short import (
    GAP_TO_FRONT,
    JOULES_TITLE,
    bytes_text,
    devices_text,
    gap_text,
    ms_text,
    number_text,
    rate_text,
    run_text,
    share_texts,
    value_text,
)
from edge_agent.plans import Target
from edge_agent.problems import Problem
from edge_agent.subgraphs import SegmentRange

_METRIC_TITLES = ("latency ms", "per s", JOULES_TITLE, "memory", "wire")
_LEAST_LAST = 12
_LEFT = frozenset({"for", "gap", GAP_TO_FRONT, "devices"})


def target_table(plans: Sequence[Distribution], *, knows_energy: bool = True) -> list[str]:
    """The metrics of distributions for different targets, a line each, under a title."""
    return _metric_table("for", [p.target for p in plans], "gap", plans, knows_energy)


def front_table(plans: Sequence[Distribution], *, knows_energy: bool = True) -> list[str]:
    """The metrics of a Pareto set, numbered from 1, with how far from the front each may be."""
    numbers = [str(number) for number in range(1, len(plans) + 1)]
    return _metric_table("no.", numbers, GAP_TO_FRONT, plans, knows_energy)


def _metric_table(
    title: str,
    names: Sequence[str],
    gap_title: str,
    plans: Sequence[Distribution],
    knows_energy: bool,
) -> list[str]:
    rows = [
        [name, *_metric_cells(p, knows_energy), gap_text(p.gap), devices_text(p.routes)]
        for name, p in zip(names, plans, strict=True)
    ]
    return _table([[title, *_METRIC_TITLES, gap_title, "devices"], *rows])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need; what is too long for the last one goes on below it."""
    titles = rows[0]
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles) - 1)]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if title in _LEFT else cell.rjust(width)
            for cell, width, title in zip(row[:-1], widths, titles[:-1], strict=True)
        )
        first, *more = wrap(row[-1], max(TEXT_WIDTH - indent, _LEAST_LAST), break_on_hyphens=False)
        lines.append("  ".join((*cells, first)))
        lines += [" " * indent + text for text in more]
    return lines


def _metric_cells(plan: Distribution, knows_energy: bool) -> list[str]:
    metrics = plan.metrics
    return [
        ms_text(metrics.latency_s),
        rate_text(metrics.throughput_per_s),
        number_text(metrics.energy_joules, 3) if knows_energy else "not known",
        bytes_text(metrics.peak_memory_bytes),
        bytes_text(metrics.wire_bytes),
    ]


def infeasible_lines(answers: Sequence[Infeasible]) -> list[str]:
    """That there is no distribution for some targets, and why; equal reasons are told once."""
    targets: dict[str, list[str]] = {}
    for answer in answers:
        doubt = "" if answer.is_certain else " (there may be one all the same: give more --effort)"
        targets.setdefault(f"{answer.reason}{doubt}", []).append(answer.target)
    return [
        line
        for reason, alike in targets.items()
        for line in wrapped(f"No distribution for {', '.join(alike)}: {reason}", "")
    ]


def notes(problem: Problem, accounts: Sequence[Account], *, knows_energy: bool = True) -> list[str]:
    """What is to be said of all of them: whose latency is told, what is spared or estimated, and
    of what no power is known."""
    lines: list[str] = []
    if any(len(told.distribution.routes) > 1 for told in accounts):
        text = "Where requests are spread over several routes, the latency is that of the slowest."
        lines += wrapped(text, "")
    for device in problem.devices:
        spared = spared_text(problem, device.id)
        if spared:
            lines += wrapped(f"{device.id} is left out: {spared}.", "")
    estimated = [str(device.id) for device in problem.devices if device.is_estimated]
    if estimated:
        text = f"Times are estimated from device profiles, not measured, of {', '.join(estimated)}."
        lines += wrapped(text, "")
    powerless = {
        str(p.device): None for one in accounts for p in one.predictions if not p.has_power
    }
    if powerless:
        so = "what it computes counts as 0 J" if knows_energy else "energies are not known"
        text = f"No power is known of {', '.join(powerless)}: {so}."
        lines += wrapped(text, "")
    return lines


def render(problem: Problem, told: Account, *, knows_energy: bool = True) -> str:
    """The text of `plan --devices --explain` for one distribution; at most 110 columns."""
    plan = told.distribution
    lines = [_headline(plan), *wrapped(_metrics_text(plan, knows_energy), "  ")]
    shares = share_texts([route.share for route in told.routes])
    for number, (route, share) in enumerate(zip(told.routes, shares, strict=True), start=1):
        lines += ["", _route_title(number, route, share if len(shares) > 1 else "")]
        lines += _leg_lines(problem, route.legs)
    lines += ["", *_resource_lines(problem, plan, told.resources)]
    lines += ["", *_memory_lines(told.memory)]
    if told.left_out:
        lines += ["", "Not used:"]
        for out in told.left_out:
            lines += wrapped(f"{out.device}: {out.reason}", "  ")
    others = (
        ("Runner-up, over other devices", told.runner_up),
        ("The best on one device", told.alone),
    )
    compared = [_other_text(plan, word, other) for word, other in others if other is not None]
    if compared:
        lines += ["", *(line for text in compared for line in wrapped(text, ""))]
    lines += ["", "How it is predicted:"]
    for prediction in told.predictions:
        lines += wrapped(_prediction_text(prediction, knows_energy), "  ")
    return "\n".join(lines) + "\n"


def _headline(plan: Distribution) -> str:
    target = plan.target
    head = f"For {target}: {value_text(target, plan.metrics.value(target))}, {gap_text(plan.gap)}"
    if plan.is_optimal:
        return head
    edge = "more" if target is Target.THROUGHPUT else "less"
    return f"{head}: none gives {edge} than {value_text(target, plan.bound)}"


def _metrics_text(plan: Distribution, knows_energy: bool) -> str:
    metrics = plan.metrics
    texts = {target: value_text(target, metrics.value(target)) for target in Target}
    if metrics.latency_error_s:
        texts[Target.LATENCY] += f" ± {number_text(metrics.latency_error_s * 1e3, 2)} ms"
    if len(plan.routes) > 1:
        texts[Target.LATENCY] += " on the slowest route"
    if not knows_energy:
        texts[Target.ENERGY] = "its energy is not known"
    return (
        f"latency {texts[Target.LATENCY]}, {texts[Target.THROUGHPUT]}, {texts[Target.ENERGY]}, "
        f"{texts[Target.MEMORY]} in the fullest memory, {texts[Target.BYTES]} on the wire per "
        "request"
    )


def _route_title(number: int, route: RouteAccount, share: str) -> str:
    """`share` is empty of the only one."""
    idle = "when it finds everything idle"
    if not share:
        return f"The route of every request, {ms_text(route.latency_s)} ms {idle}:"
    return f"Route {number}, {share} of the requests, {ms_text(route.latency_s)} ms {idle}:"


def _leg_lines(problem: Problem, found: Sequence[Leg]) -> Iterator[str]:
    yield f"{'at ms':>9} {'takes ms':>9}"
    for leg in found:
        head = f"{ms_text(leg.start_s):>9} {ms_text(leg.took_s):>9}  "
        first, *rest = wrapped(_leg_text(problem, leg, TEXT_WIDTH - len(head)), " " * len(head))
        yield head + first.lstrip()
        yield from rest


def _leg_text(problem: Problem, leg: Leg, width: int) -> str:
    match leg:
        case Computing():
            start, stop = node_range(problem.summary, leg.segments)
            branches = getattr(leg.what, "branches", ())
            which = f", branches {', '.join(map(str, branches))}" if branches else ""
            counted = main_operators(problem.summary, leg.segments)
            head = (
                f"{leg.device}/{leg.what.configuration} runs {_segments_text(leg.segments)}{which},"
            )
            if start == stop:
                return f"{head} which has no nodes"
            word = "nodes" if stop - start > 1 else "node"
            head += f" {word} {run_text(start, stop)}: "
            operators = " ".join(f"{name}×{often}" for name, often in counted)
            return head + clipped(operators, max(width - len(head), 12))
        case Sending():
            link = leg.link
            medium = f" over {link.medium}" if link.medium else ""
            wire = f" as {link.wire}" if link.wire else ""
            return (
                f"{link.source} → {link.target}{medium}, {_boundary_text(problem, leg.boundary)}: "
                f"{bytes_text(leg.sent_bytes)}{wire}: latency {ms_text(link.latency_s)}, wire "
                f"{ms_text(leg.wire_s)}, processors {ms_text(leg.send_s)} and "
                f"{ms_text(leg.receive_s)}"
            )


def _segments_text(segments: SegmentRange) -> str:
    return f"segment{'s' if len(segments) > 1 else ''} {segments}"


def _boundary_text(problem: Problem, boundary: int) -> str:
    """What is sent there."""
    if boundary == 0:
        return "the inputs"
    if boundary == len(problem.summary.segments):
        return "the outputs"
    return f"what segment {boundary} and later need"


def _resource_lines(problem: Problem, plan: Distribution, uses: Sequence[ResourceUse]) -> list[str]:
    if not uses:
        return ["Nothing is busy: nothing takes any time."]
    rate = rate_text(plan.metrics.throughput_per_s)
    lines = [f"Busy at {rate} requests per second, the most that the plan gives:"]
    full = [use for use in uses if use.busy_fraction >= FULL]
    word = "the bottleneck" if len(full) == 1 else "a bottleneck"
    for use in uses:
        what = resource_text(problem, use.name)
        note = f", {word}" if use in full else ""
        lines.append(f"  {use.busy_fraction:6.1%}  {what}{note}")
    return lines


def _memory_lines(uses: Sequence[MemoryUse]) -> list[str]:
    lines = ["Memory, of what may be used:"]
    for use in uses:
        share = use.used_bytes / use.budget_bytes if use.budget_bytes else 1.0
        lines.append(
            f"  {share:6.1%}  {use.name}: {bytes_text(use.used_bytes)} of "
            f"{bytes_text(use.budget_bytes)}"
        )
    return lines


def _other_text(plan: Distribution, word: str, other: Distribution) -> str:
    target = plan.target
    mine, its = plan.metrics.cost(target), other.metrics.cost(target)
    if other.routes == plan.routes:
        return f"{word}: this one"
    own_value, value = (value_text(target, one.metrics.value(target)) for one in (plan, other))
    text = f"{word}: {devices_text(other.routes)}: {value}"
    if value == own_value:
        return f"{text}, as good as this one"
    if not mine or not math.isfinite(its):
        return text
    share = mine / its if target is Target.THROUGHPUT else its / mine
    return f"{text}, {_times_text(share)} times this one"


def _times_text(share: float) -> str:
    """With the digits that tell it from 1, which it is not."""
    texts = (f"{share:.{digits}g}" for digits in range(3, 17))
    return next((text for text in texts if text != "1"), "1")


def _prediction_text(prediction: Prediction, knows_energy: bool) -> str:
    off = f"off by {prediction.error_fraction:.0%} in the median"
    so = ", so its energy counts as 0" if knows_energy else ""
    energy = "" if prediction.has_power else f"; its power is not known{so}"
    now = "" if prediction.slowdown == 1.0 else f"; now {prediction.slowdown:.3g} times as long"
    basis = "from measured times of this model"
    if prediction.is_estimated:
        basis = "estimated from its device profile"
    if prediction.estimated_because:
        now += f"; {prediction.estimated_because}"
    return f"{prediction.device}: {basis}, {off}{now}{energy}"
