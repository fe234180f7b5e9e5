"""From a problem to a subnetwork distribution for each target, with what nothing can beat.

- Latency, energy and bytes: one route, a shortest path. Exact; where a budget or a bound binds,
  the search of labels.py. For the latency, forks may run at once.
- Throughput, and anything at a rate: a mixture of routes, mixing.py.
- Peak memory: one route whose fullest memory is least.

Of the mixtures found that are as fast, one is taken whose slowest route is the quickest (ties.py).
Ties of routes are broken by the latency, then by fewer subgraphs, then by the order of devices and
configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_agent.distributions import Distribution, Infeasible, Route
from edge_agent.planning.alone import most_of_branches
from edge_agent.planning.amounts import (
    CLOSE,
    Aim,
    Amounts,
    Bottleneck,
    Caps,
    amounts,
    memory_columns,
)
from edge_agent.planning.branches import with_forks, with_needed_forks
from edge_agent.planning.greatest import least_greatest
from edge_agent.planning.labels import Found, best_route
from edge_agent.planning.legality import objections
from edge_agent.planning.metrics import evaluate
from edge_agent.planning.missing import obstacle
from edge_agent.planning.mixing import Mixed, mix
from edge_agent.planning.mixture import SHORT, Column, Wish
from edge_agent.planning.pipelines import best_pipeline
from edge_agent.planning.shortest import Pieces, Weights, as_route, cheapest
from edge_agent.planning.tables import Floats, Tables, is_at_rate, tabulate
from edge_agent.planning.ties import quickest_as_fast
from edge_agent.planning.unlisted import least_cost
from edge_agent.plans import Target
from edge_agent.problems import Problem

EFFORT = 2_000_000.0
"""About two seconds of a desktop processor, for the searches that may take any time."""
_OTHERS = (Target.LATENCY, Target.MEMORY)
"""What is searched for instead, where nothing was found, but there may be something."""
_FIRST_EFFORT = 0.3
"""Share of the effort for what runs no forks at once, or those that end soonest, where the model
has some: other ways are seldom better but for the memory."""
_NEAR = 0.01
"""A gap that is left of a long model's mixture."""


def plan(problem: Problem, target: Target, effort: float = EFFORT) -> Distribution | Infeasible:
    """The best distribution for `target` that keeps to budgets, bounds, pins and bans.

    `effort` limits the searches that may take any time, in about microseconds of a desktop
    processor; the more, the smaller the gap. Equal inputs give equal answers.
    """
    found = _searched(problem, target, effort)
    if isinstance(found, _Nothing) and not found.is_certain:
        found = _instead(problem, target, effort) or found
    if isinstance(found, Distribution):
        return found
    told = obstacle(problem, target, effort)
    if told.fitting is not None and not objections(problem, (told.fitting,)):
        return _met(problem, target, (told.fitting,), effort)
    is_certain = found.is_certain or told.is_certain
    return Infeasible(target=target, reason=told.text, is_certain=is_certain, missing=told.missing)


def attempt(problem: Problem, target: Target, effort: float = EFFORT) -> Distribution | None:
    """As `plan`, but where nothing is found no other search is tried, and nothing is said of why
    there is none: both take time of their own."""
    found = _searched(problem, target, effort)
    return found if isinstance(found, Distribution) else None


def _searched(problem: Problem, target: Target, effort: float) -> Distribution | _Nothing:
    tables = tabulate(problem, target)
    if tables is None:
        return _Nothing(is_certain=True)
    first, least = _among_few(tables, target, effort)
    if first is not None:
        answer = _answer(problem, target, first)
        if answer.is_optimal:
            return answer
    search = _Search.of(_with_forks(tables, target), target, effort)
    found = search.run()
    if isinstance(found, _Found):
        found = replace(found, bound=search.bound(found, least))
        if first is not None and search.value(first) < search.value(found):
            found = replace(first, bound=found.bound)
    elif first is not None:
        found = first
    else:
        return _Nothing(is_certain=found.is_certain and search.is_whole)
    return _answer(problem, target, found)


def _among_few(tables: Tables, target: Target, effort: float) -> tuple[_Found | None, float | None]:
    """What is found among few ways to run forks, others being seldom better, and what nothing can
    beat whatever ways they run; None: it was not looked for."""
    if target is Target.LATENCY:
        search = _Search.of(with_needed_forks(tables), target, effort)
        found, least = search.quickest_of_all()
        if search.is_whole:
            return found, least
    elif target is not Target.MEMORY and _may_fork(tables.problem):
        # Of what costs as little, the quickest may have forks.
        is_rate = target is Target.THROUGHPUT
        some = tables if is_rate else with_forks(tables, target, is_quickest=True)
        search = _Search.of(some, target, effort * _FIRST_EFFORT)
        outcome = search.run()
        found = outcome if isinstance(outcome, _Found) else None
    else:
        return None, None
    if found is None:
        return None, None
    least = least_cost(tables, target, caps_of(tables), effort, found.columns)
    return replace(found, bound=least), least


