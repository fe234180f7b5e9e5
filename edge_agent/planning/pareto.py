"""The Pareto set: distributions of which none is better than another in every chosen target.

First the best one for each target. Then, for the targets that add up over a route, weighted sums of
them, whose best routes are on the front; many weightings in one sweep. Then the gaps between
neighbours are filled by bounds: the best for one target while another keeps to what lies between
the two (the epsilon-constraint method of Haimes, Lasdon and Wismer, IEEE Transactions on Systems,
Man, and Cybernetics 1, 1971), the widest gap first, while the effort lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from edge_agent.distributions import Distribution, Infeasible, Route
from edge_agent.planning.amounts import CLOSE, amounts
from edge_agent.planning.metrics import evaluate
from edge_agent.planning.planner import EFFORT, attempt, caps_of, plan, tables_of
from edge_agent.planning.shortest import Weights, as_route, cheapest
from edge_agent.plans import ADDITIVE, Bound, Target
from edge_agent.problems import Problem

_WEIGHTINGS = 16
_MOST_POINTS = 40
_BEST_EFFORT = 0.15
"""Share of the effort for the best one of each target, and for each point between."""
_POINT_EFFORT = 0.06
_MOST_GAPS = int(1.0 / _POINT_EFFORT)
_NEAR = 0.01
"""Neighbours closer than this, as a share of the range of a target, have no gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Distributions that are not worse than another one in every target, best first for the first
    target; or why there are none."""

    targets: tuple[Target, ...]
    distributions: tuple[Distribution, ...]
    infeasible: tuple[Infeasible, ...] = ()


def pareto(
    problem: Problem,
    targets: Sequence[Target],
    effort: float = EFFORT,
    report: Callable[[float], None] = lambda _fraction: None,
) -> Front:
    """The Pareto set over `targets`, one at least of which is best for each; see the module.

    Each distribution has the bound that holds under the bounds it was found with. `report` hears
    after each step how much is done, above 0 to 1, and changes nothing.

    Raises:
        ValueError: no target is given, or one twice.
    """
    if not targets or len(set(targets)) < len(targets):
        raise ValueError(f"targets: got {', '.join(targets) or 'none'}, want each once")
    search = _Front(problem=problem, targets=tuple(targets), effort=effort, report=report)
    search.best_of_each()
    search.weighted()
    search.between()
    report(1.0)
    return Front(
        targets=tuple(targets),
        distributions=tuple(search.front()),
        infeasible=tuple(search.infeasible),
    )


@dataclass(slots=True, kw_only=True)
class _Front:
    problem: Problem
    targets: tuple[Target, ...]
    effort: float
    report: Callable[[float], None]
    points: list[Distribution] = field(default_factory=list)
    infeasible: list[Infeasible] = field(default_factory=list)
    _tried: set[tuple[Target, Target, float]] = field(default_factory=set)
    _steps: int = 0

    def _end_step(self) -> None:
        self._steps += 1
        # One more, for what is left when the last gap is filled.
        self.report(self._steps / (len(self.targets) + _MOST_GAPS + 1))

    def costs(self, found: Distribution) -> tuple[float, ...]:
        return tuple(found.metrics.cost(target) for target in self.targets)

    def best_of_each(self) -> None:
        for target in self.targets:
            found = plan(self.problem, target, self.effort * _BEST_EFFORT)
            if isinstance(found, Infeasible) and not found.is_certain:
                found = plan(self.problem, target, self.effort)
            if isinstance(found, Infeasible):
                self.infeasible.append(found)
            else:
                self.points.append(found)
            self._end_step()

    def weighted(self) -> None:
        """Routes of weighted sums of the additive targets."""
        additive = [target for target in self.targets if target in ADDITIVE]
        if len(additive) < 2 or not self.points:
            return
        # For the latency alone, fewer ways to run forks would do.
        tables = tables_of(self.problem, next(t for t in additive if t is not Target.LATENCY))
        assert tables is not None, "there is a distribution"
        caps = caps_of(tables)
        rows = list(_simplex(len(additive), _WEIGHTINGS))
        shares = np.array(rows)
        scales = [
            min((p.metrics.value(t) for p in self.points if p.metrics.value(t) > 0.0), default=1.0)
            for t in additive
        ]
        none = Weights.none(tables, len(rows))
        columns = {t: shares[:, i] / scales[i] for i, t in enumerate(additive)}
        weights = replace(
            none,
            seconds=columns.get(Target.LATENCY, none.seconds),
            joules=columns.get(Target.ENERGY, none.joules),
            size_bytes=columns.get(Target.BYTES, none.size_bytes),
        )
        paths = cheapest(tables, weights)
        for b in range(len(rows)):
            pieces = paths.pieces(b)
            route = as_route(tables, pieces)
            if caps.allows(amounts(tables, pieces)) and self._is_fast_enough([route]):
                self._add(additive[0], [route], is_best=tables.forks.is_whole)

    def _is_fast_enough(self, routes: Sequence[Route]) -> bool:
        rate = self.problem.bound(Target.THROUGHPUT) or 0.0
        return evaluate(self.problem, routes).throughput_per_s >= rate

    def _add(self, target: Target, routes: Sequence[Route], *, is_best: bool) -> None:
        """A route that is best for some weighting, if `is_best`: then no other is better in all
        targets."""
        metrics = evaluate(self.problem, routes)
        bound = metrics.value(target) if is_best else 0.0
        self.points.append(
            Distribution(target=target, routes=tuple(routes), metrics=metrics, bound=bound)
        )

    def between(self) -> None:
        """Fill the widest gaps."""
        if len(self.targets) < 2:
            return
        for _ in range(_MOST_GAPS):
            if len(self.points) >= _MOST_POINTS:
                return
            gap = self._widest_gap()
            if gap is None:
                return
            limited, limit, target = gap
            bounded = _bounded(self.problem, limited, limit)
            found = attempt(bounded, target, self.effort * _POINT_EFFORT)
            if found is not None:
                self.points.append(found)
            self._end_step()

    def _widest_gap(self) -> tuple[Target, float, Target] | None:
        """(target to bound, its limit, target to plan for) in the middle of the widest gap."""
        front = self.front()
        widest: tuple[float, Target, float, Target] | None = None
        for index, limited in enumerate(self.targets):
            values = sorted({self.costs(point)[index] for point in front})
            if len(values) < 2 or not math.isfinite(values[-1]):
                continue
            span = values[-1] - values[0]
            for low, high in pairwise(values):
                width = (high - low) / span
                limit = low + (high - low) / 2
                for target in self.targets:
                    key = (limited, target, limit)
                    is_new = target is not limited and key not in self._tried
                    if is_new and width > _NEAR and (widest is None or width > widest[0]):
                        widest = (width, limited, limit, target)
        if widest is None:
            return None
        _, limited, limit, target = widest
        self._tried.add((limited, target, limit))
        return limited, limit, target

    def front(self) -> list[Distribution]:
        """The points that no other one equals or beats in every target, without doubles."""
        kept: list[tuple[tuple[float, ...], Distribution]] = []
        for point in sorted(self.points, key=self.costs):
            own = self.costs(point)
            if not any(_is_as_good(other, own) for other, _ in kept):
                # What was first by a rounding alone may be worse in the rest.
                kept = [pair for pair in kept if not _is_as_good(own, pair[0])]
                kept.append((own, point))
        return [point for _, point in kept]


def _is_as_good(costs: Sequence[float], others: Sequence[float]) -> bool:
    """Whether no cost is above the other one by more than rounding."""
    return all(a <= b * (1.0 + CLOSE) for a, b in zip(costs, others, strict=True))


def _bounded(problem: Problem, target: Target, cost: float) -> Problem:
    """The problem with one more bound: at most that cost."""
    limit = 1.0 / cost if target is Target.THROUGHPUT else cost
    others = tuple(bound for bound in problem.bounds if bound.target is not target)
    before = problem.bound(target)
    if before is not None:
        limit = max(limit, before) if target is Target.THROUGHPUT else min(limit, before)
    return replace(problem, bounds=(*others, Bound(target=target, limit=limit)))


def _simplex(count: int, most: int) -> Iterator[tuple[float, ...]]:
    """Weights of sum 1, none of them 0, spread over `count` targets, at most about `most`."""
    if count == 1:
        yield (1.0,)
        return
    steps = max(1, math.floor(most ** (1.0 / (count - 1))))
    for own in np.geomspace(1e-3, 1.0 - 1e-3, steps):
        for rest in _simplex(count - 1, max(1, most // steps)):
            yield (float(own), *((1.0 - float(own)) * share for share in rest))
