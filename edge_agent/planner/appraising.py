"""What the planner answers of a loaded model: the best distributions, and what they are held
against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge_agent.distributions import (
    Alone,
    Appraisal,
    Distribution,
    Infeasible,
    LeftOut,
    PlacedSubgraph,
    Planned,
)
from edge_agent.errors import BadRequest
from edge_agent.planner.answering import Report, answer
from edge_agent.planner.posing import Posed
from edge_agent.planning.accounts import memory_uses
from edge_agent.planning.alternatives import compare, devices_of, each_alone, over_several
from edge_agent.planning.missing import why_idle
from edge_agent.planning.planner import EFFORT, attempt
from edge_agent.plans import Target
from edge_agent.problems import Problem

_ANSWERED = 0.7
"""How far it is when the best distributions are known, if there is something to hold them
against."""

Answer = Distribution | Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is wanted of a loaded model."""

    targets: Sequence[Target] = ()
    is_pareto: bool = False
    effort: float | None = None
    """As `answering.answer` takes it."""
    is_divided: bool = False
    """Whether two devices at least have to compute, whether it pays or not."""
    is_compared: bool = False
    """Whether it is to be told what the best with each device would give that takes no part."""


def answer_loaded(
    posed: Posed, wanted: Wanted, report: Report = lambda _fraction, _what: None
) -> Planned:
    """The best distribution for each target with its appraisal, and the Pareto set if it is wanted.

    Where the owner keeps the whole model in memory, what it does alone is among the best all the
    same; it is not in the Pareto set if that is where it does not fit beside.

    Raises:
        BadRequest: as `answering.answer`.
    """
    problem, names = posed.problem, posed.names
    has_others = len(problem.devices) > 1
    share = _ANSWERED if has_others else 1.0

    def report_answer(fraction: float, what: str) -> None:
        report(fraction * share, what)

    try:
        planned = answer(
            problem,
            wanted.targets,
            is_pareto=wanted.is_pareto,
            effort=wanted.effort,
            report=report_answer,
        )
    except BadRequest as error:
        raise BadRequest(_called(posed, str(error))) from error
    best: list[Answer] = []
    appraisals: list[Appraisal] = []
    for number, found in enumerate(planned.best):
        if has_others:
            done = _ANSWERED + (1.0 - _ANSWERED) * number / len(planned.best)
            report(done, f"what else there is for {found.target}")
        chosen, appraisal = _appraised(posed, found, wanted)
        best.append(chosen)
        appraisals.append(appraisal)
    return replace(
        planned,
        best=tuple(best),
        appraisals=tuple(appraisals),
        notes=posed.notes,
        names=names,
        narrowed=tuple((k.source, k.target) for k in problem.links if k.wire is not None),
        division=problem.summary.division,
    )


def _called(posed: Posed, text: str) -> str:
    """A text for people, with devices called by their names: ids are long and occur by no
    chance."""
    for device, name in posed.names:
        text = text.replace(device, name)
    return text


def _appraised(posed: Posed, found: Answer, wanted: Wanted) -> tuple[Answer, Appraisal]:
    problem, target = posed.problem, found.target
    effort = EFFORT if wanted.effort is None else wanted.effort
    singles = _singles(posed, found, effort)
    within = problem
    if posed.whole is not None:
        whole = next((one for one in singles if problem.owner in devices_of(one)), None)
        found = found if whole is None else _better(found, whole)
        if isinstance(found, Distribution) and devices_of(found) == {problem.owner}:
            within = posed.whole
    if wanted.is_divided and isinstance(found, Distribution) and len(devices_of(found)) < 2:
        within = problem
        found = over_several(problem, found, effort) or Infeasible(
            target=target,
            reason="nothing was found in which two devices compute",
            is_certain=len(problem.devices) == 1,
        )
    if isinstance(found, Infeasible):
        found = replace(found, reason=_called(posed, found.reason))
    return found, _appraisal(posed, within, found, singles, wanted)


def _singles(posed: Posed, found: Answer, effort: float) -> Sequence[Distribution]:
    """The best that each device can do without the others, the best of them first; the owner with
    all of its memory."""
    problem, target = posed.problem, found.target
    if len(problem.devices) == 1:
        return [found] if isinstance(found, Distribution) else []
    singles = each_alone(problem, target, effort)
    if posed.whole is None:
        return singles
    whole = attempt(posed.whole, target, effort)
    made = [one for one in singles if problem.owner not in devices_of(one)]
    made += [] if whole is None else [whole]
    return sorted(made, key=lambda one: one.metrics.cost(target))


def _better(found: Answer, whole: Distribution) -> Distribution:
    """The better of what was found and of what the owner can do alone with all of its memory; none
    of both kinds is better than both bounds."""
    target = whole.target
    if isinstance(found, Infeasible):
        is_all = found.is_certain
        unknown = float("inf") if target is Target.THROUGHPUT else 0.0
        return whole if is_all else replace(whole, bound=unknown)
    pick = max if target is Target.THROUGHPUT else min
    is_better = whole.metrics.cost(target) < found.metrics.cost(target)
    return replace(whole if is_better else found, bound=pick(whole.bound, found.bound))


def _appraisal(
    posed: Posed,
    within: Problem,
    found: Answer,
    singles: Sequence[Distribution],
    wanted: Wanted,
) -> Appraisal:
    """`within`: the problem whose memory the answer keeps to."""
    problem = posed.problem
    alone = tuple(
        Alone(device=device, metrics=one.metrics) for one in singles for device in devices_of(one)
    )
    if isinstance(found, Infeasible):
        return Appraisal(alone=alone, left_out=posed.left_out)
    used = devices_of(found)
    left_out: Sequence[LeftOut] = ()
    if wanted.is_compared and len(problem.devices) > 1:
        effort = EFFORT if wanted.effort is None else wanted.effort
        left_out = compare(problem, found, effort).left_out
    else:
        reasons = (
            (device.id, why_idle(problem, device, found.target))
            for device in problem.devices
            if device.id not in used
        )
        left_out = [LeftOut(device=device, reason=reason) for device, reason in reasons if reason]
    return Appraisal(
        memory=memory_uses(within, found.routes),
        estimated=tuple(
            device.id
            for device in problem.devices
            if device.id != problem.owner and _is_estimated(posed, found, device.id)
        ),
        alone=alone,
        left_out=tuple(
            replace(out, reason=_called(posed, out.reason)) for out in (*posed.left_out, *left_out)
        ),
    )


def _is_estimated(posed: Posed, found: Distribution, device: str) -> bool:
    """Whether a device runs segments in a configuration in which they were not measured there."""
    for route in found.routes:
        for part in route.parts():
            if part.device != device or not isinstance(part, PlacedSubgraph):
                continue
            measured = posed.measured[part.device].get(part.configuration, frozenset())
            if not measured.issuperset(range(part.segments.start, part.segments.stop)):
                return True
    return False