def _may_fork(problem: Problem) -> bool:
    return problem.with_branches and bool(problem.summary.forks)


def _answer(problem: Problem, target: Target, found: _Found) -> Distribution:
    """The answer, with its metrics."""
    metrics = evaluate(problem, found.routes)
    cost, least = metrics.cost(target), found.bound
    if cost <= least * (1.0 + CLOSE):
        least = cost
    if target is Target.THROUGHPUT:
        least = 1.0 / least if least else float("inf")
    return Distribution(target=target, routes=found.routes, metrics=metrics, bound=least)


def _met(
    problem: Problem, target: Target, routes: tuple[Route, ...], effort: float
) -> Distribution:
    """Routes that were not searched for, with what nothing can beat."""
    tables = tabulate(problem, target)
    assert tables is not None, "there are routes"
    least = least_cost(tables, target, caps_of(tables), effort)
    return _answer(problem, target, _Found(routes=routes, bound=least))


def _instead(problem: Problem, target: Target, effort: float) -> Distribution | None:
    """What another search finds: where memory is tight, it may meet what one misses."""
    for other in _OTHERS:
        found = None if other is target else attempt(problem, other, effort / 2.0)
        if found is not None:
            return _met(problem, target, found.routes, effort)
    return None


def _nothing_known(target: Target) -> float:
    """The bound of which nothing is known."""
    return float("inf") if target is Target.THROUGHPUT else 0.0


def exchanged(
    problem: Problem, answers: Sequence[Distribution | Infeasible]
) -> tuple[Distribution | Infeasible, ...]:
    """The answers for several targets, where one for another target takes the place of what is
    worse: not all searches are exact, and each may have met what another one missed."""
    found = [answer for answer in answers if isinstance(answer, Distribution)]
    return tuple(_best_of(problem, answer, found) for answer in answers)


def _best_of(
    problem: Problem, answer: Distribution | Infeasible, others: Sequence[Distribution]
) -> Distribution | Infeasible:
    target = answer.target
    if isinstance(answer, Infeasible) and answer.is_certain:
        return answer
    is_rate = is_at_rate(problem, target)
    allowed = [
        other
        for other in others
        if is_rate
        or all(part.configuration.instances == 1 for r in other.routes for part in r.parts())
    ]
    if not allowed:
        return answer
    best = min(allowed, key=lambda other: other.metrics.cost(target))
    if isinstance(answer, Infeasible):
        return replace(best, target=target, bound=_nothing_known(target))
    if best.metrics.cost(target) < answer.metrics.cost(target) * (1.0 - CLOSE):
        return replace(best, target=target, bound=answer.bound)
    return answer


def tables_of(problem: Problem, target: Target) -> Tables | None:
    """The arrays of a problem, forks among the choices; None if no device may do anything."""
    tables = tabulate(problem, target)
    if tables is not None and target is Target.LATENCY and is_free(tables):
        return with_forks(tables, target, is_quickest=True)
    return None if tables is None else _with_forks(tables, target)


def _with_forks(tables: Tables, target: Target) -> Tables:
    most = _most_memory(tables) + most_of_branches(tables)
    is_sized = target is Target.MEMORY or bool((most > tables.memory_limits).any())
    return with_forks(tables, target, is_quickest=False, is_sized=is_sized)


def is_free(tables: Tables) -> bool:
    """Whether neither a budget nor a bound can bind."""
    is_capped = bool(np.isfinite(caps_of(tables).row).any())
    return not is_capped and tables.problem.bound(Target.THROUGHPUT) is None


def caps_of(tables: Tables) -> Caps:
    """What each route must keep to: bounds, and the budgets that can bind."""
    problem = tables.problem
    budgets = tables.memory_limits
    return Caps(
        seconds=_limit(problem, Target.LATENCY),
        joules=_limit(problem, Target.ENERGY),
        size_bytes=_limit(problem, Target.BYTES),
        loads=np.full(len(tables.resources), np.inf),
        memory=np.where(_most_memory(tables) <= budgets, np.inf, budgets),
    )


def _limit(problem: Problem, target: Target) -> float:
    bound = problem.bound(target)
    return np.inf if bound is None else bound


