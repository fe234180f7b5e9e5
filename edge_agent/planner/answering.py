"""What is asked of the planner, step by step, so that it can be told how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_agent.distributions import Distribution, Infeasible, Planned
from edge_agent.errors import BadRequest
from edge_agent.planning.pareto import pareto
from edge_agent.planning.planner import EFFORT, exchanged, plan
from edge_agent.plans import Target
from edge_agent.problems import Problem

Report = Callable[[float, str], None]
"""Takes how far it is, 0 to 1, and what comes next."""


def answer(
    problem: Problem,
    targets: Sequence[Target] = (),
    *,
    is_pareto: bool = False,
    effort: float | None = None,
    report: Report = lambda _fraction, _what: None,
) -> Planned:
    """The best distribution for each target, and the Pareto set over them if it is wanted.

    Without `targets`, every target whose metric is known. `effort` as in `planning.planner.plan`.

    Raises:
        BadRequest: energy is asked for and not known, or a target twice.
    """
    check_targets(problem, targets)
    wanted = tuple(targets) or known_targets(problem)
    effort = EFFORT if effort is None else effort
    steps = len(wanted) + is_pareto
    best: list[Distribution | Infeasible] = []
    for done, target in enumerate(wanted):
        report(done / steps, f"the best for {target}")
        best.append(plan(problem, target, effort))
    best = list(exchanged(problem, best))
    front: tuple[Distribution, ...] = ()
    if is_pareto:

        def report_front(fraction: float) -> None:
            report((len(wanted) + fraction) / steps, "the Pareto set")

        report_front(0.0)
        front = pareto(problem, wanted, effort, report_front).distributions
    return Planned(best=tuple(best), front=front, knows_energy=knows_energy(problem))


def known_targets(problem: Problem) -> tuple[Target, ...]:
    """The targets whose metric is known."""
    is_known = knows_energy(problem)
    return tuple(t for t in Target if is_known or t is not Target.ENERGY)


def knows_energy(problem: Problem) -> bool:
    """Whether it is known of every device what it draws."""
    return not _without_power(problem)


def check_targets(problem: Problem, targets: Sequence[Target]) -> None:
    """See that what is asked for can be told. Raises: BadRequest."""
    if len(set(targets)) < len(targets):
        raise BadRequest(f"targets: got one twice among {', '.join(targets)}")
    asked = (*targets, *(bound.target for bound in problem.bounds))
    unknown = _without_power(problem)
    if Target.ENERGY in asked and unknown:
        raise BadRequest(
            f"energy: it is not known what {', '.join(unknown)} draws; `plan --devices` takes it "
            "from the keys power.idle and units.NAME.busy of device profiles: add them there, or "
            "ask for other targets, and bound others"
        )


def _without_power(problem: Problem) -> list[str]:
    return [d.id for d in problem.devices if not any(unit.busy_w > 0.0 for unit in d.units)]