def _most_memory(tables: Tables) -> Floats:
    """(pools,): no distribution has more there: everything in every form, cut everywhere."""
    per_choice = tables.weights.sum(axis=0) + tables.arenas.sum(axis=0) * tables.places
    most = np.zeros(len(tables.pools))
    np.add.at(most, tables.pool_of, per_choice)
    most += tables.forks.demands[:, memory_columns(tables)].sum(axis=0)
    return most


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Routes with shares, and the least cost that there can be: seconds per request for the
    throughput, else the metric."""

    routes: tuple[Route, ...]
    bound: float
    columns: tuple[Column, ...] = ()
    """Of a mixture: its routes, and others that were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nothing:
    is_certain: bool


_Outcome = _Found | _Nothing


@dataclass(slots=True, kw_only=True)
class _Search:
    problem: Problem
    tables: Tables
    target: Target
    effort: float
    caps: Caps

    @classmethod
    def of(cls, tables: Tables, target: Target, effort: float) -> _Search:
        """The search in these tables."""
        return cls(
            problem=tables.problem,
            tables=tables,
            target=target,
            effort=effort,
            caps=caps_of(tables),
        )

    @property
    def is_whole(self) -> bool:
        """Whether no way to run forks was left out that may be better."""
        return self.tables.forks.is_whole

    @property
    def rate(self) -> float:
        """Requests per second that are asked for at least."""
        return self.problem.bound(Target.THROUGHPUT) or 0.0

    def bound(self, found: _Found, least: float | None) -> float:
        """The bound of what was found, or, where ways to run forks were left out, one that holds
        for all; `least`: such a one, if it is known."""
        if self.is_whole:
            return found.bound
        if least is None:
            least = least_cost(self.tables, self.target, self.caps, self.effort, found.columns)
        return min(found.bound, least)

    def run(self) -> _Outcome:
        match self.target:
            case Target.THROUGHPUT:
                return self._fastest()
            case Target.MEMORY:
                return self._least_memory()
            case Target.LATENCY:
                return self._quickest()
            case Target.ENERGY | Target.BYTES:
                return self._cheapest()

    # A mixture

    def _fastest(self) -> _Outcome:
        if self.problem.most_routes == 1:
            found = self._fastest_alone()
        else:
            mixed = self._mix(Wish(target=self.target))
            if mixed.shares:
                shares = quickest_as_fast(self.tables, self.caps, mixed.shares, mixed.others)
                mixed = replace(mixed, shares=shares)
            found = self._mixed(mixed)
        if not isinstance(found, _Found) or not self.rate:
            return found
        if self._serves(found.routes):
            return found
        return _Nothing(is_certain=found.bound * self.rate > 1.0 + CLOSE)

    def _serves(self, routes: Sequence[Route]) -> bool:
        """Whether routes with their shares reach the rate that is asked for."""
        return evaluate(self.problem, routes).throughput_per_s >= self.rate * (1.0 - CLOSE)

    def _mixed(self, mixed: Mixed) -> _Outcome:
        if not mixed.shares:
            return _Nothing(is_certain=bool(np.isinf(mixed.bound)))
        routes = (
            replace(as_route(self.tables, column.pieces), share=share)
            for column, share in mixed.shares
        )
        columns = (*(column for column, _ in mixed.shares), *(mixed.others or ()))
        return _Found(routes=tuple(routes), bound=mixed.bound, columns=columns)

    def _mix(self, wish: Wish) -> Mixed:
        most_routes = self.problem.most_routes
        if wish.target in (Target.LATENCY, Target.MEMORY):
            return least_greatest(self.tables, wish, self.caps, self.effort, most_routes)
        return mix(self.tables, wish, self.caps, self.effort, most_routes)

    def _at_rate(self, aim: Aim, least: float) -> _Outcome:
        """What reaches the rate at the least cost; `least` is a bound without it."""
        if self.problem.most_routes == 1:
            return self._one_at_rate(aim)
        mixed = self._mix(Wish(target=self.target, least_per_s=self.rate))
        found = self._mixed(mixed)
        if isinstance(found, _Nothing) and found.is_certain:
            return found
        least = max(mixed.bound, least)
        if mixed.value > least * (1.0 + self._near):
            alone = self._one_at_rate(aim)
            if isinstance(alone, _Found) and self.value(alone) < mixed.value:
                found = alone
        return replace(found, bound=least) if isinstance(found, _Found) else found

    @property
    def _near(self) -> float:
        """How near its bound a mixture is good enough: of a long model one route alone takes long
        to find."""
        return CLOSE if self.tables.places <= SHORT else _NEAR

    def _one_at_rate(self, aim: Aim) -> _Outcome:
        """The cheapest route that reaches the rate alone."""
        return self._single(best_route(self.tables, aim, self._with_rate(), effort=self.effort))

    def _single(self, found: Found) -> _Outcome:
        """A route that has all of the traffic."""
        if found.pieces is None:
            return _Nothing(is_certain=bool(np.isinf(found.bound)))
        return _Found(routes=(as_route(self.tables, found.pieces),), bound=found.bound)

    def value(self, found: _Found) -> float:
        """The metric of the target."""
        return evaluate(self.problem, found.routes).cost(self.target)

    # One route

    def _with_rate(self) -> Caps:
        """The caps that one route alone must keep to."""
        if not self.rate:
            return self.caps
        return replace(self.caps, loads=np.full(len(self.tables.resources), 1.0 / self.rate))

    def _alone(self, weights: Weights, caps: Caps) -> tuple[Pieces | None, float]:
        """The cheapest route under the caps, and what none can beat; infinity if there is none."""
        paths = cheapest(self.tables, weights)
        least = float(paths.totals[0])
        if not np.isfinite(least):
            return None, least
        pieces = paths.pieces(0)
        if caps.allows(amounts(self.tables, pieces)):
            return pieces, least
        found = best_route(self.tables, weights, caps, effort=self.effort)
        return found.pieces, max(found.bound, least)

    def _cheapest(self) -> _Outcome:
        """Least energy or bytes."""
        weights = Weights.of(self.tables, self.target)
        pieces, least = self._alone(weights, self.caps)
        if pieces is None:
            return _Nothing(is_certain=bool(np.isinf(least)))
        pieces = self._tied(weights, pieces)
        found = _Found(routes=(as_route(self.tables, pieces),), bound=least)
        if not self.rate or self._serves(found.routes):
            return found
        return self._at_rate(weights, least)

    def _tied(self, weights: Weights, pieces: Pieces) -> Pieces:
        """The quickest of the routes that cost as little."""
        before = amounts(self.tables, pieces)
        cost = _cost(weights, before)
        whole = 0.25 if weights.size_bytes.any() else max(cost, 1e-12) * CLOSE / 8
        per_second = whole / max(before.seconds, 1e-12)
        little = replace(weights, seconds=weights.seconds + per_second)
        tied, _ = self._alone(little, self.caps)
        if tied is None:
            return pieces
        after = amounts(self.tables, tied)
        is_as_good = _cost(weights, after) <= cost * (1.0 + CLOSE)
        return tied if is_as_good and after.seconds < before.seconds else pieces

    def quickest_of_all(self) -> tuple[_Found | None, float]:
        """The quickest route, if it keeps to everything that is asked; seconds that none takes less
        than."""
        paths = cheapest(self.tables, Weights.of_time(self.tables))
        least_s = float(paths.totals[0])
        if not np.isfinite(least_s):
            return None, least_s
        pieces = paths.pieces()
        found = _Found(routes=(as_route(self.tables, pieces),), bound=least_s)
        is_allowed = self.caps.allows(amounts(self.tables, pieces))
        is_enough = is_allowed and (not self.rate or self._serves(found.routes))
        return (found if is_enough else None), least_s

    def _quickest(self) -> _Outcome:
        weights = Weights.of_time(self.tables)
        pieces, least = self._alone(weights, self.caps)
        if pieces is None:
            return _Nothing(is_certain=bool(np.isinf(least)))
        found = _Found(routes=(as_route(self.tables, pieces),), bound=least)
        if not self.rate or self._serves(found.routes):
            return found
        return self._at_rate(weights, least)

    def _fastest_alone(self) -> _Outcome:
        """The fastest route alone."""
        if self.caps.is_sized:
            return self._single(best_pipeline(self.tables, self.caps, self.effort))
        return self._bottleneck(Bottleneck.LOADS)

    def _bottleneck(self, aim: Bottleneck) -> _Outcome:
        return self._single(best_route(self.tables, aim, self.caps, effort=self.effort))

    def _least_memory(self) -> _Outcome:
        """The least memory on the fullest device, and of such routes the quickest."""
        found = self._bottleneck(Bottleneck.MEMORY)
        if not isinstance(found, _Found):
            return found
        least = found.bound
        if self.rate and not self._serves(found.routes):
            return self._at_rate(Bottleneck.MEMORY, least)
        needed = evaluate(self.problem, found.routes).peak_memory_bytes
        weights = Weights.of_time(self.tables)
        pieces, _ = self._alone(weights, replace(self._with_rate(), memory=self._at_most(needed)))
        if pieces is None:
            return found
        return _Found(routes=(as_route(self.tables, pieces),), bound=least)

    def _at_most(self, size_bytes: float) -> Floats:
        return np.minimum(self.caps.memory, size_bytes)


def _cost(weights: Weights, found: Amounts) -> float:
    """What a route costs that has a price on joules or bytes alone."""
    return float(weights.joules[0]) * found.joules + float(weights.size_bytes[0]) * found.size_bytes
